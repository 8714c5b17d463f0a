"""Events, in their public and their stored form.

Invariant: every appended event can be read. An event of a type that this process does not know is returned in
builtin form, and never skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name, require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import TARGET_BYTES, Positions, encode_event_position
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.engine.kernel.stored import StoredMs, corrupt_error, decode_stored, describe, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, stand_in
from keepstate.errors import CorruptError, InvalidError, PrunedError, UnsupportedError
from keepstate.stores.protocol import LAST_REVISION, Entry, Store
from keepstate.values import codec, limits
from keepstate.values.builtin import TYPE
from keepstate.values.key import STAMP_SIZE, STAMP_TAG, Stamp, stamp_suffix, unpack
from keepstate.values.notebooks import ShownAsTable
from keepstate.values.schema import CLASSES
from keepstate.values.types import Missing

_INDEX_BITS = 16
_EVENT_ID_BYTES = 16
_STAMP_BEGIN: Final = bytes((STAMP_TAG,))


class LateMark(msgspec.Struct, frozen=True, gc=False):
    """The mark of an event that was read, computed when it is asked for; pickled as its bytes."""

    positions: Positions
    target: bytes
    stored: bytes

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)

    def __bytes__(self) -> bytes:
        return self.target + self.positions.digest(self.stored)


class Expected(Enum):
    """The required state of a stream before an append."""

    ANY = "any"
    NO_STREAM = "no stream"
    EXISTS = "exists"


ANY: Final = Expected.ANY
"""No requirement."""
NO_STREAM: Final = Expected.NO_STREAM
"""The stream must not exist: no event was ever appended to it."""
EXISTS: Final = Expected.EXISTS
"""The stream must exist."""


@dataclass(frozen=True, slots=True)
class Event(ShownAsTable):
    """An event of a stream.

    Attributes:
        number: The event's number among all events of the space, for use within a handle; a later event has a
            larger number. None if the current transaction appended the event.
        stream: The name of its stream.
        data: A copy of the appended data, converted by upcasters to the newest version.
        recorded_at: The time of the append, by the clock of the appending process. It implies no order.
        author: The author of the append, or None.
        id: The id given by the caller. The stream does not accept another event with the same id.
        type: `name@version` of the data: of its registered class, or as given by the caller. None for other
            data.
        cause: The id of the event that caused this one, or its `stream@number`.
        correlation: The id that all events with the same origin share.
        is_known: Whether this process knows all classes in the data. Otherwise the data is in builtin form,
            or, if `read` was asked for it, an `Unreadable`. If the event itself is damaged, `recorded_at` is
            1970.
    """

    number: int | None
    stream: str
    data: Any
    recorded_at: datetime
    author: str | None
    id: str | None = None
    type: str | None = None
    cause: str | None = None
    correlation: str | None = None
    is_known: bool = True
    _mark: bytes | LateMark = field(default=b"", repr=False, compare=False)
    """The target of the event's position, followed by the digest of the stored event."""

    @property
    def position(self) -> str | None:
        """An opaque text: with `after=position`, any process reads on after this event.

        None while `number` is None.
        """
        if self.number is None:
            return None
        mark = bytes(self._mark)
        return encode_event_position(mark[:TARGET_BYTES], self.number, mark[TARGET_BYTES:])

    @property
    def reference(self) -> str:
        """The event's id, otherwise its `stream@number`."""
        return self.id or f"{self.stream}@{self.number}"


_new: Final = object.__new__
(
    _set_number, _set_stream, _set_data, _set_recorded_at, _set_author,
    _set_id, _set_type, _set_cause, _set_correlation, _set_is_known, _set_mark,
) = (Event.__dict__[name].__set__ for name in Event.__slots__)  # fmt: skip


class EventRecord(msgspec.Struct, array_like=True, frozen=True):
    """An event as it is stored."""

    data: bytes
    recorded_at_ms: StoredMs
    author: str | None = None
    details: dict[str, Any] = {}

    @property
    def is_end(self) -> bool:
        """True for a record that only marks the end of a truncation."""
        return "truncated" in self.details

    @property
    def is_drop(self) -> bool:
        """True for the end of a dropped stream, which leaves no state that later events need."""
        return "dropped" in self.details

    @property
    def removed(self) -> bytes:
        """The digest of the event that a truncation replaced by this record."""
        digest: bytes = self.details["truncated"]
        return digest


_decode_record: Final = msgspec.msgpack.Decoder(EventRecord).decode

Cause: TypeAlias = Event | str | None


def build_details(data: object, type: str | None, cause: Cause, correlation: str | None) -> dict[str, str]:
    """Return the details of an event's record, besides its data.

    Raises:
        InvalidError: A type was given for data that is not a dict, or another argument is not a name.
    """
    details: dict[str, str] = {}
    known = CLASSES.of(data.__class__)
    if type is not None:
        if known is not None or not isinstance(data, dict):
            raise InvalidError(
                f"type={type!r} was given for data of class {data.__class__.__name__}; only dicts take a type"
            )
        details["type"] = "{}@{}".format(*split_type(check_name("type", type)))
    elif known is not None:
        details["type"] = f"{known.name}@{known.written}"
    if cause is not None:
        require_instance("cause", cause, Event, str)
        if isinstance(cause, Event):
            correlation = correlation or cause.correlation or cause.reference
        details["cause"] = cause.reference if isinstance(cause, Event) else check_name("cause", cause)
    if correlation is not None:
        details["correlation"] = check_name("correlation", correlation)
    return details


def check_stream(name: str) -> None:
    """Raise `InvalidError` unless this is a valid name of a stream."""
    if type(name) is not str or not 0 < len(name.encode("utf-8", "surrogatepass")) <= limits.SPACE_BYTES:
        raise InvalidError(f"stream name {name!r} must be a str of 1 to {limits.SPACE_BYTES} bytes of UTF-8")


def check_number(what: str, number: int) -> None:
    """Raise `InvalidError` unless this can be the number of an event."""
    if type(number) is not int or not 0 <= stamp_at(number).revision <= LAST_REVISION:
        raise InvalidError(f"`{what}` is {number!r}; give the number of an event")


def split_type(type: str) -> tuple[str, int]:
    """Split `name@version` into name and version. A name alone has version 1.

    Raises:
        InvalidError: The type is not a `name` or `name@version`.
    """
    name, at, version = type.rpartition("@")
    if not at:
        return type, 1
    if not name or "@" in name or not version.isdecimal() or not 0 < int(version) < 1 << 31:
        raise InvalidError(f"type {type!r} is not `name` or `name@version`, with a version from 1")
    return name, int(version)


def check_ids(id: object, count: int) -> list[str | None]:
    """Return the ids of `count` events as a list, None for an event without one; empty if none were given.

    Raises:
        InvalidError: There are fewer or more ids than events, or an id occurs twice.
    """
    if id is None:
        return []
    given = cast("list[object]", list(id) if isinstance(id, list | tuple) else [id])  # pyright: ignore[reportUnknownArgumentType]
    ids = [None if each is None else check_name("id", each) for each in given]
    named = [each for each in ids if each is not None]
    if len(ids) != count or len(set(named)) != len(named):
        raise InvalidError(
            f"{len(ids)} ids, {len(set(named))} of them different, were given for {count} events; give each "
            "event an id of its own, or None"
        )
    if any(len(each.encode()) > limits.SPACE_BYTES for each in named):
        raise InvalidError(f"an event's `id` has at most {limits.SPACE_BYTES} bytes of UTF-8")
    return ids if named else []


def decode_event(
    executor: Executor, stored: bytes, number: int | None, stream: str, mark: bytes | LateMark = b""
) -> Event | None:
    """Decode a stored event; None for the end of a truncation.

    Raises:
        CorruptError: The record is damaged.
        InvalidError: An upcaster failed, or a class rejected the stored fields.
    """
    try:
        record = _decode_record(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt_error(_location(executor, stream, number), error) from error
    details, recorded_at = record.details, to_datetime(record.recorded_at_ms)
    if details and record.is_end:
        return None
    type: str | None = None
    try:
        data, is_known = _data_of(executor, record.data, stream)
        if not details:
            # Half the time of the constructor, for most events of a page.
            event = _new(Event)
            _set_number(event, number)
            _set_stream(event, stream)
            _set_data(event, data)
            _set_recorded_at(event, recorded_at)
            _set_author(event, record.author)
            _set_id(event, None)
            _set_type(event, None)
            _set_cause(event, None)
            _set_correlation(event, None)
            _set_is_known(event, is_known)
            _set_mark(event, mark)
            return event
        type = details.get("type")
        if type is not None:
            data, type = _upcast(data, type)
    except CorruptError as error:
        location = _location(executor, stream, number)
        raise CorruptError(f"{location} is damaged: {error}", space=executor.name, place=location) from error
    return Event(
        number,
        stream,
        data,
        recorded_at,
        record.author,
        details.get("id"),
        type,
        details.get("cause"),
        details.get("correlation"),
        is_known,
        mark,
    )


def decode_listed_event(
    executor: Executor,
    stored: bytes,
    number: int | None,
    stream: str,
    mark: bytes | LateMark,
    unreadable: IfUnreadable | None,
) -> Event | Missing | None:
    """Decode a stored event for a listing; `MISSING` if it is unreadable and left out.

    With `unreadable` None, the errors are those of `decode_event`.
    """
    try:
        return decode_event(executor, stored, number, stream, mark)
    except UNREADABLE as error:
        if unreadable is None:
            raise
        try:
            record = _decode_record(stored)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            record = EventRecord(b"", 0)
        listed = stand_in(unreadable, record.data or None, error)
        if isinstance(listed, Missing):
            return listed
        details = record.details
        return Event(
            number, stream, listed, to_datetime(record.recorded_at_ms), record.author,
            details.get("id"), details.get("type"), details.get("cause"), details.get("correlation"),
            False, mark,
        )  # fmt: skip


def _location(executor: Executor, stream: str, number: int | None) -> str:
    return f"event {number} of stream {stream!r} of {executor.name!r}"


def _data_of(executor: Executor, encoded: bytes, stream: str) -> tuple[Any, bool]:
    try:
        return executor.decode(encoded, events_prefix(stream)), True
    except (InvalidError, UnsupportedError):
        form = codec.to_builtin(encoded)
        if not _has_unknown_class(form):
            raise
        return form, False


def _upcast(data: Any, type: str) -> tuple[Any, str]:
    """Apply upcasters, and return the data and type of the newest version."""
    known = CLASSES.of(data.__class__)
    if known is not None:
        return data, str(known)
    fields = cast("dict[str, Any]", data)
    if not isinstance(data, dict) or TYPE in fields:
        return fields, type
    fields, version = CLASSES.upcast_unknown(fields, *split_type(type))
    return fields, f"{split_type(type)[0]}@{version}"


def _has_unknown_class(form: object) -> bool:
    """Return whether a builtin form contains an unregistered class, or a newer version of a class."""
    parts: list[object] = []
    if isinstance(form, dict):
        fields = cast("dict[object, object]", form)
        named = fields.get(TYPE)
        if isinstance(named, str) and "@" in named and not CLASSES.knows(*split_type(named)):
            return True
        parts = list(fields.values())
    elif isinstance(form, list | tuple | set | frozenset):
        parts = list(cast("list[object]", form))
    return any(_has_unknown_class(part) for part in parts)


def to_number(stamp: Stamp) -> int:
    """Convert the stamp in an event's key to the event's number."""
    return stamp.revision << _INDEX_BITS | stamp.index


def stamp_at(number: int) -> Stamp:
    """Convert the number of an event to the stamp in its key."""
    return Stamp(number >> _INDEX_BITS, number & ((1 << _INDEX_BITS) - 1))


@lru_cache(maxsize=1024)
def events_prefix(stream: str) -> bytes:
    """Return the prefix of the keys of a stream's events."""
    return layout.stream_key(layout.EVENTS, stream)


def head_key(stream: str) -> bytes:
    """Return the key of a stream's head, which holds the index of its last event."""
    return layout.stream_key(layout.HEADS, stream)


def read_number(entry: Entry) -> int:
    """Read the number of an event from the stamp at the end of its key."""
    key = entry.key
    if key[-STAMP_SIZE : 1 - STAMP_SIZE] != _STAMP_BEGIN:
        raise corrupt_error(describe(key), "an event's key must end with a stamp")
    return int.from_bytes(key[1 - STAMP_SIZE :])


def read_stamp(entry: Entry) -> Stamp:
    """Read the stamp at the end of an event's key."""
    stamp = unpack(entry.key[1:])[-1]
    if not isinstance(stamp, Stamp):
        raise corrupt_error(describe(entry.key), "an event's key must end with a stamp")
    return stamp


def pruned_error(space: str, stream: str, number: int) -> PrunedError:
    """Return the error for events that a truncation has deleted."""
    return PrunedError(
        f"the events of stream {stream!r} of {space!r} up to number {number} were truncated. Read after "
        "that number, or fold from the stored state"
    )


def removed_digest(stored: bytes) -> bytes | None:
    """Return the digest of the event that a truncation end replaced; None for an ordinary event."""
    record = decode_stored(stored, EventRecord, "an event")
    return record.removed if record.is_end else None


def is_drop_end(stored: bytes) -> bool:
    """Return whether a truncation end is that of a dropped stream."""
    return decode_stored(stored, EventRecord, "an event").is_drop


def event_id_key(store: Store, space: str, stream: str, id: str) -> bytes:
    """Return the key of the entry that maps an event id to the event's index in a stream."""
    return layout.event_id_key(stream, content_name(store, space, id.encode())[:_EVENT_ID_BYTES])


async def read_ids(unit: Unit, stream: str, keys: Sequence[bytes]) -> list[Entry | None]:
    """Return the entries of event ids. An id whose event is hidden by a drop under way counts as absent."""
    *known, dropped = await unit.read(*keys, layout.stream_key(layout.DROPPED, stream))
    if dropped is None:
        return known
    return [None if entry and 0 < entry.version < dropped.version else entry for entry in known]


def event_key(stream: str, number: int) -> bytes:
    """Return the key of the event of a stream at a number."""
    stamp = stamp_at(number)
    return events_prefix(stream) + stamp_suffix(stamp.revision, stamp.index)


def key_after(stream: str, number: int | None, *, inclusive: bool) -> bytes | None:
    """Return the key after which to read on from the event of a number; None for the beginning."""
    if number is None:
        return None
    check_number("after", number)
    return event_key(stream, number - 1 if inclusive and number else number)


def index_bytes(index: int) -> bytes:
    """Return the stored form of the index of an event in its batch."""
    return index.to_bytes(2, "big")


def append_records(unit: Unit, stream: str, records: Sequence[bytes]) -> int:
    """Append records and rewrite the head of the stream. Return the index of the last record."""
    index = -1
    for record in records:
        index = unit.append(events_prefix(stream), record)
    unit.put(head_key(stream), index_bytes(index))
    return index


class Cursor(NamedTuple):
    """The progress of a projection."""

    number: int | None
    """The number of the last event that it processed."""
    version: int
    is_clearing: bool = False
    """True while its documents are being deleted, before it starts again."""

    @classmethod
    def of(cls, stored: bytes, name: str) -> Cursor:
        """Decode the stored progress of the projection of this name.

        Raises:
            CorruptError: The bytes are damaged.
        """
        return decode_stored(stored, cls, f"the cursor of {name!r}")

    def encoded(self) -> bytes:
        """Encode the progress for storing."""
        return msgspec.msgpack.encode(self)
