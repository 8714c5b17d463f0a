"""Messages as model APIs take them: what is one, its tokens, its tool calls, what can be left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.builtin import json_form

Message: TypeAlias = dict[str, Any]
Counter: TypeAlias = Callable[[Message], int]

CUT: Final = " […]"
"""Ends a text of which a part was left out."""
SYSTEM_ROLES: Final = ("system", "developer")
_BY_MESSAGE: Final = 4
_BYTES_BY_TOKEN: Final = 4
MEDIA_TOKENS: Final = 1_000
"""What a picture, a recording or a file counts: models do not read it by its bytes."""
_NAMED_BY_ID: Final = ("tool_use", "tool_call")
_CALLS: Final = (*_NAMED_BY_ID, "_call")
"""What the types of blocks end with that call a tool, as of Anthropic, LangChain and OpenAI's Responses."""
_RESULTS: Final = ("_tool_result", "_call_output")
_MEDIA: Final = ("image", "audio", "video", "file", "document")


def admit(message: object) -> Message:
    """Return a message as a plain dict.

    Raises:
        InvalidError: It is no dict with a role, or has a key that is no text.
    """
    if not isinstance(message, Mapping):
        raise InvalidError(
            f"a message is {type(message).__name__}; give a dict such as {{'role': 'user', …}}"
        )
    plain = dict(cast("Mapping[str, Any]", message))
    if not isinstance(plain.get("role"), str):
        raise InvalidError(f"a message has the role {plain.get('role')!r}; give one, such as 'user'")
    given = cast("Mapping[object, Any]", plain)
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise InvalidError(f"a message has the key {wrong[0]!r}; its keys are text")
    return plain


def is_system(message: Message) -> bool:
    """Whether a message tells the model what it is for."""
    return message["role"] in SYSTEM_ROLES


# ---- tokens


def estimate_tokens(message: Message) -> int:
    """Return about how many tokens a message has: 4, and one for each 4 bytes of what it says.

    English text of today's models comes within a fifth of that; code and other languages differ more. A
    block of a picture, a recording or a file counts 1,000.
    """
    size, media = 0, 0
    for name, part in message.items():
        size += len(name) if name not in ("role", "content") else 0
        for path, piece in placed(name, part):
            if is_media(piece):
                media += MEDIA_TOKENS
            elif isinstance(piece, str):
                size += len(piece.encode("utf-8", "surrogatepass"))
            elif piece is not None:
                size += len(msgspec.json.encode(json_form(piece, path)))
    return _BY_MESSAGE + ceil(size / _BYTES_BY_TOKEN) + media


def placed(name: str, part: object) -> list[tuple[str, Any]]:
    """Return the blocks of a part that has some, or the part alone, each with where it stands."""
    if isinstance(part, list) and any(map(is_media, cast("list[object]", part))):
        return [(f"{name}[{place}]", block) for place, block in enumerate(cast("list[object]", part))]
    return [(name, part)]


def is_media(block: object) -> bool:
    """Whether a block holds a picture, a recording or a file."""
    kind = cast("Mapping[str, Any]", block).get("type") if isinstance(block, Mapping) else None
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


# ---- tool calls


def links(message: Message) -> tuple[list[Any], list[str]]:
    """Return the ids of the tool calls that a message answers, and of those that others have to answer.

    Calls stand in `tool_calls`, or in blocks of type `tool_use`, `server_tool_use`, `function_call` and their
    like; results name them by `tool_call_id`, or in blocks such as `tool_result` and `function_call_output`.
    What a message both calls and answers, as where a provider's own tool was at work, is no link. A
    `function_call` of an older model is known by the name of the function.
    """
    blocks = _dicts(message.get("content"))
    answered = [id for block in blocks for id in _result(block)]
    if message["role"] == "tool" or "tool_call_id" in message:
        answered.append(message.get("tool_call_id"))
    if message["role"] == "function":
        answered.append(_function(message))
    made = [call.get("id") for call in _dicts(message.get("tool_calls"))]
    made += [_call(block) for block in blocks]
    made += [_function(call) for call in _dicts([message.get("function_call")])]
    ids = list(dict.fromkeys(id for id in made if isinstance(id, str)))
    return [id for id in answered if id not in ids], [id for id in ids if id not in answered]


def _call(block: Mapping[str, Any]) -> object:
    """Return the id of the call in a block; None if it is none, or has its result in itself."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind.endswith(_CALLS):
        return None
    return block.get("call_id", block.get("id") if kind.endswith(_NAMED_BY_ID) else None)


def _result(block: Mapping[str, Any]) -> list[Any]:
    """Return the id of the call that a block answers, if it answers one."""
    kind = block.get("type")
    if kind == "tool_result":
        return [block.get("tool_use_id")]
    if not isinstance(kind, str) or not kind.endswith(_RESULTS):
        return []
    given = (block.get(name) for name in ("tool_use_id", "tool_call_id", "call_id"))
    return [id for id in given if isinstance(id, str)][:1]


def _function(named: Mapping[str, Any]) -> str:
    return f"function {named.get('name')}"


def _dicts(parts: object) -> list[Mapping[str, Any]]:
    if not isinstance(parts, list | tuple):
        return []
    return [
        cast("Mapping[str, Any]", part) for part in cast("list[object]", parts) if isinstance(part, Mapping)
    ]


# ---- leaving a part of the text out


def length(message: Message) -> int:
    """Return how many characters a message says, as far as they can be left out."""
    return sum(len(text) for _, _, text in _texts(message.get("content")))


def cut(message: Message, kept: int) -> Message:
    """Return a message with so many characters of what it says."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content[:kept] + CUT}
    blocks = list(cast("list[Any]", content))
    for place, key, text in _texts(content):
        if kept < len(text):
            short = text[:kept] + CUT
            blocks[place] = short if key is None else {**blocks[place], key: short}
        kept = max(0, kept - len(text))
    return {**message, "content": blocks}


def longest(message: Message, room: int, count: Counter) -> int:
    """Return how many characters of what a message says fit; 0 if none does."""
    low, high = 0, length(message)
    while low < high:
        middle = (low + high + 1) // 2
        if count(cut(message, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _texts(content: object) -> Iterator[tuple[int, str | None, str]]:
    """Yield where texts stand that may be cut: the block, its key, and the text."""
    if isinstance(content, str):
        yield 0, None, content
    if not isinstance(content, list):
        return
    for place, block in enumerate(cast("list[object]", content)):
        if isinstance(block, str):
            yield place, None, block
        elif isinstance(block, Mapping):
            told = cast("Mapping[str, Any]", block)
            for key in ("text", "content"):
                if isinstance(text := told.get(key), str):
                    yield place, key, text
