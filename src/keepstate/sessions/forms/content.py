"""Turns of messages with content: of OpenAI's chat and Responses, Anthropic and LangChain. Pure.

The types of blocks differ between these, so one table reads all of them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

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
    mappings,
    media_at,
    media_of,
    text_in,
    to_json,
)
from keepstate.sessions.messages import LANGCHAIN, ROLES, Message

Block = Mapping[str, Any]
_AUDIO: Final = "audio/"


def turns_of_content(message: Message) -> list[Turn]:
    """Return the turns of a message with content."""
    role: str = ROLES.get(message["role"]) or message["role"]
    parts = list(parts_of(message.get("content")))
    if role in ("tool", "function"):
        return [Turn("user", (_result_of(message, parts),))]
    if reasoned := text_in(message, "reasoning_content"):
        parts.insert(0, Thinking(reasoned))
    if refused := text_in(message, "refusal"):
        parts.append(Text(refused, is_refusal=True))
    if message.get("audio"):
        parts.append(Foreign("audio"))
    calls = [*map(_tool_call, mappings(message.get("tool_calls")))]
    calls += [_tool_call(each) for each in _invalid_calls(message)]
    calls += [_named_call(each) for each in mappings([message.get("function_call")])]
    called = {call.id for call in calls}  # LangChain has calls in blocks, too, and there without arguments
    parts = [part for part in parts if not isinstance(part, ToolCall) or part.id not in called]
    return [Turn(role, (*parts, *calls), text_in(message, "name"))]


def turns_of_items(message: Message) -> list[Turn]:
    """Return the turns of items of OpenAI's Responses: one for each run of items of one side."""
    turns: list[Turn] = []
    for item in mappings(message.get("items")):
        if "role" in item:
            said = turns_of_content(dict(item))
        else:
            parts = tuple(parts_of([item]))
            said = [
                Turn("user" if any(isinstance(part, ToolResult) for part in parts) else "assistant", parts)
            ]
        for turn in said:
            if turns and turns[-1].role == turn.role:
                turns[-1] = Turn(turn.role, (*turns[-1].parts, *turn.parts))
            else:
                turns.append(turn)
    return turns


def parts_of(content: object) -> Iterable[Part]:
    """Yield the parts of content: a text, or a list of texts and blocks."""
    if isinstance(content, str):
        yield Text(content)
    elif isinstance(content, Mapping):
        yield Text(to_json(cast("object", content)))
    elif isinstance(content, list | tuple):
        for block in cast("list[object]", content):
            if isinstance(block, str):
                yield Text(block)
            elif isinstance(block, Mapping):
                fields = cast("Block", block)
                read = _READERS.get(str(fields.get("type")))
                yield read(fields) if read else Foreign(str(fields.get("type")))


def _result_of(message: Message, parts: Iterable[Part]) -> ToolResult:
    extra = mappings([message.get(LANGCHAIN)])
    data = mappings([each.get("data") for each in extra])
    is_error = any(each.get("status") == "error" for each in data)
    name = text_in(message, "name")
    id = message.get("tool_call_id") or f"function_{name}"
    return ToolResult(str(id), name, tuple(parts), is_error)


# ---- calls


def _tool_call(call: Block) -> ToolCall:
    named = mappings([call.get("function"), call.get("custom")])
    if named:  # of OpenAI's chat
        fields = _custom(named[0]) if "custom" in call else arguments_of(named[0].get("arguments"))
        return ToolCall(str(call.get("id")), str(named[0].get("name")), fields)
    id = call.get("call_id") or call.get("id")
    if call.get("type") == "custom_tool_call":
        return ToolCall(str(id), str(call.get("name")), _custom(call))
    given = next((call[name] for name in ("input", "args", "arguments") if name in call), None)
    return ToolCall(str(id), str(call.get("name")), arguments_of(given))


def _custom(call: Block) -> dict[str, Any]:
    """Return the input of a tool that takes any text; other libraries have only arguments."""
    return {"input": str(call.get("input"))}


def _named_call(call: Block) -> ToolCall:
    return ToolCall(
        f"function_{call.get('name')}", str(call.get("name")), arguments_of(call.get("arguments"))
    )


def _invalid_calls(message: Message) -> list[Block]:
    """Return the calls of a message of LangChain whose arguments are not JSON."""
    data = [each.get("data") for each in mappings([message.get(LANGCHAIN)])]
    return [call for each in mappings(data) for call in mappings(each.get("invalid_tool_calls"))]


def _tool_result(block: Block) -> ToolResult:
    id = text_in(block, "tool_use_id", "call_id", "tool_call_id")
    content = block.get("content", block.get("output"))
    is_error = bool(block.get("is_error")) or block.get("status") == "error"
    return ToolResult(str(id), text_in(block, "name"), tuple(parts_of(content)), is_error)


# ---- reasoning


def _thinking(block: Block) -> Thinking:
    return Thinking(str(block.get("thinking") or ""), "anthropic", text_in(block, "signature"))


def _redacted(block: Block) -> Thinking:
    return Thinking("", "anthropic", text_in(block, "data"), is_redacted=True)


def _reasoning(block: Block) -> Thinking:
    """Return the reasoning of an item of OpenAI, or of a block of LangChain."""
    if "reasoning" in block:
        extras = mappings([block.get("extras")])
        signature = text_in(extras[0], "signature") if extras else None
        return Thinking(str(block["reasoning"]), "anthropic" if signature else "", signature)
    told = [*mappings(block.get("summary")), *mappings(block.get("content"))]
    text = "\n\n".join(str(each.get("text")) for each in told)
    return Thinking(text, "openai", text_in(block, "encrypted_content"), text_in(block, "id"))


# ---- files


def _image_url(block: Block) -> Media:
    given = block.get("image_url")
    url = cast("Block", given).get("url") if isinstance(given, Mapping) else given
    return media_at("image", str(url))


def _input_image(block: Block) -> Media:
    if url := text_in(block, "image_url"):
        return media_at("image", url)
    return Media("image", file=text_in(block, "file_id"))


def _input_audio(block: Block) -> Part:
    given = next(iter(mappings([block.get("input_audio")])), None)
    if given is None:
        return Foreign("input_audio")
    return media_of("audio", given.get("data"), type=f"{_AUDIO}{given.get('format')}")


def _file(block: Block) -> Part:
    """Return the file of a block of OpenAI's chat or Responses, or of LangChain."""
    given = next(iter(mappings([block.get("file")])), block)
    if given is block and block.get("type") == "file":
        return _block_of("document")(block)
    name = text_in(given, "filename")
    if data := text_in(given, "file_data"):
        known = data.startswith("data:")
        return media_at("document", data, name=name) if known else media_of("document", data, name=name)
    if url := text_in(given, "file_url"):
        return media_at("document", url, name=name)
    return Media("document", file=text_in(given, "file_id"), name=name)


def _block_of(kind: MediaKind) -> Callable[[Block], Part]:
    """Return the reader of blocks with a source, as of Anthropic, or with the bytes, as of LangChain."""

    def read(block: Block) -> Part:
        source = next(iter(mappings([block.get("source")])), block)
        type, name = text_in(source, "media_type", "mime_type"), text_in(block, "title", "filename")
        if (url := text_in(source, "url")) is not None:
            return media_at(kind, url, type=type, name=name)
        if (file := text_in(source, "file_id", "id")) is not None and not text_in(source, "data", "base64"):
            return Media(kind, type, file=file, name=name)
        if source.get("type") == "text":
            text = b64encode(str(source.get("data")).encode()).decode()
            return Media(kind, type or "text/plain", text, name=name)
        data = text_in(source, "base64", "data")
        return Foreign(kind) if data is None else media_of(kind, data, type=type, name=name)

    return read


_READERS: Final[Mapping[str, Callable[[Block], Part]]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), lambda block: Text(str(block.get("text") or ""))),
    "refusal": lambda block: Text(str(block.get("refusal")), is_refusal=True),
    "image_url": _image_url,
    "input_image": _input_image,
    "input_audio": _input_audio,
    "file": _file,
    "input_file": _file,
    "image": _block_of("image"),
    "document": _block_of("document"),
    "audio": _block_of("audio"),
    "video": _block_of("video"),
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "reasoning": _reasoning,
    **dict.fromkeys(
        ("tool_use", "tool_call", "invalid_tool_call", "function_call", "custom_tool_call"), _tool_call
    ),
    **dict.fromkeys(("tool_result", "function_call_output", "custom_tool_call_output"), _tool_result),
}
