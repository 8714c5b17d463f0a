"""Bugs of the queue, planted into ours from outside; see `seeded_bugs`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.due_tasks import DueTasks, put_ready_or_dead
from keepstate.engine.queue.queue import Queue
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry
from tests.crashes.seeded_bugs import Planted


@contextmanager
def stale_index_entry_wakes() -> Planted:
    """Make a task ready though it has left the index entry that was found to be due."""

    async def make_ready(self: DueTasks, due: list[Entry]) -> bool:
        async def work(unit: Unit) -> bool:
            for index in due:
                entry = await unit.get(tasks.task_key(tasks.id_in(index)))
                record = None if entry is None else tasks.decode_record(entry.value, "a task")
                if entry is not None and record is not None and record.due_at_ms <= await unit.now_ms():
                    await put_ready_or_dead(unit, record, await unit.now_ms())
            return True

        try:
            return (await self._executor.run(work, attempts=4))[0]
        except ConflictError:
            return True

    with patch.object(DueTasks, "_promote_due", make_ready):
        yield


@contextmanager
def task_completed_by_a_former_holder() -> Planted:
    """Count no claims, so that every holder's claim looks like the present one."""
    opened = tasks.decode_record

    def uncounted(stored: bytes, place: str) -> tasks.TaskRecord:
        record = opened(stored, place)
        return msgspec.structs.replace(record, token=min(record.token, 1))

    def count_none(record: tasks.TaskRecord, revision: int) -> int:
        return 1

    with patch.object(tasks, "next_token", count_none), patch.object(tasks, "decode_record", uncounted):
        yield


@contextmanager
def completed_task_done_again() -> Planted:
    """Let a transaction go on that completes what has been completed."""
    with patch.object(Queue, "_executor", _Ungathering(), create=True):
        yield


class _Ungathering:
    """Says of every scope that it gathers nothing."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, queue: Any, owner: type) -> Any:
        return _Alone(queue.__dict__["_executor"]) if queue is not None else self

    def __set__(self, queue: Any, executor: Any) -> None:
        queue.__dict__["_executor"] = executor


class _Alone:
    gathers = False

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)
