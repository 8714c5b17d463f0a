"""The entries of a conversation: messages, and what is stored with them, which no model sees.

A message has the form of a model's API. One document has the list of the message, its time in milliseconds,
and a dict of its author, id, meta and status, if there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal, Self, cast

from keepstate.engine.kernel.arguments import check_author, check_name
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.kernel.unreadable import Unreadable
from keepstate.engine.usage.amounts import Usage, stored_usage, usage_in
from keepstate.errors import InvalidError
from keepstate.names import escape
from keepstate.sessions.messages import Message

Status = Literal["done", "stopped", "failed"]

_ID_BYTES: Final = 100
"""An id that has more bytes is found by its digest."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a conversation, and what is stored with it.

    Attributes:
        number: The number of the message; it never names another one.
        id: The id that the message was appended with, or None.
        message: The message, with its last edit.
        at: The time at which it was appended, in UTC.
        author: The author, or None.
        meta: The caller's notes on the message.
        status: `done`; or `stopped` or `failed`, for the part of a reply that was said until then.
        usage: The calls of models that made the message, in their order.
        unreadable: Why this process cannot read the message, if a page was asked to show it nevertheless.
            `message` and `meta` are then in builtin form. Of a damaged message they are empty, and `at` is
            the beginning of 1970.
    """

    number: int
    id: str | None
    message: Message
    at: datetime
    author: str | None
    meta: dict[str, Any]
    status: Status
    usage: tuple[Usage, ...] = ()
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """A message and what is stored with it; `about` has only what the caller gave."""

    message: Message
    at_ms: int
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    unreadable: Unreadable | None = None

    def stored(self) -> list[Any]:
        """Return the stored form, which is short, because a history writes it more than once."""
        return [self.message, self.at_ms, *([self.about] if self.about else [])]

    @property
    def id(self) -> str | None:
        """The id, or None."""
        return self.about.get("id")

    def entry(self, number: int) -> Entry:
        """Return the entry of this number."""
        at, about = to_datetime(self.at_ms), self.about
        author, meta = about.get("author"), dict(about.get("meta", {}))
        usage = tuple(usage_in(stored) for stored in about.get("usage", ()))
        status = about.get("status", "done")
        return Entry(number, self.id, self.message, at, author, meta, status, usage, self.unreadable)


@dataclass(frozen=True, slots=True)
class Addition:
    """A message to append.

    Attributes:
        message: The message.
        id: The id, by which it is appended once.
        author: The author; None for the author of the space.
        meta: The caller's notes.
        status: The status of the entry.
        at_ms: The time, if it was said earlier.
        is_shown: Whether models see it.
        usage: The calls of models that made the message.
    """

    message: Message
    id: str | None = None
    author: str | None = None
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    status: Status = "done"
    at_ms: int | None = None
    is_shown: bool = True
    usage: tuple[Usage, ...] = ()

    def record(self, now_ms: int, author: str | None) -> EntryRecord:
        """Return the stored form, with the time and the author of a write."""
        at_ms = now_ms if self.at_ms is None else self.at_ms
        about: dict[str, Any] = {"id": self.id, "author": self.author or author, "meta": self.meta or None}
        if self.status != "done":
            about["status"] = self.status
        if self.usage:
            about["usage"] = [stored_usage(usage) for usage in self.usage]
        given = {name: part for name, part in about.items() if part is not None}
        return EntryRecord(self.message, at_ms, given)

    @classmethod
    def again(cls, record: EntryRecord) -> Self:
        """Return the addition of a message of another conversation. Its id and its usage stay there."""
        entry = record.entry(0)
        is_shown = entry.status != "failed" and bool(
            entry.message.get("content") or entry.status != "stopped"
        )
        return cls(record.message, None, entry.author, entry.meta, entry.status, record.at_ms, is_shown)


def make_addition(message: Message, id: object, author: object, meta: object) -> Addition:
    """Check what the caller stores with a message.

    Raises:
        InvalidError: The id or the author is not a name, or `meta` is neither None nor a dict with text keys.
    """
    known = None if id is None else check_name("id", id)
    return Addition(message, known, check_author(author), _check_meta(meta))


def id_segment(id: str) -> str:
    """Return the segment of a document's name for an id: the id, or a digest of a long one."""
    segment = escape(id)
    return segment if len(segment.encode()) <= _ID_BYTES else f"~{sha256(id.encode()).hexdigest()}"


def record_of(stored: Any) -> EntryRecord:
    """Return the record of a stored message, also of one that cannot be read."""
    if not isinstance(stored, Unreadable):
        return EntryRecord(*stored)
    form = cast("Sequence[Any]", stored.value) if isinstance(stored.value, list) else ()
    rest: Sequence[Any] = (None, None, None)
    message, at_ms, about = [*form, *rest][:3]
    if not isinstance(message, dict) or type(at_ms) is not int:
        return EntryRecord({}, 0, {}, stored)
    kept = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
    return EntryRecord(cast("Message", message), at_ms, kept, stored)


def message_in(stored: Any) -> Message:
    """Return the message in a stored document: of an entry, or of an edit, which is the message alone."""
    if isinstance(stored, dict):
        return cast("Message", stored)
    message: Message = stored[0]
    return message


def _check_meta(meta: object) -> dict[str, Any]:
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        raise InvalidError(f"`meta` is {meta!r:.60}. Pass a dict, such as {{'model': 'large'}}.")
    notes = cast("Mapping[object, Any]", meta)
    if wrong := [key for key in notes if not isinstance(key, str)]:
        raise InvalidError(f"`meta` has the key {wrong[0]!r:.60}. Keys must be text.")
    return dict(cast("Mapping[str, Any]", notes))
