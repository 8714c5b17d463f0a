"""Memories as values, and their stored form: a document of the fields that say something.

The documents of a memory are `memories/<id>/fact` and `memories/<id>/vector`, the id escaped, so everything
of one memory has one prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast, get_args

from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.kernel.arguments import check_text, check_text_keys, require_instance
from keepstate.engine.kernel.unreadable import IfUnreadable, Unreadable, stand_in
from keepstate.errors import CorruptError, InvalidError
from keepstate.names import escape, unescape
from keepstate.values import codec, limits

FOLDER: Final = "memories/"
"""The prefix of the names of all memories."""
HEAD: Final = "memories"
"""The name of the document that says whose memories these are, and which model has embedded them."""
FACT: Final = "/fact"
VECTOR: Final = "/vector"

Status: TypeAlias = Literal["current", "replaced", "merged", "forgotten"]


class Head(TypedDict):
    """The document `memories`."""

    owner: str | None
    model: str | None
    dims: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """A fact, its source, and its place in the history of facts.

    A memory never changes its text. Another one replaces it, and both remain readable.

    Attributes:
        id: Its id.
        text: The fact.
        data: Values that a search can select by.
        source: The origin of the fact, such as the id of a message.
        by: The author who wrote it.
        at: The time at which it was written.
        because: The reason for writing it, if it replaces others.
        replaces: The ids of the memories that it replaces.
        status: `current`, or the way in which it ended.
        replaced_by: The id of the memory that replaces it.
        ended_by: The author who ended it.
        ended_at: The time at which it ended.
        ended_because: The reason for ending it.
        expires_at: The time at which it is deleted, or None.
        unreadable: Why this process cannot read the memory, if a listing was asked to show it nevertheless.
            It then has its text, source and status, and its data in builtin form; if it is damaged, none.
    """

    id: str
    text: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    source: str | None = None
    by: str | None = None
    at: datetime | None = None
    because: str = ""
    replaces: tuple[str, ...] = ()
    status: Status = "current"
    replaced_by: str | None = None
    ended_by: str | None = None
    ended_at: datetime | None = None
    ended_because: str = ""
    expires_at: datetime | None = None
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A memory that a search has found.

    Attributes:
        memory: The memory.
        score: Its nearness. By meaning, the cosine of the vectors, from -1 to 1. By words, the weighted share
            of the words of the query that it contains, from 0 to 1.
        found_by: `meaning`, or `words` for a memory that has no vector of the model.
    """

    memory: Memory
    score: float
    found_by: Literal["meaning", "words"]


_STATUSES: Final = get_args(Status)
_TEXTS: Final = ("source", "by", "because", "replaced_by", "ended_by", "ended_because")
_TYPES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(_TEXTS, str | None),
    **dict.fromkeys(("at", "ended_at"), datetime | None),
    "text": str,
    "data": dict,
}
"""The types of the fields of a document, but of those that `_is_right` reads more closely."""
_SHOWN: Final = ("text", "data", "source", "status")
"""The fields of a memory that cannot be read which its builtin form tells."""
_APART: Final = ("id", "expires_at", "data", "unreadable")
_STORED: Final = {each.name: each.default for each in fields(Memory) if each.name not in _APART}


def to_document(memory: Memory) -> dict[str, Any]:
    """Return the document of a memory, without fields that have their defaults."""
    found: dict[str, Any] = {name: getattr(memory, name) for name in _STORED}
    document = {name: value for name, value in found.items() if value != _STORED[name]}
    return {**document, "data": memory.data} if memory.data else document


def read_memory(id: str, document: object, expires_at: datetime | None = None) -> Memory:
    """Return the memory in a document.

    Raises:
        CorruptError: The document is not a memory.
    """
    if isinstance(document, Unreadable):
        form = cast("dict[str, Any]", document.value) if isinstance(document.value, dict) else {}
        known: dict[str, Any] = {"text": ""}
        known |= {name: form[name] for name in _SHOWN if name in form and _is_right(name, form[name])}
        return Memory(id=id, expires_at=expires_at, unreadable=document, **known)
    if isinstance(document, Mapping):
        fields = cast("Mapping[str, Any]", document)
        if "text" in fields and all(_is_right(name, value) for name, value in fields.items()):
            return Memory(id=id, expires_at=expires_at, **fields)
    raise CorruptError(f"The document of memory {id!r} is not a memory. Delete it.", place=id)


def _is_right(name: object, value: object) -> bool:
    """Return whether a document of a memory may have this field with this value."""
    if name == "status":
        return value in _STATUSES
    if name == "replaces":
        return isinstance(value, tuple | list) and all(
            isinstance(each, str) for each in cast("Sequence[object]", value)
        )
    return isinstance(name, str) and name in _TYPES and isinstance(value, _TYPES[name])


def read_listed_memory(
    id: str, document: object, expires_at: datetime | None, unreadable: IfUnreadable
) -> Memory | None:
    """Return the memory in a document for a listing; None if it cannot be read and is left out.

    Args:
        id: The id of the memory.
        document: The document, or an `Unreadable`.
        expires_at: The time at which it is deleted, or None.
        unreadable: The caller's choice.
    """
    try:
        memory = read_memory(id, document, expires_at)
    except CorruptError as error:
        listed = stand_in(unreadable, codec.encode(document), error)
        return read_memory(id, listed, expires_at) if isinstance(listed, Unreadable) else None
    return None if memory.unreadable is not None and unreadable == "skip" else memory


def read_current(prefix: str, entry: DocumentEntry[Any], unreadable: IfUnreadable) -> Memory | None:
    """Return the memory in a document for a listing of current ones; None if it is none of these."""
    id = id_in(prefix, entry.key)
    if id is None:
        return None
    memory = read_listed_memory(id, entry.value, entry.expires_at, unreadable)
    return memory if memory is not None and memory.status == "current" else None


def folder_of(prefix: str, id: str) -> str:
    """Return the prefix of the names of a memory's documents, without the last slash."""
    return f"{prefix}{FOLDER}{escape(id)}"


def id_in(prefix: str, name: str) -> str | None:
    """Return the id of the memory that a document belongs to; None if it belongs to none."""
    folder = prefix + FOLDER
    segment, slash, kind = name[len(folder) :].partition("/")
    is_one = name.startswith(folder) and slash + kind in (FACT, VECTOR)
    return unescape(segment) if is_one else None


# ---- arguments


def check_id(id: object, what: str = "id") -> str:
    """Return the id of a memory: 1 to 200 bytes of UTF-8, escaped."""
    text = check_text(what, id)
    if not 0 < len(escape(text).encode()) <= limits.MEMORY_ID_BYTES:
        raise InvalidError(
            f"`{what}` is {text[:60]!r}. It must have 1 to {limits.MEMORY_ID_BYTES} bytes of UTF-8, "
            "where each of / % ~ # @ and control characters counts as 3."
        )
    return text


def check_fact(what: str, text: object) -> str:
    """Return the text of a memory or a query: 1 byte to 1 MiB of UTF-8."""
    fact = check_text(what, text)
    if not 0 < (size := len(fact.encode())) <= limits.MEMORY_BYTES:
        raise InvalidError(
            f"`{what}` has {size:,} bytes. It must have 1 to {limits.MEMORY_BYTES:,} bytes of UTF-8."
        )
    return fact


def check_note(what: str, text: object) -> str:
    """Return a reason or a source: at most 4 KiB of UTF-8."""
    note = check_text(what, text)
    if (size := len(note.encode())) > limits.NOTE_BYTES:
        raise InvalidError(f"`{what}` has {size:,} bytes. It may have {limits.NOTE_BYTES:,}.")
    return note


def check_reason(because: object) -> str:
    """Return the reason for ending a memory; it may not be empty."""
    if not (reason := check_note("because", because)):
        raise InvalidError("`because` is empty. Say why the memory ends.")
    return reason


def check_data(what: str, data: object) -> dict[str, Any]:
    """Return a mapping with text keys as a dict."""
    require_instance(what, data, Mapping)
    return check_text_keys(f"`{what}`", cast("Mapping[Any, Any]", data))


def matches(data: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Return whether each value of a filter equals that of the data. `True` and `1` are different values."""
    return all(key in data and _equal(data[key], value) for key, value in where.items())


def _equal(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)
