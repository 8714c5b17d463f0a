"""What recovery refuses, and what it takes that is far out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import keepstate
from keepstate import AgentCheckpoint, InvalidError
from keepstate.engine.kernel import layout
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Delete, Outcome
from keepstate.sync import AgentRecoveryManager, AgentStateStore

LEASE = layout.named_key(layout.LEASES, "recovery")


class Agent:
    id = "a"

    def restore_from_checkpoint(self, state: Any) -> None: ...


@pytest.fixture
def store() -> AgentStateStore:
    return AgentStateStore(persistence="memory://")


@pytest.mark.parametrize("wrong", [None, 5, b"a", ["a"]], ids=repr)
def test_what_is_no_id_is_refused_by_its_name(store: AgentStateStore, wrong: Any) -> None:
    agent, recovery = Agent(), AgentRecoveryManager(store)
    recovery.register(agent)

    with store:
        for call in (recovery.recover, recovery.attempts, recovery.reset):
            with pytest.raises(InvalidError, match="`agent_id`"):
                call(wrong)
        with pytest.raises(InvalidError, match="`from_checkpoint`"):
            recovery.recover("a", wrong)
        for call in (recovery.register, recovery.run):
            with pytest.raises(InvalidError, match="cannot be recovered"):
                call(wrong)


def test_more_attempts_than_a_pause_can_be_doubled_are_counted(store: AgentStateStore) -> None:
    agent, recovery = Agent(), AgentRecoveryManager(store, max_recovery_attempts=2_000, backoff_s=0)
    recovery.register(agent)
    with store:
        store.save_checkpoint(AgentCheckpoint("a", "c", 1))
        done = [recovery.recover("a").attempt for _ in range(1_100)]

        assert done == [*range(1, 1_101)]


class Counting(MemoryStore):
    """Counts the batches that stand on the claim of a recovery."""

    batches = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.batches += sum(any(check.key == LEASE for check in batch.checks) for batch in batches)
        return await super().apply(batches)


async def test_who_has_lost_an_agent_renews_its_claim_no_more() -> None:
    class Slow(Agent):
        renewals = 0

        async def restore_from_checkpoint(self, state: Any) -> None:
            before = store.batches
            await store.apply([Batch("agent/a", [Delete(LEASE)])])
            async with asyncio.timeout(60):
                while store.batches == before:  # until a renewal finds it gone
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # time for ten more
            self.renewals = store.batches - before

    agent, store = Slow(), Counting()
    await store.open()
    async with keepstate.open(store) as ks:
        agents = keepstate.AgentStateStore(persistence=ks)
        recovery = keepstate.AgentRecoveryManager(agents, claim_s=0.06)
        recovery.register(agent)
        await agents.save_checkpoint(AgentCheckpoint("a", "c", 1))
        with pytest.raises(keepstate.LeaseLostError):
            await recovery.recover("a")
    await store.close()

    assert agent.renewals == 1
