"""Messages, lines and documents of chat transcripts as tools write them, read as messages with a role.

A message that has a role is left as it is. Others get the role that their tool means, and keep their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

from keepstate.errors import InvalidError
from keepstate.sessions.forms.given import check_message
from keepstate.sessions.forms.langchain import from_fields
from keepstate.sessions.messages import is_of_pydantic_ai

Fields = dict[str, Any]
Message = dict[str, Any]

_SHAREGPT_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_call": "assistant",
    "observation": "tool",
}
_LANGCHAIN: Final = frozenset({"human", "ai", "system", "tool", "function", "chat", "remove"})
_LANGCHAIN_CLASSES: Final = {
    f"{name}Message{chunk}": kind
    for name, kind in (
        ("Human", "human"),
        ("AI", "ai"),
        ("System", "system"),
        ("Tool", "tool"),
        ("Function", "function"),
        ("Chat", "chat"),
        ("Remove", "remove"),
    )
    for chunk in ("", "Chunk")
}
_AUTOGEN_ROLES: Final = {
    "SystemMessage": "system",
    "UserMessage": "user",
    "AssistantMessage": "assistant",
    "FunctionExecutionResultMessage": "tool",
    "TextMessage": None,
    "MultiModalMessage": None,
    "StopMessage": None,
    "HandoffMessage": None,
    "StructuredMessage": None,
    "ToolCallRequestEvent": "assistant",
    "ToolCallExecutionEvent": "tool",
    "ToolCallSummaryMessage": "assistant",
    "MemoryQueryEvent": "system",
    "ThoughtEvent": "assistant",
}
"""Roles by class; None stands for a message of the user or of an agent, which its source tells."""
_ITEMS: Final = frozenset({"reasoning", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"})
"""Types of items of OpenAI's Responses, besides calls and their outputs."""
_CLAUDE_MARKS: Final = frozenset({"sessionId", "leafUuid", "parentUuid", "messageId"})


# ---- messages


def message_in(value: object) -> Message | None:
    """Return a message with a role, or None if the value is not a message of a known tool."""
    if not isinstance(value, dict):
        return None
    fields = cast("Fields", value)
    if "role" in fields:
        return fields if isinstance(fields["role"], str) else None
    kind = fields.get("type")
    if isinstance(fields.get("from"), str) and "value" in fields:
        rest = {name: part for name, part in fields.items() if name not in ("from", "value")}
        return {
            "role": _SHAREGPT_ROLES.get(fields["from"].lower(), fields["from"]),
            "content": fields["value"],
            **rest,
        }
    if not isinstance(kind, str):
        is_known = is_of_pydantic_ai(fields) or isinstance(fields.get("parts"), list)
        return _checked(fields) if is_known else None
    if kind == "constructor" and isinstance(fields.get("kwargs"), dict):
        return _of_constructor(fields)
    if kind in _LANGCHAIN and ("data" in fields or "content" in fields):
        data = fields.get("data", {name: part for name, part in fields.items() if name != "type"})
        return from_fields({"type": kind, "data": data}) if isinstance(data, dict) else None
    if kind in _AUTOGEN_ROLES and "content" in fields:
        return _of_autogen(fields, kind)
    if kind in _ITEMS or kind.endswith(("_call", "_call_output")):
        return _checked(fields)
    return None


def _checked(fields: Fields) -> Message | None:
    try:
        return check_message(fields)
    except InvalidError:
        return None


def _of_constructor(fields: Fields) -> Message | None:
    """Return a message that `langchain_core.load.dumps` wrote."""
    names: object = fields.get("id")
    name: object = cast("list[object]", names)[-1] if isinstance(names, list) and names else None
    kind = _LANGCHAIN_CLASSES.get(name) if isinstance(name, str) else None
    return None if kind is None else from_fields({"type": kind, "data": {"type": kind, **fields["kwargs"]}})


def _of_autogen(fields: Fields, kind: str) -> Message:
    source = fields.get("source")
    role = _AUTOGEN_ROLES[kind] or ("user" if source == "user" else "assistant")
    message: Message = {"role": role, **fields}
    if isinstance(source, str):
        message.setdefault("name", source)
    content: object = fields["content"]
    parts = cast("list[object]", content) if isinstance(content, list) else []
    calls = [cast("Fields", part) for part in parts if isinstance(part, dict)]
    if role == "assistant" and calls and all("arguments" in call for call in calls):
        message["content"] = None
        message["tool_calls"] = [_call(call) for call in calls]
    elif role == "tool" and len(calls) == 1 and "call_id" in calls[0]:
        message["content"], message["tool_call_id"] = calls[0].get("content"), calls[0]["call_id"]
    return message


def _call(call: Fields) -> Fields:
    function = {"name": call.get("name"), "arguments": call["arguments"]}
    return {"id": call.get("id"), "type": "function", "function": function}


# ---- lines


class Line(NamedTuple):
    """The message in a line of a transcript, if it has one, and the conversation that it belongs to."""

    message: Message | None
    conversation: str | None = None


def reader_of_lines(first: object) -> Callable[[object], Line | None] | None:
    """Return the reader for lines that begin like this; None if the lines are messages or conversations.

    The reader returns None for a line that its tool does not write.
    """
    if not isinstance(first, dict):
        return None
    fields = cast("Fields", first)
    if isinstance(fields.get("type"), str) and _CLAUDE_MARKS & fields.keys():
        return _read_claude_code
    if isinstance(fields.get("payload"), dict) and isinstance(fields.get("type"), str):
        return _Rollout().read
    is_old_rollout = isinstance(fields.get("id"), str) and {"timestamp", "instructions"} <= fields.keys()
    return _Rollout().read if is_old_rollout else None


def _read_claude_code(value: object) -> Line | None:
    """Read a line of a session of Claude Code. A subagent's messages are a conversation of their own."""
    if not isinstance(value, dict) or not isinstance(cast("Fields", value).get("type"), str):
        return None
    fields = cast("Fields", value)
    message: object = fields.get("message")
    if fields["type"] not in ("user", "assistant") or not isinstance(message, dict) or "role" not in message:
        return Line(None)
    line = {name: part for name, part in fields.items() if name != "message"}
    session, agent = fields.get("sessionId"), fields.get("agentId")
    parts = [session if isinstance(session, str) else None, agent if isinstance(agent, str) else None]
    if parts[1] is None and fields.get("isSidechain") is True:
        parts[1] = "subagents"
    return Line({**cast("Fields", message), "line": line}, "/".join(filter(None, parts)) or None)


class _Rollout:
    """Reads the lines of a rollout of Codex, of either age."""

    def __init__(self) -> None:
        self._id: str | None = None

    def read(self, value: object) -> Line | None:
        """Return the content of a line. Lines for the terminal, which repeat items, have none."""
        if not isinstance(value, dict):
            return None
        fields = cast("Fields", value)
        payload: object = fields.get("payload")
        if not isinstance(payload, dict):
            if isinstance(fields.get("id"), str) and "timestamp" in fields and "type" not in fields:
                self._id = fields["id"]
            return Line(message_in(fields), self._id)
        inner, kind = cast("Fields", payload), fields.get("type")
        if kind == "session_meta" and isinstance(inner.get("id"), str):
            self._id = inner["id"]
        message = message_in(inner) if kind == "response_item" else None
        if message is not None and "timestamp" in fields:
            message = {**message, "line": {"timestamp": fields["timestamp"]}}
        return Line(message, self._id)


# ---- documents


def messages_of_tree(fields: Fields) -> list[Any] | None:
    """Return the messages of a conversation in ChatGPT's export, from the first one to the current one.

    The export has a tree: an edited question or a new answer begins another branch. None for another object.
    """
    nodes: object = fields.get("mapping")
    if not isinstance(nodes, dict) or not all(
        isinstance(node, dict) for node in cast("Fields", nodes).values()
    ):
        return None
    tree = cast("dict[str, Fields]", nodes)
    current: object = fields.get("current_node")
    if not isinstance(current, str) or current not in tree:
        current = _last(tree)
    line: list[Any] = []
    seen: set[str] = set()
    while isinstance(current, str) and current in tree and current not in seen:
        seen.add(current)
        node = tree[current]
        if (message := _of_chatgpt(node.get("message"))) is not None:
            line.append(message)
        current = node.get("parent")
    return line[::-1]


def _last(tree: dict[str, Fields]) -> str | None:
    """Return the last node without children, in the order of the file."""
    return next((id for id in reversed(tree) if not tree[id].get("children")), None)


def _of_chatgpt(message: object) -> Message | None:
    if not isinstance(message, dict):
        return None
    fields = cast("Fields", message)
    author, content = fields.get("author"), fields.get("content")
    if not isinstance(author, dict) or not isinstance(content, dict):
        return None
    by, inside = cast("Fields", author), cast("Fields", content)
    parts: object = inside.get("parts", inside.get("text", inside.get("result")))
    if isinstance(parts, list):
        listed = cast("list[object]", parts)
        is_text = all(isinstance(part, str) for part in listed)
        parts = "\n".join(cast("list[str]", listed)) if is_text else [_part(part) for part in listed]
    if parts in (None, "", []) and by.get("role") == "system":
        return None  # the export has empty ones, which no person wrote
    rest = {name: part for name, part in fields.items() if name not in ("author", "content")}
    name = {"name": by["name"]} if by.get("name") else {}
    kind = {} if inside.get("content_type") == "text" else {"content_type": inside.get("content_type")}
    return {"role": str(by.get("role")), "content": parts, **name, **kind, **rest}


def _part(part: object) -> object:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def conversations_of_team(fields: Fields) -> Iterator[Fields]:
    """Yield the conversations of the agents in a state that a team of AutoGen saved."""
    states: object = fields.get("agent_states")
    for name, state in cast("Fields", states).items() if isinstance(states, dict) else ():
        found: object = state
        for key in ("agent_state", "llm_context", "messages"):
            found = cast("Fields", found).get(key) if isinstance(found, dict) else None
        if isinstance(found, list) and found:
            yield {"id": name, "messages": found}
