"""Bounded contexts: within the budget whatever is said; what belongs together stays so; originals stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate import BoundedState, Space, estimate_tokens, sync
from keepstate.engine.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions import window as rules
from keepstate.sessions.window import Budget, Message, Window
from keepstate.stores.protocol import Batch, Put

TAU = "data/tau_airline.json"


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
    """Returns the results before which there is no call."""
    called: set[str] = set()
    found: list[str] = []
    for message in messages:
        called |= {each["id"] for each in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            found.append(message["tool_call_id"])
    return found


async def originals(state: BoundedState) -> list[Message]:
    return [message async for message in state.messages()]


# ---- on every backend


async def test_the_oldest_leave_the_context_and_stay_in_the_conversation(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=6, counter=by_words, persistence=ks)
    told = [said(f"message {n}") for n in range(8)]
    numbers = [await state.add_message(message) for message in told]

    assert numbers == list(range(8))
    assert await state.get_context() == told[-3:]
    assert await state.count_tokens() == 6
    assert await originals(state) == told
    assert [message async for message in state.messages(after=5)] == told[6:]
    assert await BoundedState("1", max_tokens=6, counter=by_words, persistence=ks).get_context() == told[-3:]


async def test_system_and_pinned_messages_stay(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=8, counter=by_words, persistence=ks)
    await state.add_message(said("be kind", "system"))
    await state.add_message(said("hello there"))
    await state.add_message(said("my name"), pinned=True)
    for n in range(5):
        await state.add_message(said(f"message {n}"))

    told = [message["content"] for message in await state.get_context()]
    assert told == ["be kind", "my name", "message 3", "message 4"]


async def test_what_may_not_leave_and_is_too_much_is_refused_and_not_added(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=4, counter=by_words, persistence=ks)
    await state.add_message(said("one two three", "system"))

    with pytest.raises(InvalidError, match="have 5 tokens, the context at most 4"):
        await state.add_message(said("four five"), pinned=True)
    assert len(await originals(state)) == 1


async def test_a_call_leaves_with_its_results_and_late_results_with_it(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=6, counter=by_words, persistence=ks)
    for message in (call("a", "b"), result("a", "one two"), said("one two three four"), result("b")):
        await state.add_message(message)
    late = await state.get_context()
    await state.add_message(said("one"))

    assert late == [said("one two three four")]
    assert await state.get_context() == [said("one two three four"), said("one")]
    assert len(await originals(state)) == 5


async def test_a_newest_message_that_is_too_large_is_cut_in_the_context_alone(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=100, persistence=ks)
    large = said("word " * 1_000)
    await state.add_message(said("be kind", "system"))
    await state.add_message(large)

    _, kept = await state.get_context()
    assert kept["content"].endswith(" […]") and large["content"].startswith(
        kept["content"].removesuffix(" […]")
    )
    assert 90 < await state.count_tokens() <= 100
    assert (await originals(state))[1] == large


async def test_the_first_are_summarised_once_and_the_summary_is_kept(ks: Keepstate) -> None:
    asked: list[list[str]] = []

    async def summarise(messages: list[Message]) -> str:
        asked.append([message["content"] for message in messages])
        return f"summary {len(asked)}"

    def made() -> BoundedState:
        return BoundedState("1", max_tokens=42, counter=by_words, summarise=summarise, persistence=ks)

    await made().add_message(said("be kind", "system"))
    for n in range(32):
        await made().add_message(said(f"message {n}"))

    assert asked == [
        [f"message {n}" for n in range(10)],
        ["summary 1", *(f"message {n}" for n in range(10, 20))],
    ]
    told = [message["content"] for message in await made().get_context()]
    assert told == ["be kind", "summary 2", *(f"message {n}" for n in range(20, 32))]
    assert not await made().summarise()
    assert len(await originals(made())) == 33


async def test_a_summary_that_fails_stays_due_and_loses_nothing(
    ks: Keepstate, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [RuntimeError("no model"), "all"]

    def summarise(messages: list[Message]) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    state = BoundedState(
        "1",
        max_tokens=8,
        counter=by_words,
        summarise=summarise,
        summarise_over=3,
        summarise_first=2,
        persistence=ks,
    )
    for n in range(5):
        await state.add_message(said(f"message {n}"))
    assert "no model" in caplog.text
    assert await state.summarise()

    told = [message["content"] for message in await state.get_context()]
    assert told == ["all", "message 2", "message 3", "message 4"]
    assert await state.count_tokens() == 7
    assert len(await originals(state)) == 5


async def test_many_who_add_at_once_lose_no_message(ks: Keepstate) -> None:
    states = [BoundedState("1", max_tokens=50, counter=by_words, persistence=ks) for _ in range(4)]
    await asyncio.gather(*(states[n % 4].add_message(said(f"message {n}")) for n in range(20)))

    assert sorted(message["content"] for message in await originals(states[0])) == sorted(
        f"message {n}" for n in range(20)
    )
    assert len(await states[1].get_context()) == 20


async def test_a_context_joins_a_transaction_and_keeps_apart_in_a_shared_space(space: Space) -> None:
    with pytest.raises(RuntimeError):
        async with space.transaction() as tx:
            await BoundedState("a/b", space=tx).add_message(said("lost"))
            raise RuntimeError
    async with space.transaction() as tx:
        await BoundedState("a/b", space=tx).add_message(said("kept"))
        assert await BoundedState("a/b", space=tx).get_context() == [said("kept")]
    await BoundedState("a%2Fb", space=space).add_message(said("other"))

    assert await BoundedState("a/b", space=space).get_context() == [said("kept")]
    assert await BoundedState("a%2Fb", space=space).get_context() == [said("other")]


# ---- by itself


def test_a_state_without_a_name_is_nobody_else_s() -> None:
    ours, theirs = sync.BoundedState(max_tokens=8000), sync.BoundedState(max_tokens=8000)
    with ours, theirs:
        ours.add_message(said("secret"))

        assert theirs.get_context() == []


def test_a_smaller_budget_is_kept_over_a_larger_one_s_context() -> None:
    with sync.open("memory://") as ks:
        large = sync.BoundedState("1", max_tokens=100, counter=by_words, persistence=ks)
        for n in range(20):
            large.add_message(said(f"message {n}"))
        small = sync.BoundedState("1", max_tokens=6, counter=by_words, persistence=ks)

        assert [message["content"] for message in small.get_context()] == [
            "message 17",
            "message 18",
            "message 19",
        ]
        assert small.count_tokens() == 6
        assert large.count_tokens() == 40


def test_blocks_of_calls_and_results_belong_together_too() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]}
    lost = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z", "content": "1"}]}
    with sync.BoundedState(max_tokens=3, counter=lambda message: 1) as state:
        for message in (use, answer, lost, said("x")):
            state.add_message(message)
        together = state.get_context()
        state.add_message(said("y"))

        assert together == [use, answer, said("x")]
        assert state.get_context() == [said("x"), said("y")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": "8000"},
        {"summarise": 1},
        {"summarise_over": 0},
        {"summarise_first": 0},
        {"counter": 1},
        {"id": ""},
        {"persistence": 1},
    ],
    ids=repr,
)
def test_what_makes_no_context_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        BoundedState(**wrong)


@pytest.mark.parametrize("wrong", [1, "hello", {}, {"role": 1}, {"role": "user", "content": object()}])
def test_what_is_no_message_is_refused(wrong: Any) -> None:
    with sync.BoundedState() as state:
        with pytest.raises(InvalidError):
            state.add_message(wrong)
        assert list(state.messages()) == []


def test_a_message_costs_the_same_however_long_the_conversation_is() -> None:
    def cost(count: int) -> int:
        with sync.open("memory://") as ks, sync.BoundedState("1", max_tokens=400, persistence=ks) as state:
            for n in range(count):
                state.add_message(said(f"message number {n:06d} of a conversation"))
            store, written = ks.store, 0
            plain = store.apply

            async def apply(batches: Sequence[Batch]) -> Any:
                nonlocal written
                puts = [write for batch in batches for write in batch.writes if isinstance(write, Put)]
                written += sum(len(put.key) + len(put.value) for put in puts)
                return await plain(batches)

            store.apply = apply  # type: ignore[method-assign]
            state.add_message(said(f"message number {count:06d} of a conversation"))
            return written

    assert cost(3_000) <= 1.1 * cost(300)


MESSAGES = st.one_of(
    st.integers(0, 30).map(lambda n: said("word " * n)),
    st.integers(0, 4).map(lambda n: said("rule " * n, "system")),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True).map(lambda ids: call(*ids)),
    st.builds(lambda id, n: result(id, "data " * n), st.sampled_from("abcde"), st.integers(0, 30)),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(MESSAGES, st.booleans()), max_size=30),
    st.integers(5, 60),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_whatever_is_said_the_context_is_within_its_budget(
    told: list[tuple[Message, bool]], most: int, over: int | None
) -> None:
    budget, window, messages = Budget(most, by_words, over, 3), Window(), dict[int, Message]()
    stay: list[int] = []
    for message, pinned in told:
        before = Window.of(window.record())
        pin = pinned and message["role"] == "user"
        try:
            number = rules.add(window, message, budget, pinned=pin)
        except InvalidError:
            window = before
            continue
        messages[number] = message
        if pin or message["role"] == "system":
            stay.append(number)
        context = rules.ordered(window, messages)

        assert window.tokens == sum(map(by_words, context)) <= most
        assert orphans(context) == []
        assert set(stay) <= {entry.number for entry in window.entries}
        assert [entry.number for entry in window.entries] == sorted(entry.number for entry in window.entries)
        assert Window.of(window.record()) == window
        if window.due:
            rules.summarise(window, said("brief " * 9, "system"), list(window.due), budget)
            assert window.tokens == sum(map(by_words, rules.ordered(window, messages))) <= most
            assert window.due == [] or window.summary is not None


@pytest.mark.shared(TAU)
@pytest.mark.slow
@pytest.mark.parametrize("most", [8_000, 2_000])
def test_real_conversations_stay_within_the_budget_and_whole_in_history(shared_data: Path, most: int) -> None:
    conversations = [each["traj"] for each in json.loads(shared_data.read_text())]
    longest = full = 0
    with sync.open("memory://") as ks:
        for number, messages in enumerate(conversations):
            state = sync.BoundedState(f"{number}", max_tokens=most, persistence=ks)
            context: list[Message] = []
            for message in messages:
                state.add_message(message)
                context = state.get_context()
                tokens = sum(map(estimate_tokens, context))

                assert tokens == state.count_tokens() <= most
                assert orphans(context) == []
                assert context[0] == messages[0]
                longest = max(longest, tokens)
            full += len(context) == len(messages)
            assert list(state.messages()) == messages

    assert len(conversations) == 200
    assert longest > 0.9 * most
    assert full < 200
