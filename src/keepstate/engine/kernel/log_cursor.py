"""Hints about some keys of a space only.

A hint says that a space has changed, and not where. Work that looks at many places, such as a waiting claim,
would look at all of them for every event that is appended. One read of the log tells whether any change
concerns its keys. The log decides nothing else: work that is woken looks at the entries themselves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from keepstate._clock import Clock
from keepstate.engine.kernel.store_abilities import listen
from keepstate.errors import CompactedError, HistoryLostError
from keepstate.stores.protocol import Listener, Store

_AT_ONCE = 64
"""Changes that one read of the log asks for."""


class LogCursor:
    """A place in the log of a space, from which changes of some keys are looked for.

    Args:
        store: The opened store.
        space: The name of the space in the store.
        prefixes: The beginnings of the keys.
    """

    def __init__(self, store: Store, space: str, prefixes: tuple[bytes, ...]) -> None:
        self._store, self._space, self._prefixes = store, space, prefixes
        self._revision: int | None = None

    async def has_changed(self) -> bool:
        """Return whether one of the keys may have changed since the last call; True for the first one.

        Look at the entries after this call, so that the next call finds a later change. The answer is
        also True if the log does not reach back far enough.
        """
        if self._revision is None:
            self._revision = (await self._store.read(self._space, [])).revision
            return True
        has_changed = False
        while not has_changed:
            try:
                changes = await self._store.changes(self._space, self._revision, limit=_AT_ONCE)
            except (CompactedError, HistoryLostError):
                self._revision = None
                return await self.has_changed()
            has_changed = any(change.key.startswith(self._prefixes) for change in changes.items)
            if changes.upto == self._revision:
                return has_changed
            self._revision = changes.upto
        return has_changed


class _SelectiveListener:
    def __init__(self, listener: Listener, cursor: LogCursor, clock: Clock) -> None:
        self._listener, self._cursor, self._clock = listener, cursor, clock

    async def wait(self, timeout_s: float) -> None:
        now_s = self._clock.monotonic_s()
        deadline_s = now_s + timeout_s
        while now_s < deadline_s:
            await self._listener.wait(deadline_s - now_s)
            now_s = self._clock.monotonic_s()
            if now_s < deadline_s and await self._cursor.has_changed():
                return

    def close(self) -> None:
        self._listener.close()


@asynccontextmanager
async def listen_about(
    store: Store, space: str, prefixes: tuple[bytes, ...], clock: Clock
) -> AsyncGenerator[Listener]:
    """Yield a listener that waits for changes of keys with these prefixes, and overlooks others."""
    cursor = LogCursor(store, space, prefixes)
    async with listen(store, space) as hints:
        await cursor.has_changed()
        yield _SelectiveListener(hints, cursor, clock)
