"""Versions of a state: steps back and forth, forks and merges, beside plain copies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate import Space, VersionedState, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, InvalidError, MergeConflictError, NotFoundError


async def test_a_rollback_goes_to_the_version_before_and_stops_at_the_first(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    state: dict[str, Any] = {"step": 0}
    for step in range(3):
        state["step"] = step
        assert await versions.checkpoint(state) == step

    assert await versions.get_state() == {"step": 2}
    assert await versions.rollback() == {"step": 1}
    assert await VersionedState("1", persistence=ks).get_state() == {"step": 1}
    assert await versions.rollback(steps=9) == {"step": 0}
    assert await versions.rollback() == {"step": 0}
    assert await versions.current_version() == 0
    assert await versions.state_at(2) == {"step": 2}


async def test_what_is_read_is_a_copy(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    state = {"plan": ["a"]}
    await versions.checkpoint(state)
    state["plan"].append("b")
    (await versions.get_state())["plan"].append("c")

    assert await versions.get_state() == {"plan": ["a"]}


async def test_a_version_made_after_a_rollback_goes_back_to_where_it_came_from(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    for step in range(4):
        await versions.checkpoint(step)
    await versions.rollback(2)

    assert await versions.checkpoint("other") == 4
    assert await versions.rollback() == 1
    assert await versions.state_at(3) == 3


async def test_any_value_is_a_state(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    for state in (None, 1, "a", [1, (2, 3)], {1: {"a"}}, {}):
        await versions.checkpoint(state)

        assert await versions.get_state() == state


async def test_a_conversation_is_forked_at_any_message_and_merged_back(ks: Keepstate) -> None:
    talk = VersionedState("1", persistence=ks)
    for text in ("hello", "book a flight", "to Rome"):
        before = await talk.get_state() if await talk.current_version() >= 0 else {"messages": []}
        await talk.checkpoint({"messages": [*before["messages"], text]})
    other = await talk.fork("what if", at=1)
    await other.checkpoint({"messages": [*(await other.get_state())["messages"], "to Oslo"]})
    assert await talk.get_state() == {"messages": ["hello", "book a flight", "to Rome"]}
    assert await other.get_state() == {"messages": ["hello", "book a flight", "to Oslo"]}

    with pytest.raises(MergeConflictError):
        await talk.merge("what if")
    assert await talk.merge("what if", rules={"messages": "append"}) == 3
    assert (await talk.get_state())["messages"] == ["hello", "book a flight", "to Rome", "to Oslo"]
    assert await talk.merge("what if") == 3
    assert (await talk.rollback())["messages"][-1] == "to Rome"
    assert await VersionedState("1", fork="what if", persistence=ks).current_version() == 2


async def test_a_fork_knows_the_origins_of_its_own_versions_only(ks: Keepstate) -> None:
    state = VersionedState("a", persistence=ks)
    for number in range(3):
        await state.checkpoint(number)
    await state.rollback(2)
    await state.checkpoint("from 0")
    fork = await state.fork("f", at=1)
    for text in ("two", "three"):
        await fork.checkpoint(text)

    assert await fork.rollback() == "two" and await fork.rollback() == 1
    assert await state.rollback() == 0


async def test_a_merge_after_a_rollback_goes_on_from_the_present_version(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    await versions.checkpoint({"a": 1})
    other = await versions.fork("other")
    await other.checkpoint({"a": 1, "b": 2})
    await versions.checkpoint({"a": 9})
    await versions.rollback()

    await versions.merge("other")

    assert await versions.get_state() == {"a": 1, "b": 2}
    assert await versions.rollback() == {"a": 1}


@pytest.mark.parametrize("wrong", [3, ["a"], {"a": "nope"}, {"a": ["ours"]}])
async def test_rules_that_are_none_are_refused_and_say_what_to_give(ks: Keepstate, wrong: Any) -> None:
    versions = VersionedState("1", persistence=ks)
    await versions.checkpoint({"a": 1})
    other = await versions.fork("f")
    await other.checkpoint({"a": 2})

    with pytest.raises(InvalidError, match=r"ive a|ass a"):
        await versions.merge("f", rules=wrong)
    assert await versions.current_version() == 0


async def test_what_is_not_there_is_told_so(ks: Keepstate) -> None:
    versions = VersionedState("1", persistence=ks)
    for asking in (versions.get_state(), versions.rollback(), versions.fork("f"), versions.merge("f")):
        with pytest.raises(NotFoundError):
            await asking
    await versions.checkpoint(1)
    await versions.fork("f")

    for asking in (versions.state_at(5), versions.fork("g", at=7), versions.merge("g")):
        with pytest.raises(NotFoundError):
            await asking
    with pytest.raises(AlreadyExistsError):
        await versions.fork("f")
    with pytest.raises(InvalidError):
        await versions.rollback(0)


async def test_closing_a_fork_leaves_its_origin_open(tmp_path: Path) -> None:
    async with VersionedState("v", persistence=f"sqlite:///{tmp_path}/v.db") as versions:
        await versions.checkpoint(1)
        async with await versions.fork("f") as fork:
            await fork.checkpoint(2)

        assert await versions.checkpoint(3) == 1


async def test_the_present_version_stays_when_old_ones_are_let_go(ks: Keepstate) -> None:
    versions = VersionedState("v", persistence=ks)
    for number in range(6):
        await versions.checkpoint({"n": number})
    await versions.rollback(3)
    await ks.space("versions/v").history.prune(keep_last=1)

    assert await versions.get_state() == {"n": 2}
    assert await versions.checkpoint({"n": 6}) == 6
    assert await versions.get_state() == {"n": 6}
    assert [tag async for tag in ks.space("versions/v").history.tags()] == []


async def test_many_who_checkpoint_at_once_lose_no_version(ks: Keepstate) -> None:
    made = [VersionedState("1", persistence=ks) for _ in range(6)]
    numbers = await asyncio.gather(*(one.checkpoint(n) for n, one in enumerate(made)))

    assert sorted(numbers) == list(range(6))
    assert sorted([await made[0].state_at(n) for n in range(6)]) == list(range(6))


async def test_versions_join_a_transaction_and_keep_apart_in_a_shared_space(space: Space) -> None:
    ids = ["a/b", "a%2Fb", "~#@", "two words", "naïve 🦜", "i" * 180]
    with pytest.raises(RuntimeError):
        async with space.transaction() as tx:
            await VersionedState("a/b", space=tx).checkpoint("lost")
            raise RuntimeError
    for id in ids:
        async with space.transaction() as tx:
            assert await VersionedState(id, space=tx).checkpoint(id) == 0
    for id in ids:
        fork = await VersionedState(id, space=space).fork("f" * 100)
        await fork.checkpoint("fork")

        assert await VersionedState(id, space=space).get_state() == id
        assert await fork.rollback() == id


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("checkpoint"), st.integers()), st.tuples(st.just("back"), st.integers(1, 4))
        ),
        max_size=12,
    )
)
def test_versions_follow_a_plain_model(steps: list[tuple[str, int]]) -> None:
    kept: list[tuple[int, int]] = []  # the state, and from which version it was made
    current = -1
    with sync.VersionedState() as versions:
        for what, number in steps:
            if what == "checkpoint":
                kept.append((number, current))
                current = len(kept) - 1
                assert versions.checkpoint(number) == current
            elif kept:
                for _ in range(number):
                    current = kept[current][1] if kept[current][1] >= 0 else current
                assert versions.rollback(number) == kept[current][0]
        assert versions.current_version() == current
        assert [versions.state_at(n) for n in range(len(kept))] == [state for state, _ in kept]


async def test_a_version_that_is_not_there_is_named_by_its_number(ks: Keepstate) -> None:
    versions = VersionedState("v", persistence=ks)
    with pytest.raises(NotFoundError, match=r"has no version 0. It has none. Call checkpoint"):
        await versions.state_at(0)
    for step in range(3):
        await versions.checkpoint(step)

    for asking in (versions.state_at(99), versions.fork("f", at=99)):
        with pytest.raises(NotFoundError, match=r"has no version 99. It has 0 to 2"):
            await asking
