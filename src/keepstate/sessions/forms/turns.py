"""Turns: what one side of a conversation says, in parts that belong to no library. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from keepstate.errors import InvalidError, UnsupportedError

T = TypeVar("T")
MediaKind: TypeAlias = Literal["image", "audio", "video", "document"]
NO_JSON: Final = "INVALID_JSON"
"""The argument that has the text of arguments which are not a JSON object."""
_DATA: Final = "data:"


@dataclass(frozen=True, slots=True)
class Text:
    """Text, also that of a refusal."""

    text: str
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """A picture, recording or document: its bytes as base64 text, its address, or its id at a provider."""

    kind: MediaKind
    type: str | None = None
    data: str | None = None
    url: str | None = None
    file: str | None = None
    name: str | None = None

    @property
    def data_url(self) -> str | None:
        """The bytes as a `data:` URL, or the address; None if there is only an id."""
        return self.url if self.data is None else f"{_DATA}{self.media_type};base64,{self.data}"

    @property
    def media_type(self) -> str:
        """The media type, or the usual one of its kind."""
        return self.type or _USUAL[self.kind]

    def to_bytes(self) -> bytes:
        """Return the bytes.

        Raises:
            UnsupportedError: The text is not base64.
        """
        try:
            return b64decode(self.data or "")
        except ValueError as error:
            raise UnsupportedError(f"A file of the kind {self.kind!r} is not base64: {error}.") from error


_USUAL: Final = {
    "image": "image/png",
    "audio": "audio/wav",
    "video": "video/mp4",
    "document": "application/pdf",
}


@dataclass(frozen=True, slots=True)
class Thinking:
    """The reasoning of a model, with the proof by which its provider accepts it again.

    Attributes:
        text: The reasoning, or a summary of it.
        provider: `anthropic`, `openai`, `google`, or empty.
        signature: The signature, or the encrypted reasoning.
        id: The id at the provider.
        is_redacted: Whether only the encrypted reasoning is known.
    """

    text: str
    provider: str = ""
    signature: str | None = None
    id: str | None = None
    is_redacted: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` are text where they are not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments as a dict, in any case."""
        return {NO_JSON: self.arguments} if isinstance(self.arguments, str) else self.arguments

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else to_json(self.arguments)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    id: str
    name: str | None
    content: tuple[Part, ...]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """A part that only the form of its message has, such as a call of a provider's own tool."""

    type: str


Part: TypeAlias = "Text | Media | Thinking | ToolCall | ToolResult | Foreign"


@dataclass(frozen=True, slots=True)
class Turn:
    """The words of one side, until the other side speaks.

    Attributes:
        role: `system`, `user`, `assistant`, or `instructions`, of which only the last in a context count; or
            another role, which few forms have.
        parts: The parts in order. Results of tools are parts of the user.
        name: The name of the participant.
    """

    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None

    def of(self, kind: type[T]) -> list[T]:
        """Return the parts of a class."""
        return [part for part in self.parts if isinstance(part, kind)]

    def without(self, *kinds: type) -> Iterator[Part]:
        """Yield the parts of other classes, without empty texts."""
        for part in self.parts:
            if not isinstance(part, kinds) and part != Text(""):
                yield part


def unsupported(form: str, part: object) -> UnsupportedError:
    """Return the error for a part that a form does not have."""
    match part:
        case Media(kind=kind, file=file):
            what = f"a file of the kind {kind!r}" + (" that only its provider has" if file else "")
        case Foreign(type=name):
            what = f"a part {name!r}"
        case str():
            what = part
        case _:
            what = f"a part of the kind {type(part).__name__!r}"
    return UnsupportedError(
        f"The context has {what}, which messages in the form of {form} do not have at this place. "
        "Ask for the form in which the message was given, or replace the message."
    )


def texts(form: str, parts: Iterable[object]) -> list[str]:
    """Return the texts of parts that may have nothing else, such as system instructions."""
    found: list[str] = []
    for part in parts:
        if not isinstance(part, Text):
            raise unsupported(form, part)
        found.append(part.text)
    return found


def joined(form: str, parts: Iterable[object]) -> str:
    """Return the texts of parts that may have nothing else, as one."""
    return "\n\n".join(text for text in texts(form, parts) if text)


# ---- reading what libraries write


def mappings(parts: object) -> list[Mapping[str, Any]]:
    """Return the dicts in a list; empty for anything else."""
    if not isinstance(parts, list | tuple):
        return []
    given = cast("Sequence[object]", parts)
    return [cast("Mapping[str, Any]", part) for part in given if isinstance(part, Mapping)]


def text_in(fields: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of some fields that is text."""
    return next((fields[name] for name in names if isinstance(fields.get(name), str)), None)


def arguments_of(given: object) -> dict[str, Any] | str:
    """Return the arguments of a call as a dict, or as text if they are not a JSON object."""
    if given is None or given == "":
        return {}
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, Any]", given))
    if not isinstance(given, str):
        return to_json(given)
    found = from_json(given)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else given


def to_json(value: object) -> str:
    """Return JSON text.

    Raises:
        InvalidError: A part of the value has no JSON.
    """
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(f"{value!r:.60} has no JSON: {error}; replace the message") from error


def from_json(text: str) -> object:
    """Return the value of JSON text, or None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def media_at(kind: MediaKind, url: str, *, type: str | None = None, name: str | None = None) -> Media:
    """Return a file with an address, or with the bytes of a `data:` URL."""
    head, comma, data = url.partition(",")
    if not head.startswith(_DATA) or not comma:
        return Media(kind, type, url=url, name=name)
    words = head.removeprefix(_DATA).split(";")
    plain = data if "base64" in words else b64encode(data.encode()).decode()
    return Media(kind, words[0] or type, plain, name=name)


def media_of(kind: MediaKind, data: object, *, type: str | None = None, name: str | None = None) -> Media:
    """Return a file with bytes, given as bytes or as base64 text of either alphabet."""
    if isinstance(data, bytes):
        return Media(kind, type, b64encode(data).decode(), name=name)
    return Media(kind, type, str(data).replace("-", "+").replace("_", "/"), name=name)


def kind_of_media(type: str | None) -> MediaKind:
    """Return the kind of a media type."""
    group = (type or "").partition("/")[0]
    return cast("MediaKind", group) if group in ("image", "audio", "video") else "document"
