"""The tasks of a team in the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from keepstate._runner import Mode
from keepstate.engine.queue.queue import Claim
from keepstate.engine.queue.tasks import STATES, TaskInfo, TaskState
from keepstate.errors import InvalidError, LeaseLostError, NotFoundError, TransitionError
from keepstate.managers.binding import Namespace
from keepstate.managers.parameters import encode_canonical
from keepstate.managers.teams.records import TaskQueueState, TeamTask, TeamTaskStatus, priority_of
from keepstate.managers.teams.task_lists import LOADED, LoadingTaskList, LoadTasks, TaskList
from keepstate.values import limits

_ANY_LEASE_S: Final = 60
_PAGE: Final = 1_000
_ENDED: Final[tuple[TaskState, ...]] = ("done", "dead")
_STATUS: Final[Mapping[TaskState, TeamTaskStatus]] = {
    "ready": "pending",
    "waiting": "delayed",
    "claimed": "in_progress",
    "done": "completed",
    "dead": "dead",
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
    for state in _ENDED:
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
