"""Blocking twins of `keepstate.managers.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from keepstate._finish import finish
from keepstate.managers import manager as managers
from keepstate.managers.sizes import AlertCallback, ManagerSize
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=managers.Manager)


class Manager(Twin[Inner]):
    """The part that every manager has."""

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Let go of the store; the last one to do so closes it. What was passed in open stays open."""
        finish(self._inner.close())

    def size(self) -> ManagerSize:
        """Return how much is kept, and tell those who want to hear.

        It reads the spaces that have changed since this manager last measured them. A space that was passed
        counts whole, with what others keep in it.
        """
        return finish(self._inner.size())

    def on_size_alert(
        self, *, limit_bytes: int | None = None, growth_per_hour: int | None = None, callback: AlertCallback
    ) -> None:
        """Call a function when more is kept than it should be; again when that happens again.

        The size is measured by `size`, and by writes of this manager: at most every 30 seconds, or every
        `save_interval` of `StateConfig`.

        Args:
            limit_bytes: More than so much altogether.
            growth_per_hour: More than so much within the last hour, as far as this manager has measured.
            callback: Gets a `SizeAlert`.
        """
        self._inner.on_size_alert(limit_bytes=limit_bytes, growth_per_hour=growth_per_hour, callback=callback)

    def cleanup(self, *, older_than: timedelta) -> int:
        """Remove what is over and has not been written for so long, and return how much that was.

        Args:
            older_than: By the store's clock.
        """
        return finish(self._inner.cleanup(older_than=older_than))
