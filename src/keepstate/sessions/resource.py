"""What the parts of sessions have in common that users make: each is a block, and lets go of its store."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from keepstate.engine.kernel.single_use import reject_with
from keepstate.sessions.binding import Home


class Kept:
    """Lets go of its home at the end; one that stands in another's home has nothing to let go of."""

    _closing: Home | None = None

    if not TYPE_CHECKING:  # who checks types is told without it
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the store; what was passed in open stays open."""
        if self._closing is not None:
            await self._closing.close()
