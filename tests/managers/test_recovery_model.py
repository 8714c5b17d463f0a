"""Recovery behaves as a counter beside a list of checkpoints does, whatever is asked of it in what order.

Two managers work on one store, and each knows an agent of its own, so that nothing is kept in a manager.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keepstate import AgentCheckpoint, AttemptsExhaustedError, NotFoundError
from keepstate.sync import AgentRecoveryManager, AgentStateStore

WHICH = st.sampled_from([0, 1])
IDS = st.sampled_from(["c", "d", "e"])
STEPS = st.integers(0, 4)
SHORTLY = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=25)  # type: ignore[union-attr]
"""Each step asks two managers for all that they show."""


class AgentError(Exception):
    """What an agent fails of."""


class Agent:
    """An agent that fails so many times, and saves a checkpoint whenever it resumes, if it is told to.

    As many times as it is told it fails already while it is restored.
    """

    id = "a"

    def __init__(self, store: AgentStateStore) -> None:
        self._store = store
        self.failures = self.breaks = 0
        self.saves: AgentCheckpoint | None = None
        self.restored: list[Any] = []

    def restore_from_checkpoint(self, state: Any) -> None:
        self.restored.append(state)
        if self.breaks:
            self.breaks -= 1
            raise AgentError("not restored")

    def run(self, task: Any) -> str:
        return self._work("ran")

    def resume(self) -> str:
        if self.saves is not None:
            self._store.save_checkpoint(self.saves)
        return self._work("resumed")

    def _work(self, done: str) -> str:
        if self.failures:
            self.failures -= 1
            raise AgentError(f"{self.failures} more")
        return done


@dataclass
class PlainAgent:
    """What is known of an agent, in the plainest way.

    Attributes:
        points: Its checkpoints, in the order of saving.
        attempts: How often it was restored since it got further.
        step: From which step that was counted.
    """

    points: dict[str, AgentCheckpoint] = field(default_factory=dict[str, AgentCheckpoint])
    attempts: int = 0
    step: int = -1

    def save(self, point: AgentCheckpoint) -> None:
        self.points.pop(point.checkpoint_id, None)
        self.points[point.checkpoint_id] = point

    def found(self, id: str) -> AgentCheckpoint | None:
        fitting = [point for point in self.points.values() if point.recoverable]
        if id == "latest":
            return fitting[-1] if fitting else None
        return next((point for point in fitting if point.checkpoint_id == id), None)

    def counted(self, point: AgentCheckpoint | None) -> int:
        """Return the attempts that count where it is restored from there."""
        return 0 if point is not None and point.step > self.step else self.attempts

    def restore(self, point: AgentCheckpoint) -> int:
        self.attempts = self.counted(point) + 1
        self.step = max(self.step, point.step)
        return self.attempts

    def finish(self) -> None:
        self.attempts, self.step = 0, -1


class RecoveryMachine(RuleBasedStateMachine):
    """A plain agent, and two managers that recover it."""

    @initialize(most=st.sampled_from([2, 3, 1]))
    def begin(self, most: int) -> None:
        url = f"memory://{uuid.uuid4().hex}"
        self.most, self.plain = most, PlainAgent()
        self.stores = [AgentStateStore(persistence=url) for _ in range(2)]
        self.agents = [Agent(store) for store in self.stores]
        self.managers = [
            AgentRecoveryManager(store, max_recovery_attempts=most, backoff_s=0) for store in self.stores
        ]
        self.registered = [False, False]
        for which in (0, 1):
            self.register(which)
        self.save_checkpoint(0, "c", 1, recoverable=True)

    @rule(which=WHICH, id=IDS, step=STEPS, recoverable=st.booleans())
    def save_checkpoint(self, which: int, id: str, step: int, *, recoverable: bool) -> None:
        point = AgentCheckpoint("a", id, step, {"step": step, "id": id}, recoverable)
        self.stores[which].save_checkpoint(point)
        self.plain.save(point)

    @rule(which=WHICH, id=IDS)
    def delete_checkpoint(self, which: int, id: str) -> None:
        assert self.stores[which].delete_checkpoint("a", id) is (self.plain.points.pop(id, None) is not None)

    @rule(which=WHICH)
    def register(self, which: int) -> None:
        self.managers[which].register(self.agents[which])
        self.registered[which] = True

    @rule(which=WHICH)
    def unregister(self, which: int) -> None:
        assert self.managers[which].unregister("a") is self.registered[which]
        self.registered[which] = False

    @rule(which=WHICH, id=st.sampled_from(["latest", "c", "d", "latest", "e"]))
    def recover(self, which: int, id: str) -> None:
        manager, agent, point = self.managers[which], self.agents[which], self.plain.found(id)
        before = list(agent.restored)
        if not self.registered[which] or point is None:
            with pytest.raises(NotFoundError):
                manager.recover("a", id)
        elif self.plain.counted(point) >= self.most:
            with pytest.raises(AttemptsExhaustedError) as exhausted:
                manager.recover("a", id)
            assert exhausted.value.attempts == self.plain.attempts
        else:
            done = manager.recover("a", id)
            attempt = self.plain.restore(point)
            before.append(point.state)
            assert (done.checkpoint, done.attempt, done.attempts_left) == (
                point,
                attempt,
                self.most - attempt,
            )

        assert agent.restored == before

    @rule(
        which=WHICH,
        failures=st.sampled_from([0, 1, 2, 3, 4]),
        breaks=st.sampled_from([0, 0, 1, 2]),
        saves=st.one_of(st.none(), STEPS),
    )
    def run(self, which: int, failures: int, breaks: int, saves: int | None) -> None:
        manager, agent = self.managers[which], self.agents[which]
        agent.failures, agent.breaks, agent.restored = failures, breaks, []
        agent.saves = None if saves is None else AgentCheckpoint("a", "e", saves, {"saved": saves})
        expected, restored = self._run_plainly(failures, breaks, agent.saves)
        if isinstance(expected, str):
            assert manager.run(agent, "task") == expected
        else:
            with pytest.raises(expected):
                manager.run(agent, "task")
        self.registered[which], agent.breaks = True, 0

        assert agent.restored == restored

    def _run_plainly(
        self, failures: int, breaks: int, saves: AgentCheckpoint | None
    ) -> tuple[str | type[Exception], list[Any]]:
        """Return what a run comes to, and what the agent is restored from on the way."""
        done, restored = "ran", list[Any]()
        while failures:
            point = self.plain.found("latest")
            if point is None:
                return AgentError, restored
            if self.plain.counted(point) >= self.most:
                return AttemptsExhaustedError, restored
            self.plain.restore(point)
            restored.append(point.state)
            if breaks:
                breaks -= 1
                continue
            if saves is not None:
                self.plain.save(saves)
            failures, done = failures - 1, "resumed"
        self.plain.finish()
        return done, restored

    @rule(which=WHICH)
    def reset(self, which: int) -> None:
        self.managers[which].reset("a")
        self.plain.finish()

    @invariant()
    def both_count_the_same(self) -> None:
        if hasattr(self, "managers"):
            expected = self.plain.counted(self.plain.found("latest"))
            assert [manager.attempts("a") for manager in self.managers] == [expected, expected]

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()


RecoveryMachine.TestCase.settings = SHORTLY
TestRecovery = pytest.mark.searched(RecoveryMachine.TestCase)
