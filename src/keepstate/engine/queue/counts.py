"""States of all tasks at one revision, although the index is read page by page.

Changes during the reads are in the log up to the revision of the last page. For a key in the log, the log
overrides the pages. Every other key is unchanged, so all pages agree on it.
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
"""Attempts if the log was cut during the reads: by ten thousand batches, or because the space was dropped."""

IndexKeys = dict[bytes, str | None]
"""The index keys of one state, each with the id of its task, or None if the key came from the log."""


async def find_index_keys(store: Store, space: str) -> dict[TaskState, IndexKeys]:
    """Return the index keys of all tasks of the space, by state.

    Raises:
        CompactedError: In every attempt, more was written during the reads than the log holds.
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
    """Return the number of tasks of the space in each state.

    Raises:
        CompactedError: In every attempt, more was written during the reads than the log holds.
    """
    return {state: len(keys) for state, keys in (await find_index_keys(store, space)).items()}


async def find_task_ids(store: Store, space: str) -> dict[TaskState, dict[bytes, str]]:
    """Return the index keys and ids of all tasks of the space, by state.

    Raises:
        CompactedError: In every attempt, more was written during the reads than the log holds.
    """
    while True:
        found = await find_index_keys(store, space)
        unnamed = [key for keys in found.values() for key, task_id in keys.items() if task_id is None]
        named = await _read_ids(store, space, unnamed)
        if len(named) == len(unnamed):  # otherwise a task changed its state, and its id is unknown
            return {
                state: {key: task_id or named[key] for key, task_id in keys.items()}
                for state, keys in found.items()
            }


async def _find(store: Store, space: str) -> dict[TaskState, IndexKeys]:
    read_to = (await store.read(space, [])).revision
    found: dict[TaskState, IndexKeys] = {}
    last = read_to
    for state in STATES:
        found[state] = {}
        after: bytes | None = None
        while True:
            page = await store.scan(space, layout.INDEXES[state], after=after, limit=limits.PAGE_ROWS)
            found[state].update((entry.key, tasks.id_in(entry)) for entry in page.entries)
            after, last = page.next, page.revision
            if after is None:
                break
    while read_to < last:
        changes = await store.changes(space, read_to)
        read_to = changes.upto
        for change in changes.items:
            for state in STATES:
                if not change.key.startswith(layout.INDEXES[state]):
                    continue
                if change.deleted:
                    found[state].pop(change.key, None)
                else:
                    found[state].setdefault(change.key, None)
    return found


async def _read_ids(store: Store, space: str, keys: Sequence[bytes]) -> dict[bytes, str]:
    entries: list[Entry | None] = []
    for start in range(0, len(keys), limits.READ_KEYS):
        reading = await store.read(space, keys[start : start + limits.READ_KEYS])
        entries += reading.entries
    return {entry.key: tasks.id_in(entry) for entry in entries if entry is not None}
