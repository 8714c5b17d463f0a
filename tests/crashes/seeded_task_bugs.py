"""Bugs of the queue, planted into ours from outside; see `seeded_bugs`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from keepstate.engine import tasks
from keepstate.engine.claiming import Claims
from keepstate.engine.queue import Queue
from keepstate.engine.unit import Unit
from keepstate.engine.waking import Waking, put_ready_or_dead
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry
from tests.crashes.seeded_bugs import Planted


@contextmanager
def stale_index_entry_wakes() -> Planted:
    """Makes a task ready though it has left the index entry that was found to be due."""

    async def make_ready(self: Waking, due: list[Entry]) -> bool:
        async def work(unit: Unit) -> bool:
            for index in due:
                entry = await unit.get(tasks.task_key(tasks.id_in(index)))
                record = None if entry is None else tasks.opened(entry.value, "a task")
                if entry is not None and record is not None and record.due_at_ms <= await unit.now_ms():
                    put_ready_or_dead(unit, entry.key, record, await unit.now_ms())
            return True

        try:
            return (await self._scope.run(work, attempts=4))[0]
        except ConflictError:
            return True

    with patch.object(Waking, "_make_ready", make_ready):
        yield


@contextmanager
def task_completed_by_a_former_holder() -> Planted:
    """Counts no claims, so that every holder's claim looks like the present one."""
    right = Claims._take

    async def take(self: Claims, *args: Any) -> Any:
        claimed = await right(self, *args)
        if not isinstance(claimed, tuple):
            return claimed
        record, payload = claimed
        return msgspec.structs.replace(record, token=1), payload

    opened = tasks.opened

    def uncounted(stored: bytes, place: str) -> tasks.TaskRecord:
        record = opened(stored, place)
        return msgspec.structs.replace(record, token=min(record.token, 1))

    with patch.object(Claims, "_take", take), patch.object(tasks, "opened", uncounted):
        yield


@contextmanager
def completed_task_done_again() -> Planted:
    """Lets a transaction go on that completes what has been completed."""
    with patch.object(Queue, "_scope", _Ungathering(), create=True):
        yield


class _Ungathering:
    """Says of every scope that it gathers nothing."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, queue: Any, owner: type) -> Any:
        return _Alone(queue.__dict__["_scope"]) if queue is not None else self

    def __set__(self, queue: Any, scope: Any) -> None:
        queue.__dict__["_scope"] = scope


class _Alone:
    gathers = False

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)
