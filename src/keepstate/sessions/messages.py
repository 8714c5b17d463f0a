"""Messages as model APIs take them: validation, token estimates, tool calls and cutting. Pure."""

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
"""Marks the end of a text that was cut."""
SYSTEM_ROLES: Final = ("system", "developer")
_BY_MESSAGE: Final = 4
_BYTES_BY_TOKEN: Final = 4
MEDIA_TOKENS: Final = 1_000
"""Tokens counted for a picture, recording or file, because models do not read it by its bytes."""
_NAMED_BY_ID: Final = ("tool_use", "tool_call")
_CALLS: Final = (*_NAMED_BY_ID, "_call")
"""Suffixes of the types of blocks that call a tool, for Anthropic, LangChain and OpenAI's Responses API."""
_RESULTS: Final = ("_tool_result", "_call_output")
_MEDIA: Final = ("image", "audio", "video", "file", "document")


def check_message(message: object) -> Message:
    """Return a message as a plain dict.

    Raises:
        InvalidError: The message is not a dict with a role, or has a key that is not text.
    """
    if not isinstance(message, Mapping):
        raise InvalidError(
            f"A message is of type {type(message).__name__}. Pass a dict such as {{'role': 'user', …}}."
        )
    plain = dict(cast("Mapping[str, Any]", message))
    if not isinstance(plain.get("role"), str):
        raise InvalidError(f"A message has the role {plain.get('role')!r}. Pass a text such as 'user'.")
    given = cast("Mapping[object, Any]", plain)
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise InvalidError(f"A message has the key {wrong[0]!r}. Keys must be text.")
    return plain


def is_system(message: Message) -> bool:
    """Return whether a message has the role `system` or `developer`."""
    return message["role"] in SYSTEM_ROLES


def text_of(message: Message) -> str:
    """Return what a message says, from all its blocks."""
    return _said(message.get("content"))


def _said(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        fields = cast("Mapping[str, Any]", content)
        return " ".join(_said(part) for key, part in fields.items() if key in ("text", "content"))
    if isinstance(content, list | tuple):
        return " ".join(_said(part) for part in cast("list[object]", content))
    return ""


# ---- tokens


def estimate_tokens(message: Message) -> int:
    """Return an estimate of a message's tokens: 4, plus one for each 4 bytes of text.

    The estimate is within a fifth of the count of today's models for English text. Code and other languages
    differ more. A block of a picture, a recording or a file counts 1,000.
    """
    size, media = 0, 0
    for name, part in message.items():
        size += len(name) if name not in ("role", "content") else 0
        for path, piece in split_blocks(name, part):
            if is_media(piece):
                media += MEDIA_TOKENS
            elif isinstance(piece, str):
                size += len(piece.encode("utf-8", "surrogatepass"))
            elif piece is not None:
                size += len(msgspec.json.encode(json_form(piece, path)))
    return _BY_MESSAGE + ceil(size / _BYTES_BY_TOKEN) + media


def split_blocks(name: str, part: object) -> list[tuple[str, Any]]:
    """Return the blocks of a part that contains media, or the part itself, each with its path."""
    if isinstance(part, list) and any(map(is_media, cast("list[object]", part))):
        return [(f"{name}[{index}]", block) for index, block in enumerate(cast("list[object]", part))]
    return [(name, part)]


def is_media(block: object) -> bool:
    """Return whether a block contains a picture, a recording or a file."""
    kind = cast("Mapping[str, Any]", block).get("type") if isinstance(block, Mapping) else None
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


# ---- tool calls


def links(message: Message) -> tuple[list[Any], list[str]]:
    """Return the ids of the tool calls that a message answers, and of those that it leaves to be answered.

    Calls are in `tool_calls`, or in blocks of type `tool_use`, `server_tool_use`, `function_call` and
    similar. Results refer to calls by `tool_call_id`, or in blocks such as `tool_result` and
    `function_call_output`. A call that its own message answers, such as that of a provider's built-in tool,
    is not a link. The `function_call` of an older API is identified by the function's name.
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
    """Return the id of the call in a block; None if the block is not a call, or contains its own result."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind.endswith(_CALLS):
        return None
    return block.get("call_id", block.get("id") if kind.endswith(_NAMED_BY_ID) else None)


def _result(block: Mapping[str, Any]) -> list[Any]:
    """Return the id of the call that a block answers, in a list; empty for other blocks."""
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


# ---- cutting text


def length(message: Message) -> int:
    """Return the number of characters of a message that can be cut."""
    return sum(len(text) for _, _, text in _texts(message.get("content")))


def cut(message: Message, kept: int) -> Message:
    """Return a message with its text cut to the first `kept` characters."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content[:kept] + CUT}
    blocks = list(cast("list[Any]", content))
    for index, key, text in _texts(content):
        if kept < len(text):
            short = text[:kept] + CUT
            blocks[index] = short if key is None else {**blocks[index], key: short}
        kept = max(0, kept - len(text))
    return {**message, "content": blocks}


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


def _texts(content: object) -> Iterator[tuple[int, str | None, str]]:
    """Yield the texts that may be cut, each with the index of its block and its key there."""
    if isinstance(content, str):
        yield 0, None, content
    if not isinstance(content, list):
        return
    for index, block in enumerate(cast("list[object]", content)):
        if isinstance(block, str):
            yield index, None, block
        elif isinstance(block, Mapping):
            fields = cast("Mapping[str, Any]", block)
            for key in ("text", "content"):
                if isinstance(text := fields.get(key), str):
                    yield index, key, text
