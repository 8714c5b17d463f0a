"""Erasure of an owner in a tenant: the spaces of the owner's subjects, and their parts of shared spaces.

The index of `find` names the subjects. A subject with a space of its own loses that space. A subject in the
space of another one is expunged from it by its prefix, `KIND/ID/`. The state of the user, in `user/OWNER` or
under that prefix, goes too. At last the log of the index is trimmed, because it names what was erased.

An entry in the space of the index names the shared spaces until the end, because a subject may leave the
index before its space is done. So an interrupted call is completed by the next one. It is not isolated from
writers: what they write for the owner during the call may remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from keepstate.engine.index.carrier import Carrier
from keepstate.engine.index.rows import Found
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import Home
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.stored import decode_stored, describe
from keepstate.engine.kernel.subjects import Subject, owner_of
from keepstate.engine.space.erasure import Erased, read_archive, scrub
from keepstate.engine.space.expunge import expunge
from keepstate.names import escape, stored_name
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Delete, Put, Store, TrimsLogs
from keepstate.values.key import pack

_USER: Final = "user"
_PASSES: Final = 8
"""The number of listings; after that, writers add subjects faster than they are erased."""
_AT_ONCE: Final = 100
_UNOWNED: Final = (
    "sessions that have ended, and data that names this person, but is not a subject of this owner"
)


class OwnersHome(Home, Protocol):
    """A handle as the erasure of an owner uses it."""

    def space(self, name: str) -> Any:
        """Return a space."""
        ...

    async def find(self, *, owner: str, after: str | None, limit: int) -> Page[Found]:
        """Return one page of the subjects of an owner."""
        ...

    async def deliver(self) -> int:
        """Carry all outboxes of the tenant."""
        ...

    async def drop(self, space: str) -> bool:
        """Delete a space with its log."""
        ...


class _Erasure:
    """The counts of one erasure."""

    def __init__(self, ks: OwnersHome, store: Store, tenant: str | None) -> None:
        self._ks, self._store, self._tenant = ks, store, tenant
        self.spaces = set[str]()
        self.entries = self.size_bytes = 0
        self.archives = set[Path]()

    async def drop(self, space: str) -> None:
        """Drop a space of the owner."""
        stored = stored_name(self._tenant, space)
        sizes = (await self._store.sizes(stored)).parts.values()
        archive = await read_archive(self._store, stored) if sizes else None
        if archive is not None:
            self.archives.add(Path(archive))
        if await self._ks.drop(space):
            self.spaces.add(space)
            self.entries += sum(part.entries for part in sizes)
            self.size_bytes += sum(part.size_bytes for part in sizes)

    async def expunge(self, space: str, prefix: str) -> None:
        """Remove what begins with a prefix from a shared space."""
        done = await expunge(self._ks.space(space).executor, prefix, scrubs=False)
        if done.entries:
            self.spaces.add(space)
        self.entries += done.entries
        self.size_bytes += done.size_bytes
        self.archives |= set(done.archives)


async def erase_owner(ks: OwnersHome, tenant: str | None, owner: str) -> Erased:
    """Erase the subjects of an owner and the state of that user, and report it."""
    check_name("owner", owner)
    store = await ks.opened()
    erasure, carrier = _Erasure(ks, store, tenant), Carrier(store, tenant, ks.clock)
    await ks.deliver()
    shared = await _note_spaces(carrier, owner, [])
    for space in sorted(shared):
        await erasure.expunge(space, f"{_USER}/{escape(owner)}/")
    for _ in range(_PASSES):
        found = await _find(ks, owner)
        homeless = {one.space for one in found if owner_of(one.space) != Subject(one.kind, one.id)}
        if not homeless <= shared:
            shared = await _note_spaces(carrier, owner, homeless)
        for one in found:
            if owner_of(one.space) == Subject(one.kind, one.id):
                await erasure.drop(one.space)
            else:
                await erasure.expunge(one.space, f"{one.kind}/{escape(one.id)}/")
        if not found:
            break
        await ks.deliver()
    for space in sorted(shared):
        await erasure.expunge(space, f"{_USER}/{escape(owner)}/")
    await erasure.drop(f"{_USER}/{owner}")
    if shared:
        await store.apply([Batch(carrier.space, [Delete(_key(carrier, owner))])])
    if await carrier.advance() and isinstance(store, TrimsLogs):
        await store.trim(carrier.space)
    left = [*await scrub(store), _UNOWNED]
    archives = sorted(erasure.archives)
    return Erased(len(erasure.spaces), erasure.entries, erasure.size_bytes, archives, left)


async def _note_spaces(carrier: Carrier, owner: str, spaces: Iterable[str]) -> set[str]:
    """Add shared spaces to the entry of this erasure, and return all of them."""
    key = _key(carrier, owner)
    while True:
        entry = (await carrier.store.read(carrier.space, [key])).entries[0]
        known = set[str]() if entry is None else set(decode_stored(entry.value, list[str], describe(key)))
        if known.issuperset(spaces):
            return known
        known.update(spaces)
        put = Put(key, msgspec.msgpack.encode(sorted(known)))
        version = ABSENT if entry is None else entry.version
        checks = [Check(key, version), *await checks_for(carrier.store, carrier.space)]
        [outcome] = await carrier.store.apply([Batch(carrier.space, [put], checks)])
        if isinstance(outcome, Applied):
            return known


def _key(carrier: Carrier, owner: str) -> bytes:
    return layout.ERASING + pack(carrier.name_of(owner.encode()))


async def _find(ks: OwnersHome, owner: str) -> list[Found]:
    """Return all subjects of an owner that the index lists now."""
    found: list[Found] = []
    after = None
    while True:
        page = await ks.find(owner=owner, after=after, limit=_AT_ONCE)
        found += page
        if (after := page.next) is None:
            return found
