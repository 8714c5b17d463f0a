"""Blocking twins of `keepstate.sessions.resource`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

from keepstate._finish import finish
from keepstate.sessions import resource as sessions
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=sessions.Resource)


class Resource(Twin[Inner]):
    """Releases its storage binding on exit; an object that borrows a binding releases nothing."""

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Release the store. A store, handle or space that was passed in open stays open."""
        finish(self._inner.close())
