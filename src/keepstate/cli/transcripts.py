"""Chat transcripts: files of messages, read as conversations in order.

A file is one JSON document, or JSON lines. Both hold one conversation, which is a list of messages, or many.
A conversation may be a field of an object with other fields. Lines are read one by one, a document at once.
`cli.transcript_forms` has the forms of messages and lines, `cli.databases` reads databases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple, TypeGuard

import msgspec

from keepstate.cli.transcript_forms import (
    Line,
    Message,
    conversations_of_team,
    message_in,
    messages_of_tree,
    reader_of_lines,
)
from keepstate.errors import InvalidError

Fields = dict[str, Any]

_KEYS: Final = ("messages", "traj", "trajectory", "conversation", "chat", "transcript", "history", "turns")
"""The usual keys of the messages of an object."""
_IDS: Final = ("conversation_id", "thread_id", "session_id", "task_id", "id")
_IDS_IN_MESSAGES: Final = _IDS[:3]
"""Without `id`: a message's `id` names the message, not its conversation."""
_TRIALS: Final = ("trial", "epoch")
"""Keys that distinguish several conversations of one id, in benchmarks and in logs of Inspect."""
_MOST_DIGITS: Final = 4_300
"""The limit of Python's own `int`: the time for more digits grows with the square of their number."""
_BY_PIECE: Final = 200
_LINES: Final = (".jsonl", ".ndjson")
_BOM: Final = b"\xef\xbb\xbf"
_TREE: Final = "mapping"
_TEAM: Final = "agent_states"
_OTHER_FILES: Final = {
    b"PK\x03\x04": "a ZIP archive. Of a log of Inspect, import what `inspect log convert --to json` writes. "
    "Of an export, import its conversations.json",
    b"\x1f\x8b": "compressed by gzip. Decompress it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd. Decompress it first",
    b"PAR1": "a Parquet file. Write its rows as JSON lines first",
    b"%PDF": "a PDF",
}
"""Files that are recognised and not read, by their first bytes, with what to do."""
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Piece:
    """Successive messages of one conversation.

    Attributes:
        id: The id of the conversation; None for the only one of a file, without an id.
        start: The index of the first message in its conversation.
        messages: The messages as in the file.
        place: A function that returns the location of the n-th message in the file.
        fields: The other fields of the conversation in the file.
    """

    id: str | None
    start: int
    messages: Sequence[Message]
    place: Callable[[int], str]
    fields: Fields


class _Found(NamedTuple):
    """The messages in an object, the path to them, and the other fields of the object."""

    messages: list[Any]
    path: str
    fields: Fields


class Transcript:
    """Reader of an open file.

    Args:
        name: The file's name in errors.
        stream: The open file.
        key: The key of the messages of an object; None to search for them.
        by_index: Name conversations by their index in the file, and ignore their ids.

    Attributes:
        read_bytes: The number of bytes read so far.
        left_out: The number of lines so far that have no message.
    """

    def __init__(
        self, name: str, stream: BinaryIO, *, key: str | None = None, by_index: bool = False
    ) -> None:
        self._name, self._stream, self._key, self._by_index = name, stream, key, by_index
        self.read_bytes = self.left_out = 0

    def pieces(self) -> Iterator[Piece]:
        """Return an iterator over the conversations of the file.

        Raises:
            InvalidError: The file is not a transcript; the error says where, and what was expected.
        """
        self._reject_other_files()
        lines = self._lines()
        begin = [line for line in (next(lines, None), next(lines, None)) if line is not None]
        if not begin:
            raise self._error("", "chat messages, as JSON or JSON lines; it is empty")
        if self._name.endswith(_LINES) or (len(begin) == 2 and _is_json(begin[0][1])):
            return self._of_lines(chain(begin, lines))
        # Restore blank lines, so that an error names the line of the file.
        text, at = b"", 1
        for number, line in begin:
            text, at = text + b"\n" * (number - at) + line, number + 1
        rest = self._stream.read()
        self.read_bytes += len(rest)
        return self._of_document(self._value(text + rest, None))

    def _reject_other_files(self) -> None:
        peek = getattr(self._stream, "peek", None)
        begin: bytes = peek() if peek is not None else b""
        for magic, what in _OTHER_FILES.items():
            if begin.startswith(magic):
                raise InvalidError(f"{self._name} is {what}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their numbers."""
        for number, line in enumerate(self._stream, 1):
            self.read_bytes += len(line)
            text = line.removeprefix(_BOM) if number == 1 else line
            if text.strip():
                yield number, text

    # ---- conversations

    def _of_lines(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Piece]:
        rest = ((f"line {number}", self._value(line.rstrip(), number)) for number, line in lines)
        first = next(rest)
        values = chain([first], rest)
        if message_in(first[1]) is not None:
            return self._of_messages(values)
        if (read := reader_of_lines(first[1])) is not None:
            return self._of_messages(values, read)
        return (self._conversation(one, place, "", str(index)) for index, (place, one) in enumerate(values))

    def _of_document(self, value: Any) -> Iterator[Piece]:
        if message_in(value) is not None:  # JSON lines with one line so far
            return self._of_messages([("line 1", value)])
        if (read := reader_of_lines(value)) is not None and self._messages_in(value) is None:
            return self._of_messages([("line 1", value)], read)
        if _is_list(value) and _begin_messages(value):
            return self._of_messages((f"[{place}]", one) for place, one in enumerate(value))
        if self._messages_in(value) is not None:
            return iter([self._conversation(value, "", "", None)])
        many, path = self._conversations(value)
        return (self._conversation(one, "", f"{path}[{n}]", str(n)) for n, one in enumerate(many))

    def _of_messages(
        self, values: Iterable[tuple[str, Any]], read: Callable[[object], Line | None] | None = None
    ) -> Iterator[Piece]:
        """Yield successive messages of the same conversation as one piece."""
        counts: dict[str | None, int] = {}
        places: list[str] = []
        messages: list[Message] = []
        current: str | None = None

        def piece() -> Piece:
            start = counts.get(current, 0)
            counts[current] = start + len(messages)
            return Piece(current, start, messages, partial(self._locate, places), {})

        for place, one in values:
            if read is None:
                message = self._message(one, place)
                id = None if self._by_index else _id_in(message, _IDS_IN_MESSAGES)
            else:
                if (line := read(one)) is None:
                    raise self._error(place, "a line of the same tool as the lines before", one)
                if line.message is None:
                    self.left_out += 1
                    continue
                message, id = line.message, None if self._by_index else line.conversation
            if messages and (id != current or len(messages) == _BY_PIECE):
                yield piece()
                places, messages = [], []
            current = id
            places.append(place)
            messages.append(message)
        if messages:
            yield piece()
        elif not counts:
            raise self._error("", "lines with messages; all were left out")

    def _conversation(self, value: object, line: str, path: str, index: str | None) -> Piece:
        found = _Found(value, "", {}) if _is_list(value) else self._messages_in(value)
        if found is None:
            raise self._error(_place(line, path), self._wanted(), value)
        inside = f"{path}.{found.path}" if path and found.path else path or found.path
        places = [_place(line, f"{inside}[{n}]") for n in range(len(found.messages))]
        messages = list(map(self._message, found.messages, places))
        id = None if self._by_index else _id_in(found.fields, _IDS)
        return Piece(id or index, 0, messages, partial(self._locate, places), found.fields)

    def _locate(self, places: Sequence[str], number: int) -> str:
        return f"{self._name}, {places[number]}"

    # ---- recognition

    def _messages_in(self, value: object) -> _Found | None:
        """Return the messages in an object, or None."""
        if not _is_object(value):
            return None
        fields = value
        if self._key is None and (line := messages_of_tree(fields)) is not None:
            return _Found(line, _TREE, {key: kept for key, kept in fields.items() if key != _TREE})
        named = [self._key] if self._key is not None else [key for key in _KEYS if key in fields]
        others = [key for key in fields if key not in named] if self._key is None else []
        for key in (*named, *others):
            inner: object = fields.get(key)
            rest = {other: kept for other, kept in fields.items() if other != key}
            if _is_list(inner):
                is_asked = key == self._key and not self._begin_many(inner)
                if _begin_messages(inner) or is_asked or (key in named and not inner):
                    return _Found(inner, key, rest)
            elif key in named and (found := self._messages_in(inner)) is not None:
                fields_inside = {key: found.fields} if found.fields else {}
                return _Found(found.messages, f"{key}.{found.path}", rest | fields_inside)
        return None

    def _conversations(self, value: object) -> tuple[list[Any], str]:
        """Return a list of conversations, and the path to it."""
        if _is_list(value):
            return value, ""
        fields = value if _is_object(value) else {}
        if self._key is None and (agents := [*conversations_of_team(fields)]):
            return agents, _TEAM
        for key, inner in fields.items():
            if _is_list(inner) and self._begin_many(inner):
                return inner, key
        raise self._error("", self._wanted(), value)

    def _begin_many(self, items: Sequence[Any]) -> bool:
        """Return whether the first item is a conversation."""
        first = items[0] if items else None
        return _begin_messages(first) if _is_list(first) else bool(self._messages_in(first))

    def _message(self, value: object, place: str) -> Message:
        message = message_in(value)
        if message is None:
            raise self._error(place, "a chat message, such as an object with a text `role`", value)
        return message

    def _value(self, text: bytes, line: int | None) -> Any:
        place = "" if line is None else f"line {line}"
        try:
            return decoded(text)
        except json.JSONDecodeError as error:
            place = f"line {line or error.lineno}, column {error.colno}"
            raise self._error(place, f"JSON ({error.msg})") from error
        except UnicodeDecodeError as error:
            raise self._error(place, f"JSON in UTF-8 ({error.reason} at byte {error.start})") from error
        except RecursionError as error:
            raise self._error(place, "JSON that nests less deep") from error

    def _wanted(self) -> str:
        if self._key is not None:
            return f"an object with chat messages under {self._key!r}"
        return (
            "a list of chat messages, or an object that has one, as under `messages`; name the key by --key"
        )

    def _error(self, place: str, expected: str, *found: object) -> InvalidError:
        where = f"{self._name}, {place}" if place else self._name
        return InvalidError(f"{where}: expected {expected}{f'; found {_shown(found[0])}' if found else ''}")


def decoded(text: bytes) -> Any:
    """Return the value of a JSON text; raises a `ValueError` or `RecursionError`."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        # Accepts lone surrogates and NaN, and reports the line of an error.
        return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise json.JSONDecodeError(f"expected an integer of at most {_MOST_DIGITS:,} digits", digits[:20], 0)
    return int(digits)


def _is_json(text: bytes) -> bool:
    try:
        decoded(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[Fields]:
    return isinstance(value, dict)


def _begin_messages(items: Sequence[Any]) -> bool:
    return bool(items) and message_in(items[0]) is not None


def _id_in(fields: Fields, names: Sequence[str]) -> str | None:
    """Return the id of a conversation, followed by its trial if it has several."""
    for name in names:
        id, trials = fields.get(name), (fields.get(trial) for trial in _TRIALS)
        if isinstance(id, str | int) and id != "":
            return "/".join(str(part) for part in (id, *trials) if isinstance(part, str | int))
    return None


def _place(line: str, path: str) -> str:
    return ", ".join(filter(None, (line, path)))


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
