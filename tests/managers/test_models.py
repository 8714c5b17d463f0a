"""State, agents and workflows behave as plain dicts and lists do, whatever is asked of them in what order.

The machines use the blocking twins, two managers on one store each, so that nothing is kept in a manager.
"""

from __future__ import annotations

import fnmatch
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keepstate import (
    AgentCheckpoint,
    AgentSnapshot,
    ConflictError,
    InvalidError,
    NotFoundError,
    StateConfig,
    StepState,
    TransitionError,
    WorkflowCheckpoint,
    WorkflowState,
    WorkflowStatus,
)
from keepstate.sync import AgentStateStore, StateManager, WorkflowStateManager

KEYS = st.sampled_from(["a", "a:b", "a/b", "b", "%", "é"])
VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.dictionaries(st.sampled_from("xyz"), st.one_of(st.integers(), st.text(max_size=3))),
    st.lists(st.integers(), max_size=3).map(tuple),
)
PATCHES = st.dictionaries(st.sampled_from("xyz"), st.integers(), max_size=2)
WHICH = st.sampled_from([0, 1])
SHORTLY = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=25)  # type: ignore[union-attr]
"""Each step asks two managers for all that they show."""


def memory() -> str:
    return f"memory://{uuid.uuid4().hex}"


class StateMachine(RuleBasedStateMachine):
    """A dict, and a manager whose every second one stages its writes."""

    @initialize(shards=st.sampled_from([1, 3]))
    def begin(self, shards: int) -> None:
        url = memory()
        self.managers = [StateManager(StateConfig(backend=url, shards=shards)) for _ in range(2)]
        self.staging = StateManager(StateConfig(backend=url, shards=shards, auto_save=False))
        self.model: dict[str, Any] = {}

    @rule(which=WHICH, key=KEYS, value=VALUES)
    def save(self, which: int, key: str, value: Any) -> None:
        self.managers[which].save(key, value)
        self.model[key] = value

    @rule(which=WHICH, key=KEYS, patch=PATCHES)
    def update(self, which: int, key: str, patch: dict[str, int]) -> None:
        old = self.model.get(key, {})
        if not isinstance(old, dict):
            with pytest.raises(InvalidError):
                self.managers[which].update(key, patch)
            return
        self.model[key] = {**old, **patch}
        assert self.managers[which].update(key, patch) == self.model[key]

    @rule(which=WHICH, key=KEYS)
    def delete(self, which: int, key: str) -> None:
        assert self.managers[which].delete(key) is (key in self.model)
        self.model.pop(key, None)

    @rule(key=KEYS, value=VALUES, is_new=st.booleans())
    def compare_and_set(self, key: str, value: Any, is_new: bool) -> None:
        manager = self.managers[0]
        entry = manager.entry(key)
        version = 0 if is_new or entry is None else entry.version
        if is_new and entry is not None:
            with pytest.raises(ConflictError):
                manager.compare_and_set(key, value, expected_version=0)
            return
        manager.compare_and_set(key, value, expected_version=version)
        self.model[key] = value

    @rule(staged=st.lists(st.tuples(KEYS, st.one_of(VALUES, st.just(...))), max_size=4))
    def stage(self, staged: list[tuple[str, Any]]) -> None:
        expected = dict(self.model)
        for key, value in staged:
            if value is ...:
                assert self.staging.delete(key) is (expected.pop(key, ...) is not ...)
            else:
                self.staging.save(key, value)
                expected[key] = value
            assert self.staging.get(key, ...) == expected.get(key, ...)
        assert self.staging.list_keys() == sorted(expected, key=str.encode)
        assert self.staging.flush() == len({key for key, _ in staged})
        self.model = expected

    @rule(keys=st.lists(KEYS, max_size=3, unique=True), value=VALUES, fails=st.booleans())
    def transact(self, keys: list[str], value: Any, fails: bool) -> None:
        manager = self.managers[0]
        if manager.config.shards > 1:
            return
        try:
            with manager.transaction() as tx:
                for key in keys:
                    tx.save(key, value)
                    assert tx.get(key) == value
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        self.model |= dict.fromkeys(keys, value)

    @rule(pattern=st.sampled_from(["*", "a*", "a:?", "?", "[ab]"]), limit=st.one_of(st.none(), st.just(2)))
    def list_keys(self, pattern: str, limit: int | None) -> None:
        found = sorted((key for key in self.model if fnmatch.fnmatchcase(key, pattern)), key=str.encode)

        assert self.managers[1].list_keys(pattern, limit=limit) == found[:limit]

    @invariant()
    def both_show_the_same(self) -> None:
        if hasattr(self, "model"):
            for manager in self.managers:
                assert {key: manager.get(key) for key in manager.list_keys()} == self.model

    def teardown(self) -> None:
        for manager in [
            *getattr(self, "managers", []),
            *([self.staging] if hasattr(self, "staging") else []),
        ]:
            manager.close()


StateMachine.TestCase.settings = SHORTLY
TestState = pytest.mark.searched(StateMachine.TestCase)


class StagingMachine(RuleBasedStateMachine):
    """What is stored, and what one manager means to change of it, while another writes and nobody flushes."""

    records = st.dictionaries(st.sampled_from("xyz"), st.integers())

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.manager = StateManager(StateConfig(backend=url))
        self.staging = StateManager(StateConfig(backend=url, auto_save=False))
        self.stored: dict[str, dict[str, int]] = {}
        self.staged: dict[str, list[tuple[str, dict[str, int]]]] = {}

    def expected(self, key: str) -> dict[str, int] | None:
        """Return what the key will be: what is stored now, with all that is staged of it."""
        value = self.stored.get(key)
        for action, given in self.staged.get(key, []):
            value = {"put": given, "patch": {**(value or {}), **given}, "delete": None}[action]
        return value

    @rule(key=KEYS, value=records)
    def save_by_another(self, key: str, value: dict[str, int]) -> None:
        self.manager.save(key, value)
        self.stored[key] = value

    @rule(key=KEYS)
    def delete_by_another(self, key: str) -> None:
        assert self.manager.delete(key) is (self.stored.pop(key, None) is not None)

    @rule(key=KEYS, value=records)
    def save(self, key: str, value: dict[str, int]) -> None:
        self.staging.save(key, value)
        self.staged[key] = [("put", value)]

    @rule(key=KEYS, patch=PATCHES)
    def update(self, key: str, patch: dict[str, int]) -> None:
        self.staged.setdefault(key, []).append(("patch", patch))

        assert self.staging.update(key, patch) == self.expected(key)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.staging.delete(key) is (self.expected(key) is not None)
        self.staged[key] = [("delete", {})]

    @rule()
    def flush(self) -> None:
        after = {
            key: value for key in {*self.stored, *self.staged} if (value := self.expected(key)) is not None
        }

        assert self.staging.flush() == len(self.staged)
        self.stored, self.staged = after, {}

    @invariant()
    def each_shows_its_own(self) -> None:
        assert {key: self.manager.get(key) for key in self.manager.list_keys()} == self.stored
        shown = {key: self.staging.get(key) for key in self.staging.list_keys()}
        known = {key: self.expected(key) for key in {*self.stored, *self.staged}}
        assert shown == {key: value for key, value in known.items() if value is not None}

    def teardown(self) -> None:
        self.staging.close()
        self.manager.close()


StagingMachine.TestCase.settings = SHORTLY
TestStaging = pytest.mark.searched(StagingMachine.TestCase)


class AgentMachine(RuleBasedStateMachine):
    """A list of snapshots and a list of checkpoints an agent."""

    agents = st.sampled_from(["1", "10", "1/0"])
    ids = st.sampled_from(["c", "d", "c/d", "step 9"])

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.stores = [AgentStateStore(persistence=url) for _ in range(2)]
        self.snapshots: dict[str, list[AgentSnapshot]] = {}
        self.checkpoints: dict[str, list[AgentCheckpoint]] = {}

    @rule(which=WHICH, agent=agents, value=VALUES)
    def save_snapshot(self, which: int, agent: str, value: Any) -> None:
        snapshot = AgentSnapshot(agent_id=agent, timestamp=datetime(2001, 1, 1), memory_state=value)
        self.stores[which].save_snapshot(snapshot)
        self.snapshots.setdefault(agent, []).append(snapshot)

    @rule(which=WHICH, agent=agents, id=ids, step=st.integers(0, 9), value=VALUES, recoverable=st.booleans())
    def save_checkpoint(
        self, which: int, agent: str, id: str, step: int, value: Any, recoverable: bool
    ) -> None:
        point = AgentCheckpoint(agent, id, step, value, recoverable)
        self.stores[which].save_checkpoint(point)
        kept = [each for each in self.checkpoints.get(agent, []) if each.checkpoint_id != id]
        self.checkpoints[agent] = [*kept, point]

    @rule(which=WHICH, agent=agents, id=ids)
    def delete_checkpoint(self, which: int, agent: str, id: str) -> None:
        kept = [each for each in self.checkpoints.get(agent, []) if each.checkpoint_id != id]

        assert self.stores[which].delete_checkpoint(agent, id) is (
            len(kept) < len(self.checkpoints.get(agent, []))
        )
        self.checkpoints[agent] = kept

    @rule(which=WHICH, agent=agents)
    def delete(self, which: int, agent: str) -> None:
        self.stores[which].delete(agent)
        self.snapshots.pop(agent, None)
        self.checkpoints.pop(agent, None)

    @rule(which=WHICH, agent=agents, only=st.booleans())
    def latest(self, which: int, agent: str, only: bool) -> None:
        fitting = [each for each in self.checkpoints.get(agent, []) if each.recoverable or not only]

        assert self.stores[which].latest_checkpoint(agent, recoverable_only=only) == (
            fitting[-1] if fitting else None
        )

    @rule(which=WHICH, agent=agents)
    def list_all(self, which: int, agent: str) -> None:
        store = self.stores[which]

        assert store.list_snapshots(agent) == self.snapshots.get(agent, [])
        assert store.list_checkpoints(agent) == self.checkpoints.get(agent, [])

    def teardown(self) -> None:
        for store in self.stores:
            store.close()


AgentMachine.TestCase.settings = SHORTLY
TestAgents = pytest.mark.searched(AgentMachine.TestCase)

FINAL = {WorkflowStatus.COMPLETED, WorkflowStatus.CANCELLED}


@dataclass
class PlainWorkflow:
    """What a workflow is, in the plainest way."""

    total: int
    status: WorkflowStatus = WorkflowStatus.PENDING
    current: int = 0
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: dict[int, tuple[str, Any]] = field(default_factory=dict[int, tuple[str, Any]])
    points: dict[str, tuple[int, dict[str, Any]]] = field(
        default_factory=dict[str, tuple[int, dict[str, Any]]]
    )

    @property
    def done(self) -> int:
        return sum(status == "completed" for status, _ in self.steps.values())

    def refuses(self, number: int, status: str, result: Any) -> bool:
        known = self.steps.get(number)
        if known == ("completed", result) and status == "completed":
            return False
        if number > self.total or self.status in FINAL or (known and known[0] == "completed"):
            return True
        held = self.status in (WorkflowStatus.PAUSED, WorkflowStatus.FAILED)
        return held and status == "running"

    def update(self, number: int, status: str, result: Any) -> None:
        if self.steps.get(number) == ("completed", result):
            return
        self.steps[number] = (status, result)
        if self.status is WorkflowStatus.PENDING:
            self.status = WorkflowStatus.RUNNING
        if status == "completed":
            self.current = max(self.current, number)
            if self.status is WorkflowStatus.RUNNING and self.done >= self.total:
                self.status = WorkflowStatus.COMPLETED


class WorkflowMachine(RuleBasedStateMachine):
    """A plain workflow, and two managers of it."""

    @initialize(total=st.integers(1, 4))
    def begin(self, total: int) -> None:
        url = memory()
        self.managers = [WorkflowStateManager(persistence=url, checkpoint_interval=None) for _ in range(2)]
        self.managers[0].create(WorkflowState(workflow_id="w", total_steps=total))
        self.plain = PlainWorkflow(total)

    @rule(
        which=WHICH,
        number=st.integers(1, 5),
        status=st.sampled_from(["running", "completed", "completed", "failed"]),
        result=st.integers(0, 1),
    )
    def update_step(self, which: int, number: int, status: str, result: int) -> None:
        step = StepState(step_number=number, status=status, result=result)
        if self.plain.refuses(number, status, result):
            with pytest.raises(InvalidError):  # of which TransitionError is one
                self.managers[which].update_step("w", step)
            return
        self.managers[which].update_step("w", step)
        self.plain.update(number, status, result)

    @rule(which=WHICH, action=st.sampled_from(["pause", "resume", "cancel", "fail"]))
    def move(self, which: int, action: str) -> None:
        manager, plain = self.managers[which], self.plain
        wanted = {
            "pause": WorkflowStatus.PAUSED, "resume": WorkflowStatus.RUNNING,
            "cancel": WorkflowStatus.CANCELLED, "fail": WorkflowStatus.FAILED,
        }[action]  # fmt: skip
        allowed = {
            "pause": {WorkflowStatus.PENDING, WorkflowStatus.RUNNING},
            "resume": {WorkflowStatus.PAUSED},
            "cancel": set(WorkflowStatus) - FINAL,
            "fail": set(WorkflowStatus) - FINAL,
        }[action]
        if plain.status not in allowed | {wanted}:
            with pytest.raises(TransitionError):
                self._act(manager, action)
            return
        self._act(manager, action)
        if plain.status is not wanted:
            is_over = action == "resume" and plain.done >= plain.total
            plain.status = WorkflowStatus.COMPLETED if is_over else wanted

    def _act(self, manager: WorkflowStateManager, action: str) -> None:
        if action == "fail":
            manager.fail("w", "why")
        else:
            getattr(manager, action)("w")

    @rule(which=WHICH, id=st.sampled_from("pq"), step=st.integers(0, 4), context=PATCHES)
    def checkpoint(self, which: int, id: str, step: int, context: dict[str, int]) -> None:
        point = WorkflowCheckpoint("w", id, step, context=context)
        if step > self.plain.total:
            with pytest.raises(InvalidError):
                self.managers[which].checkpoint(point)
            return
        self.managers[which].checkpoint(point)
        self.plain.points.pop(id, None)
        self.plain.points[id] = (step, context)

    @rule(which=WHICH, id=st.sampled_from(["p", "q", "latest"]))
    def resume_from(self, which: int, id: str) -> None:
        plain, manager = self.plain, self.managers[which]
        name = id if id != "latest" else next(reversed(plain.points), "")
        if name not in plain.points or plain.status in FINAL:
            with pytest.raises(TransitionError if name in plain.points else NotFoundError):
                manager.resume_from("w", id)
            return
        manager.resume_from("w", id)
        plain.current, plain.context = plain.points[name]
        plain.steps = {number: step for number, step in plain.steps.items() if number <= plain.current}
        if plain.status is not WorkflowStatus.PAUSED:
            plain.status = WorkflowStatus.RUNNING

    @invariant()
    def both_show_the_same(self) -> None:
        if not hasattr(self, "plain"):
            return
        plain = self.plain
        for manager in self.managers:
            state = manager.get("w")
            assert state is not None
            assert (state.status, state.current_step, state.steps_completed) == (
                plain.status, plain.current, plain.done,
            )  # fmt: skip
            assert state.context == plain.context
            assert {step.step_number: (step.status, step.result) for step in manager.list_steps("w")} == (
                plain.steps
            )
            assert [point.checkpoint_id for point in manager.list_checkpoints("w")] == list(plain.points)

    def teardown(self) -> None:
        for manager in getattr(self, "managers", []):
            manager.close()


WorkflowMachine.TestCase.settings = SHORTLY
TestWorkflows = pytest.mark.searched(WorkflowMachine.TestCase)
