"""Teams: agents with capabilities, and the tasks that they share.

A team is a document, each agent another; the tasks stand in the queue of the team's space. Who is given a
task and what his document says of it change in one batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, Final, TypeVar

from keepstate._runner import Mode, Signal
from keepstate.engine.kernel.key_text import shorten
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.kernel.times import check_duration_ms, check_wait
from keepstate.engine.space.joint_work import read_ahead
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction, on_claim
from keepstate.errors import (
    ConflictError,
    KeepstateError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Folder
from keepstate.managers.names import new_id
from keepstate.managers.recent import Recent
from keepstate.managers.records import admit_record
from keepstate.managers.sizes import admit_interval
from keepstate.managers.teams import tasks
from keepstate.managers.teams.agents import find_agent, is_held, let_go, let_work, need_team, place_of_agent
from keepstate.managers.teams.records import AgentCoordinationState, TaskQueueState, TeamTask, is_fit
from keepstate.managers.teams.rosters import TeamRosters
from keepstate.stores.protocol import Store

T = TypeVar("T")

ASSIGNED_S: Final = 86_400.0


class OrchestrationStateManager(TeamRosters):
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
        keep_s = admit_interval("sync_interval", sync_interval)
        self._recent = Recent(self._clock, 0 if self._place.transaction is not None else keep_s)

    # ---- tasks

    async def enqueue_task(
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
        kept = tasks.named(task, new_id(self._clock))

        async def work(team: Folder) -> None:
            await _read_ahead(team, kept["id"], team.name("team"))
            await need_team(team)
            await tasks.put(team, kept, delay_s=delay_s, max_attempts=max_attempts)

        await self._change(team_id, work)
        name: str = kept["id"]
        return name

    async def assign_task(
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

        async def work(team: Folder) -> TeamTask | ConflictError:
            await _read_ahead(team, task_id, place_of_agent(team, agent_id))
            await find_agent(team, agent_id)
            info = await tasks.find(team, task_id)
            if is_held(info, await team.space.now()):
                if info.worker == agent_id:
                    return tasks.shown(team, info)
                # Raised here, it would be tried again and again.
                return ConflictError(
                    f"task {task_id!r} of team {team.id!r} is held by {shorten(info.worker or '')!r}"
                )
            await team.space.queue.take(team.task(task_id), agent_id, lease_s=lease_s)
            await let_work(team, agent_id, task_id, instead_of=info.worker)
            return tasks.shown(team, await tasks.find(team, task_id))

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
        team, agent_place = self._folder(team_id), place_of_agent(self._folder(team_id), agent_id)
        check_wait("wait_s", wait_s)
        claimed: list[TeamTask] = []

        def match(name: str, task: Any, documents: Mapping[str, Any]) -> bool:
            agent: AgentCoordinationState | None = documents.get(agent_place)
            if agent is None or not name.startswith(team.prefix):
                return False
            return is_fit(task, capability, agent.capabilities)

        async def also(tx: Transaction, name: str, former: str | None) -> None:
            task_id = name.removeprefix(team.prefix)
            claiming = team.on(tx.by(agent_id, message=f"claim {task_id}"))
            await let_work(claiming, agent_id, task_id, instead_of=former)
            claimed[:] = [tasks.shown(team, await tasks.find(claiming, task_id))]

        claim = partial(
            team.space.queue.claim_with,
            agent_id,
            lease_s=self._lease_s if lease_s is None else lease_s,
            match=match,
            on_claim=on_claim(team.space.executor, also),
            documents=(agent_place,),
        )
        try:
            if not await claim(wait_s=0):
                await find_agent(team, agent_id)
                if not wait_s or not await claim(wait_s=wait_s):
                    return None
        finally:
            self._recent.forget(team_id)
        await self._wrote()
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
        """Hold a task for `lease_s` seconds from now on.

        Raises:
            LeaseLostError: It is no longer held, or not by this agent or under this token.
            NotFoundError: There is no such task.
        """
        hold_s = self._lease_s if lease_s is None else lease_s

        async def work(team: Folder) -> None:
            info = await tasks.find(team, task_id, payload=False)
            claim = tasks.claim_on(team, info, agent_id, token)
            await team.space.queue.heartbeat(claim, hold_s)

        await self._change(team_id, work)

    @single_use
    async def holding(
        self, team_id: str, task: TeamTask, *, lease_s: float | None = None
    ) -> AsyncGenerator[TeamTask]:
        """Hold on to a task beside the caller until the block ends, with three heartbeats a lease.

        When the task is lost meanwhile the heartbeats end, and what the holder says of it then is refused.
        """
        hold_s = self._lease_s if lease_s is None else lease_s
        self._place.require_outside_transaction("holding a task")
        self._folder(team_id)
        admit_record("task", task, TeamTask)
        check_duration_ms("lease_s", hold_s)

        async def beat(signal: Signal) -> None:
            while not await signal.wait(hold_s / 3):
                try:
                    await self.heartbeat_task(team_id, task.id, token=task.token, lease_s=hold_s)
                except (LeaseLostError, NotFoundError, TransitionError):
                    return
                except KeepstateError:
                    continue  # the next one may reach it in time

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

        async def work(team: Folder) -> None:
            await _read_ahead(team, task_id, *_places(team, agent_id))
            info = await tasks.find(team, task_id)
            if info.state == "done":
                tasks.claim_on(team, replace(info, state="claimed"), agent_id, token)
                tasks.admit_again(team, info, result, is_part=self._place.transaction is not None)
                return
            await tasks.complete(team, info, result, agent_id, token)
            await let_go(team, info.worker, task_id)

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

        async def work(team: Folder) -> None:
            await _read_ahead(team, task_id, *_places(team, agent_id))
            info = await tasks.find(team, task_id)
            await team.space.queue.fail(tasks.claim_on(team, info, agent_id, token), error, retry_in_s)
            await let_go(team, info.worker, task_id)

        await self._change(team_id, work, f"fail {task_id}")

    async def release_task(
        self, team_id: str, task_id: str, *, agent_id: str | None = None, token: int | None = None
    ) -> None:
        """Give a task back as if it had not been given, and let its agent be idle; fails as `fail_task`."""

        async def work(team: Folder) -> None:
            await _read_ahead(team, task_id, *_places(team, agent_id))
            info = await tasks.find(team, task_id)
            await team.space.queue.release(tasks.claim_on(team, info, agent_id, token))
            await let_go(team, info.worker, task_id)

        await self._change(team_id, work, f"release {task_id}")

    async def requeue_task(self, team_id: str, task_id: str) -> None:
        """Give a dead task all its attempts again.

        Raises:
            NotFoundError: There is no dead task of this id.
        """

        async def work(team: Folder) -> None:
            info = await tasks.find(team, task_id, payload=False)
            if info.state != "dead":
                raise NotFoundError(f"task {task_id!r} of team {team.id!r} is not dead; get_task shows it")
            await team.space.queue.requeue(info.id)

        await self._change(team_id, work)

    async def get_task(self, team_id: str, task_id: str) -> TeamTask | None:
        """Return a task, or None if there is none of this id, or it was completed over a week ago."""
        team = self._folder(team_id)
        info = await team.space.queue.get(team.task(task_id), payload=True)
        return None if info is None else tasks.shown(team, info)

    async def get_queue_status(self, team_id: str) -> TaskQueueState:
        """Return the tasks of a team: all counted at one moment, the newest 100 of each kind loaded.

        It reads the index of all tasks, a page of 1,024 at a time.

        Raises:
            NotFoundError: There is no such team.
        """
        team = self._folder(team_id)

        async def read() -> TaskQueueState:
            await need_team(team)
            return await tasks.queue_of(team, self._runner.mode)

        return await self._recent.get(team_id, "queue", read)

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove completed and dead tasks, and how agents stood before then."""
        removed = await tasks.remove_over(folder, before)
        await self._prune(folder, before)
        self._recent.forget(folder.id)
        return removed


async def _read_ahead(team: Folder, task_id: str, *documents: str) -> None:
    await read_ahead(team.space, documents=documents, task_ids=(team.task(task_id),))


def _places(team: Folder, agent_id: str | None) -> tuple[str, ...]:
    return () if agent_id is None else (place_of_agent(team, agent_id),)
