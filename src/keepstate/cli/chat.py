"""Messages of a chat, in the chat-completions format: what is one, and how it is said in one line."""

from __future__ import annotations

from typing import Any, Final, TypeGuard, cast

from keepstate.cli.session import text_of

Message = dict[str, Any]

_SHOWN_APART: Final = frozenset({"role", "content", "tool_calls"})


def is_message(value: object) -> TypeGuard[Message]:
    """Whether it is a message: an object with a text `role`."""
    return isinstance(value, dict) and isinstance(cast("Message", value).get("role"), str)


def are_messages(value: object) -> TypeGuard[list[Message]]:
    """Whether it is a list of messages with at least one."""
    if not isinstance(value, list):
        return False
    items = cast("list[object]", value)
    return bool(items) and all(map(is_message, items))


def content_of(message: Message) -> str:
    """Return a message's text, of all its parts; what is no text as JSON."""
    content: object = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_part(part) for part in cast("list[object]", content))
    return text_of(content)


def _part(part: object) -> str:
    text = _field(part, "text") or part
    return text if isinstance(text, str) else text_of(part)


def calls_of(message: Message) -> list[tuple[str, str]]:
    """Return the name and the arguments of each tool that a message calls."""
    calls = message.get("tool_calls")
    return [_call(call) for call in cast("list[object]", calls)] if isinstance(calls, list) else []


def _call(call: object) -> tuple[str, str]:
    function = _field(call, "function")
    name, arguments = _field(function, "name"), _field(function, "arguments")
    if not isinstance(name, str):
        return "?", text_of(call)
    return name, arguments if isinstance(arguments, str) else text_of(arguments)


def _field(value: object, name: str) -> object:
    return cast("Message", value).get(name) if isinstance(value, dict) else None


def beside(message: Message) -> Message:
    """Return what a message has besides role, content and call."""
    return {name: value for name, value in message.items() if name not in _SHOWN_APART}


def gist(message: Message) -> str:
    """Return a message as one line: who is called, or what is said."""
    said = " ".join(content_of(message).split())
    called = "; ".join(f"→ {name}({arguments})" for name, arguments in calls_of(message))
    name = message.get("name")
    answer = f"{name} ⇒ {said}" if message["role"] == "tool" and isinstance(name, str) else said
    return " ".join(filter(None, (answer, called)))
