"""What recovery refuses, and what it takes that is far out."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import AgentCheckpoint, InvalidError
from keepstate.sync import AgentRecoveryManager, AgentStateStore


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
