"""Counts tasks at one moment, although pages are read one after the other.

What changes while they are read is in the log, as far as the last page: what it says of a key goes before
what a page said, and what it does not name is as every page found it.
"""

from __future__ import annotations

from keepstate.engine import layout
from keepstate.engine.tasks import STATES, TaskState
from keepstate.errors import CompactedError
from keepstate.stores.protocol import Store
from keepstate.values import limits

_ATTEMPTS = 4
"""How often to begin again where the log was cut meanwhile: by ten thousand batches, or as the space was
dropped."""


async def count_tasks(store: Store, space: str) -> dict[TaskState, int]:
    """Returns how many tasks of the space stand where.

    Raises:
        CompactedError: More was written meanwhile than the log keeps, again and again.
    """
    attempt = 1
    while True:
        try:
            return await _count(store, space)
        except CompactedError:
            if attempt == _ATTEMPTS:
                raise
        attempt += 1


async def _count(store: Store, space: str) -> dict[TaskState, int]:
    told_to = (await store.read(space, [])).revision
    found: dict[TaskState, set[bytes]] = {}
    last = told_to
    for state in STATES:
        found[state] = set()
        after: bytes | None = None
        while True:
            page = await store.scan(space, layout.INDEXES[state], after=after, limit=limits.PAGE_ROWS)
            found[state].update(entry.key for entry in page.entries)
            after, last = page.next, page.revision
            if after is None:
                break
    while told_to < last:
        changes = await store.changes(space, told_to)
        told_to = changes.upto
        for change in changes.items:
            for state in STATES:
                if change.key.startswith(layout.INDEXES[state]):
                    (found[state].discard if change.deleted else found[state].add)(change.key)
    return {state: len(keys) for state, keys in found.items()}
