"""Approvals as they are stored, and as callers see them.

An approval has a record, and an entry with all that its approvers are shown. The digest of that entry is the
approval's. While it is pending, a mark is present, which the store ends when the approval expires. The mark
decides: a batch that answers checks it, and the store judges the check by its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import (
    StoredMs,
    corrupt_error,
    decode_fields,
    decode_stored,
    encode_fields,
)
from keepstate.engine.kernel.unreadable import Unreadable
from keepstate.engine.queue.step_records import Answer
from keepstate.engine.queue.tasks import DONE_KEPT_MS, check_kind
from keepstate.values.key import pack, unpack

ApprovalState: TypeAlias = Literal["pending", "answered", "expired", "withdrawn"]
EventKind: TypeAlias = Literal["asked", "assigned", "answered", "expired", "withdrawn"]

_PERSON_BYTES: Final = 16
_TERMS_BYTES: Final = 16
_encode: Final = msgspec.msgpack.Encoder().encode


class VoteRecord(msgspec.Struct, array_like=True, frozen=True):
    """A yes that counts for `need`."""

    by: str
    group: str | None
    at_ms: StoredMs
    note: str


class ApprovalRecord(msgspec.Struct, array_like=True, frozen=True):
    """An approval as it is stored, without what its approvers are shown."""

    id: str
    state: ApprovalState
    digest: str
    asked_ms: StoredMs
    asker: str | None
    to: tuple[str, ...]
    need: Annotated[int, msgspec.Meta(ge=1)]
    expires_ms: StoredMs | None
    task: str | None
    has_schema: bool = False
    votes: tuple[VoteRecord, ...] = ()
    closed_ms: StoredMs | None = None
    closed_by: str | None = None
    note: str = ""
    """The note of the answer that closed it, or the reason of the withdrawal."""
    value: bytes | None = None
    """The encoded answer."""
    lines: int = 1
    """The number of lines of its log."""
    nonce: bytes = b""
    """Random bytes that no other approval has, not even a later one with the same id and question."""
    terms: bytes = b""
    """The digest of what was asked besides question, subject and schema; see `terms_of`."""
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate. They are written back unchanged."""


class LineRecord(msgspec.Struct, array_like=True, frozen=True):
    """A line of the log of an approval."""

    kind: EventKind
    at_ms: StoredMs
    by: str | None = None
    note: str = ""
    value: bytes | None = None
    to: tuple[str, ...] = ()
    group: str | None = None
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task that an approval puts.

    Attributes:
        payload: Its payload.
        kind: Its kind.
        id: Its id. Default: `approval/` and the id of the approval.
        key: Its key.
        priority: Its priority.
        max_attempts: The number of failed attempts after which it is dead.
        keep_s: Seconds for which it is stored once it is done or cancelled; None for ever.
    """

    payload: Any = None
    kind: str = ""
    id: str | None = None
    key: str | None = None
    priority: int = 0
    max_attempts: int = 5
    keep_s: float | None = DONE_KEPT_MS / 1000


@dataclass(frozen=True, slots=True)
class Vote:
    """A yes of one person, of an approval that needs several.

    Attributes:
        by: The person.
        at: The time, by the store's clock.
        note: The person's note.
        group: The group that the person answered for, or None.
    """

    by: str
    at: datetime
    note: str
    group: str | None


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to people, as of one moment.

    Attributes:
        id: Its id.
        state: `pending`, `answered`, `expired` or `withdrawn`; the last three are final.
        question: The question.
        subject: The thing that is decided about; what resumes uses it.
        schema: The schema of the answer; None for yes or no.
        digest: The digest of question, subject and schema, for `saw`.
        to: The people and groups who may answer; empty for everyone but the asker.
        need: The number of different people who have to say yes.
        votes: Those who have said yes.
        asked_by: The author who asked, or None.
        asked_at: The time of asking, by the store's clock.
        expires_at: The time from which it takes no answer; None if it does not expire.
        task: The id of the task that it wakes, or None.
        answer: The answer; None unless it is answered.
        closed_at: The time at which it was answered, expired or was withdrawn.
        closed_by: The person who did that.
        reason: The reason of the withdrawal.
        unreadable: Why this process cannot read the approval, if a page was asked to show it nevertheless.
            What it can read is then in builtin form. The question is empty and `asked_at` is the beginning of
            1970 if they are damaged.
    """

    id: str
    state: ApprovalState
    question: str
    subject: Any
    schema: Any
    digest: str
    to: tuple[str, ...]
    need: int
    votes: tuple[Vote, ...]
    asked_by: str | None
    asked_at: datetime
    expires_at: datetime | None
    task: str | None
    answer: Answer | None
    closed_at: datetime | None
    closed_by: str | None
    reason: str
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """A line of the log of an approval.

    Attributes:
        kind: `asked`, `assigned`, `answered`, `expired` or `withdrawn`.
        at: The time, by the store's clock.
        by: The person or author, or None.
        value: The answer.
        note: The note on the answer, or the reason of the withdrawal.
        to: The people and groups who may answer from then on.
        group: The group that the person answered for, or None.
    """

    kind: EventKind
    at: datetime
    by: str | None
    value: Any
    note: str
    to: tuple[str, ...]
    group: str | None


# ---- keys


def approval_key(id: str) -> bytes:
    """Return the key of an approval's record.

    Raises:
        InvalidError: The id is not a str of 1 to 200 bytes.
    """
    return layout.APPROVALS + pack(check_kind("id", id))


def asked_key(id: str) -> bytes:
    """Return the key of what the approvers are shown."""
    return layout.ASKED + pack(id)


def mark_key(id: str) -> bytes:
    """Return the key of the mark that is present while an approval is pending."""
    return layout.ASKING + pack(id)


def log_prefix(id: str) -> bytes:
    """Return the key prefix of an approval's log. A stamp completes it."""
    return layout.DECIDED + pack(id)


def list_prefix(name_of: Any, person: str | None) -> bytes:
    """Return the key prefix of the pending approvals of a person or group; None for all.

    Args:
        name_of: A function that returns the digest of some bytes, which an encrypted store keys.
        person: The person or group.
    """
    digest = b"" if person is None else name_of(b"approver\0" + person.encode())[:_PERSON_BYTES]
    return layout.ASSIGNED + pack(digest)


def listed_keys(name_of: Any, record: ApprovalRecord) -> list[bytes]:
    """Return the keys of a pending approval in the lists."""
    place = pack(record.asked_ms, record.id)
    return [list_prefix(name_of, person) + place for person in (None, *record.to)]


def id_in(key: bytes) -> str:
    """Return the id of the approval in a key of a list."""
    match unpack(key[len(layout.ASSIGNED) :]):
        case (bytes(), int(), str(id)):
            return id
        case _:
            raise corrupt_error(f"key {key.hex()}", "it names no approval")


# ---- stored forms


def digest_of(shown: bytes) -> str:
    """Return the digest of what the approvers are shown."""
    return sha256(b"keepstate approval 1\0" + shown).hexdigest()


def terms_of(
    to: Sequence[str], need: int, expires_ms: int | None, task: str | None, then: Sequence[object]
) -> bytes:
    """Return the digest of the terms of an approval as they were asked, by which asking again is known.

    Args:
        to: The people and groups, in any order.
        need: The number of different people who have to say yes.
        expires_ms: The time for which it takes answers.
        task: The id of the task that it wakes.
        then: The id, kind, key, priority, attempts, time to keep and payload of the task that it puts.
    """
    encoded = _encode([sorted(to), need, expires_ms, task, then])
    return sha256(b"keepstate terms 1\0" + encoded).digest()[:_TERMS_BYTES]


def decode_approval(stored: bytes, place: str) -> ApprovalRecord:
    """Decode a stored approval. `place` names it in errors.

    Raises:
        CorruptError: It is not an approval.
    """
    return decode_fields(decode_stored(stored, list[Any], place), ApprovalRecord, place)


def encode_approval(record: ApprovalRecord) -> bytes:
    """Encode an approval for storing."""
    return _encode(encode_fields(record))


def decode_line(stored: bytes, place: str) -> LineRecord:
    """Decode a line of a log."""
    return decode_fields(decode_stored(stored, list[Any], place), LineRecord, place)


def encode_line(line: LineRecord) -> bytes:
    """Encode a line of a log."""
    return _encode(encode_fields(line))
