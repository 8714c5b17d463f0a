"""Finds where all tasks stand at one moment, although pages are read one after the other.

What changes while they are read is in the log, as far as the last page: what it says of a key goes before
what a page said, and what it does not name is as every page found it.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine.kernel import layout
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import STATES, TaskState
from keepstate.errors import CompactedError
from keepstate.stores.protocol import Entry, Store
from keepstate.values import limits

_ATTEMPTS = 4
"""How often to begin again where the log was cut meanwhile: by ten thousand batches, or as the space was
dropped."""

Places = dict[bytes, str | None]
"""The keys in the index of a state, each with the id of its task, or None where only the log told of it."""


async def find_tasks(store: Store, space: str) -> dict[TaskState, Places]:
    """Return which tasks of the space stand where.

    Raises:
        CompactedError: More was written meanwhile than the log keeps, again and again.
    """
    attempt = 1
    while True:
        try:
            return await _find(store, space)
        except CompactedError:
            if attempt == _ATTEMPTS:
                raise
        attempt += 1


async def count_tasks(store: Store, space: str) -> dict[TaskState, int]:
    """Return how many tasks of the space stand where.

    Raises:
        CompactedError: More was written meanwhile than the log keeps, again and again.
    """
    return {state: len(places) for state, places in (await find_tasks(store, space)).items()}


async def name_tasks(store: Store, space: str) -> dict[TaskState, dict[bytes, str]]:
    """Return which tasks of the space stand where, each with its id.

    Raises:
        CompactedError: More was written meanwhile than the log keeps, again and again.
    """
    while True:
        found = await find_tasks(store, space)
        unnamed = [key for places in found.values() for key, task_id in places.items() if task_id is None]
        named = await _names(store, space, unnamed)
        if len(named) == len(unnamed):  # else one has moved on since, and only its key is known
            return {
                state: {key: task_id or named[key] for key, task_id in places.items()}
                for state, places in found.items()
            }


async def _find(store: Store, space: str) -> dict[TaskState, Places]:
    told_to = (await store.read(space, [])).revision
    found: dict[TaskState, Places] = {}
    last = told_to
    for state in STATES:
        found[state] = {}
        after: bytes | None = None
        while True:
            page = await store.scan(space, layout.INDEXES[state], after=after, limit=limits.PAGE_ROWS)
            found[state].update((entry.key, tasks.id_in(entry)) for entry in page.entries)
            after, last = page.next, page.revision
            if after is None:
                break
    while told_to < last:
        changes = await store.changes(space, told_to)
        told_to = changes.upto
        for change in changes.items:
            for state in STATES:
                if not change.key.startswith(layout.INDEXES[state]):
                    continue
                if change.deleted:
                    found[state].pop(change.key, None)
                else:
                    found[state].setdefault(change.key, None)
    return found


async def _names(store: Store, space: str, keys: Sequence[bytes]) -> dict[bytes, str]:
    entries: list[Entry | None] = []
    for start in range(0, len(keys), limits.READ_KEYS):
        reading = await store.read(space, keys[start : start + limits.READ_KEYS])
        entries += reading.entries
    return {entry.key: tasks.id_in(entry) for entry in entries if entry is not None}
