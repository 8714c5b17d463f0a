"""Versions: checkpoints of a state, and the way back. More: test_versioned.py."""

from __future__ import annotations

from keepstate import Session, VersionedState
from keepstate.engine.space.keepstate import Keepstate


async def test_a_rollback_returns_what_was_saved_and_stops_at_the_first(ks: Keepstate) -> None:
    versions = VersionedState("s", persistence=ks)
    state = {"plan": ["search"]}
    await versions.checkpoint(state)
    state["plan"].append("book")  # the deep copy that was published
    await versions.checkpoint(state)
    await versions.checkpoint({"plan": []})

    assert await versions.rollback(steps=1) == await versions.get_state() == {"plan": ["search", "book"]}
    assert await versions.rollback(steps=7) == {"plan": ["search"]}
    assert await VersionedState("s", persistence=ks).get_state() == {"plan": ["search"]}


async def test_a_conversation_is_forked_at_any_message_and_merged_back(ks: Keepstate) -> None:
    talk = Session("s", persistence=ks).conversation
    for number in range(6):
        await talk.append({"role": "user", "content": f"m{number}"})
    for number in range(6):
        fork = await talk.fork(f"at {number}", at=number)
        await fork.append({"role": "user", "content": f"f{number}"})
        told = [message["content"] async for message in fork.messages()]
        assert told == [*(f"m{n}" for n in range(number + 1)), f"f{number}"]

    assert await talk.merge("at 2") == 1
    assert (await talk.window(1))[0]["content"] == "f2" and await talk.count() == 7
