"""The base of the public classes of sessions: an async context manager that releases its store."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from keepstate.engine.kernel.single_use import reject_with
from keepstate.sessions.binding import StoreBinding


class Resource:
    """Releases its storage binding on exit; an object that borrows a binding releases nothing."""

    _closing: StoreBinding | None = None

    if not TYPE_CHECKING:  # hidden from type checkers, which then reject `with`
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the store. A store, handle or space that was passed in open stays open."""
        if self._closing is not None:
            await self._closing.close()
