"""Messages of LangChain, stored in the form of model APIs and written from turns.

LangChain's own fields are stored next to those of model APIs, so each message comes back equal and others
read it without LangChain. The library is imported when an object of it is taken or made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from keepstate.errors import InvalidError, MissingExtraError, UnsupportedError
from keepstate.sessions.forms.turns import (
    Foreign,
    Media,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
    unsupported,
)
from keepstate.sessions.messages import LANGCHAIN, Message

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

Block = dict[str, Any]
_FORM: Final = "LangChain"
_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "HumanMessageChunk": "user",
}
_PLAIN: Final = ("content", "tool_calls", "tool_call_id")
"""The fields of the form of model APIs."""
_TYPES: Final = {"image": "image", "audio": "audio", "video": "video", "document": "file"}


def stored(message: BaseMessage) -> Message:
    """Return the stored form of a message of LangChain.

    Raises:
        InvalidError: It would not come back equal.
    """
    made = from_fields(_messages().message_to_dict(message))
    if restored(made) != message:
        raise InvalidError(
            f"a {type(message).__name__} would not come back equal; give one of LangChain's own, and plain "
            "values in its `artifact`"
        )
    return made


def from_fields(form: Mapping[str, Any]) -> Message:
    """Return the stored form of a dict that `message_to_dict` makes."""
    data: dict[str, Any] = form["data"]
    role = data.get("role") if form["type"] == "chat" else _ROLES.get(form["type"], form["type"])
    plain = {name: data[name] for name in _PLAIN if data.get(name) or name == "content"}
    extra = {name: part for name, part in data.items() if name not in plain}
    return {"role": role, **plain, LANGCHAIN: {"type": form["type"], "data": extra}}


def restored(message: Message) -> BaseMessage:
    """Return a message that was given by LangChain."""
    known = cast("dict[str, Any]", message[LANGCHAIN])
    plain = {name: message[name] for name in _PLAIN if name in message}
    messages = _messages()
    try:
        fields = {"type": known["type"], "data": {**known["data"], **plain}}
        made: BaseMessage = messages.messages_from_dict([fields])[0]
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(f"LangChain does not take the message: {error}") from error
    return made


def _messages() -> Any:
    try:
        from langchain_core import messages
    except ImportError as error:
        install = "pip install 'keepstate[langchain]'"
        raise MissingExtraError(
            f"as_langchain() needs langchain-core. Run: {install}", install=install
        ) from error
    return messages


# ---- writing


def to_langchain(turn: Turn, names: Mapping[str, str]) -> Iterator[BaseMessage]:
    """Yield the messages of a turn. Roles that LangChain does not know become `ChatMessage`.

    Args:
        turn: The turn.
        names: The names of the tools, by the id of the call.

    Raises:
        MissingExtraError: langchain-core is not installed.
        UnsupportedError: The form does not have a part.
    """
    messages = _messages()
    for result in turn.of(ToolResult):
        yield messages.ToolMessage(
            content=_content(list(result.content)),
            tool_call_id=result.id,
            name=result.name or names.get(result.id),
            status="error" if result.is_error else "success",
        )
    parts = list(turn.without(ToolResult, ToolCall))
    if turn.role == "assistant":
        calls = turn.of(ToolCall)
        if parts or calls:
            yield messages.AIMessage(
                content=_content(parts),
                name=turn.name,
                tool_calls=[
                    _call(each, each.fields) for each in calls if not isinstance(each.arguments, str)
                ],
                invalid_tool_calls=[
                    {**_call(each, each.text), "type": "invalid_tool_call", "error": None}
                    for each in calls
                    if isinstance(each.arguments, str)
                ],
            )
    elif parts and turn.role == "system":
        yield messages.SystemMessage(content=_content(parts), name=turn.name)
    elif parts and turn.role == "user":
        yield messages.HumanMessage(content=_content(parts), name=turn.name)
    elif parts:
        yield messages.ChatMessage(content=_content(parts), role=turn.role, name=turn.name)


def _call(call: ToolCall, arguments: object) -> dict[str, Any]:
    return {"name": call.name, "args": arguments, "id": call.id, "type": "tool_call"}


def _content(parts: list[Part]) -> str | list[Block]:
    match parts:
        case []:
            return ""
        case [Text(text=text)]:
            return text
        case _:
            return [_block(part) for part in parts]


def _block(part: Part) -> Block:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Thinking(text=text):
            return _reasoning(part)
        case Media(kind=kind):
            return {"type": _TYPES[kind], **_file(part)}
        case Foreign() | ToolCall() | ToolResult():
            raise unsupported(_FORM, part)


def _file(media: Media) -> Block:
    typed = {"mime_type": media.media_type} if media.data is not None or media.type else {}
    if media.data is not None:
        return {"base64": media.data, **typed}
    return {"url": media.url, **typed} if media.url is not None else {"file_id": media.file, **typed}


def _reasoning(thinking: Thinking) -> Block:
    """Return reasoning as LangChain's integration of its provider writes it."""
    match thinking:
        case Thinking(provider="anthropic", is_redacted=True, signature=data):
            return {"type": "redacted_thinking", "data": data}
        case Thinking(text=text, provider="anthropic", signature=str(signature)):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Thinking(text=text, provider="openai", id=str(id), signature=signature):
            summary = [{"type": "summary_text", "text": text}] if text else []
            sealed = {} if signature is None else {"encrypted_content": signature}
            return {"type": "reasoning", "id": id, "summary": summary, **sealed}
        case Thinking(text=text):
            return {"type": "reasoning", "reasoning": text}
