"""Steps by single calls, for a worker that runs elsewhere and holds only the id and the token of its claim.

A call reads the record of its task and its own step, and no other step. So a step gets its number from the
time and the revision of the space: one that begins after another was recorded has the larger number.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NoReturn

import msgspec

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import corrupt_error, shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.listings import decode_task
from keepstate.engine.queue.step_memory import unknown_error
from keepstate.engine.queue.step_records import (
    StepRecord,
    StepState,
    decode_step,
    find_step,
    scan_steps,
    step_key,
    value_key,
    write_step,
)
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import InvalidError, LeaseLostError, NotFoundError
from keepstate.values import limits

_REVISION_BITS: Final = 20
_LARGE_BYTES: Final = 256 << 10
_COUNTED: Final = 8
"""Of 256 names, those at which all steps are counted, because counting reads all of them."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of a task, for one call.

    Attributes:
        is_done: Whether its result is recorded.
        value: The recorded result; None if there is none.
    """

    is_done: bool
    value: Any = None


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls on one step of a task that a claim holds.

    Attributes:
        executor: The executor of the space.
        id: The id of the task.
        token: The token of the claim.
        name: The name of the step.
    """

    executor: Executor
    id: str
    token: int
    name: str

    async def begin(self, *, once: bool) -> RecordedStep:
        """Return the recorded result, or note that the step is about to run; see `Queue.begin_step`."""
        key = step_key(self.id, self.name)

        async def work(unit: Unit) -> RecordedStep:
            record, version, row = await self._held(unit, key)
            if row is None:
                await self._check_room(unit, record, 0)
                if once:
                    row = await self._fresh(unit, record, "open")
                    self._write(unit, record, version, key, row, None)
                return RecordedStep(is_done=False)
            if row.state == "open" and row.token == self.token:
                return RecordedStep(is_done=False)
            if row.state != "done":
                self._reject(row)
            return RecordedStep(is_done=True, value=await value_in(self.executor, unit, key, row, self.name))

        return (await self.executor.run(work))[0]

    async def record(self, value: object) -> RecordedStep:
        """Record the result of the step, unless it is recorded; see `Queue.record_step`."""
        key = step_key(self.id, self.name)
        stored = self.executor.encode(value, key)

        async def work(unit: Unit) -> RecordedStep:
            record, version, row = await self._held(unit, key)
            if row is not None and row.state == "done":
                found = await value_in(self.executor, unit, key, row, self.name)
                return RecordedStep(is_done=True, value=found)
            if row is None:
                await self._check_room(unit, record, len(stored))
                row = await self._fresh(unit, record, "done")
            elif row.state != "open" or row.token != self.token:
                self._reject(row)
            row = msgspec.structs.replace(row, state="done", at_ms=await unit.now_ms())
            self._write(unit, record, version, key, row, stored)
            return RecordedStep(is_done=True, value=decode_value(self.executor, key, stored, name=self.name))

        return (await self.executor.run(work))[0]

    async def _held(self, unit: Unit, key: bytes) -> tuple[TaskRecord, int, StepRecord | None]:
        """Return the record of the task with its version, and the step. The batch depends on the claim."""
        entry, *_ = await unit.read(tasks.task_key(self.id), key)
        record = None if entry is None else decode_task(self.executor, entry)
        if entry is None or record is None or record.token != self.token or record.state != "claimed":
            raise lost_error(self.executor, self.id, self.token, record)
        return record, entry.version, await find_step(self.executor, unit, record, self.name)

    async def _fresh(self, unit: Unit, record: TaskRecord, state: StepState) -> StepRecord:
        now_ms = await unit.now_ms()
        number = (now_ms << _REVISION_BITS) | ((unit.revision or 0) & ((1 << _REVISION_BITS) - 1))
        return StepRecord("step", state, number, record.put_at_ms, self.token, record.attempt, now_ms)

    def _write(
        self, unit: Unit, record: TaskRecord, version: int, key: bytes, row: StepRecord, stored: bytes | None
    ) -> None:
        write_step(unit, key, row, stored)
        if not record.has_steps:
            tasks.rewrite(unit, record, version, has_steps=True)

    async def _check_room(self, unit: Unit, record: TaskRecord, size_bytes: int) -> None:
        """Raise `InvalidError` if the task has too many steps, or too large ones; counted at some steps."""
        is_counted = sha256(self.name.encode()).digest()[0] < _COUNTED or size_bytes > _LARGE_BYTES
        if not record.has_steps or not is_counted:
            return
        number = 0
        async for entry in scan_steps(self.executor, unit, self.id):
            row = decode_step(entry.value, f"a step of task {self.id!r} of {self.executor.name!r}")
            number, size_bytes = number + 1, size_bytes + row.size_bytes
        if number >= limits.STEPS or size_bytes > limits.STEPS_BYTES:
            raise InvalidError(
                f"task {self.id!r} has {number:,} steps with results of {size_bytes:,} bytes; it may have "
                f"{limits.STEPS:,} of {limits.STEPS_BYTES >> 20} MiB. Spawn other tasks"
            )

    def _reject(self, row: StepRecord) -> NoReturn:
        if row.state == "open":
            raise unknown_error(self.executor, self.id, self.name)
        raise InvalidError(
            f"step {self.name!r} of task {self.id!r} is of kind {row.kind!r}; give each step "
            "a name of its own"
        )


def lost_error(executor: Executor, id: str, token: int, record: TaskRecord | None) -> LeaseLostError:
    """Return the error for a claim that no longer holds its task, whose record is this one now."""
    now = "deleted"
    if record is not None:
        now = record.state if record.token == token else "claimed by another worker"
        if record.token == token and record.state == "cancelled":
            by = f" by {shorten(record.cancelled_by)}" if record.cancelled_by else ""
            now = f"cancelled{by}{f': {shorten(record.error)}' if record.error else ''}"
    return LeaseLostError(
        f"task {id!r} of {executor.name!r} is no longer held by this claim (now: {now}). Stop working on it",
        space=executor.name,
        name=id,
        token=token,
    )


async def value_in(executor: Executor, unit: Unit, key: bytes, row: StepRecord, name: str) -> Any:
    """Return the result of a step that a unit has read.

    Raises:
        CorruptError: The result is lost.
    """
    stored = row.value
    if stored is None and row.is_apart:
        entry = await unit.get(value_key(key))
        if entry is None:
            raise corrupt_error(f"step {name!r} of {executor.name!r}", "its result is lost")
        stored = await unit.value(entry)
    return None if stored is None else decode_value(executor, key, stored, name=name)


async def read_step(executor: Executor, id: str, name: str) -> RecordedStep:
    """Return a step of a task, whether or not the task is held; see `Queue.step_result`."""
    key = step_key(id, name)

    async def work(unit: Unit) -> RecordedStep:
        entry, *_ = await unit.read(tasks.task_key(id), key)
        row = None
        if entry is not None:
            row = await find_step(executor, unit, decode_task(executor, entry), name)
        if row is None:
            raise NotFoundError(
                f"task {id!r} of {executor.name!r} has no step {name!r}; list its steps to see their names"
            )
        return RecordedStep(row.state == "done", await value_in(executor, unit, key, row, name))

    return (await executor.run(work))[0]
