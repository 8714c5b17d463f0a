"""Stored steps: what a task has done so far, by name, as rows next to its record.

A row belongs to one life of a task's id: a row that an earlier task of the same id has left counts as absent.
A result above 16 KiB has an entry of its own, so that an attempt reads the rows of its task in one scan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import StoredMs, corrupt_error, decode_whole, encode_fields, shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack, unpack

StepKind: TypeAlias = Literal["step", "transact", "sleep", "receive", "spawn", "results", "ask"]
StepState: TypeAlias = Literal["done", "open", "waiting", "timeout"]
STATES: Final[tuple[StepState, ...]] = get_args(StepState)

_INLINE_BYTES: Final = 16 << 10
_AT_ONCE: Final = 400
"""Rows in one batch, each with at most two writes."""
_AT_ONCE_BYTES: Final = 4 << 20
_encode: Final = msgspec.msgpack.Encoder().encode


class StepRecord(msgspec.Struct, array_like=True, frozen=True):
    """A step as it is stored."""

    kind: StepKind
    state: StepState
    number: int
    """Its index in the order of recording."""
    life_ms: StoredMs
    """The time at which its task was put."""
    token: int
    """The token of the claim that wrote it last."""
    attempt: int
    at_ms: StoredMs
    due_ms: StoredMs | None = None
    size_bytes: int = 0
    """The size of the encoded result."""
    value: bytes | None = None
    """The encoded result; None if it has none, or if it has an entry of its own."""
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate. They are written back unchanged."""

    @property
    def is_apart(self) -> bool:
        """True if the result has an entry of its own."""
        return self.size_bytes > _INLINE_BYTES


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a task has begun or done.

    Attributes:
        name: Its name.
        kind: `step`, `transact`, `sleep`, `receive`, `spawn`, `results` or `ask`.
        state: `done`; `open` if it was begun with `once` and its end is unknown; `waiting`; or `timeout`.
        at: When it was recorded, by the store's clock.
        attempt: The attempt that recorded it.
        due_at: For a sleep or a receipt with a timeout, when it ends.
        size_bytes: The size of its encoded result.
    """

    name: str
    kind: StepKind
    state: StepState
    at: datetime
    attempt: int
    due_at: datetime | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an approval.

    Attributes:
        value: The answer: True or False, or a value of the approval's schema.
        approved: Whether the answer is yes; with a schema, whether a person has answered anything but no.
        by: The person whose answer closed the approval; None for a default.
        at: The time of that, by the store's clock.
        note: The person's note.
        subject: The thing that was decided about, as the person saw it. Use it to go on.
    """

    value: Any
    approved: bool
    by: str | None
    at: datetime
    note: str
    subject: Any


def steps_prefix(task_id: str) -> bytes:
    """Return the key prefix of the steps of a task."""
    return layout.STEPS + pack(task_id)


def step_key(task_id: str, name: str) -> bytes:
    """Return the key of a step.

    Raises:
        InvalidError: The name is not a str of 1 to 200 bytes, or too long together with the task's id.
    """
    key = layout.STEPS + pack(task_id, tasks.check_kind("name", name))
    if len(key) + len(layout.STEP_VALUES) - len(layout.STEPS) > limits.KEY_BYTES:
        raise InvalidError(f"step {shorten(name)!r} of task {shorten(task_id)!r}: both are too long together")
    return key


def approval_marks(id: str) -> dict[str, bytes]:
    """Return the key of the mark of a pending approval, by the name that its task waits on."""
    return {f"\0approval/{id}": layout.ASKING + pack(id)}


def value_key(key: bytes) -> bytes:
    """Return the key of the result of a step that has an entry of its own."""
    return layout.STEP_VALUES + key[len(layout.STEPS) :]


def name_in(key: bytes) -> tuple[str, str]:
    """Return the task and the name in the key of a step."""
    match unpack(key[len(layout.STEPS) :]):
        case (str(task_id), str(name)):
            return task_id, name
        case _:
            raise corrupt_error(f"key {key.hex()}", "it does not name a task and its step")


def decode_step(stored: bytes, place: str) -> StepRecord:
    """Decode a stored step. `place` names it in errors.

    Raises:
        CorruptError: It is not a step.
    """
    return decode_whole(stored, StepRecord, place)


def encode_step(record: StepRecord) -> bytes:
    """Encode a step for storing."""
    return _encode(encode_fields(record))


def write_step(unit: Unit, key: bytes, record: StepRecord, value: bytes | None) -> StepRecord:
    """Write a step with its encoded result, and return the record."""
    size_bytes = 0 if value is None else len(value)
    record = msgspec.structs.replace(record, size_bytes=size_bytes, value=value)
    if value is not None and record.is_apart:
        unit.put(value_key(key), value)
        record = msgspec.structs.replace(record, value=None)
    unit.put(key, encode_step(record))
    return record


# ---- all steps of a task


async def scan_steps(executor: Executor, unit: Unit, task_id: str) -> AsyncIterator[Entry]:
    """Yield the entries of the steps of a task, in the order of their names.

    Outside a transaction, the unit does not check them.
    """
    prefix = steps_prefix(task_id)
    if executor.gathers:
        async for entry in unit.scan(prefix):
            yield entry
        return
    async for _, entry in executor.scan(prefix):
        yield entry


async def _stored_steps(unit: Unit, task_id: str) -> AsyncIterator[Entry]:
    """Yield the stored entries of the steps of a task, also in a transaction without a check.

    A check of the whole space would make the end of a task conflict with every other write. It is not needed:
    a step is recorded only by the holder, whose record the batch checks.
    """
    prefix, after = steps_prefix(task_id), None
    while True:
        page = await unit.store.scan(unit.space, prefix, after=after)
        for entry in page.entries:
            yield entry
        if (after := page.next) is None:
            return


async def has_many_steps(unit: Unit, task_id: str) -> bool:
    """Return whether a task has more steps than one batch deletes."""
    page = await unit.store.scan(unit.space, steps_prefix(task_id), limit=_AT_ONCE + 1)
    return len(page.entries) > _AT_ONCE or page.next is not None


async def keep_steps(executor: Executor, unit: Unit, record: TaskRecord, ttl_ms: int | None) -> bool:
    """Let the steps of an ended task end with its record, some in this batch. Return whether more are left.

    Steps that have an end already are passed over; with None, they lose it, because the task runs again.
    """
    size_bytes, number = 0, 0
    written = unit.written(layout.STEPS)
    place = f"a step of task {record.id!r} of {executor.name!r}"
    async for entry in _stored_steps(unit, record.id):
        if (entry.expires_at_ms is None) == (ttl_ms is None) or entry.key in written:
            continue
        if number >= _AT_ONCE or size_bytes > _AT_ONCE_BYTES:
            return True
        number += 1
        size_bytes += len(entry.value)
        unit.check(entry.key, version=entry.version)
        unit.put(entry.key, entry.value, ttl_ms=ttl_ms)
        if decode_step(entry.value, place).is_apart:
            value = await unit.get(value_key(entry.key))
            if value is not None:
                size_bytes += len(value.value)
                unit.put(value.key, value.value, ttl_ms=ttl_ms)
    return False


async def erase_steps(executor: Executor, unit: Unit, record: TaskRecord, *, from_number: int = 0) -> bool:
    """Delete the steps of a task from a number on, some in this batch. Return whether more are left."""
    place = f"a step of task {record.id!r} of {executor.name!r}"
    deleted = 0
    async for entry in _stored_steps(unit, record.id):
        step = decode_step(entry.value, place)
        if step.number < from_number and step.life_ms == record.put_at_ms:
            continue
        if deleted >= _AT_ONCE:
            return True
        deleted += 1
        unit.delete(entry.key)
        if step.is_apart:
            unit.delete(value_key(entry.key))
    return False


async def copy_steps(
    executor: Executor,
    unit: Unit,
    record: TaskRecord,
    before: int,
    *,
    into: str,
    life_ms: int,
) -> None:
    """Write the steps of a task that were recorded before a number for another task.

    Raises:
        InvalidError: They are too many, or too large, for one batch.
    """
    place = f"a step of task {record.id!r} of {executor.name!r}"
    copied, size_bytes = 0, 0
    async for entry in scan_steps(executor, unit, record.id):
        step = decode_step(entry.value, place)
        if step.number >= before or step.life_ms != record.put_at_ms:
            continue
        if step.kind == "ask" and step.state == "waiting":
            continue  # its answer wakes the other task, and the new one asks again
        copied += 1
        key = step_key(into, name_in(entry.key)[1])
        value = step.value
        if step.is_apart:
            stored = await unit.get(value_key(entry.key))
            value = None if stored is None else await unit.value(stored)
        size_bytes += 0 if value is None else len(value)
        if copied > _AT_ONCE or size_bytes > _AT_ONCE_BYTES:
            raise InvalidError(
                f"task {record.id!r} of {executor.name!r} has more steps before that one than one batch can "
                f"copy: over {_AT_ONCE}, or {_AT_ONCE_BYTES >> 20} MiB. Run it again from its beginning"
            )
        if value is not None:
            value = executor.rebind(value, entry.key, key)
        write_step(unit, key, msgspec.structs.replace(step, life_ms=life_ms), value)


@dataclass(frozen=True, slots=True)
class StepEdit:
    """A new result of a recorded step, for a task that runs again.

    Attributes:
        key: The key of the step in the task that runs.
        row: The step as it was recorded.
        stored: The new result, encoded for the key.
    """

    key: bytes
    row: StepRecord
    stored: bytes

    async def write(self, unit: Unit, life_ms: int | None = None) -> None:
        """Write the step as done with the new result; for a copy of its task, in the life that begins now."""
        now_ms = await unit.now_ms()
        row = msgspec.structs.replace(
            self.row, state="done", at_ms=now_ms, life_ms=now_ms if life_ms is None else life_ms
        )
        if not write_step(unit, self.key, row, self.stored).is_apart and self.row.is_apart:
            unit.delete(value_key(self.key))


async def find_step(executor: Executor, unit: Unit, record: TaskRecord, name: str) -> StepRecord | None:
    """Return a recorded step of a task, or None if it has none of this name."""
    entry = await unit.get(step_key(record.id, name))
    if entry is None:
        return None
    row = decode_step(entry.value, f"step {name!r} of task {record.id!r} of {executor.name!r}")
    return row if row.life_ms == record.put_at_ms else None
