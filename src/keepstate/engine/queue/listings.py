"""Listings and counts of tasks: ids from the index of a state, records read in pages.

Counts and summaries are of one revision, although the index is read page by page. Changes during the reads
are in the log up to the revision of the last page. For a key in the log, the log overrides the pages. Every
other key is unchanged, so all pages agree on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.stored import corrupt_error, describe, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, stand_in
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import STATES, TaskInfo, TaskRecord, TaskState
from keepstate.errors import CompactedError, CorruptError, InvalidError
from keepstate.stores.protocol import LAST_REVISION, Entry, Mark, PartSize, Store
from keepstate.values import limits
from keepstate.values.key import Stamp, unpack
from keepstate.values.types import MISSING

_READ_AT_ONCE = 100
_NO_TASKS = PartSize(0, 0)


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The tasks of one state.

    Attributes:
        count: The number of tasks in the state.
        newest: The tasks that entered the state last, the latest first.
    """

    count: int
    newest: Sequence[TaskInfo]


async def list_tasks(
    executor: Executor,
    state: TaskState | None,
    *,
    id_prefix: str | None,
    after: str | None,
    before: str | None,
    reverse: bool,
    limit: int,
    payloads: bool,
    unreadable: IfUnreadable,
) -> list[TaskInfo]:
    """Return tasks in the order of an index, or of their ids, between two cursors; see `Queue.list`."""
    check_flag("payloads", payloads)
    if state is not None and id_prefix is None:
        listing = prefix = layout.INDEXES[state]
    else:
        listing, prefix = layout.TASKS, tasks.id_prefix_key(check_text("id_prefix", id_prefix or ""))
    positions = Positions(await executor.store(), executor.stored_name, executor.name)
    low, high = [
        None if cursor is None else await positions.page_in(what, check_text(what, cursor), listing)
        for what, cursor in (("after", after), ("before", before))
    ]
    found: list[TaskInfo] = []
    async for mark, page in _pages(
        executor, prefix, low, high, limit, state, unreadable, reverse=check_flag("reverse", reverse)
    ):
        cursors = dict(zip(page, positions.of_page(listing, mark, page.values()), strict=True))
        for info in await read_tasks(executor, cursors, payloads=payloads, unreadable=unreadable):
            # Its state may have changed since the scan.
            if info is not None and (state is None or info.state == state):
                found.append(info)
                if len(found) == limit:
                    return found
    return found


async def _pages(
    executor: Executor,
    prefix: bytes,
    low: bytes | None,
    high: bytes | None,
    limit: int,
    state: TaskState | None,
    unreadable: IfUnreadable,
    *,
    reverse: bool,
) -> AsyncIterator[tuple[Mark, dict[str, bytes]]]:
    """Yield pages of task ids with their keys, and the mark at which each page's last key was read.

    A page has no task whose scanned record tells another state.
    """
    page: dict[str, bytes] = {}
    mark = Mark(0, b"")
    async for read_at, entry in _scan(executor, prefix, high if reverse else low, reverse=reverse):
        if (high is not None and entry.key >= high) or (low is not None and entry.key <= low):
            break
        try:
            task_id, its_state = _id_and_state(executor, entry)
        except CorruptError:
            if unreadable != "skip":
                raise
            continue
        if state is not None and its_state not in (None, state):
            continue
        mark = read_at
        page[task_id] = entry.key
        if len(page) >= min(limit, _READ_AT_ONCE):
            yield mark, page
            page = {}
    if page:
        yield mark, page


async def _scan(
    executor: Executor, prefix: bytes, start: bytes | None, *, reverse: bool
) -> AsyncIterator[tuple[Mark, Entry]]:
    if executor.gathers and reverse:
        entries = [(unit.scanned_at, entry) async for unit, entry in executor.scan(prefix)]
        for mark, entry in reversed(entries):
            if start is None or entry.key < start:
                yield mark, entry
    elif not reverse:
        async for unit, entry in executor.scan(prefix, after=start):
            yield unit.scanned_at, entry
    else:
        store = await executor.store()
        while True:
            page = await store.scan(executor.stored_name, prefix, after=start, reverse=True)
            for entry in page.entries:
                yield Mark(page.revision, page.nonce), entry
            if (start := page.next) is None:
                return


def _id_and_state(executor: Executor, entry: Entry) -> tuple[str, TaskState | None]:
    """Return the id of the task in a record or an index entry; the state is None if the entry has none."""
    if not entry.key.startswith(layout.TASKS):
        return tasks.id_in(entry), None
    record = decode_task(executor, entry)
    return record.id, record.state


async def read_tasks(
    executor: Executor,
    cursors: Mapping[str, str | None],
    *,
    payloads: bool,
    unreadable: IfUnreadable | None = None,
) -> list[TaskInfo | None]:
    """Return tasks by id, with the given cursors; None for a task that does not exist, or is left out.

    With `unreadable` None, an error does not name this option.
    """

    async def work(unit: Unit) -> list[TaskInfo | None]:
        stored = await unit.read(*map(tasks.task_key, cursors))
        known = [
            None if record is None or entry is None else (record, entry.version)
            for entry, record in [(entry, _listed_task(executor, entry, unreadable)) for entry in stored]
        ]
        records = [record for record, _ in filter(None, known)]
        values = [tasks.result_key(record.id) for record in records if record.has_result]
        if payloads:
            values += [tasks.payload_key(record.id) for record in records]
        read = await _read_values(executor, unit, values, unreadable)
        return [
            None if each is None else _info(executor, *each, cursor, read, unreadable)
            for each, cursor in zip(known, cursors.values(), strict=True)
        ]

    return (await executor.run(work))[0]


def _listed_task(
    executor: Executor, entry: Entry | None, unreadable: IfUnreadable | None
) -> TaskRecord | None:
    """Return the record in an entry; None without one, or if it is damaged and left out."""
    try:
        return None if entry is None else decode_task(executor, entry)
    except CorruptError:
        if unreadable != "skip":
            raise
        return None


async def _read_values(
    executor: Executor, unit: Unit, keys: Sequence[bytes], unreadable: IfUnreadable | None
) -> dict[bytes, Any]:
    """Return decoded values by key, in as few reads as the byte limit allows."""
    if not keys:
        return {}
    try:
        entries = await unit.read(*keys)
    except InvalidError:
        if len(keys) == 1:
            raise
        half = len(keys) // 2
        begin = await _read_values(executor, unit, keys[:half], unreadable)
        return begin | await _read_values(executor, unit, keys[half:], unreadable)
    return {
        entry.key: await _value(executor, unit, entry, unreadable) for entry in entries if entry is not None
    }


async def _value(executor: Executor, unit: Unit, entry: Entry, unreadable: IfUnreadable | None) -> Any:
    """Return a decoded value, or what stands in its place; `MISSING` if its task is left out."""
    encoded: bytes | None = None
    try:
        encoded = await unit.value(entry)
        return decode_value(executor, entry.key, encoded)
    except UNREADABLE as error:
        if unreadable is None:
            raise
        return stand_in(unreadable, encoded, error)


def decode_task(executor: Executor, entry: Entry) -> TaskRecord:
    """Decode the task record in an entry."""
    place = f"a task record of {executor.name!r}"
    try:
        return tasks.decode_record(entry.value, place)
    except CorruptError as error:  # only here: to describe the key costs as much as the record
        named = f"the record of {describe(entry.key)} of {executor.name!r}"
        raise CorruptError(error.message.replace(place, named), place=named) from error


def _info(
    executor: Executor,
    record: TaskRecord,
    version: int,
    cursor: str | None,
    values: dict[bytes, Any],
    unreadable: IfUnreadable | None,
) -> TaskInfo | None:
    key, progress = tasks.task_key(record.id), None
    if record.progress is not None:
        try:
            progress = decode_value(executor, key, record.progress)
        except UNREADABLE as error:
            if unreadable is None:
                raise
            progress = stand_in(unreadable, record.progress, error)
    shown = progress, values.get(tasks.result_key(record.id)), values.get(tasks.payload_key(record.id))
    if any(each is MISSING for each in shown):
        return None
    began_at, expires_at = [
        None if at_ms is None else to_datetime(at_ms) for at_ms in (record.began_at_ms, record.expires_at_ms)
    ]
    return TaskInfo(
        record.id, record.state, record.priority, record.attempt, record.max_attempts, record.worker,
        record.error, to_datetime(record.put_at_ms), to_datetime(record.due_at_ms),
        values.get(tasks.result_key(record.id)), cursor, record.token,
        values.get(tasks.payload_key(record.id)), version, record.kind, record.key, began_at, expires_at,
        record.waits_for, progress, record.cancelled_by, record.traceparent,
    )  # fmt: skip


# ---- summaries at one revision

_Arrival = tuple[tuple[int, int], bytes, str]
"""The sortable time at which a task entered its state, the index key, and the task id."""


async def summaries(
    executor: Executor, *, prefix: str = "", newest: int, payloads: bool
) -> dict[TaskState, StateSummary]:
    """Return the number of tasks with an id prefix in each state, and the newest ones."""
    check_flag("payloads", payloads)
    found: dict[TaskState, StateSummary] = {}
    for state, arrivals in (await _arrivals(executor)).items():
        ours = [each for each in arrivals if each[2].startswith(prefix)]
        last = nlargest(newest, ours)
        infos: list[TaskInfo | None] = []
        for begin in range(0, len(last), _READ_AT_ONCE):
            ids = [task_id for *_, task_id in last[begin : begin + _READ_AT_ONCE]]
            infos += await read_tasks(executor, dict.fromkeys(ids), payloads=payloads)
        found[state] = StateSummary(len(ours), [info for info in infos if info is not None])
    return found


async def _arrivals(executor: Executor) -> dict[TaskState, list[_Arrival]]:
    if not executor.gathers:
        named = await find_task_ids(await executor.store(), executor.stored_name)
        return {
            state: [(_arrival_of(state, key), key, task_id) for key, task_id in keys.items()]
            for state, keys in named.items()
        }
    found: dict[TaskState, list[_Arrival]] = {}
    for state in STATES:
        entries = [entry async for _, entry in executor.scan(layout.INDEXES[state])]
        found[state] = [(_arrival_of(state, entry.key), entry.key, tasks.id_in(entry)) for entry in entries]
    for number, name in enumerate(executor.appended_under(layout.READY)):  # after all stored tasks
        found["ready"].append(((LAST_REVISION + 1, number), b"", tasks.id_in_value(name)))
    return found


def _arrival_of(state: TaskState, key: bytes) -> tuple[int, int]:
    if state != "ready":
        return tasks.time_in(layout.INDEXES[state], key)[0], 0
    last = unpack(key[1:])[-1]
    if not isinstance(last, Stamp):
        raise corrupt_error(describe(key), "the key of a ready task must end with a stamp")
    return last.revision, last.index


_ATTEMPTS = 4
"""Attempts if the log was cut during the reads: by ten thousand batches, or because the space was dropped."""

IndexKeys = dict[bytes, str | None]
"""The index keys of one state, each with the id of its task, or None if the key came from the log."""


async def find_index_keys(store: Store, space: str) -> dict[TaskState, IndexKeys]:
    """Return the index keys of all tasks of the space, by state.

    Raises:
        CompactedError: In every attempt, more was written during the reads than the log holds.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(CompactedError):
            return await _find(store, space)
    return await _find(store, space)


async def count_tasks(store: Store, space: str) -> dict[TaskState, int]:
    """Return the number of tasks of the space in each state, in one read."""
    parts = (await store.sizes(space)).parts
    return {state: parts.get(layout.INDEXES[state], _NO_TASKS).entries for state in STATES}


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
