"""A context keeps its budget and its calls with their results, in whatever form the messages are."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import Session, TokenCounter, estimate_tokens
from keepstate.cli.chat import gist
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions.forms.given import check_message
from keepstate.sessions.messages import MEDIA_TOKENS, links
from tests.sessions.forms import samples
from tests.sessions.forms.conftest import Talks
from tests.sessions.forms.samples import GIVEN, PNG
from tests.sessions.forms.test_forms import FORMS, context_of
from tests.sessions.forms.validating import meaning, require_valid


def require_pairs(context: list[Any]) -> None:
    """Fail unless each result in a context follows its call, and each call has its result."""
    said = [part for part in meaning(context) if part[1] in ("call", "result")]
    called = {id for _, kind, id, *_ in said if kind == "call"}
    answered = {id for _, kind, id, *_ in said if kind == "result"}
    assert answered == called
    assert said == sorted(said, key=lambda part: (part[2] not in called, part[1] != "call"))


@pytest.mark.parametrize("form", FORMS)
async def test_under_any_budget_calls_and_results_leave_together(talks: Talks, form: str) -> None:
    left = set[int]()
    messages = [check_message(message) for message in GIVEN[form]()]
    first = next(number for number, message in enumerate(messages) if links(message)[1])
    for budget in range(35, 400, 15):
        talk = talks(max_tokens=budget)
        for message in ({"role": "user", "content": "Find flights to Rome."}, *messages[first:]):
            await talk.append(message)
        context = await talk.get_context()

        assert sum(map(estimate_tokens, context)) == await talk.context_tokens() <= budget
        require_pairs(context)
        require_valid(form, await context_of(talk, form))
        left.add(len(context))
    assert 1 in left and len(messages) - first + 1 in left


@pytest.mark.parametrize("form", FORMS)
async def test_a_result_without_its_call_does_not_enter_the_context(talks: Talks, form: str) -> None:
    talk, messages = talks(), [check_message(message) for message in GIVEN[form]()]
    answers = [message for message in messages if links(message)[0]]
    for message in answers:
        await talk.append(message)

    assert await talk.get_context() == [] and await talk.count() == len(answers) > 0


@pytest.mark.parametrize("form", FORMS)
async def test_a_deleted_call_takes_its_results_out_of_the_context(talks: Talks, form: str) -> None:
    talk, messages = talks(), [check_message(message) for message in GIVEN[form]()]
    await talk.append(*messages)
    (call,) = [number for number, message in enumerate(messages) if links(message)[1]]
    await talk.delete(call)

    require_pairs(await talk.get_context())
    assert not [part for part in meaning(await talk.get_context()) if part[1] == "result"]


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_counts_a_thousand_tokens_whatever_its_size(form: str) -> None:
    small, large = [[check_message(message) for message in GIVEN[form]()] for _ in range(2)]

    def grow(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: grow(part) for name, part in value.items()}
        if isinstance(value, list):
            return [grow(part) for part in value]
        return value.replace(PNG, PNG * 50_000) if isinstance(value, str) else value

    tokens = [sum(map(estimate_tokens, messages)) for messages in (small, grow(large))]
    assert tokens[0] == tokens[1] and MEDIA_TOKENS < tokens[0] < MEDIA_TOKENS + 450


def test_a_picture_from_a_tool_counts_as_one_and_an_argument_does_not() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG * 9_000}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}, image]}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"content": [{"type": "imagine"}]}}

    assert MEDIA_TOKENS < estimate_tokens({"role": "user", "content": [result]}) < MEDIA_TOKENS + 40
    assert estimate_tokens({"role": "assistant", "content": [call]}) < 60


def test_what_no_model_sees_costs_nothing() -> None:
    from langchain_core.messages import AIMessage
    from pydantic_ai.messages import ModelResponse, TextPart

    words = {"notes": "a long story " * 500}
    noted = [
        (AIMessage("Hi"), AIMessage("Hi", response_metadata=words)),
        (ModelResponse([TextPart("Hi")]), ModelResponse([TextPart("Hi")], metadata=words)),
    ]
    for plain, told in noted:
        assert estimate_tokens(check_message(plain)) == estimate_tokens(check_message(told)) < 60


LONG = "a long story " * 400
TEXTS: dict[str, Any] = {
    "chat": {"role": "user", "content": LONG},
    "responses": [
        {"role": "user", "content": LONG},
        {"role": "user", "content": [{"type": "input_text", "text": "End"}]},
    ],
    "anthropic": {"role": "user", "content": [{"type": "text", "text": LONG}]},
    "gemini": {"role": "user", "parts": [{"text": LONG}]},
}


def langchain() -> Any:
    from langchain_core.messages import HumanMessage

    return HumanMessage(LONG)


def pydantic_ai() -> Any:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    return ModelRequest(parts=[UserPromptPart(LONG)])


@pytest.mark.parametrize("form", FORMS)
async def test_the_newest_message_is_cut_in_the_context_only(talks: Talks, form: str) -> None:
    talk, given = talks(max_tokens=200), TEXTS[form] if form in TEXTS else globals()[form]()
    await talk.append(given)
    (message,) = await talk.get_context()

    assert estimate_tokens(message) <= 200 and "[…]" in str(message)
    require_valid(form, await context_of(talk, form))
    assert await talk.get(0) == check_message(given)


@pytest.mark.parametrize("form", FORMS)
async def test_texts_of_all_forms_are_found_and_edited(talks: Talks, form: str) -> None:
    talk = talks()
    await talk.append(*GIVEN[form]())

    assert len(await talk.search("which is not said")) == 0
    assert len(await talk.search("find flights")) == len(await talk.search("there are two FLIGHTS")) == 1
    assert len(await talk.search("az 611")) == 1
    last = await talk.count() - 1
    await talk.edit(last, "There is none.")
    assert [part[2] for part in meaning([await talk.get(last)])] == ["There is none."]
    require_valid(form, await context_of(talk, form))


async def test_one_text_does_not_replace_several_nor_a_call(talks: Talks) -> None:
    talk = talks()
    parts = {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]}
    await talk.append(parts, samples.GEMINI[2], samples.ANTHROPIC[2])

    for number in range(3):
        with pytest.raises(InvalidError):
            await talk.edit(number, "c")
    await talk.edit(0, {"role": "user", "parts": [{"text": "c"}]})
    assert (await talk.get(0))["parts"] == [{"text": "c"}]


async def test_a_system_prompt_stays_in_the_context(talks: Talks) -> None:
    from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

    talk = talks(max_tokens=150)
    await talk.append(ModelRequest(parts=[SystemPromptPart("Be short."), UserPromptPart("Hi")]))
    for number in range(30):
        await talk.append({"role": "user", "content": f"message {number}" * 5})
    context = await talk.get_context()

    assert 1 < len(context) < 30
    assert meaning(context)[:2] == [("system", "text", "Be short."), ("user", "text", "Hi")]


def test_a_counter_of_tokens_sees_the_same() -> None:
    class Encoding:
        name = "letters"

        def encode_ordinary(self, text: str) -> list[str]:
            return list(text)

    counter: Any = TokenCounter(Encoding())  # type: ignore[arg-type]
    picture = {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG * 1_000}}]}
    assert 1_000 < counter(picture) < 1_100


async def test_every_store_gives_back_each_form(ks: Keepstate) -> None:
    for form in FORMS:
        talk, given = Session(f"of-{form}", persistence=ks).conversation, GIVEN[form]()
        await talk.append(*given)
        stored = [message async for message in talk.messages()]

        assert stored == [check_message(message) for message in given]
        require_valid(form, await context_of(talk, form))


@pytest.mark.parametrize("form", FORMS)
def test_the_command_shows_what_messages_of_all_forms_say(form: str) -> None:
    shown = [gist(check_message(message)) for message in GIVEN[form]()]

    assert all(shown) and samples.ANSWER in shown[-1]
    assert sum("Find flights" in text for text in shown) == 1
