"""Quotas of a tenant: bounds on each of its spaces and on all of them together, checked with each batch.

A batch to a space with a quota reads the sizes that the store keeps, and the entries that the batch replaces,
and applies only at the revision of both. So the check is exact. A space without a quota pays nothing. The
number of spaces is counted before the first write to a new one, so writers at once may make a few too many.
The totals of all spaces are known less exactly; see `engine.kernel.totals`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from keepstate import names
from keepstate.engine.kernel.totals import BYTES, COUNTED, Totals, used_in
from keepstate.errors import QuotaExceededError
from keepstate.stores.protocol import Batch, Entry, Put, Store
from keepstate.values import limits

_TOTAL: Final = "total_"


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that a tenant may hold: in each space, and in all of them; None is without a bound.

    Attributes:
        spaces: The number of spaces. Not exact: of writers who make new spaces at the same time, each may be
            let in.
        documents: The number of documents in each space.
        size_bytes: The total size of keys and values in each space as they are stored, without the log.
        queued: The number of tasks in each space that are ready, waiting or claimed.
        streams: The number of streams of events in each space.
        total_documents: The number of documents in all spaces. Not exact, as all totals: what other
            processes have written in the last seconds may not be counted.
        total_size_bytes: The total size of all spaces.
        total_queued: The number of such tasks in all spaces.
        total_streams: The number of streams in all spaces.
    """

    spaces: int | None = None
    documents: int | None = None
    size_bytes: int | None = None
    queued: int | None = None
    streams: int | None = None
    total_documents: int | None = None
    total_size_bytes: int | None = None
    total_queued: int | None = None
    total_streams: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (most := getattr(self, name)) is not None:
                limits.admit_count(name, most, least=0, most=limits.LARGEST_QUOTA)

    @property
    def bounds_each_space(self) -> bool:
        """True if it bounds what a space holds, which each batch then checks."""
        return any(getattr(self, name) is not None for name in (*COUNTED, BYTES))

    @property
    def bounds_total(self) -> bool:
        """True if it bounds what all spaces hold, which each batch then checks as far as it is known."""
        return any(getattr(self, f"{_TOTAL}{name}") is not None for name in (*COUNTED, BYTES))


class Checked(NamedTuple):
    """A batch that stays within the quota.

    Attributes:
        revision: The revision at which it stays within that of its space.
        used: What the space holds after it, by the name of the quota.
    """

    revision: int
    used: Mapping[str, int]


async def check_quota(
    store: Store, batch: Batch, parts: Mapping[bytes, bytes], quota: Quota, totals: Totals, *, is_last: bool
) -> Checked:
    """Check that a batch stays within the quota.

    Args:
        store: The store.
        batch: The batch.
        parts: Parts of large values that are written with it.
        quota: The quota of the tenant.
        totals: What is known of the tenant's spaces.
        is_last: Whether a refusal is final; before one, the spaces are counted again.

    Raises:
        QuotaExceededError: The batch would add to what is full.
    """
    space = batch.space
    keys = [write.key for write in batch.writes if not (isinstance(write, Put) and write.stamp)]
    while True:
        sizes = await store.sizes(space)
        found, revision, now_ms = await _read(store, space, keys, sizes.revision)
        if revision == sizes.revision:
            break
    used, grown = used_in(sizes), _growth(batch, parts, dict(zip(keys, found, strict=True)))
    for name, before in used.items():
        _require(space, name, getattr(quota, name), before, grown[name])
    if quota.bounds_total:
        beginning = names.tenant_beginning(space)
        assert beginning is not None
        await totals.refresh(store, beginning, now_ms, is_urgent=False)
        if is_last and any(_is_over(*each) for each in _totals(quota, totals, space, used, grown)):
            await totals.refresh(store, beginning, now_ms, is_urgent=True)
        for most, before, more, name in _totals(quota, totals, space, used, grown):
            _require(space, name, most, before, more)
    return Checked(revision, {name: used[name] + grown[name] for name in used})


def _totals(
    quota: Quota, totals: Totals, space: str, used: Mapping[str, int], grown: Mapping[str, int]
) -> list[tuple[int | None, int, int, str]]:
    """Return for each quota of the total: the most, what is used, what is added, and its name."""
    others = totals.apart_from(space)
    return [
        (getattr(quota, f"{_TOTAL}{name}"), others[name] + used[name], grown[name], f"{_TOTAL}{name}")
        for name in used
    ]


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


async def _read(
    store: Store, space: str, keys: Sequence[bytes], revision: int
) -> tuple[list[Entry | None], int, int]:
    """Return entries, the revision that all of them are of (0 if there is none), and the store's time."""
    found: list[Entry | None] = []
    now_ms = 0
    for start in range(0, len(keys) or 1, _AT_ONCE):
        reading = await store.read(space, keys[start : start + _AT_ONCE])
        if reading.revision != revision:
            return found, -1, 0
        found += reading.entries
        now_ms = reading.now_ms
    return found, revision, now_ms


_AT_ONCE: Final = 7
"""Number of entries that fit into one read, whatever their size."""


def _growth(
    batch: Batch, parts: Mapping[bytes, bytes], found: Mapping[bytes, Entry | None]
) -> dict[str, int]:
    """Return the amounts that a batch adds, by the name of the quota."""
    grown = dict.fromkeys(COUNTED, 0) | {BYTES: sum(len(key) + len(part) for key, part in parts.items())}
    for write in batch.writes:
        before = found.get(write.key)
        count = (1 if isinstance(write, Put) else 0) - (before is not None)
        if isinstance(write, Put):
            grown[BYTES] += len(write.key) + len(write.value)
        if before is not None:
            grown[BYTES] -= len(before.key) + len(before.value)
        for name, counted in COUNTED.items():
            if write.key.startswith(counted):
                grown[name] += count
    return grown


def _is_over(most: int | None, used: int, grown: int, _: str) -> bool:
    return most is not None and grown > 0 and used + grown > most


def _require(space: str, quota: str, most: int | None, used: int, grown: int) -> None:
    if most is not None and _is_over(most, used, grown, quota):
        what = f"tenant {names.parts_of(space)[0]!r}" if quota.startswith(_TOTAL) else names.shown(space)
        raise QuotaExceededError(
            f"{what} may have {most:,} of {quota}, has {used:,}, and this would add {grown:,}. "
            "Nothing was written. Delete something, or raise the quota of the tenant",
            space=space,
            quota=quota,
            most=most,
            used=used,
        )
