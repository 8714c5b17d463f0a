"""Teams: agents with capabilities, and the tasks that they share.

A team is a document, each agent another. The tasks are in the queue of the team's space. The assignment of a
task and the agent's document change in one batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, Final, TypeVar

from keepstate._runner import Mode, Signal
from keepstate.engine.kernel.arguments import check_duration_ms, check_wait, single_use
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.space.joint_work import read_ahead
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction, on_claim
from keepstate.errors import (
    ConflictError,
    KeepstateError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Namespace
from keepstate.managers.names import new_id
from keepstate.managers.recent import ReadCache
from keepstate.managers.records import check_record
from keepstate.managers.sizes import check_interval
from keepstate.managers.teams import tasks
from keepstate.managers.teams.agents import (
    agent_name,
    assign_to_agent,
    find_agent,
    is_held,
    require_team,
    take_from_agent,
)
from keepstate.managers.teams.records import AgentCoordinationState, TaskQueueState, TeamTask, is_fit
from keepstate.managers.teams.rosters import TeamRosters
from keepstate.stores.protocol import Store

T = TypeVar("T")

ASSIGNED_S: Final = 86_400.0


class OrchestrationStateManager(TeamRosters):
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
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        sync_interval: float = 0,
        lease_s: float = 300,
        _mode: Mode = "async",
    ) -> None:
        super().__init__(
            persistence=persistence,
            url=url,
            redis_url=redis_url,
            file_path=file_path,
            space=space,
            _mode=_mode,
        )
        check_duration_ms("lease_s", lease_s)
        self._lease_s = lease_s
        keep_s = check_interval("sync_interval", sync_interval)
        self._cache = ReadCache(self._clock, 0 if self._binding.transaction is not None else keep_s)

    # ---- tasks

    async def enqueue_task(
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
        kept = tasks.with_id(task, new_id(self._clock))

        async def work(team: Namespace) -> None:
            await _read_ahead(team, kept["id"], team.name("team"))
            await require_team(team)
            await tasks.put(team, kept, delay_s=delay_s, max_attempts=max_attempts)

        await self._change(team_id, work)
        name: str = kept["id"]
        return name

    async def assign_task(
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

        async def work(team: Namespace) -> TeamTask | ConflictError:
            await _read_ahead(team, task_id, agent_name(team, agent_id))
            await find_agent(team, agent_id)
            info = await tasks.find(team, task_id)
            if is_held(info, await team.space.now()):
                if info.worker == agent_id:
                    return tasks.to_team_task(team, info)
                # Raised here, it would be retried again and again.
                return ConflictError(
                    f"task {task_id!r} of team {team.id!r} is held by {shorten(info.worker or '')!r}"
                )
            await team.space.queue.take(team.task(task_id), agent_id, lease_s=lease_s)
            await assign_to_agent(team, agent_id, task_id, instead_of=info.worker)
            return tasks.to_team_task(team, await tasks.find(team, task_id))

        task = await self._change(team_id, work, f"assign {task_id} to {agent_id}")
        if isinstance(task, ConflictError):
            raise task
        return task

    async def claim_task(
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
        team, agent_document = self._namespace(team_id), agent_name(self._namespace(team_id), agent_id)
        check_wait("wait_s", wait_s)
        claimed: list[TeamTask] = []

        def match(name: str, task: Any, documents: Mapping[str, Any]) -> bool:
            agent: AgentCoordinationState | None = documents.get(agent_document)
            if agent is None or not name.startswith(team.prefix):
                return False
            return is_fit(task, capability, agent.capabilities)

        async def also(tx: Transaction, name: str, former: str | None) -> None:
            task_id = name.removeprefix(team.prefix)
            claiming = team.with_space(tx.by(agent_id, message=f"claim {task_id}"))
            await assign_to_agent(claiming, agent_id, task_id, instead_of=former)
            claimed[:] = [tasks.to_team_task(team, await tasks.find(claiming, task_id))]

        claim = partial(
            team.space.queue.claim_with,
            agent_id,
            lease_s=self._lease_s if lease_s is None else lease_s,
            match=match,
            on_claim=on_claim(team.space.executor, also),
            documents=(agent_document,),
        )
        try:
            if not await claim(wait_s=0):
                await find_agent(team, agent_id)
                if not wait_s or not await claim(wait_s=wait_s):
                    return None
        finally:
            self._cache.invalidate(team_id)
        await self._after_write()
        return claimed[0]

    async def heartbeat_task(
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
        hold_s = self._lease_s if lease_s is None else lease_s

        async def work(team: Namespace) -> None:
            info = await tasks.find(team, task_id, payload=False)
            claim = tasks.make_claim(team, info, agent_id, token)
            await team.space.queue.heartbeat(claim, hold_s)

        await self._change(team_id, work)

    @single_use
    async def holding(
        self, team_id: str, task: TeamTask, *, lease_s: float | None = None
    ) -> AsyncGenerator[TeamTask]:
        """Renew the lease of a task in the background until the block ends, three times per lease.

        If the task is lost, the heartbeats end, and later calls of its holder are rejected.
        """
        hold_s = self._lease_s if lease_s is None else lease_s
        self._binding.require_outside_transaction("holding a task")
        self._namespace(team_id)
        check_record("task", task, TeamTask)
        check_duration_ms("lease_s", hold_s)

        async def beat(signal: Signal) -> None:
            while not await signal.wait(hold_s / 3):
                try:
                    await self.heartbeat_task(team_id, task.id, token=task.token, lease_s=hold_s)
                except (LeaseLostError, NotFoundError, TransitionError):
                    return
                except KeepstateError:
                    continue  # the next heartbeat may succeed in time

        beating = self._runner.start(beat, f"heartbeat of task {task.id}")
        try:
            yield task
        finally:
            await beating.stop()

    async def complete_task(
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

        async def work(team: Namespace) -> None:
            await _read_ahead(team, task_id, *_agent_names(team, agent_id))
            info = await tasks.find(team, task_id)
            if info.state == "done":
                tasks.make_claim(team, replace(info, state="claimed"), agent_id, token)
                tasks.check_repeated(team, info, result, is_part=self._binding.transaction is not None)
                return
            await tasks.complete(team, info, result, agent_id, token)
            await take_from_agent(team, info.worker, task_id)

        await self._change(team_id, work, f"complete {task_id}")

    async def fail_task(
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
            retry_in_s: Seconds until it can be claimed again; by default 1 s, 2 s, 4 s … 5 minutes.

        Raises:
            LeaseLostError: The task is not held by this agent or under this token.
            NotFoundError: The task does not exist.
            TransitionError: The task is not held.
        """

        async def work(team: Namespace) -> None:
            await _read_ahead(team, task_id, *_agent_names(team, agent_id))
            info = await tasks.find(team, task_id)
            await team.space.queue.fail(tasks.make_claim(team, info, agent_id, token), error, retry_in_s)
            await take_from_agent(team, info.worker, task_id)

        await self._change(team_id, work, f"fail {task_id}")

    async def release_task(
        self, team_id: str, task_id: str, *, agent_id: str | None = None, token: int | None = None
    ) -> None:
        """Give a task back unused, and set its agent to idle; raises as `fail_task`."""

        async def work(team: Namespace) -> None:
            await _read_ahead(team, task_id, *_agent_names(team, agent_id))
            info = await tasks.find(team, task_id)
            await team.space.queue.release(tasks.make_claim(team, info, agent_id, token))
            await take_from_agent(team, info.worker, task_id)

        await self._change(team_id, work, f"release {task_id}")

    async def requeue_task(self, team_id: str, task_id: str) -> None:
        """Make a dead task available again, with all its attempts.

        Raises:
            NotFoundError: There is no dead task with this id.
        """

        async def work(team: Namespace) -> None:
            info = await tasks.find(team, task_id, payload=False)
            if info.state != "dead":
                raise NotFoundError(
                    f"task {task_id!r} of team {team.id!r} is not dead. Check it with get_task()."
                )
            await team.space.queue.requeue(info.id)

        await self._change(team_id, work)

    async def get_task(self, team_id: str, task_id: str) -> TeamTask | None:
        """Return a task, or None if it does not exist or was completed more than a week ago."""
        team = self._namespace(team_id)
        info = await team.space.queue.get(team.task(task_id), payload=True)
        return None if info is None else tasks.to_team_task(team, info)

    async def get_queue_status(self, team_id: str) -> TaskQueueState:
        """Return the tasks of a team: all counted at one moment, the newest 100 of each kind loaded.

        Reads the index of all tasks, in pages of 1,024.

        Raises:
            NotFoundError: The team does not exist.
        """
        team = self._namespace(team_id)

        async def read() -> TaskQueueState:
            await require_team(team)
            return await tasks.read_queue(team, self._runner.mode)

        return await self._cache.get(team_id, "queue", read)

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove completed and dead tasks, and old history of the team."""
        removed = await tasks.remove_ended(namespace, before)
        await self._prune(namespace, before)
        self._cache.invalidate(namespace.id)
        return removed


async def _read_ahead(team: Namespace, task_id: str, *documents: str) -> None:
    await read_ahead(team.space, documents=documents, task_ids=(team.task(task_id),))


def _agent_names(team: Namespace, agent_id: str | None) -> tuple[str, ...]:
    return () if agent_id is None else (agent_name(team, agent_id),)
