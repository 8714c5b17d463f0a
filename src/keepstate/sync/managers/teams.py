"""Blocking twins of `keepstate.managers.teams.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Unpack

from keepstate._finish import entered, finish
from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.managers.teams import manager as managers
from keepstate.managers.teams.manager import ASSIGNED_S
from keepstate.managers.teams.records import AgentCoordinationState, TaskQueueState, TeamState, TeamTask
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options, single_use


class OrchestrationStateManager(Manager[managers.OrchestrationStateManager]):
    """Teams of agents, and their tasks: each given to one agent at a time, and completed once.

    An agent must complete or renew a task within its lease; otherwise the task becomes available again. After
    `max_attempts` failures it is dead, until it is requeued.

    Args:
        persistence: Storage of the teams; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all teams, in place of a store. Its queue then holds their
            tasks under ids that begin with `team/` and the team. Other code that claims from this queue must
            exclude them with `match`.
        sync_interval: Seconds for which reads may be cached. Writes of this manager are visible at once; 0
            turns the cache off.
        lease_s: Default lease of a task, in seconds.
    """

    def __init__(
        self, *, sync_interval: float = 0, lease_s: float = 300, **storage: Unpack[ManagerStorage]
    ) -> None:
        super().__init__(
            managers.OrchestrationStateManager(
                sync_interval=sync_interval, lease_s=lease_s, **inner_options(storage)
            )
        )

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

    def enqueue_task(
        self, team_id: str, task: Mapping[str, Any], *, delay_s: float = 0, max_attempts: int = 5
    ) -> str:
        """Add a task to a team's queue and return its id; a known id adds nothing.

        Args:
            team_id: The team.
            task: The task. Its `id` makes enqueuing idempotent, until a week after its completion. Its
                `priority` is `low`, `normal`, `high`, `critical` or an int. Its `capability` names the
                capability that an agent needs.
            delay_s: Seconds before it can be claimed.
            max_attempts: Number of failures after which it is dead.

        Raises:
            NotFoundError: The team does not exist.
        """
        return finish(self._inner.enqueue_task(team_id, task, delay_s=delay_s, max_attempts=max_attempts))

    def assign_task(
        self, team_id: str, task_id: str, agent_id: str, *, lease_s: float = ASSIGNED_S
    ) -> TeamTask:
        """Give a task to an agent, whose status becomes `working`; again to the same agent does nothing.

        Args:
            team_id: The team.
            task_id: The task; it may be delayed.
            agent_id: The agent; its capabilities are not checked.
            lease_s: Lease in seconds; by default a day.

        Raises:
            ConflictError: Another agent holds the task.
            NotFoundError: The team has no such task or agent.
            TransitionError: The task is completed or dead.
        """
        return finish(self._inner.assign_task(team_id, task_id, agent_id, lease_s=lease_s))

    def claim_task(
        self,
        team_id: str,
        agent_id: str,
        capability: str | None = None,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
    ) -> TeamTask | None:
        """Claim the best available task for an agent, and return it, or None if there is none.

        Args:
            team_id: The team.
            agent_id: The agent.
            capability: Claim only a task with this `capability`, or with this `type` if it has none. By
                default any task that needs no capability, or one that the agent has.
            lease_s: Lease in seconds.
            wait_s: Maximum seconds to wait for a task.

        Raises:
            NotFoundError: The team has no such agent.
        """
        return finish(self._inner.claim_task(team_id, agent_id, capability, lease_s=lease_s, wait_s=wait_s))

    def heartbeat_task(
        self,
        team_id: str,
        task_id: str,
        *,
        agent_id: str | None = None,
        token: int | None = None,
        lease_s: float | None = None,
    ) -> None:
        """Extend the lease of a task to `lease_s` seconds from now.

        Raises:
            LeaseLostError: The task is not held any more, or not by this agent or under this token.
            NotFoundError: The task does not exist.
        """
        finish(self._inner.heartbeat_task(team_id, task_id, agent_id=agent_id, token=token, lease_s=lease_s))

    @single_use
    def holding(self, team_id: str, task: TeamTask, *, lease_s: float | None = None) -> Generator[TeamTask]:
        """Renew the lease of a task in the background until the block ends, three times per lease.

        If the task is lost, the heartbeats end, and later calls of its holder are rejected.
        """
        with entered(self._inner.holding(team_id, task, lease_s=lease_s)) as inner:
            yield inner

    def complete_task(
        self,
        team_id: str,
        task_id: str,
        result: object = None,
        *,
        agent_id: str | None = None,
        token: int | None = None,
    ) -> None:
        """Complete a task, and set its agent to idle. Again with an equal result does nothing.

        A completion after the end of the lease is accepted, unless the task was given to another agent.

        Args:
            team_id: The team.
            task_id: The task.
            result: Result of the task.
            agent_id: Complete only if this agent holds it; this saves a round trip. Without this and `token`,
                the current holder's claim is used.
            token: Complete only if it is held under this token.

        Raises:
            LeaseLostError: The task is not held by this agent or under this token; nothing was changed.
            NotFoundError: The task does not exist.
            TransitionError: The task was never claimed, is dead, or is completed with another result.
        """
        finish(self._inner.complete_task(team_id, task_id, result, agent_id=agent_id, token=token))

    def fail_task(
        self,
        team_id: str,
        task_id: str,
        error: object,
        *,
        agent_id: str | None = None,
        token: int | None = None,
        retry_in_s: float | None = None,
    ) -> None:
        """Give a task back as failed, and set its agent to idle. It is then delayed, or dead.

        Args:
            team_id: The team.
            task_id: The task.
            error: The error; stored as text.
            agent_id: Fail only if this agent holds it.
            token: Fail only if it is held under this token.
            retry_in_s: Seconds until it can be claimed again; by default about 1 s, 2 s, 4 s … 5 minutes.

        Raises:
            LeaseLostError: The task is not held by this agent or under this token.
            NotFoundError: The task does not exist.
            TransitionError: The task is not held.
        """
        finish(
            self._inner.fail_task(
                team_id, task_id, error, agent_id=agent_id, token=token, retry_in_s=retry_in_s
            )
        )

    def release_task(
        self, team_id: str, task_id: str, *, agent_id: str | None = None, token: int | None = None
    ) -> None:
        """Give a task back unused, and set its agent to idle; raises as `fail_task`."""
        finish(self._inner.release_task(team_id, task_id, agent_id=agent_id, token=token))

    def requeue_task(self, team_id: str, task_id: str) -> None:
        """Make a dead task available again, with all its attempts.

        Raises:
            NotFoundError: There is no dead task with this id.
        """
        finish(self._inner.requeue_task(team_id, task_id))

    def get_task(self, team_id: str, task_id: str) -> TeamTask | None:
        """Return a task, or None if it does not exist or was completed more than a week ago."""
        return finish(self._inner.get_task(team_id, task_id))

    def get_queue_status(self, team_id: str) -> TaskQueueState:
        """Return the tasks of a team: all counted at one moment, the newest 100 of each kind loaded.

        Reads the index of all tasks, in pages of 1,024.

        Raises:
            NotFoundError: The team does not exist.
        """
        return finish(self._inner.get_queue_status(team_id))
