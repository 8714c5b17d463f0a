"""Blocking twins of `keepstate.managers.teams.rosters`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.managers.teams import rosters as managers
from keepstate.managers.teams.records import AgentCoordinationState, TeamState
from keepstate.sync.managers.manager import Manager

Inner = TypeVar("Inner", bound=managers.TeamRosters)


class TeamRosters(Manager[Inner]):
    """The teams and their agents."""

    def create_team(self, team_state: TeamState) -> None:
        """Create a team with its agents, and enqueues the tasks that are `pending` in its queue.

        The team, its agents and about 300 tasks come in one batch. More tasks go ahead of it, and nobody can
        have them before the team is there; if that fails in between, creating the same team again goes on.

        Raises:
            AlreadyExistsError: There is such a team, or it is being created with other tasks; nothing of it
                was changed.
            InvalidError: Its queue has tasks that are in progress or over: those come about by doing. Or it
                begins with more than 900 agents: add_agent adds the others.
        """
        finish(self._inner.create_team(team_state))

    def delete_team(self, team_id: str) -> bool:
        """Remove a team with its agents and all its tasks, and return whether there was something.

        Who holds one of its tasks has lost it.
        """
        return finish(self._inner.delete_team(team_id))

    def get_team(self, team_id: str, *, tasks: bool = True) -> TeamState | None:
        """Return a team with its agents and tasks, or None if there is none.

        Args:
            team_id: Which team.
            tasks: Counts and shows its tasks, which costs what `get_queue_status` costs; else there are none.
        """
        return finish(self._inner.get_team(team_id, tasks=tasks))

    def list_teams(self) -> list[str]:
        """Return the ids of all teams."""
        return finish(self._inner.list_teams())

    def add_agent(self, team_id: str, agent: AgentCoordinationState) -> None:
        """Add an agent to a team, or replaces the one of this id, which keeps what it holds.

        Raises:
            NotFoundError: There is no such team.
        """
        finish(self._inner.add_agent(team_id, agent))

    def remove_agent(self, team_id: str, agent_id: str) -> bool:
        """Remove an agent from a team, and return whether it was there; it keeps what it holds."""
        return finish(self._inner.remove_agent(team_id, agent_id))

    def update_agent_status(
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
        return finish(self._inner.update_agent_status(team_id, agent_id, status, current_task))

    def get_available_agents(
        self, team_id: str, capability: str | None = None
    ) -> list[AgentCoordinationState]:
        """Return the idle agents of a team, by id; only those who can do something, if it is named.

        Idle is also who was given tasks and has lost them all, because their leases ran out.

        Raises:
            NotFoundError: There is no such team.
        """
        return finish(self._inner.get_available_agents(team_id, capability))
