"""`OrchestrationStateManager`: each task handed to one agent at a time, and completed once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

from keepstate.errors import (
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotLoadedError,
    TransitionError,
)
from keepstate.managers.teams.manager import OrchestrationStateManager
from keepstate.managers.teams.records import AgentCoordinationState, TaskList, TeamTask
from tests.contracts.managers.rosters import RosterContract, team


class TeamContract(RosterContract):
    """What an `OrchestrationStateManager` does, whatever it is kept in."""

    # ---- handing out

    async def test_tasks_are_claimed_by_priority_then_in_order(self) -> None:
        priorities = ["normal", "low", "critical", 15, "high", "normal", -3]
        teams = await self.formed(
            *({"id": str(number), "priority": given} for number, given in enumerate(priorities))
        )
        claimed = [await teams.claim_task("t", "a") for _ in range(8)]

        assert [task and task.id for task in claimed] == ["2", "3", "4", "0", "5", "6", "1", None]
        with pytest.raises(InvalidError, match="low, normal, high, critical"):
            await teams.enqueue_task("t", {"priority": "urgent"})

    async def test_an_agent_gets_what_it_can_do(self) -> None:
        teams = await self.formed(
            {"id": "w", "capability": "writing", "priority": "critical"},
            {"id": "r", "capability": "research"},
            {"id": "typed", "type": "analysis"},
        )
        by_type = await teams.claim_task("t", "a", capability="analysis")
        own = await teams.claim_task("t", "a")
        none = await teams.claim_task("t", "a")
        named = await teams.claim_task("t", "a", "writing")

        assert [each and each.id for each in (by_type, own, none, named)] == ["typed", "r", None, "w"]

    async def test_who_claims_is_working_and_who_completes_is_idle(self) -> None:
        teams = await self.formed({"id": "1", "data": 7})
        task = await teams.claim_task("t", "a")
        working = await self.statuses(teams)
        await teams.complete_task("t", "1", {"sum": 7}, agent_id="a")
        done = await teams.get_task("t", "1")

        assert task is not None and (task.task, task.attempt) == ({"id": "1", "data": 7}, 1)
        assert working["a"] == ("working", "1") and (await self.statuses(teams))["a"] == ("idle", None)
        assert done is not None and (done.status, done.result) == ("completed", {"sum": 7})
        assert done.task == {"id": "1", "data": 7}

    async def test_a_task_is_assigned_to_one_agent_as_often_as_it_is_said(self) -> None:
        teams = await self.formed({"id": "1"})
        first = await teams.assign_task("t", "1", "a")
        again = await teams.assign_task("t", "1", "a")

        assert again == first and first.agent_id == "a"
        with pytest.raises(ConflictError, match="'a'"):
            await teams.assign_task("t", "1", "b")
        await teams.complete_task("t", "1")
        with pytest.raises(TransitionError):
            await teams.assign_task("t", "1", "b")
        assert (await self.statuses(teams))["b"] == ("idle", None)

    async def test_a_delayed_task_waits_and_can_be_assigned_before(self) -> None:
        teams = await self.formed()
        await teams.enqueue_task("t", {"id": "soon"}, delay_s=0.05)
        await teams.enqueue_task("t", {"id": "later"}, delay_s=1000)
        early = await teams.claim_task("t", "a")
        due = await teams.claim_task("t", "a", wait_s=60)
        status = (await teams.get_queue_status("t")).pending

        assert early is None and due is not None and due.id == "soon"
        assert [(task.id, task.status) for task in status] == [("later", "delayed")]
        assert (await teams.assign_task("t", "later", "b")).status == "in_progress"

    async def test_an_id_is_enqueued_once(self) -> None:
        teams = await self.formed()
        named = [await teams.enqueue_task("t", {"id": "1", "n": n}) for n in range(2)]
        given = await teams.enqueue_task("t", {"n": 3})
        task = await teams.get_task("t", "1")

        assert named == ["1", "1"] and given != "1" and task is not None and task.task["n"] == 0
        assert len((await teams.get_queue_status("t")).pending) == 2

    async def test_many_who_claim_at_once_get_each_task_once(self) -> None:
        teams = await self.formed(*({"id": str(number)} for number in range(40)))
        others = [self.teams() for _ in range(4)]
        for number in range(4):
            await teams.add_agent("t", AgentCoordinationState(f"w{number}"))
        got: Counter[str] = Counter()

        async def work(number: int) -> None:
            while (task := await others[number].claim_task("t", f"w{number}")) is not None:
                got[task.id] += 1
                await others[number].complete_task("t", task.id, number, token=task.token)

        await self.together(*(work(number) for number in range(4)))

        assert got == Counter({str(number): 1 for number in range(40)})
        assert len((await teams.get_queue_status("t")).completed) == 40

    # ---- ending

    async def test_a_completed_task_takes_an_equal_result_and_no_other(self) -> None:
        teams = await self.formed({"id": "1"})
        with pytest.raises(TransitionError, match="not held by an agent"):
            await teams.complete_task("t", "1")
        await teams.assign_task("t", "1", "a")
        await teams.complete_task("t", "1", {"b": (1,), "a": None})
        await teams.complete_task("t", "1", {"a": None, "b": (1,)})

        for other in (None, {"a": None, "b": [1]}, {"a": None}):
            with pytest.raises(TransitionError, match="another result"):
                await teams.complete_task("t", "1", other)
        with pytest.raises(LeaseLostError):
            await teams.complete_task("t", "1", {"a": None, "b": (1,)}, agent_id="b")

    async def test_who_does_not_hold_a_task_cannot_end_it(self) -> None:
        teams = await self.formed({"id": "1"})
        task = await teams.assign_task("t", "1", "a")
        for change in (
            teams.complete_task("t", "1", agent_id="b"),
            teams.complete_task("t", "1", token=task.token + 1),
            teams.fail_task("t", "1", "no", agent_id="b"),
            teams.release_task("t", "1", token=0),
            teams.heartbeat_task("t", "1", agent_id="b"),
        ):
            with pytest.raises(LeaseLostError):
                await change

        await teams.complete_task("t", "1", agent_id="a", token=task.token)

    async def test_a_task_of_a_silent_agent_goes_to_another(self) -> None:
        teams = await self.formed({"id": "1"}, lease_s=0.03)
        lost = await teams.claim_task("t", "a")
        await self.pass_time(40)
        taken = await teams.claim_task("t", "b", lease_s=600, wait_s=60)

        assert lost is not None and taken is not None and (taken.attempt, taken.agent_id) == (2, "b")
        with pytest.raises(LeaseLostError, match="'b'"):
            await teams.complete_task("t", "1", agent_id="a", token=lost.token)
        statuses = await self.statuses(teams)
        assert statuses == {"a": ("idle", None), "b": ("working", "1")}
        await teams.complete_task("t", "1", "b's", agent_id="b")

    async def test_work_that_was_done_late_is_taken_if_nobody_else_began(self) -> None:
        teams = await self.formed({"id": "1"}, lease_s=0.03)
        task = await teams.claim_task("t", "a")
        await self.pass_time(40)
        nothing = await teams.claim_task("t", "b", "other")  # which notices that the lease is over
        assert task is not None and nothing is None
        await teams.complete_task("t", "1", "late", agent_id="a", token=task.token)

        done = await teams.get_task("t", "1")
        assert done is not None and (done.status, done.result) == ("completed", "late")

    async def test_a_held_task_stays_with_its_agent(self) -> None:
        teams = await self.formed({"id": "1"})
        task = await teams.claim_task("t", "a", lease_s=1.5)
        assert task is not None
        async with teams.holding("t", task, lease_s=1.5):
            await self.pass_time(2_000)
            stolen = await teams.claim_task("t", "b")

        assert stolen is None
        await teams.complete_task("t", "1", agent_id="a", token=task.token)

    async def test_who_holds_a_task_is_not_told_of_heartbeats_that_failed(self) -> None:
        store, teams, _ = await self.in_trouble(OrchestrationStateManager)
        await teams.create_team(team({"id": "1"}))
        task = await teams.claim_task("t", "a")
        assert task is not None
        async with teams.holding("t", task, lease_s=0.3):
            store.is_full = True
            await self.pass_time(150)
            store.is_full = False
            await teams.complete_task("t", "1", "done", token=task.token)
            await self.pass_time(150)  # in which a heartbeat finds that it is completed

        done = await teams.get_task("t", "1")
        assert done is not None and done.result == "done"

    async def test_a_task_that_fails_too_often_is_dead_until_it_is_requeued(self) -> None:
        teams = await self.formed()
        await teams.enqueue_task("t", {"id": "1"}, max_attempts=2)
        last = 0
        for attempt in (1, 2):
            task = await teams.claim_task("t", "a", wait_s=60)
            assert task is not None and task.attempt == attempt and task.token > last
            last = task.token
            await teams.fail_task("t", "1", ValueError("no"), agent_id="a", retry_in_s=0)
        dead = (await teams.get_queue_status("t")).dead
        with pytest.raises(TransitionError):
            await teams.complete_task("t", "1", token=last)

        assert [(task.id, task.status, task.error) for task in dead] == [("1", "dead", "ValueError: no")]
        assert (await self.statuses(teams))["a"] == ("idle", None)
        await teams.requeue_task("t", "1")
        assert (await teams.assign_task("t", "1", "a")).attempt == 1

    async def test_a_released_task_counts_no_attempt(self) -> None:
        teams = await self.formed({"id": "1"})
        first = await teams.claim_task("t", "a")
        await teams.release_task("t", "1", agent_id="a")
        task = await teams.claim_task("t", "b")

        assert task is not None and first is not None
        assert task.attempt == 1
        assert task.token > first.token

    # ---- what it costs

    async def test_a_task_takes_a_read_and_a_batch_a_call_and_a_scan_to_be_found(self) -> None:
        teams, asked = await self.counted(OrchestrationStateManager)
        await teams.create_team(team())
        costs: dict[str, list[list[str]]] = {"enqueue": [], "claim": [], "assign": [], "complete": []}

        async def cost(what: str, call: Awaitable[object]) -> None:
            asked.clear()
            await call
            costs[what].append([*asked])

        for number in range(4):
            await cost("enqueue", teams.enqueue_task("t", {"id": f"{number}", "capability": "research"}))
            await cost("claim", teams.claim_task("t", "a"))
            await cost("complete", teams.complete_task("t", f"{number}", number, agent_id="a"))
            await teams.enqueue_task("t", {"id": f"given {number}"})
            await cost("assign", teams.assign_task("t", f"given {number}", "b"))
            await teams.complete_task("t", f"given {number}", agent_id="b")

        # Now and then a claim looks for tasks whose time has come, and the first ones learn what is recorded.
        assert {what: min(found, key=len) for what, found in costs.items()} == {
            "enqueue": ["read", "apply"],
            "claim": ["scan", "read", "apply"],
            "assign": ["read", "apply"],
            "complete": ["read", "apply"],
        }

    # ---- looking

    async def test_a_queue_is_counted_exactly_and_shows_the_newest(self) -> None:
        teams = await self.formed(*({"id": str(number)} for number in range(130)))
        tasks = (await teams.get_queue_status("t")).pending
        assert isinstance(tasks, TaskList)
        everything = await tasks.load()

        assert len(tasks) == len(everything) == 130 and tasks[0].id == everything[0].id
        assert [task.id for task in tasks[:100]] == [task.id for task in everything[:100]]
        if self.mode_name == "blocking":
            assert sorted(task.id for task in tasks) == sorted(str(number) for number in range(130))
            return
        for touch in (lambda: tasks[100], lambda: tasks[-1], lambda: list(tasks)):
            with pytest.raises(NotLoadedError, match=r"tasks\.load\(\)"):
                touch()

    async def test_what_others_write_shows_late_and_what_one_writes_at_once(self) -> None:
        teams = await self.formed({"id": "1"}, sync_interval=600)
        other = self.teams()
        before = len((await teams.get_queue_status("t")).pending)
        await other.enqueue_task("t", {"id": "2"})
        late = len((await teams.get_queue_status("t")).pending)
        await teams.enqueue_task("t", {"id": "3"})

        assert (before, late, len((await teams.get_queue_status("t")).pending)) == (1, 1, 3)
        assert len((await other.get_queue_status("t")).pending) == 3

    async def test_what_was_read_can_be_changed_without_harm(self) -> None:
        teams = await self.formed(sync_interval=600)
        for _ in range(2):
            found = await teams.get_team("t")
            assert found is not None and found.agents["a"].capabilities == ["research"]
            found.agents["a"].capabilities.append("flying")
            found.agents.clear()

    async def test_cleanup_leaves_a_dead_task_that_is_requeued_while_it_is_at_work(self) -> None:
        store, teams, others = await self.in_trouble(OrchestrationStateManager)
        await teams.create_team(team())
        for id in ("1", "2"):
            await teams.enqueue_task("t", {"id": id}, max_attempts=1)
            await teams.assign_task("t", id, "a")
            await teams.fail_task("t", id, "no")
        await self.pass_time(20)
        store.meanwhile = lambda: others.requeue_task("t", "1")

        assert await teams.cleanup(older_than=timedelta(0)) == 1
        queue = await teams.get_queue_status("t")
        assert [task.id for task in queue.pending] == ["1"] and not len(queue.dead)

    async def test_cleanup_removes_tasks_that_are_over(self) -> None:
        teams = await self.formed({"id": "done"}, {"id": "on"})
        await teams.assign_task("t", "done", "a")
        await teams.complete_task("t", "done")
        kept = await teams.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await teams.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 1)
        assert await teams.get_task("t", "done") is None and await teams.get_task("t", "on") is not None

    # ---- a plain model

    async def test_a_team_does_what_a_plain_model_does(self) -> None:
        for seed in range(3):
            await _Walk(self.teams(), f"team {seed}", seed).run(40)


class _Walk:
    """Random calls on a team, beside dicts that say what must come of them."""

    def __init__(self, teams: OrchestrationStateManager, id: str, seed: int) -> None:
        self.teams, self.id, self.dice = teams, id, random.Random(seed)
        self.tasks: dict[str, tuple[str, str | None, Any]] = {}
        """By id: status, holder, result."""

    async def run(self, steps: int) -> None:
        await self.teams.create_team(team(id=self.id))
        for step in range(steps):
            await self.dice.choice([self.enqueue, self.assign, self.claim, self.complete, self.release])(step)
            await self.compare()

    def some(self, *statuses: str) -> str | None:
        fit = sorted(name for name, (status, _, _) in self.tasks.items() if status in statuses)
        return self.dice.choice(fit) if fit else None

    async def enqueue(self, step: int) -> None:
        name = await self.teams.enqueue_task(self.id, {"id": f"task {step}", "n": step})
        self.tasks[name] = ("pending", None, None)

    async def assign(self, step: int) -> None:
        agent = self.dice.choice("ab")
        if (name := self.some("pending")) is not None:
            await self.teams.assign_task(self.id, name, agent)
            self.tasks[name] = ("in_progress", agent, None)

    async def claim(self, step: int) -> None:
        agent = self.dice.choice("ab")
        task = await self.teams.claim_task(self.id, agent)
        assert (task is None) is (self.some("pending") is None)
        if task is not None:
            assert self.tasks[task.id][0] == "pending"
            self.tasks[task.id] = ("in_progress", agent, None)

    async def complete(self, step: int) -> None:
        name = self.some("in_progress", "completed", "pending")
        if name is None:
            return
        status, holder, result = self.tasks[name]
        try:
            await self.teams.complete_task(self.id, name, step, agent_id=holder)
        except TransitionError:
            assert status == "pending" or result != step
            return
        assert status == "in_progress" or result == step or holder is not None
        self.tasks[name] = ("completed", holder, step)

    async def release(self, step: int) -> None:
        if (name := self.some("in_progress")) is not None:
            await self.teams.release_task(self.id, name)
            self.tasks[name] = ("pending", self.tasks[name][1], None)

    async def compare(self) -> None:
        queue = await self.teams.get_queue_status(self.id)
        shown: list[TeamTask] = [*queue.pending, *queue.in_progress, *queue.completed]
        assert {task.id: (task.status, task.result) for task in shown} == {
            name: (status, result) for name, (status, _, result) in self.tasks.items()
        }
        held = {task.id: task.agent_id for task in queue.in_progress}
        assert held == {
            name: holder for name, (status, holder, _) in self.tasks.items() if status == "in_progress"
        }
