"""Rows of an index, and the sorted lists that `find` reads.

A row is stored under a digest of its subject, and has a place in each list below. A list sorts by a time, and
by the digest among rows of one time. An encrypted store keys the digests of subjects, states and owners, so
the lists reveal none of them.

```
0 changed_ms                all rows
1 kind changed_ms           the rows of a kind
2 kind state changed_ms     … of a kind in a state
3 owner changed_ms          … of an owner
4 kind due_ms               … of a kind that are due at some time
5 space kind                the rows of a space; spaces stand in the order of their names
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from keepstate.engine.index.summaries import DUE_SINCE_CHANGE, Reading, Summary
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import StoredMs, corrupt_error, describe, to_datetime
from keepstate.engine.kernel.subjects import APPROVAL, Subject
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry
from keepstate.values.key import pack, unpack
from keepstate.values.notebooks import ShownAsTable

T = TypeVar("T")

ALL, KIND, STATE, OWNER, DUE, SPACE = range(6)

_FORMAT: Final = 1
_DIGEST_BYTES: Final = 16
_TOKEN_BYTES: Final = 8

NameOf = Callable[[bytes], bytes]
"""Returns the digest of some bytes, which an encrypted store keys."""


@dataclass(frozen=True, slots=True)
class Found(ShownAsTable):
    """A subject in a listing.

    Attributes:
        tenant: The tenant that it belongs to, or None.
        space: The name of its space, without the tenant.
        kind: `agent`, `approval`, `machine`, `queue`, `session`, `team`, `thread` or `workflow`. A queue is
            the tasks of one kind in a space.
        id: Its id; for a queue the kind of its tasks, which may be empty.
        state: The state, such as the status of a workflow or the state of a machine. An approval is
            `pending`, `answered`, `expired` or `withdrawn`. A queue is `ready` if a task can be claimed,
            `waiting` if one can be claimed later, `claimed` if workers hold all of them, and `dead` if only
            dead tasks are left.
        owner: The user who owns it, or None.
        title: Its title, or None.
        changed_at: The time of its last change, by the store's clock.
        due_at: For a queue, the time from which a task can be claimed, if a lease has to expire first; for a
            pending approval, when it expires. None for other subjects, and if there is none.
    """

    tenant: str | None
    space: str
    kind: str
    id: str
    state: str
    owner: str | None
    title: str | None
    changed_at: datetime
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class FoundChange(ShownAsTable):
    """A change of a listing.

    Attributes:
        kind: `added` if the subject belongs to the listing now, `changed` if it still does, and `removed` if
            it does not any more.
        found: The subject as it is now; for `removed`, as it was in the listing.
        position: An opaque text. `after=position` continues after this change, in any process.
    """

    kind: Literal["added", "changed", "removed"]
    found: Found
    position: str


class MetaRecord(msgspec.Struct, array_like=True, frozen=True):
    """The state of an index. Carriers write to an index only while it has this record.

    Attributes:
        format: The format of the record.
        is_complete: Whether every subject from before the index was carried.
        swept_ms: The time of the index at which the last complete delivery began.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT)] = _FORMAT
    is_complete: bool = False
    swept_ms: StoredMs = 0


class Row(msgspec.Struct, array_like=True, frozen=True):
    """A subject in the index.

    Attributes:
        version: The revision of the subject's space that the row was read at.
        space: The name of the space, without the tenant.
        kind: The kind of the subject.
        id: The id of the subject.
        state: Its state.
        owner: Its owner, or None.
        title: Its title, or None.
        changed_ms: The time of its last change.
        due_ms: The time from which it can go on, or None.
    """

    version: Annotated[int, msgspec.Meta(ge=0)]
    space: str
    kind: str
    id: str
    state: str
    owner: str | None
    title: str | None
    changed_ms: StoredMs
    due_ms: StoredMs | None

    @property
    def subject(self) -> Subject:
        """The subject."""
        return Subject(self.kind, self.id)

    def at(self, now_ms: int) -> Row:
        """Return the row as of a time: an approval expires without a change of its space."""
        if self.kind != APPROVAL or self.due_ms is None or self.due_ms > now_ms:
            return self
        return msgspec.structs.replace(self, state="expired")

    def to_public(self, tenant: str | None) -> Found:
        """Return the row for callers."""
        return Found(
            tenant,
            self.space,
            self.kind,
            self.id,
            self.state,
            self.owner,
            self.title,
            to_datetime(self.changed_ms),
            None if self.due_ms is None else to_datetime(self.due_ms),
        )

    def shows(self, other: Row) -> bool:
        """Return whether another row shows the same, whatever revision it was read at."""
        return msgspec.structs.replace(other, version=self.version) == self


def make_row(space: str, subject: Subject, reading: Reading, summary: Summary, changed_ms: int) -> Row:
    """Return the row of a subject that was read."""
    return Row(
        reading.revision,
        space,
        subject.kind,
        subject.id,
        summary.state,
        summary.owner,
        summary.title,
        changed_ms,
        changed_ms if summary.due_ms == DUE_SINCE_CHANGE else summary.due_ms,
    )


def decode_row(stored: bytes, key: bytes) -> Row:
    """Decode a row."""
    return _decode(stored, Row, key)


def decode_meta(entry: Entry) -> MetaRecord:
    """Decode the state of an index."""
    return _decode(entry.value, MetaRecord, entry.key)


def _decode(stored: bytes, type: type[T], key: bytes) -> T:
    try:
        return msgspec.msgpack.decode(stored, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        location = describe(key)  # only here: it costs as much as the record
        raise CorruptError(
            f"the index of subjects: {location} is damaged: {error}; a reindex makes it from the spaces",
            place=location,
        ) from error


def encode(record: Any) -> bytes:
    """Encode a row or the state of an index."""
    return msgspec.msgpack.encode(record)


# ---- keys


def digest_of(name_of: NameOf, space: str, subject: Subject) -> bytes:
    """Return the digest that rows, places and marks of a subject are named by."""
    return name_of(b"subject\0" + pack(space, *subject))[:_DIGEST_BYTES]


def row_key(digest: bytes) -> bytes:
    """Return the key of a row."""
    return layout.ROWS + pack(digest)


def token_of(name_of: NameOf, what: str, text: str) -> bytes:
    """Return the digest of a state or an owner in the keys of lists."""
    return name_of(what.encode() + b"\0" + text.encode())[:_TOKEN_BYTES]


def list_prefix(*segments: int | str | bytes) -> bytes:
    """Return the prefix of the keys of a list, or of a part of one."""
    return layout.LISTS + pack(*segments)


def places(name_of: NameOf, digest: bytes, row: Row) -> set[bytes]:
    """Return the keys of a row's places in the lists."""
    state = token_of(name_of, "state", row.state)
    found = {
        list_prefix(ALL, row.changed_ms, digest),
        list_prefix(KIND, row.kind, row.changed_ms, digest),
        list_prefix(STATE, row.kind, state, row.changed_ms, digest),
        list_prefix(SPACE, row.space, row.kind, digest),
    }
    if row.owner is not None:
        found.add(list_prefix(OWNER, token_of(name_of, "owner", row.owner), row.changed_ms, digest))
    if row.due_ms is not None:
        found.add(list_prefix(DUE, row.kind, row.due_ms, digest))
    return found


def digest_in(key: bytes) -> bytes:
    """Return the digest at the end of the key of a place."""
    digest = unpack(key[len(layout.LISTS) :])[-1]
    if not isinstance(digest, bytes):
        raise corrupt_error(describe(key), "it names no subject")
    return digest


def space_in(key: bytes) -> tuple[str, str]:
    """Return the space and the kind in the key of a place of the list `SPACE`."""
    match unpack(key[len(layout.LISTS) :]):
        case (int(), str(space), str(kind), bytes()):
            return space, kind
        case _:
            raise corrupt_error(describe(key), "it names no space")


def prefixes_under(under: str) -> list[bytes]:
    """Return the prefixes of the places of all rows under a name, in the list `SPACE`."""
    if not under:
        return [list_prefix(SPACE)]
    names = [] if under.endswith("/") else [list_prefix(SPACE, under)]
    return [*names, list_prefix(SPACE, under if under.endswith("/") else f"{under}/")[:-1]]


def place_in(key: bytes) -> tuple[int, bytes]:
    """Return the time and the digest in the key of a place, in a list that sorts by a time."""
    match unpack(key[len(layout.LISTS) :])[-2:]:
        case (int(time_ms), bytes(digest)):
            return time_ms, digest
        case _:
            raise corrupt_error(describe(key), "it has no time, or names no subject")
