"""Messages in the forms of all libraries: token estimates, and the calls of tools. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate.values.builtin import json_form

Message: TypeAlias = dict[str, Any]
Counter: TypeAlias = Callable[[Message], int]

LANGCHAIN: Final = "langchain"
"""The key of what only LangChain reads, in a message of its own."""
SYSTEM_ROLES: Final = ("system", "developer")
ROLES: Final = {"developer": "system", "model": "assistant"}
"""The words of some forms for a role, and the usual one."""
_BY_MESSAGE: Final = 4
_BYTES_BY_TOKEN: Final = 4
MEDIA_TOKENS: Final = 1_000
"""Tokens counted for a picture, recording or file, because models do not read it by its bytes."""
_NAMED_BY_ID: Final = ("tool_use", "tool_call")
_CALLS: Final = (*_NAMED_BY_ID, "_call")
"""Suffixes of the types of blocks that call a tool, for Anthropic, LangChain and OpenAI's Responses API."""
_RESULTS: Final = ("_tool_result", "_call_output")
_APPROVALS: Final = "mcp_approval_request"
_MEDIA: Final = ("image", "audio", "video", "file", "document")
_MEDIA_KINDS: Final = ("image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file")
"""The kinds of files in a prompt of Pydantic AI."""
_MEDIA_KEYS: Final = frozenset({"inline_data", "inlineData", "file_data", "fileData"})
"""The keys of a part of Gemini that is a file."""
_NESTED: Final = ("content", "output", "parts", "items", "function_response", "functionResponse")
"""The keys under which a part has parts. Arguments of tools are not among them, because they are text."""
_DEPTH: Final = 6
_CONTAINERS: Final = ("content", "items", "parts")
"""The keys of a message that have its blocks, items or parts."""
_SEEN: Final = ("parts", "instructions")
"""The keys of a message of Pydantic AI that models see."""


def is_system(message: Message) -> bool:
    """Return whether a message has the role `system` or `developer`."""
    return message["role"] in SYSTEM_ROLES


# ---- tokens


def estimate_tokens(message: Message) -> int:
    """Return an estimate of a message's tokens: 4, plus one for each 4 bytes of text.

    The estimate is within a fifth of the count of today's models for English text. Code and other languages
    differ more. A block of a picture, a recording or a file counts 1,000.
    """
    size, media = 0, 0
    for name, part in seen(message):
        size += len(name) if name not in ("role", "content") else 0
        for path, piece in split_blocks(name, part):
            if is_media(piece):
                media += MEDIA_TOKENS
            elif isinstance(piece, str):
                size += len(piece.encode("utf-8", "surrogatepass"))
            elif piece is not None:
                size += len(msgspec.json.encode(json_form(piece, path)))
    return _BY_MESSAGE + ceil(size / _BYTES_BY_TOKEN) + media


def seen(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a message that a model sees."""
    is_whole = not is_of_pydantic_ai(message)
    for name, part in message.items():
        if name != LANGCHAIN and (is_whole or name in _SEEN):
            yield name, part


def is_of_pydantic_ai(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a request or a response of Pydantic AI."""
    return message.get("kind") in ("request", "response") and isinstance(message.get("parts"), list)


def split_blocks(name: str, part: object) -> list[tuple[str, Any]]:
    """Return the pieces of a part that contains media, or the part itself, each with its path."""
    if is_media(part) or not _has_media(part, _DEPTH):
        return [(name, part)]
    if isinstance(part, Mapping):
        fields = cast("Mapping[str, object]", part)
        inside = [(f"{name}.{key}", value) for key, value in fields.items()]
    else:
        inside = [(f"{name}[{index}]", block) for index, block in enumerate(cast("list[object]", part))]
    return [piece for path, value in inside for piece in split_blocks(path, value)]


def _has_media(part: object, depth: int) -> bool:
    """Return whether a part is or contains a file, at most `depth` levels down."""
    if is_media(part):
        return True
    if not depth:
        return False
    if isinstance(part, Mapping):
        fields = cast("Mapping[str, object]", part)
        return any(_has_media(fields.get(key), depth - 1) for key in _NESTED)
    return isinstance(part, list) and any(_has_media(each, depth - 1) for each in cast("list[object]", part))


def is_media(block: object) -> bool:
    """Return whether a block contains a picture, a recording or a file."""
    if not isinstance(block, Mapping):
        return False
    fields = cast("Mapping[str, Any]", block)
    kind = fields.get("type")
    if isinstance(kind, str):
        source = fields.get("source")
        is_text = isinstance(source, Mapping) and cast("Mapping[str, Any]", source).get("type") == "text"
        return not (is_text or isinstance(fields.get("text"), str)) and any(word in kind for word in _MEDIA)
    return fields.get("kind") in _MEDIA_KINDS or not fields.keys().isdisjoint(_MEDIA_KEYS)


# ---- tool calls


def links(message: Message) -> tuple[list[Any], list[str]]:
    """Return the ids of the tool calls that a message answers, and of those that it leaves to be answered.

    Calls are in `tool_calls`, in blocks or items of type `tool_use`, `server_tool_use`, `function_call` and
    similar, or in parts of Gemini and Pydantic AI. Results refer to calls by `tool_call_id`, or in blocks
    such as `tool_result` and `function_call_output`. A call that its own message answers, such as that of a
    provider's built-in tool, is not a link. A call without an id is identified by the function's name.
    """
    blocks = [block for name in _CONTAINERS for block in _dicts(message.get(name))]
    answered = [id for block in blocks for id in _result(block)]
    if message["role"] == "tool" or "tool_call_id" in message:
        answered.append(message.get("tool_call_id"))
    if message["role"] == "function":
        answered.append(_function(message))
    made = [call.get("id") for call in _dicts(message.get("tool_calls"))]
    made += [_call(block) for block in blocks]
    made += [_function(call) for call in _dicts([message.get("function_call")])]
    ids = list(dict.fromkeys(id for id in made if isinstance(id, str)))
    known, done = set(ids), {id for id in answered if isinstance(id, str)}
    open_results = [id for id in answered if not (isinstance(id, str) and id in known)]
    return open_results, [id for id in ids if id not in done]


def _call(block: Mapping[str, Any]) -> object:
    """Return the id of the call in a block; None if the block is not a call, or contains its own result."""
    if block.get("part_kind") == "tool-call":
        return block.get("tool_call_id")
    if "type" not in block and (call := _inside(block, "function_call", "functionCall")) is not None:
        return call.get("id") or _function(call)
    kind = block.get("type")
    if kind == _APPROVALS:
        return block.get("id")
    if not isinstance(kind, str) or not kind.endswith(_CALLS):
        return None
    return block.get("call_id", block.get("id") if kind.endswith(_NAMED_BY_ID) else None)


def _result(block: Mapping[str, Any]) -> list[Any]:
    """Return the id of the call that a block answers, in a list; empty for other blocks."""
    kind, part = block.get("type"), block.get("part_kind")
    if part == "tool-return" or (part == "retry-prompt" and block.get("tool_name") is not None):
        return [block.get("tool_call_id")]
    if (
        "type" not in block
        and (answer := _inside(block, "function_response", "functionResponse")) is not None
    ):
        return [answer.get("id") or _function(answer)]
    if kind == "tool_result":
        return [block.get("tool_use_id")]
    if kind == "mcp_approval_response":
        return [block.get("approval_request_id")]
    if not isinstance(kind, str) or not kind.endswith(_RESULTS):
        return []
    given = (block.get(name) for name in ("tool_use_id", "tool_call_id", "call_id"))
    return [id for id in given if isinstance(id, str)][:1]


def _inside(block: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    return next(iter(_dicts([block.get(name) for name in names])), None)


def _function(named: Mapping[str, Any]) -> str:
    return f"function {named.get('name')}"


def _dicts(parts: object) -> list[Mapping[str, Any]]:
    if not isinstance(parts, list | tuple):
        return []
    return [
        cast("Mapping[str, Any]", part) for part in cast("list[object]", parts) if isinstance(part, Mapping)
    ]
