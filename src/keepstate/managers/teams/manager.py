"""Teams: agents with capabilities, and the tasks that they share.

A team is a document, each agent another. The tasks are in the queue of the team's space. The assignment of a
task and the agent's document change in one batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, Unpack

from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.engine.kernel.arguments import (
    check_duration_ms,
    check_flag,
    check_text,
    check_wait,
    single_use,
)
from keepstate.engine.queue.lease import Heartbeat
from keepstate.engine.queue.tasks import TaskInfo
from keepstate.engine.space.joint_work import read_ahead
from keepstate.errors import ConflictError, LeaseLostError, NotFoundError, TransitionError
from keepstate.managers.arguments import check_interval
from keepstate.managers.binding import ManagerStorage, Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.names import new_id
from keepstate.managers.records import check_record
from keepstate.managers.teams import tasks as team_tasks
from keepstate.managers.teams.creation import TeamCreation
from keepstate.managers.teams.records import (
    IDLE,
    AgentCoordinationState,
    ReadCache,
    TaskQueueState,
    TeamState,
    TeamTask,
)

T = TypeVar("T")

ASSIGNED_S: Final = 86_400.0


class OrchestrationStateManager(Manager):
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

    _kind: ClassVar[str] = "team"

    def __init__(
        self,
        *,
        sync_interval: float = 0,
        lease_s: float = 300,
        **storage: Unpack[ManagerStorage],
    ) -> None:
        super().__init__(**storage)
        check_duration_ms("lease_s", lease_s)
        self._lease_s = lease_s
        keep_s = check_interval("sync_interval", sync_interval)
        self._cache = ReadCache(self._clock, 0 if self._binding.transaction is not None else keep_s)

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
            kept: TeamState | None = await team.get("team")
            if kept is None:
                return None
            found = replace(kept, agents={each.agent_id: each for each in await team_tasks.read_agents(team)})
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
            await team_tasks.require_team(team)
            known = await team_tasks.agents_of(team).get(agent.agent_id)
            await team_tasks.put_agent(team, agent if known is None else replace(agent, tasks=known.tasks))

        await self._change(team_id, work, f"add agent {agent.agent_id}")

    async def remove_agent(self, team_id: str, agent_id: str) -> bool:
        """Remove an agent from a team, and return whether it existed. Its tasks stay claimed."""
        return await self._change(
            team_id, lambda team: team_tasks.agents_of(team).delete(agent_id), f"remove agent {agent_id}"
        )

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
            agent = await team_tasks.find_agent(team, agent_id)
            task = current_task
            if isinstance(task, Missing):
                task = None if status == IDLE else agent.current_task
            agent = replace(agent, status=status, current_task=task)
            await team_tasks.put_agent(team, agent)
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
        agents = await self._cache.get(team_id, "agents", lambda: team_tasks.read_agents(team))
        if not agents:
            await team_tasks.require_team(team)
        return [
            agent
            for agent in agents
            if agent.status == IDLE and (capability is None or capability in agent.capabilities)
        ]

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
        kept = team_tasks.with_id(task, new_id(self._clock))

        async def work(team: Namespace) -> None:
            await read_ahead(team.space, documents=[team.name("team")], task_ids=[team.task(kept["id"])])
            await team_tasks.require_team(team)
            await team_tasks.put(team, kept, delay_s=delay_s, max_attempts=max_attempts)

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
        work = partial(team_tasks.assign, task_id=task_id, agent_id=agent_id, lease_s=lease_s)
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
        check_wait("wait_s", wait_s)
        team, hold_s = self._namespace(team_id), self._lease_s if lease_s is None else lease_s
        try:
            claimed = await team_tasks.claim(team, agent_id, capability, lease_s=hold_s, wait_s=wait_s)
        finally:
            self._cache.invalidate(team_id)
        if claimed is not None:
            await self._after_write()
        return claimed

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
            info = await team_tasks.find(team, task_id, payload=False)
            claim = team_tasks.make_claim(team, info, agent_id, token)
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

        async def beat() -> None:
            await self.heartbeat_task(team_id, task.id, token=task.token, lease_s=hold_s)

        ends = (LeaseLostError, NotFoundError, TransitionError)
        async with Heartbeat(self._runner, f"task {task.id}", hold_s, beat, ends=ends):
            yield task

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

        async def end(team: Namespace, info: TaskInfo) -> None:
            if info.state == "done":
                team_tasks.make_claim(team, replace(info, state="claimed"), agent_id, token)
                team_tasks.check_repeated(team, info, result, is_part=self._binding.transaction is not None)
            else:
                await team_tasks.complete(team, info, result, agent_id, token)

        await self._end_task(team_id, task_id, agent_id, "complete", end)

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
            retry_in_s: Seconds until it can be claimed again; by default about 1 s, 2 s, 4 s … 5 minutes.

        Raises:
            LeaseLostError: The task is not held by this agent or under this token.
            NotFoundError: The task does not exist.
            TransitionError: The task is not held.
        """

        async def end(team: Namespace, info: TaskInfo) -> None:
            await team.space.queue.fail(team_tasks.make_claim(team, info, agent_id, token), error, retry_in_s)

        await self._end_task(team_id, task_id, agent_id, "fail", end)

    async def release_task(
        self, team_id: str, task_id: str, *, agent_id: str | None = None, token: int | None = None
    ) -> None:
        """Give a task back unused, and set its agent to idle; raises as `fail_task`."""

        async def end(team: Namespace, info: TaskInfo) -> None:
            await team.space.queue.release(team_tasks.make_claim(team, info, agent_id, token))

        await self._end_task(team_id, task_id, agent_id, "release", end)

    async def _end_task(
        self,
        team_id: str,
        task_id: str,
        agent_id: str | None,
        verb: str,
        end: Callable[[Namespace, TaskInfo], Awaitable[None]],
    ) -> None:
        """Take a task from its holder, as `end` does it, and from the holder's document."""

        async def work(team: Namespace) -> None:
            await team_tasks.read_task_ahead(team, task_id, agent_id)
            info = await team_tasks.find(team, task_id)
            await end(team, info)
            if info.state != "done":
                await team_tasks.take_from_agent(team, info.worker, task_id)

        await self._change(team_id, work, f"{verb} {task_id}")

    async def requeue_task(self, team_id: str, task_id: str) -> None:
        """Make a dead task available again, with all its attempts.

        Raises:
            NotFoundError: There is no dead task with this id.
        """

        async def work(team: Namespace) -> None:
            info = await team_tasks.find(team, task_id, payload=False)
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
        return None if info is None else team_tasks.to_team_task(team, info)

    async def get_queue_status(self, team_id: str) -> TaskQueueState:
        """Return the tasks of a team: all counted at one moment, the newest 100 of each kind loaded.

        Reads the index of all tasks, in pages of 1,024.

        Raises:
            NotFoundError: The team does not exist.
        """
        team = self._namespace(team_id)

        async def read() -> TaskQueueState:
            await team_tasks.require_team(team)
            return await team_tasks.read_queue(team, self._runner.mode)

        return await self._cache.get(team_id, "queue", read)

    async def _change(self, team_id: str, work: Callable[[Namespace], Awaitable[T]], message: str = "") -> T:
        team = self._namespace(team_id)
        try:
            return await self._run_together(team, work, message=message)
        finally:
            self._cache.invalidate(team_id)

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove completed and dead tasks, and old history of the team."""
        removed = await team_tasks.remove_ended(namespace, before)
        await self._prune(namespace, before)
        self._cache.invalidate(namespace.id)
        return removed
