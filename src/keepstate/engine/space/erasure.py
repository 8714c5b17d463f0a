"""Erasure of a tenant: every space is dropped, and no write that began before its end is applied after it.

The state of an erasure is in the tenant's own record. An interrupted erasure continues with the next call.
`engine.kernel.grants` explains why no write slips through. Each space is dropped only at the revision that
was counted, after a read of the record has shown that the erasure is still under way. So a process that was
stopped while another one completed the erasure drops nothing that was written since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keepstate import names
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.grants import (
    Erasure,
    Grants,
    TenantRecord,
    end_record,
    read_record,
    record_space,
    write_record,
)
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.kernel.stored import decode_stored
from keepstate.errors import InvalidError
from keepstate.stores.protocol import LacksKeys, Scrubs, Sizes, Store

BACKUPS = "backups, bundles and exports that were made before"
_NAMES = "the names of erased spaces: the store keeps each with a counter"


@dataclass(frozen=True, slots=True)
class Erased:
    """Report of an erasure: the number of things removed, and things that it could not reach.

    Attributes:
        spaces: The number of spaces that were dropped, or from which something was removed.
        entries: The number of entries that were removed.
        size_bytes: The total size of their keys and values as they were stored.
        archives: Files with archived history of these spaces. They still exist: delete them.
        not_reached: What may still contain erased data, in words.
    """

    spaces: int
    entries: int
    size_bytes: int
    archives: list[Path]
    not_reached: list[str]


def check_confirmation(tenant: str, confirm: object) -> None:
    """Raise `InvalidError` unless the id of the tenant was given once more."""
    if check_text("confirm", confirm) != tenant:
        raise InvalidError(f"`confirm` is {confirm!r}; give the id of the tenant to erase, {tenant!r}")


async def erase_tenant(store: Store, tenant: str) -> Erased:
    """Drop all spaces of a tenant, and report it."""
    beginning = names.beginning(tenant)
    counted = await _begin(store, beginning)
    while (known := await _drop_counted(store, beginning, counted)) is not None:
        is_done, counted = known == counted, known
        if is_done and await end_record(store, beginning):
            break
    cache_of(store).part(Grants).forget(beginning)
    await _drop_empty(store, beginning)
    left = await scrub(store)
    archives = sorted({Path(path) for path in counted.archives})
    return Erased(counted.spaces, counted.entries, counted.size_bytes, archives, left)


async def _drop_counted(store: Store, beginning: str, counted: Erasure) -> Erasure | None:
    """Drop the spaces of the tenant once over, and return the new counts; None if the erasure is complete."""
    for is_reserved in (False, True):  # the tenant's index goes last
        async for page in _pages(store, beginning, is_reserved=is_reserved):
            sizes = [await store.sizes(space) for space in page]
            archives = [await read_archive(store, space) for space in page]
            known = await _count(store, beginning, page, sizes, archives)
            if known is None:
                return None
            counted = known
            for space, size in zip(page, sizes, strict=True):
                await store.drop(space, at=size.revision)
    return counted


class SpacesHome(Protocol):
    """A handle as the erasure of spaces uses it."""

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        ...

    def spaces(self, under: str) -> AsyncIterator[str]:
        """Yield the names of spaces."""
        ...

    def stored_name(self, space: str) -> str:
        """Return the stored name of a space."""
        ...

    async def drop(self, space: str) -> bool:
        """Delete a space with its log."""
        ...


async def erase_spaces(ks: SpacesHome, under: str) -> Erased:
    """Drop all spaces under a name, and report it. An interrupted call is completed by the next one."""
    store, spaces, entries, size_bytes, archives = await ks.opened(), 0, 0, 0, set[Path]()
    async for name in ks.spaces(under):
        stored = ks.stored_name(name)
        sizes = (await store.sizes(stored)).parts.values()
        archive = await read_archive(store, stored)
        if await ks.drop(name):
            spaces += 1
            entries += sum(part.entries for part in sizes)
            size_bytes += sum(part.size_bytes for part in sizes)
            archives.update({Path(archive)} if archive is not None else ())
    return Erased(spaces, entries, size_bytes, sorted(archives), await scrub(store))


async def scrub(store: Store) -> list[str]:
    """Remove deleted data from the store's files, and return what was not reached."""
    left = await store.scrub() if isinstance(store, Scrubs) else ("what the store itself keeps",)
    return [BACKUPS, _NAMES, *left]


async def read_archive(store: Store, space: str) -> str | None:
    """Return the path of the file with archived history of a space; None without one."""
    if isinstance(store, LacksKeys):
        return None
    entry = (await store.read(space, [layout.ARCHIVE])).entries[0]
    return None if entry is None else decode_stored(entry.value, str, "the name of the archive")


async def _pages(store: Store, beginning: str, *, is_reserved: bool) -> AsyncIterator[list[str]]:
    after: str | None = None
    while page := await store.spaces(beginning, after=after):
        after = page[-1]
        own = record_space(beginning)
        mine = [space for space in page if space != own and names.is_reserved(space) == is_reserved]
        if mine:
            yield mine


async def _begin(store: Store, beginning: str) -> Erasure:
    """Mark the record, unless an erasure is under way already, and return the counts so far."""
    while True:
        record, version, life = await read_record(store, beginning)
        if record is not None and record.erasing is not None:
            return record.erasing
        if await write_record(store, beginning, TenantRecord(life, Erasure()), version):
            return Erasure()


async def _count(
    store: Store,
    beginning: str,
    page: Sequence[str],
    sizes: Sequence[Sizes],
    archives: Sequence[str | None],
) -> Erasure | None:
    """Add spaces that are about to be dropped to the record; None if the erasure is complete already."""
    while True:
        record, version, _ = await read_record(store, beginning)
        if record is None or record.erasing is None:
            return None
        known = record.erasing
        # Spaces are met in order, so what is not above the last counted one was counted before.
        new = [index for index, space in enumerate(page) if (names.is_reserved(space), space) > known.upto]
        parts = [part for index in new for part in sizes[index].parts.values()]
        erasing = Erasure(
            spaces=known.spaces + len(new),
            entries=known.entries + sum(part.entries for part in parts),
            size_bytes=known.size_bytes + sum(part.size_bytes for part in parts),
            archives=sorted({*known.archives, *(path for path in archives if path is not None)}),
            upto=max(known.upto, (names.is_reserved(page[-1]), page[-1])),
            pages=known.pages + 1,
        )
        if await write_record(store, beginning, TenantRecord(record.life, erasing), version):
            return erasing


async def _drop_empty(store: Store, beginning: str) -> None:
    """Drop spaces that have a grant and nothing else: those of writers that were rejected.

    If it is that of a writer that is about to write there, its batch finds that the grant is gone, and puts
    another one.
    """
    for is_reserved in (False, True):
        async for page in _pages(store, beginning, is_reserved=is_reserved):
            for space in page:
                sizes = await store.sizes(space)
                grants = await store.scan(space, layout.GRANTS)
                if len(grants.entries) == sum(part.entries for part in sizes.parts.values()):
                    await store.drop(space, at=sizes.revision)
