"""The texts of messages in the forms of all libraries: search, cutting and replacement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from keepstate.errors import InvalidError
from keepstate.sessions.messages import Counter, Message

CUT: Final = " […]"
"""Marks the end of a text that was cut."""
_SAID: Final = ("text", "content", "output", "function_response", "functionResponse", "response")
_BY_CONTAINER: Final = {
    "content": ("text", "content"),
    "parts": ("text", "content"),
    "items": ("content", "output"),
}
"""The keys of the texts that may be cut, by the key of the message that contains them."""
_STRICT: Final = ("parts", "items", "type")
"""The keys of a message whose texts are in parts that have types of their own."""
_SIGNED: Final = ("thinking", "reasoning")
Path: TypeAlias = tuple[int | str, ...]


def text_of(message: Message) -> str:
    """Return the text of a message, from all its blocks, items or parts."""
    return " ".join(filter(None, (_said(message.get(name)) for name in ("content", "parts", "items"))))


def _said(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        fields = cast("Mapping[str, Any]", content)
        return " ".join(_said(part) for key, part in fields.items() if key in _SAID)
    if isinstance(content, list | tuple):
        return " ".join(_said(part) for part in cast("list[object]", content))
    return ""


def length(message: Message) -> int:
    """Return the number of characters of a message that can be cut."""
    return sum(len(text) for _, text in _texts(message))


def cut(message: Message, kept: int) -> Message:
    """Return a message with its text cut to the first `kept` characters."""
    for path, text in list(_texts(message)):
        if kept < len(text):
            message = _with(message, path, text[:kept] + CUT)
        kept = max(0, kept - len(text))
    return message


def longest(message: Message, room: int, count: Counter) -> int:
    """Return the largest number of characters for which the cut message fits; 0 if none does."""
    low, high = 0, length(message)
    while low < high:
        middle = (low + high + 1) // 2
        if count(cut(message, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def with_text(message: Message, text: str) -> Message:
    """Return a message with another text.

    Raises:
        InvalidError: The message has items or parts, and not one text.
    """
    if message.keys().isdisjoint(_STRICT):
        return {**message, "content": text}
    paths = [path for path, _ in _texts(message)]
    if len(paths) != 1:
        raise InvalidError(
            f"The message has {len(paths)} texts in its parts, so one text cannot replace them. Pass a whole "
            "message."
        )
    return cast("Message", _with(message, paths[0], text))


def _texts(message: Message) -> Iterator[tuple[Path, str]]:
    """Yield the texts that may be cut, each with its path. Signed reasoning may not."""
    for container, keys in _BY_CONTAINER.items():
        content = message.get(container)
        if isinstance(content, str):
            yield (container,), content
        if isinstance(content, list):
            yield from _texts_in((container,), cast("list[object]", content), keys)


def _texts_in(above: Path, blocks: Sequence[object], keys: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for index, block in enumerate(blocks):
        if isinstance(block, str):
            yield (*above, index), block
        if not isinstance(block, Mapping):
            continue
        fields = cast("Mapping[str, Any]", block)
        if fields.get("type") in _SIGNED or fields.get("part_kind") == "thinking" or fields.get("thought"):
            continue
        for key in keys:
            if isinstance(text := fields.get(key), str):
                yield (*above, index, key), text
        for key in ("content", "output"):
            if isinstance(inside := fields.get(key), list):
                yield from _texts_in((*above, index, key), cast("list[object]", inside), ("text",))


def _with(value: Any, path: Path, text: str) -> Any:
    """Return a copy of a value with another text at a path."""
    if not path:
        return text
    made: Any = value.copy()
    made[path[0]] = _with(made[path[0]], path[1:], text)
    return made
