"""Stored records of tasks, the keys of their index entries, and moves of tasks between states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.stored import (
    StampIndex,
    StoredMs,
    corrupt_error,
    decode_fields,
    decode_stored,
    shorten,
)
from keepstate.engine.kernel.subjects import QUEUE, Subject
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue.slots import release_slots
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack, stamp_suffix, unpack
from keepstate.values.notebooks import ShownAsTable

if TYPE_CHECKING:  # Python has defaults from 3.13 on; a `Task` without a type is one of any
    from typing_extensions import TypeVar as TypeVarWithDefault

    Payload = TypeVarWithDefault("Payload", default=Any)
else:
    Payload = TypeVar("Payload")

TaskState = Literal["ready", "waiting", "claimed", "done", "dead", "cancelled"]
STATES: Final[tuple[TaskState, ...]] = get_args(TaskState)
_CLAIMABLE: Final = ("ready", "waiting", "claimed")
EndState = Literal["done", "dead", "cancelled"]
ENDED: Final[tuple[EndState, ...]] = get_args(EndState)

DONE_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""Milliseconds for which a completed or cancelled task is stored: a week. Its id is taken until then."""
FOREVER_MS: Final = 253_402_300_799_999
"""The time at which a task is due that waits for something other than time: the last of the year 9999."""
EXPIRED: Final = "it expired before a worker began it"


_encode: Final = msgspec.msgpack.Encoder().encode


class TaskRecord(msgspec.Struct, array_like=True, frozen=True):
    """A task as it is stored.

    `place` is the key of its one index entry. The key of a ready task ends with a stamp that is unknown when
    the record is written. It follows from the revision of the record and `stamp_index`.
    """

    id: str
    state: TaskState
    priority: int
    attempt: int
    max_attempts: int
    token: int
    """The fencing token of the latest claim; 0 before the first one. See `next_token`."""
    put_at_ms: StoredMs
    due_at_ms: StoredMs
    """The time from which the task can be claimed, or claimed again."""
    worker: str | None = None
    error: str | None = None
    place: bytes = b""
    stamp_index: StampIndex = 0
    has_result: bool = False
    kind: str = ""
    key: str | None = None
    keep_ms: int | None = DONE_KEPT_MS
    """Milliseconds for which the task is stored once it is done or cancelled; None for ever."""
    expires_at_ms: StoredMs | None = None
    """The time after which the task is not begun any more."""
    began_at_ms: StoredMs | None = None
    """The time of the latest claim; None before the first one."""
    waits_for: tuple[str, ...] = ()
    """The ids of the tasks that have to end before this one goes on."""
    waits_on: tuple[str, ...] = ()
    """The names of the messages of which the first one wakes the task."""
    is_suspended: bool = False
    """True if the task was begun and waits. A task that ends in any state wakes it."""
    is_followed: bool = False
    """True if other tasks may wait for this one."""
    has_attempts: bool = False
    """True if ended attempts are stored."""
    messages: int = 0
    """The number of stored messages to the task."""
    placed_at: int = 0
    """The revision in the stamp of a ready task's index key, if the record was written again; otherwise 0."""
    cancelled_by: str | None = None
    progress: bytes | None = None
    """The encoded progress that the holder told last."""
    slots: tuple[bytes, ...] = ()
    """The names of the slots that the task holds while it is claimed."""
    has_steps: bool = False
    """True if steps may be stored."""
    traceparent: str | None = None
    """The place of the put in a trace. Without one, the stored record ends before this field."""
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate. They are written back unchanged."""


_FIELDS: Final = len(TaskRecord.__struct_fields__) - 2
_HEADER: Final = b"\xdc" + _FIELDS.to_bytes(2, "big")
"""The first bytes of a MessagePack record without a place in a trace and without later fields."""


class IndexRecord(msgspec.Struct, array_like=True, frozen=True):
    """The value of a task's index entry: what a claim chooses by, without the record and the payload."""

    id: str
    kind: str = ""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo(ShownAsTable):
    """A task in a listing.

    Attributes:
        id: The task's id.
        state: The task's state.
        priority: Tasks with a higher priority are claimed first.
        attempt: The number of claims since the task was last put or requeued, without those that were
            released.
        max_attempts: The number of failures after which the task is dead.
        worker: The worker that holds the task, or held it last.
        error: The error of the last failure; for a cancelled task the reason.
        put_at: The time of the put, by the store's clock.
        due_at: The time from which the task can be claimed; for a claimed task, when its lease expires; for
            an ended one, when it ended. The end of the year 9999 if only an event wakes it.
        result: The result passed to `complete`.
        cursor: An opaque text, for a task returned by `list`. With `after=cursor`, in any process, the
            listing continues after this task. None otherwise.
        token: The token that, with the id, proves the current claim; 0 before the first claim.
        payload: The task's payload, if requested.
        version: The revision that last wrote the task; 0 in the transaction that wrote it.
        kind: The kind given to `put`.
        key: The key given to `put`.
        began_at: The time of the latest claim; None before the first one.
        expires_at: The time after which the task is not begun any more; None if there is none.
        waits_for: The ids of the tasks that the task waits for.
        progress: The progress that the holder told last.
        cancelled_by: The name of the person or program that cancelled the task; None if `cancel` got no name.
        traceparent: The `traceparent` of the notes of the put, by `open(meta=…)`; None without one.
    """

    id: str
    state: TaskState
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    error: str | None
    put_at: datetime
    due_at: datetime
    result: Any
    cursor: str | None
    token: int = 0
    payload: Any = None
    version: int = 0
    kind: str = ""
    key: str | None = None
    began_at: datetime | None = None
    expires_at: datetime | None = None
    waits_for: tuple[str, ...] = ()
    progress: Any = None
    cancelled_by: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """The result of putting a task.

    Attributes:
        id: The id of the task.
        added: Whether the payload was stored; False if an existing task with this id was kept.
        state: The state of the task that now has the id.
    """

    id: str
    added: bool
    state: TaskState


def task_key(task_id: str) -> bytes:
    """Return the key of a task's record.

    Raises:
        InvalidError: The id is not a str of 1 to 200 bytes.
    """
    try:
        is_fit = type(task_id) is str and 0 < len(task_id.encode()) <= limits.SPACE_BYTES
    except UnicodeEncodeError:
        is_fit = False
    if not is_fit:
        raise InvalidError(f"task id {task_id!r} must be a str of 1 to {limits.SPACE_BYTES} bytes of UTF-8")
    return layout.TASKS + pack(task_id)


def id_prefix_key(prefix: str) -> bytes:
    """Return the prefix of the keys of the records of all tasks whose ids start with `prefix`."""
    return layout.TASKS + pack(prefix)[:-1]


def check_kind(what: str, text: object) -> str:
    """Return a kind or key of a task.

    Raises:
        InvalidError: It is not a str of 1 to 200 bytes.
    """
    kind = check_name(what, text)
    if len(kind.encode()) > limits.SPACE_BYTES:
        raise InvalidError(f"`{what}` is {shorten(kind)!r}; it has 1 to {limits.SPACE_BYTES} bytes of UTF-8")
    return kind


def payload_key(task_id: str) -> bytes:
    """Return the key of a task's payload."""
    return layout.PAYLOADS + pack(task_id)


def result_key(task_id: str) -> bytes:
    """Return the key of a task's result."""
    return layout.RESULTS + pack(task_id)


def ready_prefix(priority: int) -> bytes:
    """Return the key prefix of ready tasks of a priority. A stamp completes it and keeps them in order."""
    return layout.READY + pack(-priority)


def timed_key(part: bytes, at_ms: int, task_id: str) -> bytes:
    """Return the index key of a task that is not ready. The earliest sorts first."""
    return part + pack(at_ms, task_id)


def time_in(part: bytes, key: bytes) -> tuple[int, str]:
    """Return the time and the id in the index key of a task that is not ready."""
    match unpack(key[len(part) :]):
        case (int(at_ms), str(task_id)):
            return at_ms, task_id
        case _:
            raise corrupt_error(f"key {key.hex()}", "it does not contain a time and an id")


def index_key(record: TaskRecord, version: int) -> bytes:
    """Return the key of the task's index entry. `version` is the version of the record's entry."""
    if record.state != "ready":
        return record.place
    return record.place + stamp_suffix(record.placed_at or version, record.stamp_index)


def timed_place(record: TaskRecord) -> bytes:
    """Return the index key of a task that is not ready: by the time at which it is looked at again."""
    at_ms = record.due_at_ms
    if record.state == "waiting":
        if record.waits_for and not record.is_suspended:
            at_ms = FOREVER_MS  # until then it may be due, but must not begin
        if record.expires_at_ms is not None and record.began_at_ms is None:
            at_ms = min(at_ms, record.expires_at_ms)
    return timed_key(layout.INDEXES[record.state], at_ms, record.id)


def replaced(record: TaskRecord, **changes: Any) -> TaskRecord:
    """Return a record with changes, not yet written."""
    return msgspec.structs.replace(record, **changes)


def is_expired(record: TaskRecord, now_ms: int) -> bool:
    """Return whether the task must not be begun any more; one that was begun once never expires."""
    return record.expires_at_ms is not None and record.began_at_ms is None and record.expires_at_ms <= now_ms


def decode_record(stored: bytes, place: str) -> TaskRecord:
    """Decode a stored record. `place` names it in errors.

    Raises:
        CorruptError: It is not a task record.
    """
    if stored[: len(_HEADER)] == _HEADER:
        return decode_stored(stored, TaskRecord, place)
    fields = decode_stored(stored, list[Any], place)
    if len(fields) < _FIELDS:
        raise corrupt_error(place, "it is cut off")
    return decode_fields(fields, TaskRecord, place)


def encode_record(record: TaskRecord) -> bytes:
    """Encode a record for storing."""
    *fields, traceparent, later = msgspec.structs.astuple(record)
    if traceparent is None and not later:
        return _encode(fields)
    return _encode([*fields, traceparent, *later])


def next_token(record: TaskRecord, revision: int) -> int:
    """Return the token of a claim that is based on reads at `revision` of the space.

    The token is at most the revision of the claim's own batch. It is larger than the token of every earlier
    claim of this id, including claims of a removed task with the same id, because their batches came before.
    """
    return max(record.token, revision) + 1


def index_value(record: TaskRecord) -> bytes:
    """Return the value of a task's index entry."""
    return _encode(IndexRecord(record.id, record.kind, record.key))


def index_in(entry: Entry) -> IndexRecord:
    """Return the content of an index entry.

    Raises:
        CorruptError: The entry is not one of a task.
    """
    return decode_stored(entry.value, IndexRecord, entry.key)


def id_in(entry: Entry) -> str:
    """Return the id of the task in an index entry."""
    return index_in(entry).id


def id_in_value(value: bytes) -> str:
    """Return the id of the task in the value of an index entry that a transaction will write."""
    return decode_stored(value, IndexRecord, "an index entry of a task").id


def format_error(error: object) -> str:
    """Format an error as text, cut to the size that a record allows."""
    said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return cut_text(said, limits.ERROR_BYTES)


def cut_text(text: str, most: int) -> str:
    """Return a text, cut to a number of bytes of UTF-8."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= most:
        return encoded.decode()
    return encoded[: most - 3].decode("utf-8", "ignore") + "…"


# ---- moves


def move(unit: Unit, record: TaskRecord, state: TaskState, *, version: int = 0, **changes: Any) -> TaskRecord:
    """Move a task to a state: replace its index entry, and write its record. Return the new record.

    Args:
        unit: The unit to write to.
        record: The record as it is stored; one without a `place` is new.
        state: The new state.
        version: The version of the stored entry; only a ready task needs it.
        changes: Other changes of the record.
    """
    if record.place:
        unit.delete(index_key(record, version))
    if record.slots and state != "claimed":
        release_slots(unit, record.slots)
        changes["slots"] = ()
    is_noted = not record.state == state == "claimed"  # a heartbeat: its lease is over later, not sooner
    record = msgspec.structs.replace(record, state=state, placed_at=0, **changes)
    ttl_ms = kept_ms(record)
    if state == "ready":
        prefix = ready_prefix(record.priority)
        stamp_index = unit.append(prefix, index_value(record))
        record = msgspec.structs.replace(record, place=prefix, stamp_index=stamp_index)
    else:
        record = msgspec.structs.replace(record, place=timed_place(record))
        unit.put(record.place, index_value(record), ttl_ms=ttl_ms)
    unit.put(task_key(record.id), encode_record(record), ttl_ms=ttl_ms)
    if is_noted:
        is_claimable = record.state in _CLAIMABLE and not record.waits_for
        note_kind(unit, record.kind, record.due_at_ms if is_claimable else None)
    return record


def note_kind(unit: Unit, kind: str, due_at_ms: int | None = None) -> None:
    """Note that the unit changes the queue of the tasks of one kind, for the index of subjects.

    Args:
        unit: The unit.
        kind: The kind.
        due_at_ms: The time at which a task can be claimed that the unit moves, if there is one.
    """
    subject = Subject(QUEUE, kind)
    unit.subjects |= {subject}
    if due_at_ms is not None:
        unit.due_ms = {**unit.due_ms, subject: min(due_at_ms, unit.due_ms.get(subject, FOREVER_MS))}


def rewrite(unit: Unit, record: TaskRecord, version: int, **changes: Any) -> TaskRecord:
    """Write the record of a task that has not ended, and leave its place. Return the new record."""
    placed_at = (record.placed_at or version) if record.state == "ready" else 0
    record = msgspec.structs.replace(record, placed_at=placed_at, **changes)
    unit.put(task_key(record.id), encode_record(record))
    return record


def kept_ms(record: TaskRecord) -> int | None:
    """Return how long the record of a task is stored from now on; None if without end.

    A task that is followed stays until all its followers have been told.
    """
    return record.keep_ms if record.state in ("done", "cancelled") and not record.is_followed else None


def is_fixed(record: TaskRecord, version: int) -> bool:
    """Return whether the index key of the task is known: not if this transaction has made it ready."""
    return record.state != "ready" or version != UNWRITTEN or record.placed_at != 0


IfPresent = Literal["keep", "replace", "raise"]
CHOICES: Final[tuple[IfPresent, ...]] = get_args(IfPresent)


def check_if_present(if_present: object) -> None:
    """Raise `InvalidError` for a value of `if_present` that is not one of `CHOICES`."""
    if if_present not in CHOICES:
        raise InvalidError(f"`if_present` is {if_present!r}; it is one of {', '.join(CHOICES)}")
