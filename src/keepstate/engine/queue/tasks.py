"""What a queue keeps of a task, and the keys that put it in its place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import StampIndex, StoredMs, corrupt_error, decode_text
from keepstate.engine.kernel.stored import decode_stored as stored_struct
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack, stamp_suffix, unpack

TaskState = Literal["ready", "waiting", "claimed", "done", "dead"]
STATES: Final[tuple[TaskState, ...]] = get_args(TaskState)

DONE_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long a completed task is kept, and its id is taken: a week."""
_FIRST_RETRY_MS, _LONGEST_RETRY_MS = 1_000, 300_000


class TaskRecord(msgspec.Struct, array_like=True, frozen=True):
    """A task as it is stored.

    `place` is the key of its one index entry. While it is ready a stamp completes that key, which `place`
    cannot know: then the revision of the record and `stamp_index` do.
    """

    id: str
    state: TaskState
    priority: int
    attempt: int
    max_attempts: int
    token: int
    """Fences each holder from later ones: 0 before the first claim; see `next_token`."""
    put_at_ms: StoredMs
    due_at_ms: StoredMs
    """When it can be claimed, or claimed again."""
    worker: str | None = None
    error: str | None = None
    place: bytes = b""
    stamp_index: StampIndex = 0
    has_result: bool = False
    later: tuple[Any, ...] = ()
    """Fields that a later version of keepstate has added behind these; they are written again unchanged."""


_FIELDS: Final = len(TaskRecord.__struct_fields__) - 1
_MOST_HEADERS: Final = 0x90 + _FIELDS
"""The first byte of a record in MessagePack that has no later fields is at most this one."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task as a listing shows it.

    Attributes:
        id: Its name.
        state: Where it stands.
        priority: Higher ones are claimed first.
        attempt: How often it was claimed since it was last put or requeued.
        max_attempts: After so many failures it is dead.
        worker: Who holds it or held it last.
        error: What the last failure said.
        put_at: When it was put, by the store's clock.
        due_at: When it can be claimed; for a claimed one, when its lease ends.
        result: What it was completed with.
        cursor: An opaque text, of a task that `list` gave: as `after=`, in any process, the listing goes on
            behind this task. None otherwise.
        token: With the id, what proves the present claim; 0 before the first one.
        payload: What it is about, if that was asked for; None of a completed task.
        version: The revision that last wrote the task; 0 in the transaction that has written it.
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


@dataclass(frozen=True, slots=True)
class Put:
    """The result of putting a task.

    Attributes:
        id: The id of the task.
        added: Whether the payload was stored; False if a task of this id was kept in its place.
        state: The state of the task that now stands under the id.
    """

    id: str
    added: bool
    state: TaskState


def task_key(task_id: str) -> bytes:
    """Return the key of a task's record.

    Raises:
        InvalidError: The id is no text of 1 to 200 bytes.
    """
    try:
        is_fit = type(task_id) is str and 0 < len(task_id.encode()) <= limits.SPACE_BYTES
    except UnicodeEncodeError:
        is_fit = False
    if not is_fit:
        raise InvalidError(f"task id {task_id!r} is no text of 1 to {limits.SPACE_BYTES} bytes of UTF-8")
    return layout.TASKS + pack(task_id)


def payload_key(task_id: str) -> bytes:
    """Return the key of what the task is about."""
    return layout.PAYLOADS + pack(task_id)


def result_key(task_id: str) -> bytes:
    """Return the key of what the task came to."""
    return layout.RESULTS + pack(task_id)


def ready_prefix(priority: int) -> bytes:
    """Return what the keys of ready tasks of a priority start with; a stamp puts them in order of coming."""
    return layout.READY + pack(-priority)


def timed_key(part: bytes, at_ms: int, task_id: str) -> bytes:
    """Return the key of a waiting or claimed task; the earliest stands first."""
    return part + pack(at_ms, task_id)


def time_in(part: bytes, key: bytes) -> tuple[int, str]:
    """Return the time and the id in the key of a waiting or claimed task."""
    match unpack(key[len(part) :]):
        case (int(at_ms), str(task_id)):
            return at_ms, task_id
        case _:
            raise corrupt_error(f"key {key.hex()}", "it holds no time and id")


def place_of(record: TaskRecord, version: int) -> bytes:
    """Return the key of the task's index entry; `version` is that of the record."""
    return (
        record.place + stamp_suffix(version, record.stamp_index) if record.state == "ready" else record.place
    )


def opened(stored: bytes, place: str) -> TaskRecord:
    """Return a stored record.

    Raises:
        CorruptError: It is none.
    """
    if not stored or stored[0] <= _MOST_HEADERS:
        return stored_struct(stored, TaskRecord, place)
    fields = stored_struct(stored, list[Any], place)
    try:
        record = msgspec.convert(fields[:_FIELDS], TaskRecord)
    except msgspec.ValidationError as error:
        raise corrupt_error(place, error) from error
    return msgspec.structs.replace(record, later=tuple(fields[_FIELDS:]))


def encoded(record: TaskRecord) -> bytes:
    """Return a record as it is stored."""
    *fields, later = msgspec.structs.astuple(record)
    return msgspec.msgpack.encode([*fields, *later])


def next_token(record: TaskRecord, revision: int) -> int:
    """Return the token of a claim that was decided on what stood at `revision` of the space.

    It is at most the revision of the claim's own batch, and higher than the token of each earlier claim of
    this id, also of a task of the same id that was removed since: the batch of that claim came before.
    """
    return max(record.token, revision) + 1


def name_of(record: TaskRecord) -> bytes:
    """Return what an index entry of a task holds."""
    return record.id.encode("utf-8", "surrogatepass")


def id_in(entry: Entry) -> str:
    """Return the id of the task that an index entry stands for.

    Raises:
        CorruptError: It names none.
    """
    return decode_text(entry.value, describe(entry.key), errors="surrogatepass")


def moment(at_ms: int) -> datetime:
    """Return a store's time as an aware datetime."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def retry_ms(attempt: int) -> int:
    """Return how long a task waits that has failed so often: 1 s, 2 s, 4 s … 5 minutes."""
    return min(_FIRST_RETRY_MS << min(attempt - 1, 20), _LONGEST_RETRY_MS)


def told(error: object) -> str:
    """Return what went wrong as text that a record has room for."""
    said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    encoded = said.encode("utf-8", "backslashreplace")
    if len(encoded) <= limits.ERROR_BYTES:
        return encoded.decode()
    return encoded[: limits.ERROR_BYTES - 3].decode("utf-8", "ignore") + "…"
