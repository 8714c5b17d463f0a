"""Distributed: many servers change one state, by a lock with an end or without one, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import keepstate
from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import LeaseLostError
from tests.engine.conftest import Turned


class DistributedAgent:
    """The published agent: `get_state` and `update_state`, on any server."""

    def __init__(self, session_id: str, ks: Keepstate) -> None:
        self.session = Session(session_id, persistence=ks, ttl_s=3600)

    async def get_state(self) -> dict[str, Any]:
        return await self.session.get_state()

    async def update_state(self, updates: dict[str, Any]) -> None:
        await self.session.update(updates)

    async def count(self, name: str) -> None:
        await self.session.update(lambda state: {**state, name: state.get(name, 0) + 1})

    async def count_alone(self, name: str) -> None:
        async with self.session.exclusive(ttl_s=30, wait_s=30) as mine:
            state = await mine.get_state()
            await asyncio.sleep(0)
            await mine.update({name: state.get(name, 0) + 1})


@pytest.fixture
def servers(url: str, opened: list[Keepstate]) -> list[Keepstate]:
    opened += [keepstate.open(url) for _ in range(3)]
    return opened


async def test_updates_of_all_servers_are_kept_with_and_without_a_lock(servers: list[Keepstate]) -> None:
    agents = [DistributedAgent("s", ks) for ks in servers]
    await asyncio.gather(*(agent.count("free") for agent in agents for _ in range(5)))
    await asyncio.gather(*(agent.count_alone("locked") for agent in agents for _ in range(2)))
    await asyncio.gather(*(agent.update_state({f"s{n}": n}) for n, agent in enumerate(agents)))

    assert await agents[0].get_state() == {"free": 15, "locked": 6, "s0": 0, "s1": 1, "s2": 2}


async def test_a_lock_whose_holder_is_gone_ends_and_fences_who_comes_back(turned: Turned) -> None:
    gone, other = (DistributedAgent("s", turned.ks).session for _ in range(2))
    async with gone.exclusive(ttl_s=30) as late:
        turned.clock.advance(31_000)
        async with other.exclusive(ttl_s=30) as mine:
            await mine.update({"by": "other"})
        with pytest.raises(LeaseLostError):
            await late.update({"by": "gone"})

    assert await other.get_state() == {"by": "other"}


async def test_a_state_that_nobody_uses_expires_in_an_hour(turned: Turned) -> None:
    agent = DistributedAgent("s", turned.ks)
    await agent.update_state({"destination": "NYC"})
    turned.clock.advance(3_599_000)
    assert await agent.get_state() == {"destination": "NYC"}
    turned.clock.advance(3_600_000)

    assert await agent.get_state() == {}
