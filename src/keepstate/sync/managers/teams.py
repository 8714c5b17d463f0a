"""Blocking twins of `keepstate.managers.teams.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from os import PathLike
from typing import Any

from keepstate._finish import entered, finish
from keepstate.managers.backends import Backend
from keepstate.managers.teams import manager as managers
from keepstate.managers.teams.manager import ASSIGNED_S
from keepstate.managers.teams.records import TaskQueueState, TeamTask
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.teams_rosters import TeamRosters
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of, single_use


class OrchestrationStateManager(TeamRosters[managers.OrchestrationStateManager]):
    """Teams of agents, and their tasks: each handed to one agent at a time, and completed once.

    A task that an agent holds must be completed or held on to within its lease; then it is to be done again.
    After `max_attempts` failures it is dead, until it is requeued.

    Args:
        persistence: Where to keep teams; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep them in. Its queue then holds their tasks, under ids
            that begin with `team/` and the team; who claims from it himself says by `match` what is his.
        sync_interval: For how many seconds what was read may be shown again. What this manager writes itself
            is seen at once; 0 reads always anew.
        lease_s: For how many seconds an agent holds a task, if it is not said otherwise.
    """

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        sync_interval: float = 0,
        lease_s: float = 300,
    ) -> None:
        super().__init__(
            managers.OrchestrationStateManager(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                sync_interval=sync_interval,
                lease_s=lease_s,
                _mode="blocking",
            )
        )

    def enqueue_task(
        self, team_id: str, task: Mapping[str, Any], *, delay_s: float = 0, max_attempts: int = 5
    ) -> str:
        """Add a task to a team's queue and return its id; a known id adds nothing.

        Args:
            team_id: Which team.
            task: What it is about. Its `id` names it, so that it is enqueued once, until a week after it was
                completed; its `priority` is `low`, `normal`, `high`, `critical` or an int; its `capability`
                says what an agent must be able to do.
            delay_s: It is to be done only after so many seconds.
            max_attempts: After so many failures it is dead.

        Raises:
            NotFoundError: There is no such team.
        """
        return finish(self._inner.enqueue_task(team_id, task, delay_s=delay_s, max_attempts=max_attempts))

    def assign_task(
        self, team_id: str, task_id: str, agent_id: str, *, lease_s: float = ASSIGNED_S
    ) -> TeamTask:
        """Give a task to an agent, who then is `working` on it; again to the same agent does nothing.

        Args:
            team_id: Which team.
            task_id: Which task; also one that is delayed.
            agent_id: Which agent, whatever it can do.
            lease_s: For how many seconds; a day, if it is not said.

        Raises:
            ConflictError: Another agent holds the task.
            NotFoundError: The team has no such task, or no such agent.
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
        """Give an agent the best task that it may have, and return it; None if there is none.

        Args:
            team_id: Which team.
            agent_id: Which agent.
            capability: Only a task that asks for this: in its `capability`, or in its `type` if it has none.
                Without it any that asks for nothing, or for something that the agent can do.
            lease_s: For how many seconds.
            wait_s: How long to wait for one, in seconds.

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
        """Hold a task for `lease_s` seconds from now on.

        Raises:
            LeaseLostError: It is no longer held, or not by this agent or under this token.
            NotFoundError: There is no such task.
        """
        finish(self._inner.heartbeat_task(team_id, task_id, agent_id=agent_id, token=token, lease_s=lease_s))

    @single_use
    def holding(self, team_id: str, task: TeamTask, *, lease_s: float | None = None) -> Generator[TeamTask]:
        """Hold on to a task beside the caller until the block ends, with three heartbeats a lease.

        When the task is lost meanwhile the heartbeats end, and what the holder says of it then is refused.
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
        """Complete a task, and let its agent be idle. Again with an equal result does nothing.

        It may come after its lease ran out, unless another was given the task.

        Args:
            team_id: Which team.
            task_id: Which task.
            result: What came of it.
            agent_id: Only if this agent holds it; it saves a round trip. With neither this nor `token`,
                whoever does.
            token: Only if it is held under this token.

        Raises:
            LeaseLostError: It is not held by this agent or under this token; nothing was changed.
            NotFoundError: There is no such task.
            TransitionError: Nobody was given it, it is dead, or it is completed with another result.
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
        """Give a task back as failed, and let its agent be idle: it is delayed, or dead after its attempts.

        Args:
            team_id: Which team.
            task_id: Which task.
            error: What went wrong; kept as text.
            agent_id: Only if this agent holds it.
            token: Only if it is held under this token.
            retry_in_s: When it can be done again, in seconds; without it after 1 s, 2 s, 4 s … 5 minutes.

        Raises:
            LeaseLostError: It is not held by this agent or under this token.
            NotFoundError: There is no such task.
            TransitionError: Nobody holds it.
        """
        finish(
            self._inner.fail_task(
                team_id, task_id, error, agent_id=agent_id, token=token, retry_in_s=retry_in_s
            )
        )

    def release_task(
        self, team_id: str, task_id: str, *, agent_id: str | None = None, token: int | None = None
    ) -> None:
        """Give a task back as if it had not been given, and let its agent be idle; fails as `fail_task`."""
        finish(self._inner.release_task(team_id, task_id, agent_id=agent_id, token=token))

    def requeue_task(self, team_id: str, task_id: str) -> None:
        """Give a dead task all its attempts again.

        Raises:
            NotFoundError: There is no dead task of this id.
        """
        finish(self._inner.requeue_task(team_id, task_id))

    def get_task(self, team_id: str, task_id: str) -> TeamTask | None:
        """Return a task, or None if there is none of this id, or it was completed over a week ago."""
        return finish(self._inner.get_task(team_id, task_id))

    def get_queue_status(self, team_id: str) -> TaskQueueState:
        """Return the tasks of a team: all counted at one moment, the newest 100 of each kind loaded.

        It reads the index of all tasks, a page of 1,024 at a time.

        Raises:
            NotFoundError: There is no such team.
        """
        return finish(self._inner.get_queue_status(team_id))
