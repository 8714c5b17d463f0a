"""Garbage collection of unreferenced parts of large values, safe with concurrent writers.

The collector writes `gc/epoch` at revision R, reads every value that may be a manifest, and deletes the parts
with versions below R that no manifest lists, each under its exact version. Values written concurrently are
safe: their parts were written after R, or before a batch that checks the epoch and is rejected. A manifest
never moves to another key, so the reads may be of different revisions.
"""

from __future__ import annotations

from keepstate.engine.kernel import large_values, layout
from keepstate.errors import KeepstateError
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Put, Store
from keepstate.values import limits

_BY_BATCH = limits.BATCH_CHECKS // 2


async def collect_parts(store: Store, space: str) -> int:
    """Delete the parts of a space that no manifest lists, and return their number."""
    if not (await store.scan(space, layout.PARTS, limit=1)).entries:
        return 0
    epoch = (await store.apply([Batch(space, [Put(layout.EPOCH, b"")])]))[0]
    if not isinstance(epoch, Applied):
        raise _unexpected(epoch, space)
    named = await _named(store, space)
    removed = 0
    garbage: list[Check] = []
    after: bytes | None = None
    while True:
        page = await store.scan(space, layout.PARTS, after=after)
        garbage += [
            Check(entry.key, version=entry.version)
            for entry in page.entries
            if entry.version < epoch.revision and entry.key not in named
        ]
        while len(garbage) >= _BY_BATCH or (garbage and page.next is None):
            removed += await _delete(store, space, garbage[:_BY_BATCH])
            del garbage[:_BY_BATCH]
        if page.next is None:
            return removed
        after = page.next


async def _named(store: Store, space: str) -> set[bytes]:
    named: set[bytes] = set()
    for part in layout.NAME_PARTS:
        after: bytes | None = None
        while True:
            page = await store.scan(space, part, after=after)
            named |= large_values.part_keys_in(entry.value for entry in page.entries)
            after = page.next
            if after is None:
                break
    return named


async def _delete(store: Store, space: str, garbage: list[Check]) -> int:
    left = {check.key: check for check in garbage}
    while left:
        batch = Batch(space, [Delete(key) for key in left], list(left.values()))
        outcome = (await store.apply([batch]))[0]
        if isinstance(outcome, Applied):
            return len(left)
        if not isinstance(outcome, Conflict) or outcome.key is None:
            raise _unexpected(outcome, space)
        del left[outcome.key]  # written again concurrently, so it is in use
    return 0


def _unexpected(outcome: object, space: str) -> KeepstateError:
    if isinstance(outcome, KeepstateError):
        return outcome
    return KeepstateError(f"collecting the parts of space {space!r} failed with {outcome!r}; retry it")
