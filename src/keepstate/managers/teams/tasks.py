"""The tasks of a team in the queue, and the agents that hold them.

An agent's document lists the tasks it was given. The end of a lease does not update the document. Therefore
each read checks the list against the queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from keepstate._runner import Mode
from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.queue.queue import Claim
from keepstate.engine.queue.tasks import ENDED, STATES, TaskInfo, TaskState
from keepstate.engine.space.joint_work import read_ahead
from keepstate.engine.space.space import Transaction, on_claim
from keepstate.errors import ConflictError, InvalidError, LeaseLostError, NotFoundError, TransitionError
from keepstate.managers.binding import Namespace
from keepstate.managers.records import encode_canonical
from keepstate.managers.teams.records import (
    IDLE,
    LOADED,
    WORKING,
    AgentCoordinationState,
    LoadingTaskList,
    LoadTasks,
    TaskList,
    TaskQueueState,
    TeamTask,
    TeamTaskStatus,
    is_fit,
    priority_of,
)
from keepstate.values import limits

_ANY_LEASE_S: Final = 60
_PAGE: Final = 1_000
_STATUS: Final[Mapping[TaskState, TeamTaskStatus]] = {
    "ready": "pending",
    "waiting": "delayed",
    "claimed": "in_progress",
    "done": "completed",
    "dead": "dead",
    "cancelled": "cancelled",
}


def with_id(task: object, new_id: str) -> dict[str, Any]:
    """Return a task as stored, with the new id if it has none.

    Raises:
        InvalidError: The task is not a dict, its id is not text, or its priority is unknown.
    """
    if not isinstance(task, Mapping):
        raise InvalidError(f"`task` is {task!r}. Pass a dict.")
    kept: dict[str, Any] = {**task}
    if kept.get("id") is None:
        kept["id"] = new_id
    if type(kept["id"]) is not str:
        raise InvalidError(f"a task's `id` is {kept['id']!r}. Pass a str, or no id to get one.")
    priority_of(kept)
    return kept


async def put(team: Namespace, task: dict[str, Any], *, delay_s: float = 0, max_attempts: int = 5) -> None:
    """Enqueue a task with an id; a known id adds nothing."""
    await team.space.queue.put(
        task,
        id=team.task(task["id"]),
        priority=priority_of(task),
        delay_s=delay_s,
        max_attempts=max_attempts,
    )


async def find(team: Namespace, task_id: str, *, payload: bool = True) -> TaskInfo:
    """Return a task, with its payload unless that is turned off.

    Raises:
        NotFoundError: The team has no task with this id.
    """
    info = await team.space.queue.get(team.task(task_id), payload=payload)
    if info is None:
        raise NotFoundError(f"team {team.id!r} has no task {task_id!r}")
    return info


def make_claim(team: Namespace, info: TaskInfo, agent_id: str | None, token: int | None) -> Claim:
    """Return the claim on a task for a holder, or the current claim if no holder is named.

    Raises:
        LeaseLostError: Another agent holds the task.
        TransitionError: The task is not held.
    """
    what = f"task {info.id.removeprefix(team.prefix)!r} of team {team.id!r}"
    holds = (agent_id is None or info.worker == agent_id) and (token is None or info.token == token)
    if not holds and info.worker is not None:
        raise LeaseLostError(
            f"{what} is no longer held by {agent_id or 'this holder'}: it is {_STATUS[info.state]}, and its "
            f"last holder is {info.worker!r}. Stop working on it.",
            name=info.id,
            token=token,
        )
    if info.state != "claimed":
        status = _STATUS[info.state]
        raise TransitionError(
            f"{what} is {status} and not held by an agent. Call assign_task() or claim_task() first.",
            current=status,
            wanted="in_progress",
        )
    return Claim(info.id, info.token)


async def assign(team: Namespace, *, task_id: str, agent_id: str, lease_s: float) -> TeamTask | ConflictError:
    """Give a task to an agent, and return it; an error if another agent holds it.

    The error is not raised here, where it would be retried again and again.
    """
    await read_task_ahead(team, task_id, agent_id)
    await find_agent(team, agent_id)
    info = await find(team, task_id)
    if is_held(info, await team.space.now()):
        if info.worker == agent_id:
            return to_team_task(team, info)
        return ConflictError(
            f"task {task_id!r} of team {team.id!r} is held by {shorten(info.worker or '')!r}"
        )
    await team.space.queue.take(team.task(task_id), agent_id, lease_s=lease_s)
    await assign_to_agent(team, agent_id, task_id, instead_of=info.worker)
    return to_team_task(team, await find(team, task_id))


async def claim(
    team: Namespace, agent_id: str, capability: str | None, *, lease_s: float, wait_s: float
) -> TeamTask | None:
    """Claim the best available task for an agent, and return it, or None if there is none."""
    agent_document = agents_of(team).name(agent_id)
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
        claimed[:] = [to_team_task(team, await find(claiming, task_id))]

    claim_next = partial(
        team.space.queue.claim_with,
        agent_id,
        lease_s=lease_s,
        match=match,
        on_claim=on_claim(team.space.executor, also),
        documents=(agent_document,),
    )
    if not await claim_next(wait_s=0):
        await find_agent(team, agent_id)
        if not wait_s or not await claim_next(wait_s=wait_s):
            return None
    return claimed[0]


async def complete(
    team: Namespace, info: TaskInfo, result: object, agent_id: str | None, token: int | None
) -> None:
    """Complete a task; its payload is stored with its result.

    The lease of the last holder may have ended. Its result is accepted unless another agent was given the
    task.

    Raises:
        LeaseLostError: Another agent holds the task.
        TransitionError: The task was never claimed, or is dead.
    """
    outcome = {"task": info.payload, "result": result}
    if info.state in ("ready", "waiting") and info.token and info.worker is not None:
        make_claim(team, replace(info, state="claimed"), agent_id, token)
        task = await team.space.queue.take(info.id, info.worker, lease_s=_ANY_LEASE_S)
        await team.space.queue.complete(task, outcome)
        return
    await team.space.queue.complete(make_claim(team, info, agent_id, token), outcome)


def check_repeated(team: Namespace, info: TaskInfo, result: object, *, is_part: bool) -> None:
    """Accept a repeated completion with an equal result, which does nothing.

    Args:
        team: The namespace of the team.
        info: The task.
        result: The new result.
        is_part: Whether the call is in a caller's transaction. Its other writes would be repeated, so only a
            completion by the same transaction is accepted.

    Raises:
        TransitionError: The task has another result.
    """
    what = f"task {info.id.removeprefix(team.prefix)!r} of team {team.id!r} is completed already"
    if is_part and info.version:
        raise TransitionError(
            f"{what}. Leave it out of the transaction.", current="completed", wanted="completed"
        )
    if encode_canonical(info.result["result"]) != encode_canonical(result):
        raise TransitionError(
            f"{what}, with another result. Read it with get_task().", current="completed", wanted="completed"
        )


def to_team_task(team: Namespace, info: TaskInfo) -> TeamTask:
    """Convert a task of the queue to a `TeamTask`."""
    kept: dict[str, Any] = (info.result or {}) if info.state == "done" else {"task": info.payload}
    return TeamTask(
        id=info.id.removeprefix(team.prefix),
        task=kept.get("task") or {},
        status=_STATUS[info.state],
        agent_id=info.worker,
        attempt=info.attempt,
        max_attempts=info.max_attempts,
        token=info.token,
        result=kept.get("result"),
        error=info.error,
        enqueued_at=info.put_at,
        due_at=info.due_at,
    )


async def read_queue(team: Namespace, mode: Mode) -> TaskQueueState:
    """Return all tasks of a team, counted at one moment, with the newest loaded."""
    found = await team.space.queue.summaries(team.prefix, newest=LOADED, payloads=True)
    kind = LoadingTaskList if mode == "blocking" else TaskList

    def make_list(*states: TaskState) -> TaskList:
        loaded = [to_team_task(team, info) for state in states for info in found[state].newest]
        return kind(sum(found[state].count for state in states), loaded[:LOADED], _make_loader(team, states))

    return TaskQueueState(
        pending=make_list("ready", "waiting"),
        in_progress=make_list("claimed"),
        completed=make_list("done"),
        dead=make_list("dead"),
    )


def _make_loader(team: Namespace, states: tuple[TaskState, ...]) -> LoadTasks:
    async def load() -> list[TeamTask]:
        found = await team.space.queue.summaries(team.prefix, newest=limits.COUNT, payloads=True)
        return [to_team_task(team, info) for state in states for info in found[state].newest]

    return load


async def remove_ended(team: Namespace, before: datetime) -> int:
    """Remove tasks that were completed or died before a time, and return their number."""
    removed = 0
    for state in ENDED:
        async for info in _iterate_state(team, state):
            if info.due_at >= before:  # the oldest come first
                break
            with suppress(TransitionError):  # requeued in the meantime
                removed += await team.space.queue.remove(info.id)
    return removed


async def remove_all(team: Namespace) -> int:
    """Remove all tasks of a team in any state, and return their number."""
    return sum(
        [
            await team.space.queue.discard(info.id)
            for state in STATES
            async for info in _iterate_state(team, state)
        ]
    )


async def _iterate_state(team: Namespace, state: TaskState) -> AsyncIterator[TaskInfo]:
    after: str | None = None
    while page := await team.space.queue.list(state, after=after, limit=_PAGE):
        for info in page:
            if info.id.startswith(team.prefix):
                yield info
        after = page[-1].cursor


# ---- agents


def agents_of(team: Namespace) -> Collection[AgentCoordinationState]:
    """Return the agents of a team, as stored."""
    return team.collection("agent")


async def require_team(team: Namespace) -> None:
    """Raise `NotFoundError` if the team does not exist."""
    if await team.get("team") is None:
        raise NotFoundError(f"team {team.id!r} does not exist. Call create_team() first.")


async def find_agent(team: Namespace, agent_id: str) -> AgentCoordinationState:
    """Return the stored document of an agent.

    Raises:
        NotFoundError: The team does not exist, or has no such agent.
    """
    agent = await agents_of(team).get(agent_id)
    if agent is None:
        await require_team(team)
        raise NotFoundError(f"team {team.id!r} has no agent {agent_id!r}. Call add_agent() first.")
    return agent


async def put_agent(team: Namespace, agent: AgentCoordinationState) -> None:
    """Write an agent."""
    await agents_of(team).put(agent.agent_id, agent)


async def read_agents(team: Namespace) -> list[AgentCoordinationState]:
    """Return the agents of a team, ordered by id. An agent that has lost all its tasks is idle."""
    agents = [agent async for agent in agents_of(team).values()]
    given = list(dict.fromkeys(task_id for agent in agents for task_id in agent.tasks))
    if not given:
        return agents
    now, infos = await team.space.now(), dict[str, TaskInfo]()
    for begin in range(0, len(given), limits.READ_KEYS):
        infos |= await _read_infos(team, given[begin : begin + limits.READ_KEYS])
    return [_with_held_tasks(agent, _filter_held(agent, infos, now)) for agent in agents]


def _with_held_tasks(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    """Return an agent with the tasks that it still holds. A status of the application stays."""
    if agent.status != WORKING or agent.current_task not in agent.tasks or agent.current_task in held:
        return agent if agent.tasks == held else replace(agent, tasks=held)
    return _continue_with(agent, held)


def _continue_with(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    if not held:
        return replace(agent, status=IDLE, current_task=None, tasks=[])
    return replace(agent, status=WORKING, current_task=held[-1], tasks=held)


async def assign_to_agent(team: Namespace, agent_id: str, task_id: str, *, instead_of: str | None) -> None:
    """Give a task to an agent, and take it from its last holder."""
    if instead_of is not None and instead_of != agent_id:
        await take_from_agent(team, instead_of, task_id)
    agent = await find_agent(team, agent_id)
    held = [*await _other_tasks(team, agent, task_id), task_id]
    await put_agent(team, replace(agent, status=WORKING, current_task=task_id, tasks=held))


async def take_from_agent(team: Namespace, agent_id: str | None, task_id: str) -> None:
    """Take a task from an agent. The agent continues with another task that it holds, or is idle."""
    if agent_id is None:
        return
    agent = await agents_of(team).get(agent_id)
    if agent is None or (task_id not in agent.tasks and agent.current_task != task_id):
        return
    held = await _other_tasks(team, agent, task_id)
    is_over = agent.current_task == task_id
    await put_agent(team, _continue_with(agent, held) if is_over else _with_held_tasks(agent, held))


async def _other_tasks(team: Namespace, agent: AgentCoordinationState, task_id: str) -> list[str]:
    """Return the other tasks that an agent holds."""
    given = [each for each in agent.tasks if each != task_id]
    if not given:
        return []
    return _filter_held(replace(agent, tasks=given), await _read_infos(team, given), await team.space.now())


async def _read_infos(team: Namespace, task_ids: Sequence[str]) -> dict[str, TaskInfo]:
    # An agent's document that other code wrote may have values that are not ids, and so not tasks.
    given = cast("Sequence[object]", task_ids)
    ids = [task_id for task_id in given if isinstance(task_id, str)]
    found = await team.space.queue.get_each(*(team.task(task_id) for task_id in ids))
    return {task_id: info for task_id, info in zip(ids, found, strict=True) if info is not None}


def _filter_held(agent: AgentCoordinationState, infos: dict[str, TaskInfo], now: datetime) -> list[str]:
    return [
        task_id
        for task_id in agent.tasks
        if (info := infos.get(task_id)) is not None and is_held(info, now) and info.worker == agent.agent_id
    ]


def is_held(info: TaskInfo, now: datetime) -> bool:
    """Return whether a task is held at this time of the store."""
    return info.state == "claimed" and now < info.due_at


async def read_task_ahead(team: Namespace, task_id: str, agent_id: str | None) -> None:
    """Read a task and an agent in one round trip."""
    documents = [] if agent_id is None else [agents_of(team).name(agent_id)]
    await read_ahead(team.space, documents=documents, task_ids=[team.task(task_id)])
