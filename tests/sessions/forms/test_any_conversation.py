"""Properties of forms, for any conversation with tools, files and reasoning."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.sessions.forms import content
from keepstate.sessions.forms.conversion import convert
from keepstate.sessions.forms.given import check_message
from keepstate.sessions.forms.kinds import Form
from keepstate.sessions.message_texts import cut, length, text_of
from keepstate.sessions.messages import estimate_tokens, links
from tests.sessions.forms.samples import DATA_URL
from tests.sessions.forms.validating import meaning, require_valid

FORMS: list[Form] = ["chat", "responses", "anthropic", "gemini", "langchain", "pydantic_ai"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


WORDS = ["request", "response", "user", "assistant", "tool", "system", "message", "text", "model", "human"]


@st.composite
def conversations(draw: st.DrawFn) -> list[Any]:
    """Draw a conversation in the form of OpenAI's chat: each call is answered, in any order."""
    messages: list[Any] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for turn in range(draw(st.integers(1, 4))):
        picture = [{"type": "image_url", "image_url": {"url": DATA_URL}}] if draw(st.booleans()) else []
        text = draw(TEXTS)
        said: Any = [{"type": "text", "text": text}, *picture] if picture else text
        messages.append({"role": "user", "content": said})
        ids = [f"call_{turn}_{number}" for number in range(draw(st.integers(0, 3)))]
        if ids:
            calls = [_call(draw, id) for id in ids]
            answer = {"role": "assistant", "content": draw(st.none() | TEXTS), "tool_calls": calls}
            if draw(st.booleans()):
                answer["reasoning_content"] = draw(TEXTS)
            messages.append(answer)
        answered = draw(st.permutations(ids))
        messages += [{"role": "tool", "tool_call_id": id, "content": draw(TEXTS)} for id in answered]
        if draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(TEXTS)})
    return messages


def _call(draw: st.DrawFn, id: str) -> dict[str, Any]:
    from keepstate.sessions.forms.turns import to_json

    name, arguments = (
        draw(st.sampled_from(["find", "book"])),
        draw(st.dictionaries(TEXTS, VALUES, max_size=2)),
    )
    return {"id": id, "type": "function", "function": {"name": name, "arguments": to_json(arguments)}}


def given_again(context: Any) -> list[Any]:
    """Return a context as a conversation stores it, with its instructions in front."""
    system = getattr(context, "system", ())
    told = [{"role": "system", "content": "\n\n".join(part["text"] for part in system)}] if system else []
    return [*told, *map(check_message, context)]


@given(conversations(), st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_a_conversation_means_the_same_in_every_form(messages: list[Any], one: Form, other: Form) -> None:
    first = convert(messages, one)
    second = convert(given_again(first), other)

    require_valid(one, first)
    require_valid(other, second)
    assert meaning(given_again(first)) == meaning(messages)
    assert sorted(map(repr, meaning(given_again(second)))) == sorted(map(repr, meaning(messages)))


@given(conversations(), st.sampled_from(FORMS))
def test_a_context_in_a_form_is_the_same_in_this_form_again(messages: list[Any], form: Form) -> None:
    first = convert(messages, form)

    assert convert(given_again(first), form) == first


KEYS = [
    "type",
    "part_kind",
    "text",
    "content",
    "output",
    "file",
    "source",
    "data",
    "url",
    "id",
    "name",
    "input",
]
KEYS += ["image_url", "input_audio", "function", "function_call", "functionResponse", "inlineData", "args"]
TYPES = [*content._READERS, "tool-call", "tool-return", "user-prompt", "thinking", "retry-prompt", "base64"]
BLOCKS = st.dictionaries(
    st.sampled_from(KEYS), VALUES | st.sampled_from(TYPES) | st.dictionaries(st.sampled_from(KEYS), VALUES)
)
SPOILED = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "model", "system", "critic"])},
    optional={
        **dict.fromkeys(("content", "parts", "items", "tool_calls"), VALUES | st.lists(BLOCKS, max_size=3)),
        "kind": st.sampled_from(["request", "response", "other"]),
        "langchain": VALUES | st.dictionaries(st.sampled_from(["type", "data"]), VALUES | BLOCKS),
        "function_call": VALUES | BLOCKS,
    },
)


@given(st.lists(SPOILED, min_size=1, max_size=2))
def test_parts_of_any_shape_are_counted_searched_and_converted_or_refused(messages: list[Any]) -> None:
    for message in messages:
        with suppress(InvalidError):
            stored = check_message(message)
            assert estimate_tokens(stored) >= 4 and len(text_of(cut(stored, 3))) >= 0 <= length(stored)
            assert len(links(stored)) == 2
            for form in FORMS:
                with suppress(InvalidError, UnsupportedError):
                    convert([stored], form)


ODD = st.recursive(
    VALUES
    | st.sampled_from(
        [2**70, -0.5, float("nan"), float("inf"), b"\xff", 1j, "\ud800", Decimal("0.1"), object()]
    )
    | st.sampled_from([datetime(2024, 1, 1, tzinfo=UTC), frozenset({1}), (1, "a"), {1: 2}, {(1, 2): "a"}]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KEYS, 1, None]), inner, max_size=2)
    ),
    max_leaves=4,
)
SHAPES: dict[Form, dict[str, st.SearchStrategy[Any]]] = {
    "chat": {"content": ODD, "tool_calls": ODD, "function_call": ODD, "refusal": ODD, "audio": ODD},
    "responses": {"items": ODD | st.lists(BLOCKS | ODD, max_size=2)},
    "anthropic": {"content": ODD | st.lists(BLOCKS | ODD, max_size=2)},
    "gemini": {"parts": ODD | st.lists(BLOCKS | ODD, max_size=2)},
    "langchain": {
        "content": ODD,
        "langchain": ODD
        | st.fixed_dictionaries({"type": st.sampled_from(["ai", "human", "tool"]), "data": ODD}),
    },
    "pydantic_ai": {"parts": ODD | st.lists(BLOCKS | ODD, max_size=2), "instructions": ODD},
}
ROLES_OF = st.sampled_from(["user", "assistant", "tool", "function", "model", "system"])


@st.composite
def malformed(draw: st.DrawFn, form: Form) -> dict[str, Any]:
    """Draw a message that has the keys of a form, and any values."""
    message: dict[str, Any] = {"role": draw(ROLES_OF)}
    if form == "pydantic_ai":
        message["kind"] = draw(st.sampled_from(["request", "response"]))
    for name, values in SHAPES[form].items():
        if draw(st.booleans()):
            message[name] = draw(values)
    return message


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
def test_malformed_content_is_refused_in_words_that_name_its_message(form: Form, data: st.DataObject) -> None:
    """Not only what `append` takes, because other writers and older releases have stored messages too."""
    messages = data.draw(st.lists(malformed(form), min_size=1, max_size=3))
    for wanted in FORMS:
        refused = None
        try:
            convert(messages, wanted)
        except (InvalidError, UnsupportedError) as error:
            refused = str(error)
        assert refused is None or re.match(r"Message \d+ of the context: ", refused)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["role", "type", "parts", "content", "items", "kind"]),
            VALUES | st.sampled_from(WORDS),
        )
    )
)
def test_any_dicts_are_refused_in_words_or_taken(messages: list[Any]) -> None:
    for message in messages:
        try:
            stored = check_message(message)
        except InvalidError:
            continue
        for form in FORMS:
            with suppress(InvalidError, UnsupportedError):
                convert([stored], form)
