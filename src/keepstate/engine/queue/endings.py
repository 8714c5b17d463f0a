"""Ends of tasks, and their return: completed, dead or cancelled, requeued or run again.

The payload and the attempts of a task are stored as long as its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import describe, shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.attempts import attempts_key, note_attempt
from keepstate.engine.queue.followers import (
    PRESENT,
    ending_key,
    follow,
    lost_leader_error,
    resume,
    settle,
)
from keepstate.engine.queue.messages import drop_messages
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.rules import pause_ms
from keepstate.engine.queue.slots import release_slots
from keepstate.engine.queue.step_records import StepEdit, copy_steps, erase_steps, keep_steps
from keepstate.engine.queue.tasks import EndState, IfPresent, Put, TaskRecord, TaskState
from keepstate.errors import AlreadyExistsError, CorruptError, InvalidError, NotFoundError, TransitionError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

_AT_ONCE: Final = 100


class Ends:
    """The ends of tasks in one batch.

    Attributes:
        left: The ids of ended tasks whose followers are still to be told. The batch marks them.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.left: list[str] = []

    async def end(
        self,
        unit: Unit,
        record: TaskRecord,
        state: EndState,
        *,
        version: int = 0,
        payload: bytes | None = None,
        **changes: Any,
    ) -> TaskRecord:
        """End a task: tell its followers, drop its messages, and keep the rest as long as its record.

        Args:
            unit: The unit to write to. It has read the task's record.
            record: The record as it is stored.
            state: How the task ends.
            version: The version of the stored entry; only a ready task needs it.
            payload: The stored payload, if it is known; otherwise it is read.
            changes: Other changes of the record.
        """
        if record.is_followed:
            left = await settle(self._executor, unit, record, state)
            self.left += left
            changes["is_followed"] = record.id in left
        if state != "dead":
            if record.messages:
                record = await drop_messages(self._executor, unit, record)
            await _keep_with_record(unit, record, record.keep_ms, payload)
            if await self._keep_steps(unit, record):
                self.left.append(record.id)
            changes = {"waits_for": (), "waits_on": (), "is_suspended": False} | changes
        return tasks.move(unit, record, state, version=version, **changes)

    async def _keep_steps(self, unit: Unit, record: TaskRecord) -> bool:
        """Let the steps of a task end with its record. Mark the task, and return True, if some are left."""
        if not record.has_steps or record.keep_ms is None:
            return False
        if not await keep_steps(self._executor, unit, record, record.keep_ms):
            return False
        unit.put(ending_key(record.id), PRESENT)
        return True

    async def resume(self) -> None:
        """Go on with what is left, after the batch was applied, unless it is part of a transaction."""
        left, self.left = self.left, []
        if left and not self._executor.gathers:
            await resume(self._executor, left)


async def _keep_with_record(
    unit: Unit, record: TaskRecord, ttl_ms: int | None, payload: bytes | None = None
) -> None:
    """Let the payload and the attempts of a task end with its record."""
    if ttl_ms is None:
        return
    keys = [attempts_key(record.id)] if record.has_attempts else []
    if payload is None:
        keys.append(tasks.payload_key(record.id))
    else:
        unit.put(tasks.payload_key(record.id), payload, ttl_ms=ttl_ms)
    for entry in await unit.read(*keys) if keys else ():
        if entry is not None:
            unit.put(entry.key, entry.value, ttl_ms=ttl_ms)


async def fail_task(
    ends: Ends,
    unit: Unit,
    record: TaskRecord,
    error: object,
    retry: Retry | int | None,
    spread: float,
    *,
    is_final: bool = False,
) -> bool:
    """Fail a claimed task, and return whether it is dead; see `Queue.fail`.

    Args:
        ends: The ends of the batch.
        unit: The unit to write to. It has read the task's record.
        record: The record as it is stored.
        error: The error of the attempt.
        retry: The milliseconds until the next attempt, or the rules for errors. None for those of the queue.
        spread: A random number in [0, 1), for these rules.
        is_final: Whether the task is dead in any case.
    """
    text, now_ms = tasks.format_error(error), await unit.now_ms()
    record = await note_attempt(unit, record, now_ms, text)
    wait_ms = None
    if not is_final and record.attempt < record.max_attempts:
        wait_ms = (
            retry if isinstance(retry, int) else await pause_ms(unit, record.attempt, error, spread, retry)
        )
    if wait_ms is None:
        await ends.end(unit, record, "dead", due_at_ms=now_ms, error=text)
        return True
    state: TaskState = "waiting" if wait_ms else "ready"
    tasks.move(unit, record, state, due_at_ms=now_ms + wait_ms, error=text)
    return False


async def cancel_task(
    executor: Executor, ends: Ends, unit: Unit, task_id: str, by: str | None, reason: str
) -> bool:
    """Cancel a task that has not ended; see `Queue.cancel`."""
    entry = await unit.get(tasks.task_key(task_id))
    if entry is None:
        return False
    record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
    if record.state in tasks.ENDED:
        return False
    _require_fixed(record, entry, "cancel")
    now_ms = await unit.now_ms()
    if record.state == "claimed":
        said = f"cancelled{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"
        record = await note_attempt(unit, record, now_ms, said)
    error = tasks.format_error(reason) if reason else None
    await ends.end(
        unit, record, "cancelled", version=entry.version, due_at_ms=now_ms, error=error, cancelled_by=by
    )
    return True


def _require_fixed(record: TaskRecord, entry: Entry, what: str) -> None:
    if not tasks.is_fixed(record, entry.version):
        raise InvalidError(f"task {record.id!r} was put by this transaction; {what} it after the transaction")


# ---- put


async def put_task(
    executor: Executor,
    unit: Unit,
    record: TaskRecord,
    payload: bytes,
    if_present: IfPresent,
    *,
    at_ms: int | None = None,
) -> Put:
    """Write a new task. If its id has one already, `if_present` decides.

    Args:
        executor: The executor of the space.
        unit: The unit to write to.
        record: The new task. Its times are relative to now, and its state is decided here.
        payload: Its encoded payload.
        if_present: See `Queue.put`.
        at_ms: The time from which it can be claimed, instead of the record's.
    """
    entry = (await unit.read(tasks.task_key(record.id), *map(tasks.task_key, record.waits_for)))[0]
    if entry is not None:
        known = tasks.decode_record(entry.value, f"task {record.id!r} of {executor.name!r}")
        if if_present == "keep":
            return Put(known.id, added=False, state=known.state)
        if if_present == "raise":
            raise AlreadyExistsError(
                f"space {executor.name!r} already has a task {record.id!r}, which is {known.state}; pass "
                "another id, or if_present='keep'"
            )
        if known.state == "claimed":
            raise TransitionError(
                f"task {record.id!r} of {executor.name!r} is held by worker "
                f"{shorten(known.worker or '')!r}. Wait until it is done, or call discard()",
                current=known.state,
                wanted="replaced",
            )
        if known.is_followed and (record.waits_for or known.state in tasks.ENDED):
            raise TransitionError(
                f"task {record.id!r} of {executor.name!r} has followers, which might then wait for "
                "themselves; put the task under another id",
                current=known.state,
                wanted="replaced",
            )
        await erase_task(executor, unit, entry, known)
        record = tasks.replaced(record, is_followed=known.is_followed)
    unit.put(tasks.payload_key(record.id), payload)
    now_ms = await unit.now_ms()
    due_at_ms = now_ms + record.due_at_ms if at_ms is None else max(at_ms, now_ms)
    expires_at_ms = None if record.expires_at_ms is None else now_ms + record.expires_at_ms
    record = tasks.replaced(record, put_at_ms=now_ms, due_at_ms=due_at_ms, expires_at_ms=expires_at_ms)
    if not record.waits_for:
        state: TaskState = "waiting" if due_at_ms > now_ms else "ready"
        return Put(record.id, added=True, state=tasks.move(unit, record, state).state)
    record, lost = await follow(executor, unit, record, is_new=True)
    if lost is not None:
        error = lost_leader_error(lost, "cancelled" if lost.state == "cancelled" else "dead")
        moved = tasks.move(unit, record, "dead", due_at_ms=now_ms, error=error)
    else:
        waits = record.waits_for or due_at_ms > now_ms
        moved = tasks.move(unit, record, "waiting" if waits else "ready")
    return Put(record.id, added=True, state=moved.state)


async def erase_task(executor: Executor, unit: Unit, entry: Entry, record: TaskRecord) -> None:
    """Delete the record of a task, and what is stored of it: but not the entries of its followers.

    Raises:
        InvalidError: The same transaction made the task ready, so its index key is known only after the
            commit.
    """
    _require_fixed(record, entry, "discard")
    if record.messages:
        await drop_messages(executor, unit, record)
    release_slots(unit, record.slots)
    keys = [entry.key, tasks.index_key(record, entry.version), tasks.payload_key(record.id)]
    keys.append(tasks.result_key(record.id))
    if record.has_steps and await erase_steps(executor, unit, record):
        raise TransitionError(
            f"task {record.id!r} of {executor.name!r} has too many steps to be deleted in one batch; call "
            "remove() or discard() outside of a transaction",
            current=record.state,
            wanted="removed",
        )
    if record.has_attempts:
        keys.append(attempts_key(record.id))
    tasks.note_kind(unit, record.kind)
    for key in keys:
        unit.delete(key)


# ---- return


async def requeue_tasks(executor: Executor, unit: Unit, ids: Sequence[str], *, strict: bool) -> list[str]:
    """Make dead tasks ready again, or let them wait again for their leaders. Return their ids.

    A task whose leader is dead is requeued only together with it.

    Raises:
        NotFoundError: `strict`, and an id has no dead task.
        TransitionError: `strict`, and a task's leader is dead or cancelled and not requeued.
    """
    dead: dict[str, TaskRecord] = {}
    for task_id, entry in zip(ids, await unit.read(*map(tasks.task_key, ids)), strict=True):
        record = None
        if entry is not None:
            record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
        if record is not None and record.state == "dead" and not record.is_followed:
            dead[task_id] = record
        elif strict:
            raise NotFoundError(
                f"no dead task of {executor.name!r} has the id {task_id!r}; list those that are dead"
            )
    now_ms = await unit.now_ms()
    requeued: list[str] = []
    lost: TaskRecord | None = None
    waiting = list(dead.values())
    while waiting:
        left: list[TaskRecord] = []
        for record in waiting:
            fresh = tasks.replaced(record, attempt=0, due_at_ms=now_ms, began_at_ms=None, expires_at_ms=None)
            fresh, leader = await follow(executor, unit, fresh, is_new=False)
            if leader is not None:
                lost = leader
                left.append(record)
                continue
            tasks.move(unit, fresh, "waiting" if fresh.waits_for else "ready")
            requeued.append(record.id)
        if len(left) == len(waiting):
            break
        waiting = left
    if waiting and strict and lost is not None:
        raise TransitionError(
            f"task {waiting[0].id!r} of {executor.name!r} waits for {lost.id!r}, which is {lost.state}; "
            "requeue both in one call, or run that one again first",
            current="dead",
            wanted="ready",
        )
    return requeued


async def find_dead(executor: Executor, *, kind: str | None, since_ms: int, limit: int) -> list[str]:
    """Return the ids of tasks that died since a time, the earliest first."""
    found: list[str] = []
    after = tasks.timed_key(layout.DEAD, since_ms, "")
    async for _, entry in executor.scan(layout.DEAD, after=after):
        index = tasks.index_in(entry)
        if kind is None or index.kind == kind:
            found.append(index.id)
        if len(found) == limit:
            break
    return found


async def rerun_task(
    executor: Executor, unit: Unit, task_id: str, as_id: str | None, number: int, edit: StepEdit | None = None
) -> Put | None:
    """Run a task again, or a copy of it under another id; see `Queue.rerun`.

    Args:
        executor: The executor of the space.
        unit: The unit to write to.
        task_id: The id of the task.
        as_id: The id of the copy, if one is wanted.
        number: The number of the first step that is not kept.
        edit: A new result of a kept step.

    Returns:
        None if the batch has only deleted or changed some of many steps.
    """
    entry, payload = await unit.read(tasks.task_key(task_id), tasks.payload_key(task_id))
    if entry is None:
        raise NotFoundError(f"no task of {executor.name!r} has the id {task_id!r}")
    record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
    if payload is None:
        raise CorruptError(
            f"{describe(entry.key)} of {executor.name!r} is damaged: its payload is lost", space=executor.name
        )
    if as_id is not None:
        copied = executor.rebind(await unit.value(payload), payload.key, tasks.payload_key(as_id))
        fresh = TaskRecord(
            as_id, "ready", record.priority, 0, record.max_attempts, 0, put_at_ms=0, due_at_ms=0,
            kind=record.kind, key=record.key, keep_ms=record.keep_ms, has_steps=number > 0,
            traceparent=executor.traceparent(),
        )  # fmt: skip
        put = await put_task(executor, unit, fresh, copied, "keep")
        if put.added and number:
            await copy_steps(executor, unit, record, number, into=as_id, life_ms=await unit.now_ms())
        if put.added and edit is not None:
            await edit.write(unit)
        return put
    if record.state not in tasks.ENDED or record.is_followed:
        raise TransitionError(
            f"task {task_id!r} of {executor.name!r} is {record.state}"
            f"{', and not all its followers know it' if record.is_followed else ''}; give as_id= to run a "
            "copy",
            current=record.state,
            wanted="ready",
        )
    if record.has_steps and (
        await erase_steps(executor, unit, record, from_number=number)
        or (number and await keep_steps(executor, unit, record, None))
    ):
        if executor.gathers:
            raise TransitionError(
                f"task {task_id!r} of {executor.name!r} has too many steps to run again in a transaction; "
                "run it again outside",
                current=record.state,
                wanted="ready",
            )
        return None
    if edit is not None:
        await edit.write(unit, life_ms=record.put_at_ms)
    if record.has_result:
        unit.delete(tasks.result_key(task_id))
    ended = attempts_key(task_id)
    # Written again without an end in time; the last writes to a key count.
    for known in (payload, await unit.get(ended) if record.has_attempts else None):
        if known is not None:
            unit.put(known.key, known.value)
    now_ms = await unit.now_ms()
    tasks.move(
        unit, record, "ready", attempt=0, due_at_ms=now_ms, error=None, has_result=False, waits_for=(),
        began_at_ms=None, expires_at_ms=None, cancelled_by=None, progress=None,
    )  # fmt: skip
    return Put(task_id, added=True, state="ready")


def chunks(ids: Iterable[str]) -> list[list[str]]:
    """Return ids, each once, in lists for one batch each."""
    given = list(dict.fromkeys(ids))
    return [given[begin : begin + _AT_ONCE] for begin in range(0, len(given), _AT_ONCE)]


def check_limit(limit: object) -> None:
    """Raise `InvalidError` unless this is the largest number of tasks for one call."""
    limits.admit_count("limit", limit)
