"""Messages of Anthropic, written from turns. Pure."""

from __future__ import annotations

import re
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
    texts,
    unsupported,
)

Block = dict[str, Any]
_FORM: Final = "Anthropic"
_NO_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_PLAIN: Final = "text/plain"


def system_blocks(turn: Turn) -> list[Block]:
    """Return the blocks of system instructions.

    Raises:
        UnsupportedError: The instructions have more than text.
    """
    return [{"type": "text", "text": text} for text in texts(_FORM, turn.parts) if text]


def to_blocks(turn: Turn) -> Iterator[Block]:
    """Yield the blocks of a turn, results of tools first. Reasoning of other providers is left out.

    Raises:
        UnsupportedError: The form does not have a part.
    """
    if turn.role not in ("user", "assistant"):
        raise unsupported(_FORM, f"the role {turn.role!r}")
    for result in turn.of(ToolResult):
        failed = {"is_error": True} if result.is_error else {}
        content = _returned([part for part in result.content if part != Text("")])
        yield {"type": "tool_result", "tool_use_id": _id(result.id), "content": content, **failed}
    for part in turn.without(ToolResult):
        yield from _answer(part) if turn.role == "assistant" else [_block(part)]


def _returned(parts: list[Part]) -> str | list[Block]:
    match parts:
        case [Text(text=text)]:
            return text
        case _:
            return [_block(part) for part in parts]


def _answer(part: Part) -> Iterator[Block]:
    match part:
        case Text(text=text):
            yield {"type": "text", "text": text}
        case ToolCall(id=id, name=name, fields=fields):
            yield {"type": "tool_use", "id": _id(id), "name": name, "input": fields}
        case Thinking(provider="anthropic", is_redacted=True, signature=str(data)):
            yield {"type": "redacted_thinking", "data": data}
        case Thinking(text=text, provider="anthropic", signature=str(signature)):
            yield {"type": "thinking", "thinking": text, "signature": signature}
        case Thinking():
            pass
        case _:
            raise unsupported(_FORM, part)


def _id(id: str) -> str:
    """Return an id of the letters that Anthropic takes; the same for a call and its result."""
    return _NO_ID.sub("_", id)


def _block(part: Part) -> Block:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media(kind="image" | "document") if source := _source(part):
            titled = {"title": part.name} if part.kind == "document" and part.name else {}
            return {"type": part.kind, "source": source, **titled}
        case _:
            raise unsupported(_FORM, part)


def _source(media: Media) -> dict[str, Any] | None:
    if media.data is not None and media.media_type == _PLAIN:
        text = media.to_bytes().decode("utf-8", "replace")
        return {"type": "text", "media_type": _PLAIN, "data": text}
    if media.data is not None:
        is_known = media.kind == "image" or media.media_type == "application/pdf"
        known = {"type": "base64", "media_type": media.media_type, "data": media.data}
        return known if is_known else None
    return None if media.url is None else {"type": "url", "url": media.url}


def content_of(turn: Turn) -> str | list[Block]:
    """Return the content of a turn: its blocks, or the text if there is only one.

    Raises:
        UnsupportedError: The form does not have a part.
    """
    match list(to_blocks(turn)):
        case [{"type": "text", "text": str(text)}]:
            return text
        case blocks:
            return blocks


def joined_content(before: Any, after: Any) -> list[Any]:
    """Return the content of two messages as that of one, with the results of tools first."""
    blocks = [*_blocks(before), *_blocks(after)]
    return sorted(blocks, key=lambda block: block.get("type") != "tool_result")


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
