"""State size: a context within its budget, by dropping and by summarising. More: test_bounded.py."""

from __future__ import annotations

import pytest

from keepstate import BoundedState, estimate_tokens
from keepstate.engine.space.keepstate import Keepstate
from tests.sessions.patterns.agent import Agent, Message


async def summarise(messages: list[Message]) -> Message:
    return {"role": "system", "content": f"Before: {len(messages)} messages"}


@pytest.mark.parametrize("is_summarised", [False, True])
async def test_a_context_stays_within_its_budget_and_the_conversation_is_whole(
    ks: Keepstate, is_summarised: bool
) -> None:
    state = BoundedState("s", max_tokens=400, summarise=summarise if is_summarised else None, persistence=ks)
    for number in range(60):
        await state.add_message({"role": "user", "content": f"What about flight number {number}?"})
        assert await state.count_tokens() <= 400

    context = await state.get_context()
    assert sum(map(estimate_tokens, context)) == await state.count_tokens()
    assert context[-1]["content"] == "What about flight number 59?"
    assert context[0]["content"].startswith("Before:") is is_summarised
    assert [message async for message in state.messages()] == [
        {"role": "user", "content": f"What about flight number {number}?"} for number in range(60)
    ]


async def test_an_agent_with_a_small_budget_goes_on_for_ever(ks: Keepstate) -> None:
    state = BoundedState("s", max_tokens=200, persistence=ks)

    class Bounded:
        async def append(self, message: Message, /) -> None:
            await state.add_message(message)

        async def get_context(self) -> list[Message]:
            return await state.get_context()

    answers = [await Agent(Bounded()).process(f"Turn {turn}") for turn in range(20)]
    assert answers[0] == "I know 1 of your messages."
    assert answers[-1] == answers[-2] == "I know 10 of your messages."
