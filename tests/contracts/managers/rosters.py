"""Do teams come about whole, and stand their agents as they should, on every backend?"""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError
from keepstate.managers.manager import namespace_of, run_together
from keepstate.managers.teams.creation import TeamCreation
from keepstate.managers.teams.manager import OrchestrationStateManager
from keepstate.managers.teams.records import AgentCoordinationState, TaskList, TaskQueueState, TeamState
from tests.contracts.managers.agents import AWKWARD_IDS
from tests.contracts.managers.stage import ManagerStage


def team(*pending: dict[str, Any], id: str = "t", **agents: list[str]) -> TeamState:
    """Return a team of agents with capabilities, `a` and `b` if none are named."""
    able = agents or {"a": ["research"], "b": ["writing"]}
    members = {name: AgentCoordinationState(agent_id=name, capabilities=what) for name, what in able.items()}
    return TeamState(id, members, TaskQueueState(pending=list(pending)))


class RosterContract(ManagerStage):
    """What an `OrchestrationStateManager` does for teams and their agents."""

    def teams(self, **options: Any) -> OrchestrationStateManager:
        return self.made(OrchestrationStateManager, **options)

    async def formed(self, *pending: dict[str, Any], **options: Any) -> OrchestrationStateManager:
        teams = self.teams(**options)
        await teams.create_team(team(*pending))
        return teams

    async def statuses(self, teams: OrchestrationStateManager) -> dict[str, tuple[str, str | None]]:
        found = await teams.get_team("t", tasks=False)
        assert found is not None
        return {agent.agent_id: (agent.status, agent.current_task) for agent in found.agents.values()}

    # ---- teams

    async def test_a_team_comes_back_as_it_was_created(self) -> None:
        teams = await self.formed({"id": "1", "data": {"n": ...}}, {"id": "2"})
        found = await self.teams().get_team("t")

        assert found is not None and found.agents == team().agents
        assert sorted(task.id for task in found.task_queue.pending) == ["1", "2"]
        assert len(found.task_queue.in_progress) == len(found.task_queue.completed) == 0
        assert await teams.list_teams() == ["t"]

    async def test_an_agent_s_tasks_and_abilities_are_texts(self) -> None:
        teams = await self.formed()
        for name in ("tasks", "capabilities"):
            wrong: Any = {name: ["x", 1]}
            with pytest.raises(InvalidError, match=rf"`{name}\[1\]` is 1. Pass a str"):
                await teams.add_agent("t", AgentCoordinationState("c", **wrong))
            with pytest.raises(InvalidError, match=rf"`{name}\[1\]`"):
                await teams.create_team(
                    TeamState("other", agents={"c": AgentCoordinationState("c", **wrong)})
                )

        assert await teams.get_team("other") is None

    async def test_an_agent_that_was_stored_with_tasks_that_are_no_texts_is_read_and_works(self) -> None:
        teams = await self.formed({"id": "x"})
        folder = teams._namespace("t")  # pyright: ignore[reportPrivateUsage]
        wrong: Any = [1]
        await folder.space.documents.put(folder.name("agent", "a"), AgentCoordinationState("a", tasks=wrong))

        assert await self.statuses(self.teams()) == {"a": ("idle", None), "b": ("idle", None)}
        assert await teams.claim_task("t", "a") is not None
        found = await teams.get_team("t", tasks=False)
        assert found is not None and found.agents["a"].tasks == ["x"]

    async def test_a_team_is_read_without_its_tasks_where_none_are_wanted(self) -> None:
        teams = await self.formed({"id": "1"}, sync_interval=60)
        alone, whole = await teams.get_team("t", tasks=False), await teams.get_team("t")

        assert alone is not None and whole is not None and alone.agents == whole.agents == team().agents
        assert len(alone.task_queue.pending) == 0 and len(whole.task_queue.pending) == 1

    async def test_a_team_is_created_once_and_begins_with_pending_tasks_only(self) -> None:
        teams = await self.formed({"id": "1"})

        with pytest.raises(AlreadyExistsError):
            await teams.create_team(team({"id": "2"}))
        with pytest.raises(InvalidError, match="in_progress"):
            await teams.create_team(TeamState("u", task_queue=TaskQueueState(in_progress=[{"id": "1"}])))
        with pytest.raises(InvalidError, match="own id as the key"):
            await teams.create_team(TeamState("u", {"a": AgentCoordinationState("b")}))
        assert len((await teams.get_queue_status("t")).pending) == 1
        assert await teams.get_team("u") is None

    async def test_all_tasks_of_a_large_team_are_enqueued(self) -> None:
        teams = self.teams()
        await teams.create_team(team(*({"n": number} for number in range(420))))

        queue = await teams.get_queue_status("t")
        assert len(queue.pending) == 420 and len({task.id for task in queue.pending[:100]}) == 100

    async def test_a_team_of_more_agents_than_come_about_at_once_leaves_nothing(self) -> None:
        teams = self.teams()
        agents = {f"a{number}": AgentCoordinationState(f"a{number}") for number in range(901)}
        large = TeamState("t", agents, TaskQueueState(pending=[{"id": "1"}]))

        with pytest.raises(InvalidError, match="901 agents"):
            await teams.create_team(large)
        assert await teams.get_task("t", "1") is None
        del agents["a0"]
        await teams.create_team(large)
        assert len(await teams.get_available_agents("t")) == 900

    async def test_of_several_who_create_one_team_one_wins_and_nothing_of_another_is_in_it(self) -> None:
        makers = [self.teams() for _ in range(3)]
        tasks = [[{"id": f"{number} {each}"} for each in range(330)] for number in range(3)]

        async def create(number: int) -> bool:
            try:
                await makers[number].create_team(team(*tasks[number]))
            except AlreadyExistsError:
                return False
            return True

        won = await self.together(*(create(number) for number in range(3)))

        assert sum(won) == 1
        pending = (await makers[0].get_queue_status("t")).pending
        assert isinstance(pending, TaskList)
        found = await pending.load()
        assert {task.id for task in found} == {task["id"] for task in tasks[won.index(True)]}

    async def test_a_team_whose_creation_broke_off_is_not_there_until_it_is_created_again(self) -> None:
        teams = self.teams()
        whole, other = (team(*({"id": f"{name} {n}"} for n in range(420))) for name in ("one", "other"))
        await self.broken_off(teams, whole)

        assert await teams.get_team("t") is None
        with pytest.raises(NotFoundError):
            await teams.claim_task("t", "a")
        with pytest.raises(AlreadyExistsError, match="being created with other tasks"):
            await teams.create_team(other)
        await teams.create_team(whole)
        first = await teams.claim_task("t", "a")
        assert first is not None and first.id == "one 0"
        assert len((await teams.get_queue_status("t")).pending) == 419

    async def test_another_team_is_created_in_place_of_one_that_broke_off_once_that_is_deleted(self) -> None:
        teams = self.teams()
        await self.broken_off(teams, team(*({"id": f"one {n}"} for n in range(420))))
        assert await teams.delete_team("t")
        await teams.create_team(team({"id": "1"}))

        assert [task.id for task in (await teams.get_queue_status("t")).pending] == ["1"]

    async def broken_off(self, teams: OrchestrationStateManager, state: TeamState) -> None:
        """Create a team until its first batch has applied."""
        folder = namespace_of(teams, state.team_id)
        assert not await run_together(teams, folder, TeamCreation(state).step)

    async def test_a_team_is_deleted_with_its_tasks_wherever_they_stand(self) -> None:
        teams = await self.formed(*({"id": id} for id in ("held", "done", "dead", "ready")))
        await teams.enqueue_task("t", {"id": "later"}, delay_s=1000)
        await teams.create_team(team({"id": "ready"}, id="t2"))
        held = await teams.assign_task("t", "held", "a")
        for id in ("done", "dead"):
            await teams.assign_task("t", id, "b")
        await teams.complete_task("t", "done", 1)
        for _ in range(5):
            await teams.fail_task("t", "dead", "no")
            # it is there
            if (await teams.get_task("t", "dead")).status != "dead":  # type: ignore[union-attr]
                await teams.assign_task("t", "dead", "b")
        deleted = [await teams.delete_team("t") for _ in range(2)]

        assert deleted == [True, False] and await teams.get_team("t") is None
        for id in ("held", "done", "dead", "ready", "later"):
            assert await teams.get_task("t", id) is None
        with pytest.raises(NotFoundError):
            await teams.complete_task("t", "held", token=held.token)
        await teams.create_team(team({"id": "ready"}))
        assert len((await teams.get_queue_status("t")).pending) == 1
        assert [task.id for task in (await teams.get_queue_status("t2")).pending] == ["ready"]

    async def test_no_team_touches_another(self) -> None:
        teams = self.teams()
        for id in AWKWARD_IDS:
            await teams.create_team(team({"id": f"only {len(id)}"}, id=id))
        task = await teams.claim_task("1", "a")
        assert task is not None
        await teams.complete_task("1", task.id, "done", agent_id="a")

        assert sorted(await teams.list_teams()) == sorted(AWKWARD_IDS)
        for id in AWKWARD_IDS[1:]:
            queue = await teams.get_queue_status(id)
            assert [task.id for task in queue.pending] == [f"only {len(id)}"] and not len(queue.completed)

    async def test_what_is_absent_cannot_be_changed(self) -> None:
        teams = self.teams()
        assert await teams.get_team("t") is None and await teams.get_task("t", "1") is None
        for change in (
            teams.get_queue_status("t"),
            teams.get_available_agents("t"),
            teams.enqueue_task("t", {"id": "1"}),
            teams.update_agent_status("t", "a", "idle"),
            teams.claim_task("t", "a"),
            teams.complete_task("t", "1"),
            teams.add_agent("t", AgentCoordinationState("a")),
        ):
            with pytest.raises(NotFoundError):
                await change
        await teams.create_team(team({"id": "1"}))
        for change in (
            teams.update_agent_status("t", "c", "idle"),
            teams.assign_task("t", "1", "c"),
            teams.assign_task("t", "2", "a"),
            teams.requeue_task("t", "1"),
        ):
            with pytest.raises(NotFoundError, match=r"team 't' has no |task '1' of team 't' is not dead"):
                await change

    async def test_names_that_cannot_be_are_refused_by_what_they_are(self) -> None:
        teams = await self.formed()
        most = 200 - (len("team/t/") if self.in_passed_space else 0)
        longest = "🦜/:" * 30 + "x" * (most - 180)
        await teams.enqueue_task("t", {"id": longest})
        for wrong, told in (("", "empty"), (longest + "x", f"at most {most} bytes")):
            for call in (
                teams.enqueue_task("t", {"id": wrong}),
                teams.get_task("t", wrong),
                teams.complete_task("t", wrong),
                teams.assign_task("t", wrong, "a"),
            ):
                with pytest.raises(InvalidError, match=f"`task_id`.*{told}"):
                    await call

        assert [task.id for task in (await teams.get_queue_status("t")).pending] == [longest]
        with pytest.raises(InvalidError, match="`agent_id` is empty"):
            await teams.add_agent("t", AgentCoordinationState(""))

    # ---- agents

    async def test_a_status_is_any_text_and_the_task_can_be_cleared(self) -> None:
        teams = await self.formed()
        seen = [
            await teams.update_agent_status("t", "a", "working", "x"),
            await teams.update_agent_status("t", "a", "waiting for a human"),
            await teams.update_agent_status("t", "a", "waiting", current_task=None),
            await teams.update_agent_status("t", "a", "idle", "kept"),
            await teams.update_agent_status("t", "a", "idle"),
        ]

        assert [agent.current_task for agent in seen] == ["x", "x", None, "kept", None]
        assert (await self.statuses(teams))["a"] == ("idle", None)

    async def test_idle_agents_are_found_by_what_they_can_do(self) -> None:
        teams = await self.formed()
        await teams.add_agent("t", AgentCoordinationState("c", capabilities=["research", "writing"]))
        await teams.update_agent_status("t", "a", "working")

        available = await teams.get_available_agents(team_id="t", capability="research")
        assert [agent.agent_id for agent in available] == ["c"]
        assert [agent.agent_id for agent in await teams.get_available_agents("t")] == ["b", "c"]
        assert await teams.remove_agent("t", "c") and not await teams.remove_agent("t", "c")

    async def test_who_has_lost_its_only_task_can_be_given_another(self) -> None:
        teams = await self.formed({"id": "1"}, {"id": "2"}, lease_s=0.03)
        await teams.claim_task("t", "a")
        await self.pass_time(40)

        assert [agent.agent_id for agent in await teams.get_available_agents("t")] == ["a", "b"]
        assert await self.statuses(teams) == {"a": ("idle", None), "b": ("idle", None)}
        assert (await teams.assign_task("t", "2", "a")).agent_id == "a"
        assert await self.statuses(teams) == {"a": ("working", "2"), "b": ("idle", None)}

    async def test_whose_task_died_with_its_lease_can_be_given_another(self) -> None:
        teams = await self.formed()
        await teams.enqueue_task("t", {"id": "1"}, max_attempts=1)
        await teams.claim_task("t", "a", lease_s=0.03)
        await self.pass_time(40)
        nothing = await teams.claim_task("t", "b")  # which notices that the lease is over
        task = await teams.get_task("t", "1")

        assert nothing is None and task is not None and task.status == "dead"
        assert [agent.agent_id for agent in await teams.get_available_agents("t")] == ["a", "b"]

    async def test_an_agent_with_two_tasks_goes_on_with_the_other(self) -> None:
        teams = await self.formed({"id": "1"}, {"id": "2"}, {"id": "3"})
        seen: list[tuple[str, str | None]] = []
        for id in ("1", "2", "3"):
            await teams.assign_task("t", id, "a")
        for end in (
            teams.complete_task("t", "3"),
            teams.complete_task("t", "1", agent_id="a"),
            teams.release_task("t", "2"),
        ):
            await end
            seen.append((await self.statuses(teams))["a"])

        assert seen == [("working", "2"), ("working", "2"), ("idle", None)]

    async def test_who_completes_one_task_and_has_lost_the_other_is_idle(self) -> None:
        teams = await self.formed({"id": "long"}, {"id": "short"})
        await teams.claim_task("t", "a", lease_s=600)
        await teams.claim_task("t", "a", lease_s=0.03)
        await self.pass_time(40)
        await teams.complete_task("t", "long", agent_id="a")

        assert (await self.statuses(teams))["a"] == ("idle", None)
        assert [agent.agent_id for agent in await teams.get_available_agents("t")] == ["a", "b"]

    async def test_what_the_application_says_of_an_agent_no_lease_changes(self) -> None:
        teams = await self.formed({"id": "1"}, lease_s=0.03)
        await teams.claim_task("t", "a")
        await teams.update_agent_status("t", "a", "waiting for a human")
        await teams.update_agent_status("t", "b", "working", "1")
        await self.pass_time(40)

        assert await self.statuses(teams) == {"a": ("waiting for a human", "1"), "b": ("working", "1")}
        assert await teams.get_available_agents("t") == []

    async def test_an_agent_that_is_added_anew_keeps_what_it_holds(self) -> None:
        teams = await self.formed({"id": "1"}, {"id": "2"})
        for id in ("1", "2"):
            await teams.assign_task("t", id, "a")
        await teams.add_agent("t", AgentCoordinationState("a", "working", ["flying"], "2"))
        await teams.complete_task("t", "2")

        assert (await self.statuses(teams))["a"] == ("working", "1")
