"""Hears of what other processes do: asks for the revisions of the watched spaces, on a connection of its own.

NOTIFY would be quicker, but takes a lock over the whole database at each commit, and no pooler passes it on.
So this asks: often while something happens, seldom while nothing does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from keepstate._clock import Clock
from keepstate._runner import Signal
from keepstate.stores.postgres.client import Client
from keepstate.stores.postgres.connection import Connection
from keepstate.stores.postgres.wire import byteas, from_byteas, from_int8s

_SHORTEST_S: Final = 0.002
_LONGEST_S: Final = 0.05
_SLOWER: Final = 1.25
"""Each quiet round is so much longer than the one before: 50 ms are reached after a third of a second."""


class Watcher:
    """Compares revisions with those it saw last."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._connection: Connection | None = None
        self._seen: dict[str, int] = {}
        self._pause_s = _SHORTEST_S

    async def wait(self, spaces: Collection[str], timeout_s: float, *, nudge: Signal) -> Collection[str]:
        """Return spaces that changed, or were not watched before; none after `timeout_s` or a nudge."""
        until_s = self._clock.monotonic_s() + timeout_s
        while not (changed := await self._changed(spaces)):
            if self._clock.monotonic_s() >= until_s or await nudge.wait(self._pause_s):
                return ()
            self._pause_s = min(self._pause_s * _SLOWER, _LONGEST_S)
        self._pause_s = _SHORTEST_S
        return changed

    async def _changed(self, spaces: Collection[str]) -> list[str]:
        if self._connection is None or not self._connection.is_alive():
            self._connection = await self._client.connect()
        answer = await self._client.ask_on(
            self._connection, "revisions", byteas([space.encode() for space in spaces])
        )
        names = [name.decode() for name in from_byteas(answer.get_value(0, 0))]
        now = {
            **dict.fromkeys(spaces, 0),
            **dict(zip(names, from_int8s(answer.get_value(0, 1)), strict=True)),
        }
        before, self._seen = self._seen, now
        return [space for space, revision in now.items() if before.get(space) != revision]

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
