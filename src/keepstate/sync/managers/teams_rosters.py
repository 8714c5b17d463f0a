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
        """Create a team with its agents, and enqueue the `pending` tasks of its queue.

        The team, its agents and about 300 tasks are created in one batch. More tasks are stored before it,
        and cannot be claimed before the team exists. If creation fails in between, creating the same team
        again continues it.

        Raises:
            AlreadyExistsError: The team exists, or is being created with other tasks; nothing was changed.
            InvalidError: Its queue has tasks that are not pending. Or it has more than 900 agents; add the
                others with `add_agent`.
        """
        finish(self._inner.create_team(team_state))

    def delete_team(self, team_id: str) -> bool:
        """Remove a team with its agents and all its tasks, and return whether there was any data.

        Agents that hold its tasks lose them.
        """
        return finish(self._inner.delete_team(team_id))

    def get_team(self, team_id: str, *, tasks: bool = True) -> TeamState | None:
        """Return a team with its agents and tasks, or None if it does not exist.

        Args:
            team_id: The team.
            tasks: Whether to count and read its tasks, which costs as much as `get_queue_status`.
        """
        return finish(self._inner.get_team(team_id, tasks=tasks))

    def list_teams(self) -> list[str]:
        """Return the ids of all teams."""
        return finish(self._inner.list_teams())

    def add_agent(self, team_id: str, agent: AgentCoordinationState) -> None:
        """Add an agent to a team, or replace the agent with this id, whose tasks stay.

        Raises:
            NotFoundError: The team does not exist.
        """
        finish(self._inner.add_agent(team_id, agent))

    def remove_agent(self, team_id: str, agent_id: str) -> bool:
        """Remove an agent from a team, and return whether it existed. Its tasks stay claimed."""
        return finish(self._inner.remove_agent(team_id, agent_id))

    def update_agent_status(
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
        return finish(self._inner.update_agent_status(team_id, agent_id, status, current_task))

    def get_available_agents(
        self, team_id: str, capability: str | None = None
    ) -> list[AgentCoordinationState]:
        """Return the idle agents of a team, ordered by id; with `capability`, only agents that have it.

        An agent that has lost all its tasks, because their leases ended, is idle too.

        Raises:
            NotFoundError: The team does not exist.
        """
        return finish(self._inner.get_available_agents(team_id, capability))
