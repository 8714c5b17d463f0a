"""Messages of Pydantic AI, read into turns and written from them.

Reading is pure. Only writing, and taking an object of Pydantic AI, imports the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from keepstate.errors import MissingExtraError, UnsupportedError
from keepstate.sessions.forms.turns import (
    Foreign,
    Media,
    MediaKind,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
    arguments_of,
    from_json,
    joined,
    kind_of_media,
    mappings,
    media_of,
    text_in,
    to_json,
    unsupported,
)
from keepstate.sessions.messages import Message

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart, UserContent

Fields = Mapping[str, Any]
_FORM: Final = "Pydantic AI"
_REDACTED: Final = "redacted_thinking"
"""The id by which Pydantic AI knows redacted reasoning of Anthropic."""
_OF_URL: Final[Mapping[str, MediaKind]] = {
    "image-url": "image",
    "audio-url": "audio",
    "video-url": "video",
    "document-url": "document",
}
_BOOKKEEPING: Final = ("-delta", "-digest", "-baseline")
"""Ends of the kinds of parts that tell of the run, and not of the conversation."""


def dump(message: object) -> dict[str, Any]:
    """Return a message of Pydantic AI in values of JSON, as its `ModelMessagesTypeAdapter` writes it."""
    (fields,) = cast("list[dict[str, Any]]", from_json(_adapter().dump_json([message]).decode()))
    parts = [_given(part) for part in mappings(fields.get("parts"))]
    return {**_given(fields), "parts": parts}


def _given(fields: Fields) -> dict[str, Any]:
    return {name: part for name, part in fields.items() if part is not None}


def load(message: Message) -> ModelMessage:
    """Return a stored message of Pydantic AI as the object that it was."""
    fields = {name: part for name, part in message.items() if name != "role"}
    adapter = _adapter()
    try:
        made: ModelMessage = adapter.validate_json(to_json([fields]))[0]
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"Pydantic AI does not take the message: {error}") from error
    return made


def _adapter() -> Any:
    try:
        from pydantic_ai.messages import ModelMessagesTypeAdapter
    except ImportError as error:
        install = "pip install pydantic-ai-slim"
        raise MissingExtraError(
            f"as_pydantic_ai() needs Pydantic AI. Run: {install}", install=install
        ) from error
    return ModelMessagesTypeAdapter


# ---- reading


def turns_of_message(message: Message) -> list[Turn]:
    """Return the turns of a request or a response."""
    if message.get("kind") == "response":
        parts = [_answered(part) for part in mappings(message.get("parts"))]
        return [Turn("assistant", tuple(parts))]
    turns: list[Turn] = []
    for part in mappings(message.get("parts")):
        kind = str(part.get("part_kind"))
        if kind.endswith(_BOOKKEEPING):
            continue
        role = "system" if kind == "system-prompt" else "user"
        told = tuple(_asked(part, kind))
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, (*turns[-1].parts, *told))
        else:
            turns.append(Turn(role, told))
    if isinstance(instructions := message.get("instructions"), str):
        turns.append(Turn("instructions", (Text(instructions),)))
    return turns


def _asked(part: Fields, kind: str) -> Iterator[Part]:
    content = part.get("content")
    if kind in ("system-prompt", "user-prompt"):
        yield from _prompt(content)
    elif kind == "tool-return":
        is_error = part.get("outcome") in ("failed", "denied")
        name, told = text_in(part, "tool_name"), tuple(_returned(content))
        yield ToolResult(str(part.get("tool_call_id")), name, told, is_error)
    elif kind in ("retry-prompt", "retry-feedback"):
        text = Text(content if isinstance(content, str) else to_json(content))
        if (name := text_in(part, "tool_name")) is None:
            yield text
        else:
            yield ToolResult(str(part.get("tool_call_id")), name, (text,), is_error=True)
    else:
        yield Foreign(kind)


def _prompt(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for item in cast("list[object]", content) if isinstance(content, list) else []:
        if isinstance(item, str):
            yield Text(item)
        elif isinstance(item, Mapping):
            fields = cast("Fields", item)
            if fields.get("kind") != "cache-point":
                yield _item(fields) or Foreign(str(fields.get("kind")))


def _item(item: Fields) -> Part | None:
    """Return a text or a file of a prompt; None for anything else."""
    kind, type = str(item.get("kind")), text_in(item, "media_type")
    if kind in ("text-content", "structured-content"):
        return Text(str(item.get("content")))
    if kind == "binary":
        return media_of(kind_of_media(type), item.get("data"), type=type)
    group = _OF_URL.get(kind)
    return None if group is None else Media(group, type, url=text_in(item, "url"))


def _returned(content: object) -> Iterator[Part]:
    """Yield the output of a tool: a text, files, or a value as JSON."""
    items = cast("list[object]", content) if isinstance(content, list) else [content]
    told = [(item, _item(cast("Fields", item)) if isinstance(item, Mapping) else None) for item in items]
    if content is None:
        return
    if not any(isinstance(part, Media) for _, part in told):
        yield Text(content if isinstance(content, str) else to_json(cast("Any", content)))
        return
    for item, part in told:
        yield part or Text(item if isinstance(item, str) else to_json(item))


def _answered(part: Fields) -> Part:
    content = part.get("content")
    match part.get("part_kind"):
        case "text":
            return Text(str(content))
        case "thinking":
            provider, id = text_in(part, "provider_name") or "", text_in(part, "id")
            is_redacted = id == _REDACTED
            text = str(content or "")
            return Thinking(text, provider, text_in(part, "signature"), id, is_redacted)
        case "tool-call":
            given = arguments_of(part.get("args"))
            return ToolCall(str(part.get("tool_call_id")), str(part.get("tool_name")), given)
        case "file":
            return next((_item(each) or Foreign("file") for each in mappings([content])), Foreign("file"))
        case kind:
            return Foreign(str(kind))


# ---- writing


def to_messages(turns: list[Turn], names: Mapping[str, str]) -> Iterator[ModelMessage]:
    """Yield the requests and responses of turns; turns of the asking side become one request.

    Args:
        turns: The turns.
        names: The names of the tools, by the id of the call.

    Raises:
        MissingExtraError: Pydantic AI is not installed.
        UnsupportedError: The form does not have a part.
    """
    _adapter()
    from pydantic_ai.messages import ModelRequest, ModelResponse

    asked: list[ModelRequestPart] = []
    for turn in turns:
        if turn.role == "assistant":
            if asked:
                yield ModelRequest(parts=asked)
            asked = []
            if parts := [_response_part(part) for part in turn.without()]:
                yield ModelResponse(parts=parts)
        else:
            asked += _request_parts(turn, names)
    if asked:
        yield ModelRequest(parts=asked)


def _request_parts(turn: Turn, names: Mapping[str, str]) -> Iterator[ModelRequestPart]:
    from pydantic_ai.messages import SystemPromptPart, ToolReturnPart, UserPromptPart

    if turn.role == "system":
        yield SystemPromptPart(joined(_FORM, turn.parts))
        return
    if turn.role != "user":
        raise unsupported(_FORM, f"the role {turn.role!r}")
    for result in turn.of(ToolResult):
        content = _content(list(result.content))
        yield ToolReturnPart(
            result.name or names.get(result.id, result.id),
            content,
            result.id,
            outcome="failed" if result.is_error else "success",
        )
    if parts := list(turn.without(ToolResult)):
        yield UserPromptPart(_content(parts))


def _content(parts: list[Part]) -> Any:
    match parts:
        case []:
            return ""
        case [Text(text=text)]:
            return text
        case _:
            return [_user_content(part) for part in parts]


def _user_content(part: Part) -> UserContent:
    from pydantic_ai.messages import AudioUrl, BinaryContent, DocumentUrl, ImageUrl, VideoUrl

    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl, "document": DocumentUrl}
    match part:
        case Text(text=text):
            return text
        case Media(data=str()):
            return BinaryContent.narrow_type(BinaryContent(part.to_bytes(), media_type=part.media_type))
        case Media(kind=kind, url=str(url), type=type):
            made: ImageUrl = kinds[kind](url, media_type=type)
            return made
        case _:
            raise unsupported(_FORM, part)


def _response_part(part: Part) -> ModelResponsePart:
    from pydantic_ai.messages import BinaryContent, FilePart, TextPart, ThinkingPart, ToolCallPart

    match part:
        case Text(text=text):
            return TextPart(text)
        case Thinking():
            id = _REDACTED if part.is_redacted else part.id
            provider = part.provider or None
            return ThinkingPart(part.text, id=id, signature=part.signature, provider_name=provider)
        case ToolCall(id=id, name=name, arguments=given):
            return ToolCallPart(name, given, id)
        case Media(data=str()):
            return FilePart(BinaryContent(part.to_bytes(), media_type=part.media_type))
        case _:
            raise unsupported(_FORM, part)
