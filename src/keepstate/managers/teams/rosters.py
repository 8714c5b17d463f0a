"""Teams and their agents: creation, removal, and the status of each agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, TypeVar

from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.managers.binding import Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.recent import ReadCache
from keepstate.managers.records import check_record
from keepstate.managers.teams import tasks as team_tasks
from keepstate.managers.teams.agents import agent_name, find_agent, put_agent, read_agents, require_team
from keepstate.managers.teams.creation import TeamCreation
from keepstate.managers.teams.records import IDLE, AgentCoordinationState, TeamState

T = TypeVar("T")


class TeamRosters(Manager):
    """The teams and their agents."""

    _kind: ClassVar[str] = "team"
    _cache: ReadCache

    # ---- teams

    async def create_team(self, team_state: TeamState) -> None:
        """Create a team with its agents, and enqueue the `pending` tasks of its queue.

        The team, its agents and about 300 tasks are created in one batch. More tasks are stored before it,
        and cannot be claimed before the team exists. If creation fails in between, creating the same team
        again continues it.

        Raises:
            AlreadyExistsError: The team exists, or is being created with other tasks; nothing was changed.
            InvalidError: Its queue has tasks that are not pending. Or it has more than 900 agents; add the
                others with `add_agent`.
        """
        creation = TeamCreation(team_state)
        while not await self._change(team_state.team_id, creation.step, "create the team"):
            pass

    async def delete_team(self, team_id: str) -> bool:
        """Remove a team with its agents and all its tasks, and return whether there was any data.

        Agents that hold its tasks lose them.
        """
        team = self._namespace(team_id)
        try:
            existed = await self._forget(team)
            # A shared space also shares its queue. Without the team no tasks are added.
            removed = 0 if team.has_own_space else await team_tasks.remove_all(team)
        finally:
            self._cache.invalidate(team_id)
        return existed or removed > 0

    async def get_team(self, team_id: str, *, tasks: bool = True) -> TeamState | None:
        """Return a team with its agents and tasks, or None if it does not exist.

        Args:
            team_id: The team.
            tasks: Whether to count and read its tasks, which costs as much as `get_queue_status`.
        """
        check_flag("tasks", tasks)
        team = self._namespace(team_id)

        async def read() -> TeamState | None:
            kept: TeamState | None = await team.space.documents.get(team.name("team"))
            if kept is None:
                return None
            found = replace(kept, agents={each.agent_id: each for each in await read_agents(team)})
            if not tasks:
                return found
            return replace(found, task_queue=await team_tasks.read_queue(team, self._runner.mode))

        return await self._cache.get(team_id, "team" if tasks else "team alone", read)

    async def list_teams(self) -> list[str]:
        """Return the ids of all teams."""
        return await self._ids()

    # ---- agents

    async def add_agent(self, team_id: str, agent: AgentCoordinationState) -> None:
        """Add an agent to a team, or replace the agent with this id, whose tasks stay.

        Raises:
            NotFoundError: The team does not exist.
        """
        check_record("agent", agent, AgentCoordinationState)

        async def work(team: Namespace) -> None:
            await require_team(team)
            known = await team.space.documents.get(agent_name(team, agent.agent_id))
            await put_agent(team, agent if known is None else replace(agent, tasks=known.tasks))

        await self._change(team_id, work, f"add agent {agent.agent_id}")

    async def remove_agent(self, team_id: str, agent_id: str) -> bool:
        """Remove an agent from a team, and return whether it existed. Its tasks stay claimed."""

        async def work(team: Namespace) -> bool:
            return await team.space.documents.delete(agent_name(team, agent_id))

        return await self._change(team_id, work, f"remove agent {agent_id}")

    async def update_agent_status(
        self, team_id: str, agent_id: str, status: str, current_task: str | Missing | None = MISSING
    ) -> AgentCoordinationState:
        """Set the status of an agent, and return the agent.

        Args:
            team_id: The team.
            agent_id: The agent.
            status: Any text; an agent that is `idle` can be given a task.
            current_task: The task it works on; None for none. By default it is unchanged, or None for an idle
                agent.

        Raises:
            NotFoundError: The team has no such agent.
        """
        check_text("status", status)

        async def work(team: Namespace) -> AgentCoordinationState:
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
        """Return the idle agents of a team, ordered by id; with `capability`, only agents that have it.

        An agent that has lost all its tasks, because their leases ended, is idle too.

        Raises:
            NotFoundError: The team does not exist.
        """
        team = self._namespace(team_id)
        agents = await self._cache.get(team_id, "agents", lambda: read_agents(team))
        if not agents:
            await require_team(team)
        return [
            agent
            for agent in agents
            if agent.status == IDLE and (capability is None or capability in agent.capabilities)
        ]

    async def _change(self, team_id: str, work: Callable[[Namespace], Awaitable[T]], message: str = "") -> T:
        team = self._namespace(team_id)
        try:
            return await self._run_together(team, work, message=message)
        finally:
            self._cache.invalidate(team_id)
