"""Teams and who is in them: how they come about and go, and what each agent is doing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, TypeVar

from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.managers.binding import Folder
from keepstate.managers.manager import Manager
from keepstate.managers.recent import Recent
from keepstate.managers.records import admit_record
from keepstate.managers.teams import tasks as team_tasks
from keepstate.managers.teams.agents import agents_of, find_agent, need_team, place_of_agent, put_agent
from keepstate.managers.teams.creation import Founding
from keepstate.managers.teams.records import IDLE, AgentCoordinationState, TeamState

T = TypeVar("T")


class TeamRosters(Manager):
    """The teams and their agents."""

    _kind: ClassVar[str] = "team"
    _recent: Recent

    # ---- teams

    async def create_team(self, team_state: TeamState) -> None:
        """Create a team with its agents, and enqueues the tasks that are `pending` in its queue.

        The team, its agents and about 300 tasks come in one batch. More tasks go ahead of it, and nobody can
        have them before the team is there; if that fails in between, creating the same team again goes on.

        Raises:
            AlreadyExistsError: There is such a team, or it is being created with other tasks; nothing of it
                was changed.
            InvalidError: Its queue has tasks that are in progress or over: those come about by doing. Or it
                begins with more than 900 agents: add_agent adds the others.
        """
        founding = Founding(team_state)
        while not await self._change(team_state.team_id, founding.step, "create the team"):
            pass

    async def delete_team(self, team_id: str) -> bool:
        """Remove a team with its agents and all its tasks, and return whether there was something.

        Who holds one of its tasks has lost it.
        """
        team = self._folder(team_id)
        try:
            existed = await self._forget(team)
            # Of a space that is shared the queue is, too. Without the team nobody adds to it.
            removed = 0 if team.has_own_space else await team_tasks.remove_all(team)
        finally:
            self._recent.forget(team_id)
        return existed or removed > 0

    async def get_team(self, team_id: str, *, tasks: bool = True) -> TeamState | None:
        """Return a team with its agents and tasks, or None if there is none.

        Args:
            team_id: Which team.
            tasks: Counts and shows its tasks, which costs what `get_queue_status` costs; else there are none.
        """
        check_flag("tasks", tasks)
        team = self._folder(team_id)

        async def read() -> TeamState | None:
            kept: TeamState | None = await team.space.documents.get(team.name("team"))
            if kept is None:
                return None
            found = replace(kept, agents={each.agent_id: each for each in await agents_of(team)})
            if not tasks:
                return found
            return replace(found, task_queue=await team_tasks.queue_of(team, self._runner.mode))

        return await self._recent.get(team_id, "team" if tasks else "team alone", read)

    async def list_teams(self) -> list[str]:
        """Return the ids of all teams."""
        return await self._ids()

    # ---- agents

    async def add_agent(self, team_id: str, agent: AgentCoordinationState) -> None:
        """Add an agent to a team, or replaces the one of this id, which keeps what it holds.

        Raises:
            NotFoundError: There is no such team.
        """
        admit_record("agent", agent, AgentCoordinationState)

        async def work(team: Folder) -> None:
            await need_team(team)
            known = await team.space.documents.get(place_of_agent(team, agent.agent_id))
            await put_agent(team, agent if known is None else replace(agent, tasks=known.tasks))

        await self._change(team_id, work, f"add agent {agent.agent_id}")

    async def remove_agent(self, team_id: str, agent_id: str) -> bool:
        """Remove an agent from a team, and return whether it was there; it keeps what it holds."""

        async def work(team: Folder) -> bool:
            return await team.space.documents.delete(place_of_agent(team, agent_id))

        return await self._change(team_id, work, f"remove agent {agent_id}")

    async def update_agent_status(
        self, team_id: str, agent_id: str, status: str, current_task: str | Missing | None = MISSING
    ) -> AgentCoordinationState:
        """Say what an agent does, and return its new state.

        Args:
            team_id: Which team.
            agent_id: Which agent.
            status: Any text; `idle` is who can be given a task.
            current_task: What it works on; None for nothing. Not given, it stays, and an idle agent has none.

        Raises:
            NotFoundError: The team has no such agent.
        """
        check_text("status", status)

        async def work(team: Folder) -> AgentCoordinationState:
            agent = await find_agent(team, agent_id)
            task = current_task
            if isinstance(task, Missing):
                task = None if status == IDLE else agent.current_task
            agent = replace(agent, status=status, current_task=task)
            await put_agent(team, agent)
            return agent

        return await self._change(team_id, work, f"{agent_id} is {status}")

    async def get_available_agents(
        self, team_id: str, capability: str | None = None
    ) -> list[AgentCoordinationState]:
        """Return the idle agents of a team, by id; only those who can do something, if it is named.

        Idle is also who was given tasks and has lost them all, because their leases ran out.

        Raises:
            NotFoundError: There is no such team.
        """
        team = self._folder(team_id)
        agents = await self._recent.get(team_id, "agents", lambda: agents_of(team))
        if not agents:
            await need_team(team)
        return [
            agent
            for agent in agents
            if agent.status == IDLE and (capability is None or capability in agent.capabilities)
        ]

    async def _change(self, team_id: str, work: Callable[[Folder], Awaitable[T]], message: str = "") -> T:
        team = self._folder(team_id)
        try:
            return await self._together(team, work, message=message)
        finally:
            self._recent.forget(team_id)
