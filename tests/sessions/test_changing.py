"""What was stored with keys that are no text, by some other way, can be read and mended."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import AgentStateMachine, Session, Threads
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError

POISONED: Any = {1: 2, "seat": "aisle"}


async def spoil(ks: Keepstate, space: str, name: str) -> None:
    """Give a record the keys that no part of a session would write."""
    documents = ks.space(space).documents
    record = await documents.get(name)
    setattr(record, "data" if hasattr(record, "data") else "metadata", POISONED)
    await documents.put(name, record)


async def test_state_with_other_keys_is_read_and_mended(ks: Keepstate) -> None:
    session = Session("s", user_id="u", persistence=ks)
    await session.update({"seat": "aisle"})
    await ks.space("session/s").documents.put("life/1/state/data", POISONED)
    await ks.space("user/u").documents.put("state/preferences", POISONED)

    for update in (session.update, session.user.update_preferences):
        assert await update({"n": 1}) == {**POISONED, "n": 1}
        with pytest.raises(InvalidError, match=r"the (state|preferences) of .* has the key 1 \(int\)"):
            await update(lambda old: old)
        assert await update(lambda old: {"seat": old["seat"]}) == {"seat": "aisle"}
    assert await session.get_state() == await session.user.get_preferences() == {"seat": "aisle"}


async def test_threads_with_other_keys_are_read_mended_and_removed(ks: Keepstate) -> None:
    threads = Threads(persistence=ks)
    for id in ("t", "other"):
        await threads.create(id, messages=[{"role": "user", "content": "a", "id": "m"}])
        await spoil(ks, f"thread/{id}", "chat/thread")
        await spoil(ks, f"thread/{id}", "chat/message/000000000000")

    assert (await threads.retrieve("t")).metadata == POISONED
    assert (await threads.messages.retrieve("t", "m")).metadata == POISONED
    assert (await threads.update("t", metadata={"a": 1})).metadata == {"a": 1}
    assert (await threads.messages.update("t", "m", metadata={"a": 1})).metadata == {"a": 1}
    assert await threads.delete("other")


async def test_a_machine_with_other_keys_goes_on_without_them(ks: Keepstate) -> None:
    machine = AgentStateMachine("m", persistence=ks)
    await machine.transition("new_task")
    await spoil(ks, "machine/m", "machine")
    await machine.refresh()
    assert machine.data == POISONED

    with pytest.raises(InvalidError, match="the data of machine 'm' has the key 1"):
        await machine.transition("plan_ready")
    del machine.data[1]  # type: ignore[arg-type]  # how it was poisoned
    assert await machine.transition("plan_ready") == "executing" and machine.data == {"seat": "aisle"}
