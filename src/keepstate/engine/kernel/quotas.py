"""Quotas of a tenant: what each of its spaces may hold, checked with the batch that would exceed it.

A batch to a space with a quota reads the sizes that the store keeps, and the entries that the batch replaces,
and applies only at the revision of both. So the check is exact. A space without a quota pays nothing. The
number of spaces is counted before the first write to a new one, so writers at once may make a few too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from keepstate import names
from keepstate.engine.kernel import layout
from keepstate.errors import QuotaExceededError
from keepstate.stores.protocol import Batch, Entry, PartSize, Put, Store
from keepstate.values import limits
from keepstate.values.key import part_of

_PARTS: Final = {
    "documents": (layout.DOCUMENTS,),
    "queued": (layout.READY, layout.WAITING, layout.CLAIMED),
    "streams": (layout.HEADS,),
}
"""The parts that each quota counts."""


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that each space of a tenant may hold, and the number of its spaces; None is without a bound.

    Attributes:
        spaces: The number of spaces. Not exact: of writers who make new spaces at the same time, each may be
            let in.
        documents: The number of documents.
        size_bytes: The total size of keys and values as they are stored, without the log.
        queued: The number of tasks that are ready, waiting or claimed.
        streams: The number of streams of events.
    """

    spaces: int | None = None
    documents: int | None = None
    size_bytes: int | None = None
    queued: int | None = None
    streams: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (most := getattr(self, name)) is not None:
                limits.admit_count(name, most, least=0, most=limits.LARGEST_QUOTA)

    @property
    def bounds_each_space(self) -> bool:
        """True if it bounds what a space holds, which each batch then checks."""
        return any(most is not None for most in (self.documents, self.size_bytes, self.queued, self.streams))


async def check_quota(store: Store, batch: Batch, parts: Mapping[bytes, bytes], quota: Quota) -> int:
    """Return the revision at which a batch stays within the quota; the batch must apply at it.

    Args:
        store: The store.
        batch: The batch.
        parts: Parts of large values that are written with it.
        quota: The quota of the space.

    Raises:
        QuotaExceededError: The batch would add to what is full.
    """
    keys = [write.key for write in batch.writes if not (isinstance(write, Put) and write.stamp)]
    while True:
        sizes = await store.sizes(batch.space)
        found, revision = await _read(store, batch.space, keys, sizes.revision)
        if revision == sizes.revision:
            break
    entries, grown = _growth(batch, parts, dict(zip(keys, found, strict=True)))
    used = sum(part.size_bytes for part in sizes.parts.values())
    _require(batch.space, "size_bytes", quota.size_bytes, used, grown)
    for name, counted in _PARTS.items():
        before = sum(sizes.parts.get(part_of(part), _NOTHING).entries for part in counted)
        _require(batch.space, name, getattr(quota, name), before, sum(entries.get(p, 0) for p in counted))
    return revision


async def check_spaces(store: Store, beginning: str, space: str, quota: Quota) -> None:
    """Check that a tenant may have one more space. Cost: a listing of up to as many spaces as it may have.

    Args:
        store: The store.
        beginning: The prefix of the names of the tenant's spaces.
        space: The stored name of the new space. Spaces of keepstate's own are not counted.
        quota: The quota of the tenant.

    Raises:
        QuotaExceededError: It has as many spaces as it may have.
    """
    most, count, after = quota.spaces, 0, None
    if most is None or names.is_reserved(space):
        return
    while count < most and (page := await store.spaces(beginning, after=after)):
        after = page[-1]
        count += sum(not names.is_reserved(each) and each != space for each in page)
    if count >= most:
        raise QuotaExceededError(
            f"tenant {names.parts_of(space)[0]!r} may have {most:,} spaces and has them, so "
            f"{names.shown(space)} was not made. Nothing was written. Drop a space, or raise the quota of "
            "the tenant",
            space=space,
            quota="spaces",
            most=most,
            used=count,
        )


_NOTHING: Final = PartSize(0, 0)


async def _read(
    store: Store, space: str, keys: Sequence[bytes], revision: int
) -> tuple[list[Entry | None], int]:
    """Return entries, and the revision that all of them are of; 0 if there is none."""
    found: list[Entry | None] = []
    for start in range(0, len(keys), _AT_ONCE):
        reading = await store.read(space, keys[start : start + _AT_ONCE])
        if reading.revision != revision:
            return found, 0
        found += reading.entries
    return found, revision


_AT_ONCE: Final = 7
"""Number of entries that fit into one read, whatever their size."""


def _growth(
    batch: Batch, parts: Mapping[bytes, bytes], found: Mapping[bytes, Entry | None]
) -> tuple[dict[bytes, int], int]:
    """Return the number of entries that a batch adds by part, and the bytes that it adds."""
    entries: dict[bytes, int] = {}
    grown = sum(len(key) + len(part) for key, part in parts.items())
    counted = [part for group in _PARTS.values() for part in group]
    for write in batch.writes:
        before = found.get(write.key)
        count = (1 if isinstance(write, Put) else 0) - (before is not None)
        if isinstance(write, Put):
            grown += len(write.key) + len(write.value)
        if before is not None:
            grown -= len(before.key) + len(before.value)
        for part in counted:
            if write.key.startswith(part):
                entries[part] = entries.get(part, 0) + count
    return entries, grown


def _require(space: str, quota: str, most: int | None, used: int, grown: int) -> None:
    if most is not None and grown > 0 and used + grown > most:
        raise QuotaExceededError(
            f"{names.shown(space)} may have {most:,} of {quota}, has {used:,}, and this would add {grown:,}. "
            "Nothing was written. Delete something, or raise the quota of the tenant",
            space=space,
            quota=quota,
            most=most,
            used=used,
        )
