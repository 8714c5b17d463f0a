"""Contexts, judged by the types of the libraries and the demands of the APIs; and what they mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from keepstate.sessions.forms.conversion import turns_of
from keepstate.sessions.forms.given import check_message
from keepstate.sessions.forms.turns import Media, Text, Thinking, ToolCall, ToolResult, from_json


@cache
def _adapter(form: str) -> TypeAdapter[Any]:
    if form == "chat":
        from openai.types.chat import ChatCompletionMessageParam

        return TypeAdapter(list[ChatCompletionMessageParam])
    if form == "responses":
        from openai.types.responses import ResponseInputItemParam

        return TypeAdapter(list[ResponseInputItemParam])
    from anthropic.types import MessageParam

    return TypeAdapter(list[MessageParam])


def require_valid(form: str, context: Sequence[Any]) -> None:
    """Fail unless the library of a form takes a context."""
    if form in ("chat", "responses", "anthropic"):
        read_whole(_adapter(form).validate_python(list(context)))
    if form in ("chat", "responses"):
        require_answers(context)
    if form == "anthropic":
        from anthropic.types import TextBlockParam

        read_whole(TypeAdapter(list[TextBlockParam]).validate_python(context.system))  # type: ignore[attr-defined]
        require_turns([message["role"] for message in context], "user", "assistant")
        require_results_first(context)
    if form == "gemini":
        from google.genai import types

        for content in context:
            types.Content.model_validate(content)
        types.GenerateContentConfig(system_instruction=context.system or None)  # type: ignore[attr-defined]
        require_turns([content["role"] for content in context], "user", "model")
    if form == "langchain":
        from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

        assert all(isinstance(message, BaseMessage) for message in context)
        assert messages_from_dict(messages_to_dict(context)) == list(context)
    if form == "pydantic_ai":
        from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse

        assert all(isinstance(message, ModelRequest | ModelResponse) for message in context)
        ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(context)))


def read_whole(value: object) -> None:
    """Read a validated value to its end, because pydantic judges an `Iterable` while it is read."""
    if isinstance(value, Mapping):
        for part in value.values():
            read_whole(part)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for part in value:
            read_whole(part)


def require_turns(roles: Sequence[str], first: str, second: str) -> None:
    """Fail unless two sides take turns."""
    assert list(roles) == list(itertools.islice(itertools.cycle([first, second]), len(roles)))


def require_results_first(context: Sequence[Any]) -> None:
    """Fail unless each message of Anthropic has the results of the calls before it, in front."""
    called: list[str] = []
    for message in context:
        blocks = [] if isinstance(message["content"], str) else message["content"]
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(answered) == sorted(called)
        assert all(block["type"] == "tool_result" for block in blocks[: len(answered)])
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]


def require_answers(context: Sequence[Any]) -> None:
    """Fail unless each result follows its call."""
    called: set[str] = set()
    for message in context:
        called |= {call["id"] for call in message.get("tool_calls", ())}
        called |= {message["call_id"]} if message.get("type") == "function_call" else set()
        if message.get("role") == "tool":
            assert message["tool_call_id"] in called
        if message.get("type") == "function_call_output":
            assert message["call_id"] in called


def meaning(given: Iterable[Any], system: Sequence[Any] = ()) -> list[Any]:
    """Return what messages say, in any form: texts, files, calls and results, each with its side."""
    said = [text_of_system(system)] if system else []
    for message in given:
        for turn in turns_of(check_message(message)):
            role = "system" if turn.role == "instructions" else turn.role
            said += [(role, *each) for each in _parts(turn.parts)]
    return sorted(said, key=lambda each: each[0] != "system")


def text_of_system(system: Sequence[Any]) -> tuple[str, ...]:
    """Return the meaning of system instructions that are given apart."""
    return ("system", "text", "\n\n".join(part["text"] for part in system))


def _parts(parts: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for part in parts:
        match part:
            case Text(text=text) if text:
                yield "text", text
            case Media(kind=kind, data=data, url=url):
                yield "file", kind, data, url
            case ToolCall(id=id, name=name, fields=fields):
                yield "call", id, name, fields
            case ToolResult(id=id, content=content):
                yield "result", id, [_value(each) for each in _parts(content)]
            case Thinking() | Text():
                pass
            case _:
                raise AssertionError(part)


def _value(part: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a text that is JSON as its value, because forms write it with other spaces."""
    found = from_json(part[1]) if part[0] == "text" else None
    return part if found is None else ("json", found)
