"""Abilities that a store may have, and the fallbacks for a store without them.

* `listen`: change notifications, pushed by the store, otherwise polled every 50 ms.
* `last_changes_ms`: the times of spaces' last changes, otherwise unknown.
* `content_name`: names derived from content, keyed by an encrypted store, otherwise a plain digest.
  Invariant: digests become part of a key, or of a text that leaves the process, only here.
* `LossDetector`: detection of lost history, by stores whose server may lose acknowledged writes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from typing import cast

from keepstate.errors import HistoryLostError
from keepstate.stores.protocol import (
    DetectsLosses,
    Listener,
    Listening,
    NamesObjects,
    ReportsLastChange,
    Store,
)
from keepstate.values.refs import DIGEST_SIZE

_POLL_S = 0.05
"""Seconds between two polls of a store that does not queue hints for a listener that is not waiting."""


@cache
def has_ability(kind: type, ability: type) -> bool:
    """Return whether stores of a class implement a protocol. Cached: the check costs as much as a read."""
    return issubclass(kind, ability)


class LossDetector:
    """The number of losses of history known at the time of a read, to be compared later.

    A server that lost acknowledged writes continues from a lower revision. Versions and tokens from before
    the loss may then match later writes of other clients. Every object that holds data of a space (a unit, a
    lease, a claimed task, a watch) therefore compares the number of losses that the store has noticed.

    Args:
        store: The store of the space.
        space: The name of the space in the store.
        name: The name of the space in messages.
    """

    __slots__ = ("_name", "_space", "_store", "known")

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store = cast("DetectsLosses", store) if has_ability(type(store), DetectsLosses) else None
        self._space, self._name = space, name
        self.known = self._count()

    def _count(self) -> int | None:
        return None if self._store is None else self._store.losses(self._space)

    @property
    def has_lost_history(self) -> bool:
        """True if the store has noticed a loss of history since this detector was created."""
        return self._count() != self.known

    def verify(self) -> None:
        """Raise `HistoryLostError` if the data that was read is invalid because of a loss."""
        if self.has_lost_history:
            raise HistoryLostError(
                f"space {self._name!r} lost acknowledged writes since this was read. Read everything again",
                space=self._name,
            )


class _PollingListener:
    def __init__(self, store: Store, spaces: Sequence[str]) -> None:
        self._store, self._spaces = store, spaces

    async def wait(self, timeout_s: float) -> None:
        await self._store.wait(self._spaces, min(timeout_s, _POLL_S))

    def close(self) -> None:
        return


def listen_to(store: Store, spaces: Sequence[str]) -> Listener:
    """Return a listener that receives every hint of some spaces from now on. The caller closes it."""
    if has_ability(type(store), Listening):
        return cast("Listening", store).listen(spaces)
    return _PollingListener(store, spaces)


async def last_changes_ms(store: Store, spaces: Sequence[str]) -> list[int | None]:
    """Return the time of each space's last revision; None if the store does not know it."""
    if not spaces or not has_ability(type(store), ReportsLastChange):
        return [None] * len(spaces)
    return [*await cast("ReportsLastChange", store).changed_ms(spaces)]


@asynccontextmanager
async def listen(store: Store, space: str) -> AsyncGenerator[Listener]:
    """Yield a listener that receives every hint of the space from now on."""
    listener = listen_to(store, [space])
    try:
        yield listener
    finally:
        listener.close()


def content_name(store: Store, space: str, content: bytes) -> bytes:
    """Return the 20-byte name of content in a space: keyed by the store, otherwise a truncated SHA-256.

    A plain digest lets every reader verify a guess of the content. An encrypted store therefore keys these
    names with a secret of its own. Names that callers choose are not digests, and stay readable.
    """
    return keyed_name(store, space, content) or sha256(content).digest()[:DIGEST_SIZE]


def keyed_name(store: Store, space: str, content: bytes) -> bytes | None:
    """Return the keyed name of content in a space, or None if the store does not key names.

    Args:
        store: The opened store.
        space: The name of the space in the store.
        content: The bytes to name.
    """
    if not has_ability(type(store), NamesObjects):
        return None
    return cast("NamesObjects", store).object_name(space, content)
