"""Erasure of an owner in a tenant: the spaces of the owner's subjects, and their parts of shared spaces.

`engine.space.owners` finds the subjects. A subject with a space of its own loses that space. A subject in the
space of another one is expunged from it by its prefix, `KIND/ID/`. Of a session that several users owned one
after another, only the generations of this owner are expunged. At last the log of the index is trimmed,
because it names what was erased.

An entry in the space of the index keeps the counts, and names the spaces whose logs and histories are still
to be cleaned, because the walk does not find a space any more after its entries are deleted. So an
interrupted call is completed by the next one. It is not isolated from writers: what they write for the owner
during the call may remain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import msgspec

from keepstate.engine.index.carrier import Carrier, OwnerErasure, raise_failure
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import Home
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.space.erasure import Erased, read_archive, scrub
from keepstate.engine.space.expunge import expunge
from keepstate.engine.space.owners import HEADS, LIVES, UNOWNED, OwnedPart, OwnerSearch
from keepstate.names import stored_name
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Delete, Entry, Put, TrimsLogs
from keepstate.values.key import pack


class OwnersHome(Home, Protocol):
    """A handle as the erasure of an owner uses it."""

    def space(self, name: str) -> Any:
        """Return a space."""
        ...

    async def deliver(self) -> int:
        """Carry all outboxes of the tenant."""
        ...

    async def drop(self, space: str) -> bool:
        """Delete a space with its log."""
        ...


class _Erasure:
    """One erasure, with its counts."""

    def __init__(self, ks: OwnersHome, carrier: Carrier, owner: str) -> None:
        self._ks, self._carrier, self._owner = ks, carrier, owner
        self._store = carrier.store
        self._key = layout.ERASING + pack(carrier.name_of(owner.encode()))
        self.search = OwnerSearch(carrier, owner)
        self.done = OwnerErasure()

    async def run(self) -> None:
        """Erase the subjects and the state of the user."""
        self.done = _decode((await self._store.read(self._carrier.space, [self._key])).entries[0])
        async with aclosing(self.search.find()) as found:
            async for one in found:
                if one.lives:
                    await self._expunge_lives(one)
                elif one.prefix:
                    await self._expunge(one.space, one.prefix)
                else:
                    await self._drop(one.space)
        for space in self.done.shared:  # also those of a call that was killed before it had cleaned them
            await self._expunge(space, self.search.users)

    async def end(self) -> None:
        """Delete the entry of this erasure, and trim the log of the index."""
        if self.done != OwnerErasure():
            await self._store.apply([Batch(self._carrier.space, [Delete(self._key)])])
        if await self._carrier.advance() and isinstance(self._store, TrimsLogs):
            await self._store.trim(self._carrier.space)

    # ---- erasing

    async def _drop(self, space: str) -> None:
        stored = stored_name(self._carrier.tenant, space)
        sizes = await self._store.sizes(stored)
        archive = await read_archive(self._store, stored) if sizes.parts else None
        at = (space, sizes.revision)

        def count(done: OwnerErasure) -> OwnerErasure:
            if done.dropping == at:
                return done
            return msgspec.structs.replace(
                done,
                dropping=at,
                dropped=done.dropped + 1,
                entries=done.entries + sum(part.entries for part in sizes.parts.values()),
                size_bytes=done.size_bytes + sum(part.size_bytes for part in sizes.parts.values()),
                archives=sorted({*done.archives, *([] if archive is None else [archive])}),
            )

        if sizes.parts:
            # Counted before the drop, at its revision: so a call that is killed after the drop has counted
            # it, and the next one after a call that was killed before it does not count it twice.
            await self._note(count)
        await self._ks.drop(space)

    async def _note_shared(self, space: str) -> None:
        if space not in self.done.shared:
            await self._note(lambda done: msgspec.structs.replace(done, shared=sorted({*done.shared, space})))

    async def _expunge(self, space: str, prefix: str) -> None:
        await self._note_shared(space)
        expunged = await expunge(self._ks.space(space).executor, prefix, scrubs=False)
        if expunged.entries:
            await self._note(
                lambda done: msgspec.structs.replace(
                    done,
                    entries=done.entries + expunged.entries,
                    size_bytes=done.size_bytes + expunged.size_bytes,
                    archives=sorted({*done.archives, *map(str, expunged.archives)}),
                )
            )

    async def _expunge_lives(self, one: OwnedPart) -> None:
        """Expunge the generations of the owner from a session, then its name from the list of the owners."""
        documents = self._ks.space(one.space).documents
        if one.is_head:
            await self._note_shared(one.space)
            await documents.delete(one.prefix + HEADS["session"][0])
        for life in one.lives:
            await self._expunge(one.space, f"{one.prefix}life/{life}/")

        def forget(lives: dict[str, Any]) -> dict[str, Any]:
            runs = [[life, None if user == self._owner else user] for life, user in lives["owners"]]
            return lives | {"owners": runs}

        await documents.update(one.prefix + LIVES, forget)

    async def _note(self, change: Callable[[OwnerErasure], OwnerErasure]) -> None:
        """Change the entry of this erasure."""
        store, space = self._store, self._carrier.space
        while True:
            entry = (await store.read(space, [self._key])).entries[0]
            done = change(_decode(entry))
            version = ABSENT if entry is None else entry.version
            checks = [Check(self._key, version), *await checks_for(store, space)]
            put = Put(self._key, msgspec.msgpack.encode(done))
            outcome = (await store.apply([Batch(space, [put], checks)]))[0]
            raise_failure(outcome)
            if isinstance(outcome, Applied):
                self.done = done
                return


def _decode(entry: Entry | None) -> OwnerErasure:
    return OwnerErasure() if entry is None else decode_stored(entry.value, OwnerErasure, entry.key)


async def erase_owner(ks: OwnersHome, tenant: str | None, owner: str) -> Erased:
    """Erase the subjects of an owner and the state of that user, and report it."""
    check_name("owner", owner)
    store = await ks.opened()
    erasure = _Erasure(ks, Carrier(store, tenant, ks.clock), owner)
    await erasure.run()
    await ks.deliver()  # also what a call that was killed has left
    await erasure.end()
    done = erasure.done
    left = [*await scrub(store), *erasure.search.left, UNOWNED]
    spaces = done.dropped + len(done.shared)
    return Erased(spaces, done.entries, done.size_bytes, [*map(Path, done.archives)], left)
