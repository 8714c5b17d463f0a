"""Messages of OpenAI's chat completions, written from turns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from keepstate.sessions.forms.turns import (
    Media,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
    joined,
    unsupported,
)
from keepstate.sessions.messages import Message

_FORM: Final = "OpenAI's chat"
_AUDIO: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def to_chat(turn: Turn) -> Iterator[Message]:
    """Yield the messages of a turn. Reasoning is left out.

    Raises:
        UnsupportedError: The form does not have a part.
    """
    if turn.role == "system":
        yield {"role": "system", "content": joined(_FORM, turn.parts)}
    elif turn.role == "assistant":
        yield from _answer(turn)
    else:
        for result in turn.of(ToolResult):
            content = joined(_FORM, result.content)
            yield {"role": "tool", "tool_call_id": result.id, "content": content}
        if parts := list(turn.without(ToolResult)):
            named = {} if turn.name is None else {"name": turn.name}
            yield {"role": turn.role, "content": _content(parts), **named}


def _answer(turn: Turn) -> Iterator[Message]:
    said = list(turn.without(Thinking, ToolCall))
    refused = [part for part in said if isinstance(part, Text) and part.is_refusal]
    text = joined(_FORM, [part for part in said if part not in refused])
    message: Message = {"role": "assistant", "content": text or None}
    if turn.name is not None:
        message["name"] = turn.name
    if refused:
        message["refusal"] = joined(_FORM, refused)
    if calls := [_call(call) for call in turn.of(ToolCall)]:
        message["tool_calls"] = calls
    if text or refused or calls:
        yield message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def _content(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    match list(parts):
        case [Text(text=text)]:
            return text
        case several:
            return [_block(part) for part in several]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media(kind="image", data_url=str(url)):
            return {"type": "image_url", "image_url": {"url": url}}
        case Media(kind="audio", data=str(data), media_type=type) if type in _AUDIO:
            return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[type]}}
        case Media(kind="document", data=str(), data_url=str(url), name=name):
            return {"type": "file", "file": {"filename": name or "document", "file_data": url}}
        case _:
            raise unsupported(_FORM, part)
