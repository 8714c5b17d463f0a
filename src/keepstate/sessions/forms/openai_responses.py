"""Input items of OpenAI's Responses, written from turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator
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

_FORM: Final = "OpenAI's Responses"
_REASONING: Final = "rs_"
"""How ids of reasoning begin. Others are of other APIs with the same provider."""


def to_items(turn: Turn) -> Iterator[Message]:
    """Yield the items of a turn. Reasoning of other providers is left out.

    Raises:
        UnsupportedError: The form does not have a part.
    """
    if turn.role == "system":
        yield {"role": "system", "content": joined(_FORM, turn.parts)}
    elif turn.role == "assistant":
        yield from _answers(turn)
    elif turn.role == "user":
        for result in turn.of(ToolResult):
            yield {
                "type": "function_call_output",
                "call_id": result.id,
                "output": _content(list(result.content)),
            }
        if parts := list(turn.without(ToolResult)):
            yield {"role": "user", "content": _content(parts)}
    else:
        raise unsupported(_FORM, f"the role {turn.role!r}")


def _answers(turn: Turn) -> list[Message]:
    items: list[Message] = []
    for part in turn.without():
        for item in _answer(part):
            if items and "summary" in item and item["id"] == items[-1].get("id"):
                items[-1]["summary"] += item["summary"]  # Pydantic AI has one part for each summary
            else:
                items.append(item)
    return items


def _answer(part: Part) -> Iterator[Message]:
    match part:
        case Text(text=text):
            yield {"role": "assistant", "content": text}
        case ToolCall(id=id, name=name, text=arguments):
            yield {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
        case Thinking(text=text, provider="openai", id=str(id), signature=signature) if id.startswith(
            _REASONING
        ):
            summary = [{"type": "summary_text", "text": text}] if text else []
            sealed = {} if signature is None else {"encrypted_content": signature}
            yield {"type": "reasoning", "id": id, "summary": summary, **sealed}
        case Thinking():
            pass
        case _:
            raise unsupported(_FORM, part)


def _content(parts: list[Part]) -> str | list[dict[str, Any]]:
    match parts:
        case []:
            return ""
        case [Text(text=text)]:
            return text
        case _:
            return [_block(part) for part in parts]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "input_text", "text": text}
        case Media(kind="image", data_url=str(url)):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case Media(kind="document", data=str(), data_url=str(url), name=name):
            return {"type": "input_file", "filename": name or "document", "file_data": url}
        case Media(kind="document", url=str(url)):
            return {"type": "input_file", "file_url": url}
        case _:
            raise unsupported(_FORM, part)
