"""What a queue keeps of a task, and the keys that put it in its place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

import msgspec

from keepstate.engine import layout
from keepstate.engine.describing import describe
from keepstate.engine.stored import StampIndex, StoredMs, damaged, text
from keepstate.engine.stored import opened as stored_struct
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
    """How often it was claimed: fences each holder from the later ones."""
    put_at_ms: StoredMs
    due_at_ms: StoredMs
    """When it can be claimed, or claimed again."""
    worker: str | None = None
    error: str | None = None
    place: bytes = b""
    stamp_index: StampIndex = 0
    has_result: bool = False


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
        cursor: Where a listing goes on after it.
        token: How often it was claimed: with the id, what proves the present claim.
        payload: What it is about, if that was asked for; None of a completed task.
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
    cursor: str
    token: int = 0
    payload: Any = None


def task_key(task_id: str) -> bytes:
    """Returns the key of a task's record.

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
    """Returns the key of what the task is about."""
    return layout.PAYLOADS + pack(task_id)


def result_key(task_id: str) -> bytes:
    """Returns the key of what the task came to."""
    return layout.RESULTS + pack(task_id)


def ready_prefix(priority: int) -> bytes:
    """Returns what the keys of ready tasks of a priority start with; a stamp puts them in order of coming."""
    return layout.READY + pack(-priority)


def timed_key(part: bytes, at_ms: int, task_id: str) -> bytes:
    """Returns the key of a waiting or claimed task; the earliest stands first."""
    return part + pack(at_ms, task_id)


def time_in(part: bytes, key: bytes) -> tuple[int, str]:
    """Returns the time and the id in the key of a waiting or claimed task."""
    match unpack(key[len(part) :]):
        case (int(at_ms), str(task_id)):
            return at_ms, task_id
        case _:
            raise damaged(f"key {key.hex()}", "it holds no time and id")


def place_of(record: TaskRecord, version: int) -> bytes:
    """Returns the key of the task's index entry; `version` is that of the record."""
    return (
        record.place + stamp_suffix(version, record.stamp_index) if record.state == "ready" else record.place
    )


def opened(stored: bytes, place: str) -> TaskRecord:
    """Returns a stored record.

    Raises:
        CorruptError: It is none.
    """
    return stored_struct(stored, TaskRecord, place)


def name_of(record: TaskRecord) -> bytes:
    """Returns what an index entry of a task holds."""
    return record.id.encode("utf-8", "surrogatepass")


def id_in(entry: Entry) -> str:
    """Returns the id of the task that an index entry stands for.

    Raises:
        CorruptError: It names none.
    """
    return text(entry.value, describe(entry.key), errors="surrogatepass")


def moment(at_ms: int) -> datetime:
    """Returns a store's time as an aware datetime."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def retry_ms(attempt: int) -> int:
    """Returns how long a task waits that has failed so often: 1 s, 2 s, 4 s … 5 minutes."""
    return min(_FIRST_RETRY_MS << min(attempt - 1, 20), _LONGEST_RETRY_MS)


def told(error: object) -> str:
    """Returns what went wrong as text that a record has room for."""
    said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    encoded = said.encode("utf-8", "backslashreplace")
    if len(encoded) <= limits.ERROR_BYTES:
        return encoded.decode()
    return encoded[: limits.ERROR_BYTES - 3].decode("utf-8", "ignore") + "…"
