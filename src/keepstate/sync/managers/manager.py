"""Blocking twins of `keepstate.managers.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Self, TypeVar

from keepstate._finish import finish
from keepstate.managers import manager as managers
from keepstate.managers.sizes import AlertCallback, ManagerSize
from keepstate.sync.binding import Resource

Inner = TypeVar("Inner", bound=managers.Manager)


class Manager(Resource[Inner]):
    """The base class of every manager."""

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def close(self) -> None:
        """End subscriptions, and release the store. Its last user closes it.

        A store that was passed in open stays open.
        """
        finish(self._inner.close())

    def size(self) -> ManagerSize:
        """Measure the stored data, and call the size alerts whose bounds it exceeds.

        Reads only the spaces that changed since the last measurement. A space that was passed in is counted
        whole, including data that other code stored in it.
        """
        return finish(self._inner.size())

    def on_size_alert(
        self, *, limit_bytes: int | None = None, growth_per_hour: int | None = None, callback: AlertCallback
    ) -> None:
        """Call a function each time the size rises above a bound.

        The size is measured by `size`, and after writes of this manager at most every 30 seconds (every
        `save_interval` of `StateConfig`).

        Args:
            limit_bytes: Alert when the total size is larger.
            growth_per_hour: Alert when the size grew by more bytes within the last hour, as far as it was
                measured.
            callback: Receives a `SizeAlert`.
        """
        self._inner.on_size_alert(limit_bytes=limit_bytes, growth_per_hour=growth_per_hour, callback=callback)

    def cleanup(self, *, older_than: timedelta) -> int:
        """Remove finished subjects and records that were not written recently, and return their number.

        Args:
            older_than: Minimum time since the last write, by the store's clock.
        """
        return finish(self._inner.cleanup(older_than=older_than))
