"""Bounded contexts: within the budget whatever is said; what belongs together stays so; originals stay."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepstate import BoundedState, Space, estimate_tokens, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions import conversation_store as summaries
from keepstate.sessions.messages import Message
from keepstate.stores.protocol import Batch, Put
from tests.sessions.talking import by_words, call, orphans, result, said

TAU = "data/tau_airline.json"


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

    with pytest.raises(InvalidError, match="have 5 tokens, but the context may have at most 4"):
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


async def test_a_model_that_takes_longer_than_a_lease_lasts_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summaries, "_LEASE_S", 1.0)
    told, asked = [said(f"message {n}") for n in range(8)], list[str]()
    rules: dict[str, Any] = {"max_tokens": 12, "counter": by_words, "summarise_over": 3}

    async def slow(messages: list[Message]) -> str:
        await asyncio.sleep(1.5)
        asked.append("async")
        return "summary"

    def slow_blocking(messages: list[Message]) -> str:
        time.sleep(1.5)
        asked.append("blocking")
        return "summary"

    async def add(state: BoundedState) -> list[Message]:
        for message in told:
            await state.add_message(message)
        return await state.get_context()

    def add_blocking(twin: sync.BoundedState) -> list[Message]:
        for message in told:
            twin.add_message(message)
        return twin.get_context()

    with sync.BoundedState(summarise=slow_blocking, **rules) as twin:
        async with BoundedState(summarise=slow, **rules) as state:
            contexts = await asyncio.gather(add(state), asyncio.to_thread(add_blocking, twin))

    assert [context[0]["content"] for context in contexts] == ["summary"] * 2
    assert sorted(asked) == ["async", "blocking"]


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


def test_a_context_that_was_counted_otherwise_is_counted_anew() -> None:
    with sync.open("memory://") as ks:
        first = sync.BoundedState("1", max_tokens=100, counter=lambda message: 1, persistence=ks)
        first.add_message(said("You book flights.", "system"))
        for number in range(98):
            first.add_message(said(f"message {number} of a conversation"))
        first.add_message(said("What was the first?"))
        second = sync.BoundedState("1", max_tokens=100, persistence=ks)
        assert (len(first.get_context()), first.count_tokens()) == (100, 100)

        context = second.get_context()
        assert context[0]["role"] == "system" and context[-1]["content"] == "What was the first?"
        assert sum(map(estimate_tokens, context)) == second.count_tokens() <= 100
        second.add_message(said("And the last?"))
        assert sum(map(estimate_tokens, second.get_context())) == second.count_tokens() <= 100
        assert len(first.get_context()) == len(second.get_context())  # what has left by then has left


def test_what_stays_and_passes_a_smaller_budget_is_an_error_and_not_left_out() -> None:
    with sync.open("memory://") as ks:
        sync.BoundedState("1", persistence=ks).add_message(said("rule " * 800, "system"))
        pinned = sync.BoundedState("2", persistence=ks)
        pinned.add_message(said("word " * 40), pinned=True)
        pinned.add_message(said("word " * 40))
        pinned.add_message(said("mind " * 40), pinned=True)
        talk = sync.Session("3", persistence=ks).conversation
        talk.append(said("rule " * 100, "system"))

        with pytest.raises(InvalidError, match="system and pinned messages have 1006 tokens"):
            sync.BoundedState("1", max_tokens=500, persistence=ks).get_context()
        smaller = sync.BoundedState("2", max_tokens=120, persistence=ks).get_context()
        assert [message["content"][:4] for message in smaller] == ["word", "mind"]
        with pytest.raises(InvalidError, match="in fewer"):
            talk.get_context(50)


def test_pictures_count_a_thousand_and_text_beside_them_is_cut() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 130_000}}
    told = {"role": "user", "content": [{"type": "text", "text": "word " * 4_000}, picture]}

    assert estimate_tokens({"role": "user", "content": [picture]}) == 1_005
    with sync.open("memory://") as ks, sync.BoundedState("1", max_tokens=2_000, persistence=ks) as state:
        state.add_message(said("before"))
        state.add_message(told)

        (left,) = state.get_context()
        assert left["content"][1] == picture and left["content"][0]["text"].endswith(" […]")
        assert 1_900 < estimate_tokens(left) == state.count_tokens() <= 2_000
        assert list(state.messages())[1] == told


def test_a_newest_message_of_which_nothing_can_be_left_is_refused_and_not_added() -> None:
    with sync.open("memory://") as ks, sync.BoundedState("1", max_tokens=500, persistence=ks) as state:
        state.add_message(said("before"))
        with pytest.raises(InvalidError, match="newest message has 1005 tokens and cannot be cut"):
            state.add_message({"role": "user", "content": [{"type": "image", "source": {}}]})

        assert [message["content"] for message in state.messages()] == ["before"]
        assert state.get_context() == [said("before")]


def test_a_developer_s_message_is_a_system_message() -> None:
    with sync.open("memory://") as ks, sync.BoundedState("1", max_tokens=60, persistence=ks) as state:
        state.add_message(said("You book flights.", "developer"))
        for number in range(40):
            state.add_message(said(f"message {number} of a conversation"))

        assert state.get_context()[0] == said("You book flights.", "developer")


def test_a_call_is_answered_once_in_the_context() -> None:
    with sync.open("memory://") as ks, sync.BoundedState("1", persistence=ks) as state:
        for message in (call("a"), result("a"), result("a", "again"), call("a"), result("a", "another")):
            state.add_message(message)

        assert [message.get("content") for message in state.get_context()] == [None, "found", None, "another"]
        assert len(list(state.messages())) == 5


def test_functions_of_older_models_are_calls_too() -> None:
    asked = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    answered = {"role": "function", "name": "f", "content": "found"}
    with sync.open("memory://") as ks:
        state = sync.BoundedState("1", max_tokens=20, counter=by_words, persistence=ks)
        for message in (asked, answered, {**answered, "name": "g"}, asked, answered):
            state.add_message(message)
        assert state.get_context() == [asked, answered, asked, answered]

        state.add_message(said("word " * 18))
        assert state.get_context() == [asked, answered, said("word " * 18)]


def test_groups_that_stand_far_apart_leave_together() -> None:
    with sync.open("memory://") as ks:
        state = sync.BoundedState("1", max_tokens=100, counter=by_words, persistence=ks)
        state.add_message(call("slow"))
        for number in range(40):
            state.add_message(said(f"m {number}"))
        state.add_message(result("slow", "r"))
        assert state.get_context()[0] == call("slow") and state.get_context()[-1] == result("slow", "r")
        state.add_message(said("word " * 40))

        context = state.get_context()
        assert orphans(context) == [] and call("slow") not in context
        assert state.count_tokens() == sum(map(by_words, context)) <= 100


async def test_summaries_are_made_of_a_few_messages_each_however_many_are_due(ks: Keepstate) -> None:
    given: list[int] = []
    is_up = False

    async def summarise(messages: list[Message]) -> str:
        if not is_up:
            raise ConnectionError("the model is down")
        given.append(len(messages))
        return f"summary {len(given)}"

    state = BoundedState("1", max_tokens=300, summarise=summarise, persistence=ks)
    for number in range(120):
        await state.add_message(said(f"And what about flight number {number}?"))
    assert given == [] and len(await state.get_context()) < 30
    is_up = True
    await state.add_message(said("And now?"))

    assert given[0] == 10 and set(given[1:]) <= set(range(2, 12)) and len(given) > 8
    assert (await state.get_context())[0]["content"] == f"summary {len(given)}"
    assert not await state.summarise()


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


@pytest.mark.parametrize(
    "wrong", [1, "hello", {}, {"role": 1}, {"role": "user", 7: "x"}, {"role": "user", "content": object()}]
)
def test_what_is_no_message_is_refused(wrong: Any) -> None:
    with sync.BoundedState() as state:
        with pytest.raises(InvalidError):
            state.add_message(wrong)
        assert list(state.messages()) == []


def test_a_message_costs_the_same_however_many_are_said_and_in_the_context() -> None:
    def cost(count: int, most: int) -> float:
        """Return the bytes written for each of 32 messages, behind so many."""
        with sync.open("memory://") as ks, sync.Session("1", persistence=ks) as session:
            talk = session.conversation.within(most)
            for start in range(0, count, 250):
                talk.append(*(said(f"message {n:06d} of a conversation") for n in range(start, start + 250)))
            store, written = ks.store, 0
            plain = store.apply

            async def apply(batches: Sequence[Batch]) -> Any:
                nonlocal written
                puts = [write for batch in batches for write in batch.writes if isinstance(write, Put)]
                written += sum(len(put.key) + len(put.value) for put in puts)
                return await plain(batches)

            store.apply = apply  # type: ignore[method-assign]
            for n in range(32):
                talk.append(said(f"message {count + n:06d} of a conversation"))
            assert len(talk.get_context()) == min(count + 32, most // 13)
            return written / 32

    # One level more of the maps, releases of the compressor and ids by chance: up to 1.7 times. A context
    # that is rewritten whole costs 20 times as much.
    assert cost(3_000, 400) <= min(2 * cost(500, 400), 4_000)
    assert cost(3_000, 128_000) <= min(2 * cost(250, 128_000), 4_000)


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
