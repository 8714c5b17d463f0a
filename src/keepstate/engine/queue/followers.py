"""Followers: tasks that wait for the end of other tasks, their leaders.

A follower has an entry under each of its leaders. The batch that ends a leader takes the first entries: a
follower whose last leader is done becomes ready, and one whose leader is dead or cancelled becomes dead. If
more entries are left, or a follower that died has followers of its own, the same batch marks that task as
`ending`. The caller then goes on in batches of their own, and if it is killed, the next worker does.

A leader's record is written again for each new follower, so that no batch ends it without the new entry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import corrupt_error, describe, shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.step_records import keep_steps
from keepstate.engine.queue.tasks import EndState, TaskRecord
from keepstate.errors import KeepstateError, NotFoundError
from keepstate.stores.protocol import Store
from keepstate.values.key import pack, unpack

_AT_ONCE: Final = 100
"""Followers in one batch, each with four writes."""
_RESUMED: Final = 16
PRESENT: Final = b"\x01"

_log = logging.getLogger("keepstate.engine")


def ending_key(task_id: str) -> bytes:
    """Return the key of the mark of a task that has ended and not all of whose followers know it."""
    return layout.ENDING + pack(task_id)


def _prefix(leader_id: str) -> bytes:
    return layout.FOLLOWERS + pack(leader_id)


async def follow(
    executor: Executor, unit: Unit, record: TaskRecord, *, is_new: bool
) -> tuple[TaskRecord, TaskRecord | None]:
    """Make a task wait for those of its leaders that have not ended, without writing its own record.

    Returns:
        The record, whose `waits_for` names the leaders that are left, and the leader that is dead or
        cancelled, if there is one. Then nothing was written. A suspended task waits for no ended leader.

    Raises:
        NotFoundError: A leader of a new task does not exist. A missing leader of another one has ended.
    """
    waited: list[tuple[TaskRecord, int]] = []
    for leader_id, entry in zip(
        record.waits_for, await unit.read(*map(tasks.task_key, record.waits_for)), strict=True
    ):
        if entry is None and is_new:
            raise NotFoundError(
                f"`after` names {leader_id!r}, and {executor.name!r} has no such task; put it first, or "
                "leave it out if it was completed long ago"
            )
        if entry is None:
            continue
        leader = tasks.decode_record(entry.value, f"task {leader_id!r} of {executor.name!r}")
        if leader.state not in tasks.ENDED:
            waited.append((leader, entry.version))
        elif leader.state != "done" and not record.is_suspended:
            return record, leader
    for leader, version in waited:
        unit.put(_prefix(leader.id) + pack(record.id), PRESENT)
        tasks.rewrite(unit, leader, version, is_followed=True)
    return tasks.replaced(record, waits_for=tuple(leader.id for leader, _ in waited)), None


def lost_leader_error(leader: TaskRecord, state: EndState) -> str:
    """Return the error of a task that is dead because a leader of it is dead or cancelled."""
    return f"task {shorten(leader.id)!r}, which it waited for, is {state}"


async def settle(executor: Executor, unit: Unit, leader: TaskRecord, state: EndState) -> list[str]:
    """Tell the first followers of a task that it ends, in the batch that ends it.

    Returns:
        The ids of the tasks whose followers are still to be told; the batch marks them. The leader is one of
        them if it has more followers.
    """
    keys, has_more = await _first_keys(executor, unit, leader.id)
    ids = [_follower_in(key) for key in keys]
    now_ms = await unit.now_ms()
    marked = [leader.id] if has_more else []
    for key, entry in zip(keys, await unit.read(*map(tasks.task_key, ids)), strict=True):
        unit.delete(key)
        if entry is None:
            continue
        record = tasks.decode_record(entry.value, f"a task record of {executor.name!r}")
        if record.state != "waiting" or leader.id not in record.waits_for:
            continue
        if state != "done" and not record.is_suspended:
            die(unit, record, now_ms, lost_leader_error(leader, state))
            if record.is_followed:
                marked.append(record.id)
        else:
            left = tuple(each for each in record.waits_for if each != leader.id)
            proceed(unit, record, left, now_ms)
    if has_more:
        unit.put(ending_key(leader.id), PRESENT)
    return marked


def die(unit: Unit, record: TaskRecord, now_ms: int, error: str, *, version: int = 0) -> TaskRecord:
    """Make a task dead, and mark it as ending if it is followed. Return its record."""
    if record.is_followed:
        unit.put(ending_key(record.id), PRESENT)
    return tasks.move(unit, record, "dead", version=version, due_at_ms=now_ms, error=error)


def proceed(unit: Unit, record: TaskRecord, left: tuple[str, ...], now_ms: int) -> None:
    """Move on a waiting task that still waits for the tasks in `left`."""
    if left:
        tasks.move(unit, record, "waiting", waits_for=left)
    elif record.due_at_ms > now_ms and not record.is_suspended:
        tasks.move(unit, record, "waiting", waits_for=())
    else:
        wake(unit, record, now_ms)


def wake(unit: Unit, record: TaskRecord, now_ms: int) -> TaskRecord:
    """Make a waiting task ready, whatever it waits for, and return its record."""
    return tasks.move(
        unit, record, "ready", due_at_ms=min(record.due_at_ms, now_ms), waits_for=(), waits_on=(),
        is_suspended=False,
    )  # fmt: skip


async def _first_keys(executor: Executor, unit: Unit, leader_id: str) -> tuple[list[bytes], bool]:
    """Return the keys of the first followers' entries, and whether there are more."""
    prefix, keys = _prefix(leader_id), list[bytes]()
    if executor.gathers:  # the transaction's own entries count
        async for entry in unit.scan(prefix, at_once=_AT_ONCE + 1):
            keys.append(entry.key)
            if len(keys) > _AT_ONCE:
                break
    else:
        # Not part of the unit's checks: a later follower writes the leader's record, which the unit has read.
        page = await unit.store.scan(unit.space, prefix, limit=_AT_ONCE + 1)
        keys = [entry.key for entry in page.entries]
    return keys[:_AT_ONCE], len(keys) > _AT_ONCE


def _follower_in(key: bytes) -> str:
    match unpack(key[len(layout.FOLLOWERS) :]):
        case (str(), str(follower)):
            return follower
        case _:
            raise corrupt_error(describe(key), "it does not name a task and its follower")


async def resume(executor: Executor, task_ids: Iterable[str]) -> None:
    """Tell the followers of ended tasks, batch by batch, and those of the followers that died from it."""
    waiting = deque(dict.fromkeys(task_ids))
    while waiting:
        waiting += await _settle_marked(executor, waiting.popleft())


async def _settle_marked(executor: Executor, task_id: str) -> list[str]:
    async def work(unit: Unit) -> list[str]:
        mark, entry = await unit.read(ending_key(task_id), tasks.task_key(task_id))
        if mark is None:
            return []
        unit.delete(mark.key)
        if entry is None:
            return []
        record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
        if record.state not in tasks.ENDED:
            return []
        marked = await settle(executor, unit, record, record.state)
        ttl_ms = record.keep_ms if record.state != "dead" and record.has_steps else None
        if ttl_ms is not None and await keep_steps(executor, unit, record, ttl_ms):
            unit.put(ending_key(task_id), PRESENT)
            marked.append(task_id)
        if task_id not in marked and record.is_followed:
            tasks.move(unit, record, record.state, is_followed=False)
        return marked

    return (await executor.run(work))[0]


async def resume_all(executor: Executor, store: Store) -> bool:
    """Go on with endings that a killed process has left, and return whether there were any."""
    page = await store.scan(executor.stored_name, layout.ENDING, limit=_RESUMED)
    try:
        for entry in page.entries:
            match unpack(entry.key[len(layout.ENDING) :]):
                case (str(task_id),):
                    await resume(executor, [task_id])
                case _:
                    raise corrupt_error(describe(entry.key), "it does not name a task")
    except KeepstateError as error:
        _log.warning("followers of ended tasks of %r could not be told, and wait: %s", executor.name, error)
    return bool(page.entries)
