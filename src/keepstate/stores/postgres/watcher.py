"""Detection of other processes' changes by polling the revisions of watched spaces, on its own connection.

NOTIFY would be faster, but it takes a lock over the whole database at each commit, and poolers do not forward
it. So the watcher polls: often while spaces change, rarely while they do not.
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
"""Factor by which each quiet round is longer than the last: 50 ms are reached after a third of a second."""


class Watcher:
    """Compares the revisions of spaces with those of its last round."""

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
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
