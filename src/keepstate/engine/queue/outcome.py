"""Waiting for tasks: for the result of one, and for a queue without work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel.arguments import check_duration_ms, check_wait
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.store_abilities import listen
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.listings import count_tasks, decode_task
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import NotFoundError, TaskCancelledError, TaskFailedError

_LONGEST_WAIT_S: Final = 1.0


async def wait_for_result(executor: Executor, task_id: str, wait_s: float) -> Any:
    """Return the result of a task, and wait for it; see `Queue.result`."""
    check_wait("wait_s", wait_s)
    if wait_s:
        executor.require_outside_transaction("waiting for a result")
    deadline_s = executor.clock.monotonic_s() + wait_s
    ended, value = await _result(executor, task_id)
    if ended or not wait_s:
        return _given(executor, task_id, value, ended=ended, wait_s=wait_s)
    async with listen(await executor.store(), executor.stored_name) as hints:
        while True:
            ended, value = await _result(executor, task_id)
            left_s = deadline_s - executor.clock.monotonic_s()
            if ended or left_s <= 0:
                return _given(executor, task_id, value, ended=ended, wait_s=wait_s)
            await hints.wait(min(left_s, _LONGEST_WAIT_S))


def _given(executor: Executor, task_id: str, value: Any, *, ended: bool, wait_s: float) -> Any:
    if not ended:
        raise TimeoutError(
            f"task {task_id!r} of {executor.name!r} is {value} and had no result after {wait_s:g} s; give a "
            "longer wait_s="
        )
    return value


async def _result(executor: Executor, task_id: str) -> tuple[bool, Any]:
    """Return whether a task is done, with its result, or otherwise its state."""

    async def work(unit: Unit) -> tuple[bool, Any]:
        entry, stored = await unit.read(tasks.task_key(task_id), tasks.result_key(task_id))
        if entry is None:
            raise NotFoundError(
                f"no task of {executor.name!r} has the id {task_id!r}; a task is stored for its keep_s after "
                "it was completed or cancelled"
            )
        record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
        raise_failure(executor, record, await unit.now_ms())
        if record.state != "done":
            return False, record.state
        if stored is None:
            return True, None
        return True, decode_value(executor, stored.key, await unit.value(stored))

    return (await executor.run(work))[0]


def raise_failure(executor: Executor, record: TaskRecord, now_ms: int) -> None:
    """Raise the error of a task that is dead, cancelled or expired."""
    what = f"task {record.id!r} of {executor.name!r}"
    if record.state == "cancelled":
        by = f" by {shorten(record.cancelled_by)}" if record.cancelled_by else ""
        raise TaskCancelledError(
            f"{what} was cancelled{by}{f': {shorten(record.error)}' if record.error else ''}",
            task=record.id,
            by=record.cancelled_by,
            reason=record.error,
        )
    if record.state == "dead":
        raise TaskFailedError(
            f"{what} is dead after {record.attempt} attempts: {shorten(record.error or 'no error is known')}",
            task=record.id,
        )
    if record.state in ("ready", "waiting") and tasks.is_expired(record, now_ms):
        raise TaskFailedError(f"{what} will not run: {tasks.EXPIRED}", task=record.id)


async def read_results(
    executor: Executor, ids: Sequence[str], keys: Sequence[bytes]
) -> tuple[list[str], list[Any]]:
    """Return the ids of tasks that have not ended, or the results of all; `keys` are those of the records."""

    async def work(unit: Unit) -> tuple[list[str], list[Any]]:
        stored = await unit.read(*keys)
        left: list[str] = []
        for id, entry in zip(ids, stored, strict=True):
            if entry is None:
                raise NotFoundError(f"no task of {executor.name!r} has the id {id!r}")
            record = decode_task(executor, entry)
            raise_failure(executor, record, await unit.now_ms())
            if record.state != "done":
                left.append(id)
        if left:
            return left, []
        return [], [await _read_result(executor, unit, id) for id in ids]

    return (await executor.run(work))[0]


async def _read_result(executor: Executor, unit: Unit, id: str) -> Any:
    entry = await unit.get(tasks.result_key(id))
    return None if entry is None else decode_value(executor, entry.key, await unit.value(entry))


async def wait_until_empty(executor: Executor, timeout_s: float) -> None:
    """Wait until no task is ready, waiting or claimed; see `Queue.wait_empty`."""
    executor.require_outside_transaction("waiting for an empty queue")
    check_duration_ms("timeout_s", timeout_s)
    deadline_s = executor.clock.monotonic_s() + timeout_s
    store = await executor.store()
    async with listen(store, executor.stored_name) as hints:
        while True:
            counts = await count_tasks(store, executor.stored_name)
            left = {state: counts[state] for state in ("ready", "waiting", "claimed") if counts[state]}
            if not left:
                return
            left_s = deadline_s - executor.clock.monotonic_s()
            if left_s <= 0:
                told = ", ".join(f"{count} {state}" for state, count in left.items())
                raise TimeoutError(f"{executor.name!r} has tasks left after {timeout_s:g} s: {told}")
            await hints.wait(min(left_s, _LONGEST_WAIT_S))
