"""Contents of Gemini, read into turns and written from them. Pure.

Keys are read as `inline_data` or `inlineData`, because clients take both, and bytes also as base64 text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from keepstate.sessions.forms.turns import (
    Foreign,
    Media,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
    arguments_of,
    from_json,
    kind_of_media,
    mappings,
    media_of,
    text_in,
    texts,
    to_json,
    unsupported,
)
from keepstate.sessions.messages import Message

Fields = Mapping[str, Any]
_FORM: Final = "Gemini"
_WORD: Final = re.compile(r"_([a-z])")
_UNSIGNED: Final = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""`skip_thought_signature_validator`: what Gemini asks for in calls that another model has made."""
ROLES: Final = {"user": "user", "assistant": "model"}


def turns_of_parts(message: Message) -> list[Turn]:
    """Return the turns of a content."""
    role = "assistant" if message["role"] in ("model", "assistant") else message["role"]
    parts = tuple(_read(part) for part in mappings(message.get("parts")))
    return [Turn("user" if role == "function" else role, parts)]


def _read(part: Fields) -> Part:
    if (call := _of(part, "function_call")) is not None:
        called = str(call.get("name"))
        return ToolCall(str(call.get("id") or f"function_{called}"), called, arguments_of(call.get("args")))
    if (answer := _of(part, "function_response")) is not None:
        function, id = str(answer.get("name")), answer.get("id")
        files = tuple(_read(each) for each in mappings(answer.get("parts")))
        told, is_error = _response(answer.get("response"))
        return ToolResult(str(id or f"function_{function}"), function, (*told, *files), is_error)
    if (blob := _of(part, "inline_data")) is not None:
        type, name = text_in(blob, "mime_type", "mimeType"), text_in(blob, "display_name", "displayName")
        return media_of(kind_of_media(type), blob.get("data"), type=type, name=name)
    if (file := _of(part, "file_data")) is not None:
        type, url = text_in(file, "mime_type", "mimeType"), text_in(file, "file_uri", "fileUri")
        return Media(kind_of_media(type), type, url=url)
    text = text_in(part, "text")
    if text is None:
        return Foreign(next(iter(part), "part"))
    return Thinking(text, "google") if part.get("thought") else Text(text)


def _response(response: object) -> tuple[tuple[Text, ...], bool]:
    """Return the answer of a function, and whether it has failed."""
    fields: Fields = cast("Fields", response) if isinstance(response, Mapping) else {}
    for name in ("output", "result", "error"):
        if fields.keys() == {name} and isinstance(fields[name], str):
            return (Text(fields[name]),), name == "error"
    return ((Text(to_json(fields)),) if fields else ()), "error" in fields


def _of(part: Fields, name: str) -> Fields | None:
    camel = _WORD.sub(lambda found: found.group(1).upper(), name)
    return next(iter(mappings([part.get(name), part.get(camel)])), None)


# ---- writing


def system_parts(turn: Turn) -> list[dict[str, Any]]:
    """Return the parts of system instructions.

    Raises:
        UnsupportedError: The instructions have more than text.
    """
    return [{"text": text} for text in texts(_FORM, turn.parts) if text]


def to_parts(turn: Turn, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a turn, results of tools first. Reasoning is left out.

    Args:
        turn: The turn.
        names: The names of the tools, by the id of the call.

    Raises:
        UnsupportedError: The form does not have a part.
    """
    if turn.role not in ROLES:
        raise unsupported(_FORM, f"the role {turn.role!r}")
    for result in turn.of(ToolResult):
        yield {"function_response": _answer(result, names)}
    is_first = True
    for part in turn.without(ToolResult, Thinking):
        if isinstance(part, ToolCall):
            signed = {"thought_signature": _UNSIGNED} if is_first else {}
            call = {"id": part.id, "name": part.name, "args": part.fields}
            yield {"function_call": call, **signed}
            is_first = False
        else:
            yield _plain(part)


def _answer(result: ToolResult, names: Mapping[str, str]) -> dict[str, Any]:
    told = [part for part in result.content if not isinstance(part, Media)]
    text = "\n\n".join(texts(_FORM, told))
    fields = mappings([from_json(text)])
    shown = fields[0] if fields and not result.is_error else {_key(result): text}
    name = result.name or names.get(result.id, result.id)
    files = [_plain(part) for part in result.content if isinstance(part, Media)]
    return {"id": result.id, "name": name, "response": shown, **({"parts": files} if files else {})}


def _key(result: ToolResult) -> str:
    return "error" if result.is_error else "output"


def _plain(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"text": text}
        case Media(data=str(data), media_type=type):
            return {"inline_data": {"mime_type": type, "data": data}}
        case Media(url=str(url), type=type):
            return {"file_data": {"file_uri": url, **({"mime_type": type} if type else {})}}
        case _:
            raise unsupported(_FORM, part)
