"""Messages for tests of conversations, and what they may count on."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.sessions.messages import Message


def said(text: str, role: str = "user") -> Message:
    return {"role": role, "content": text}


def call(*ids: str) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "function": {"name": "f"}} for id in ids],
    }


def result(id: str, text: str = "found") -> Message:
    return {"role": "tool", "tool_call_id": id, "name": "f", "content": text}


def by_words(message: Message) -> int:
    """A counter that tests can count themselves: a token for each word."""
    return len(str(message.get("content") or "call").split())


def orphans(messages: Sequence[Message]) -> list[str]:
    """Return the results before which there is no call."""
    called: set[str] = set()
    found: list[str] = []
    for message in messages:
        called |= {each["id"] for each in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            found.append(message["tool_call_id"])
    return found
