"""The tasks of a team, as the queue has them."""

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
from keepstate.managers.binding import Folder
from keepstate.managers.parameters import sameness
from keepstate.managers.teams.records import TaskQueueState, TeamTask, TeamTaskStatus, priority_of
from keepstate.managers.teams.task_lists import LOADED, Loading, LoadingTaskList, TaskList
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


def named(task: object, new_id: str) -> dict[str, Any]:
    """Return a task as it is kept, under this id if it has none.

    Raises:
        InvalidError: It is no dict, or its id no text, or its priority unknown.
    """
    if not isinstance(task, Mapping):
        raise InvalidError(f"`task` is {task!r}; give a dict")
    kept: dict[str, Any] = {**task}
    if kept.get("id") is None:
        kept["id"] = new_id
    if type(kept["id"]) is not str:
        raise InvalidError(f"a task's `id` is {kept['id']!r}; give a str, or none to get one")
    priority_of(kept)
    return kept


async def put(team: Folder, task: dict[str, Any], *, delay_s: float = 0, max_attempts: int = 5) -> None:
    """Enqueue a task that has an id; a known id adds nothing."""
    await team.space.queue.put(
        task,
        id=team.task(task["id"]),
        priority=priority_of(task),
        delay_s=delay_s,
        max_attempts=max_attempts,
    )


async def find(team: Folder, task_id: str, *, payload: bool = True) -> TaskInfo:
    """Return a task, with what it is about unless that is not wanted.

    Raises:
        NotFoundError: The team has none of this id.
    """
    info = await team.space.queue.get(team.task(task_id), payload=payload)
    if info is None:
        raise NotFoundError(f"team {team.id!r} has no task {task_id!r}")
    return info


def claim_on(team: Folder, info: TaskInfo, agent_id: str | None, token: int | None) -> Claim:
    """Return what proves that a task is held by who says so; by whoever does, if nobody is named.

    Raises:
        LeaseLostError: Another holds it.
        TransitionError: Nobody does.
    """
    what = f"task {info.id.removeprefix(team.prefix)!r} of team {team.id!r}"
    holds = (agent_id is None or info.worker == agent_id) and (token is None or info.token == token)
    if not holds and info.worker is not None:
        raise LeaseLostError(
            f"{what} is no longer held by {agent_id or 'this holder'}: it is {_STATUS[info.state]}, and "
            f"{info.worker!r} held it last; drop it",
            name=info.id,
            token=token,
        )
    if info.state != "claimed":
        status = _STATUS[info.state]
        raise TransitionError(
            f"{what} is {status}, and nobody holds it; assign or claim it first",
            current=status,
            wanted="in_progress",
        )
    return Claim(info.id, info.token)


async def complete(
    team: Folder, info: TaskInfo, result: object, agent_id: str | None, token: int | None
) -> None:
    """Complete a task; what it was about is kept with its result.

    The lease of the last holder may have run out: as long as nobody else was given the task, what was done is
    taken.

    Raises:
        LeaseLostError: Another holds it.
        TransitionError: Nobody was ever given it, or it is dead.
    """
    outcome = {"task": info.payload, "result": result}
    if info.state in ("ready", "waiting") and info.token and info.worker is not None:
        claim_on(team, replace(info, state="claimed"), agent_id, token)
        task = await team.space.queue.take(info.id, info.worker, lease_s=_ANY_LEASE_S)
        await team.space.queue.complete(task, outcome)
        return
    await team.space.queue.complete(claim_on(team, info, agent_id, token), outcome)


def admit_again(team: Folder, info: TaskInfo, result: object, *, is_part: bool) -> None:
    """Let a completed task be completed once more with an equal result, which does nothing.

    Args:
        team: Its team.
        info: The task.
        result: What it is to be completed with now.
        is_part: Whether that is part of a caller's transaction: what stands beside it there would be done
            again, so only what the transaction has itself completed counts.

    Raises:
        TransitionError: It has another result.
    """
    what = f"task {info.id.removeprefix(team.prefix)!r} of team {team.id!r} is completed already"
    if is_part and info.version:
        raise TransitionError(f"{what}; leave it out", current="completed", wanted="completed")
    if sameness(info.result["result"]) != sameness(result):
        raise TransitionError(
            f"{what}, with another result; get_task shows it", current="completed", wanted="completed"
        )


def shown(team: Folder, info: TaskInfo) -> TeamTask:
    """Return a task as callers see it."""
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


async def queue_of(team: Folder, mode: Mode) -> TaskQueueState:
    """Return all tasks of a team, counted at one moment, with the newest loaded."""
    found = await team.space.queue.summaries(team.prefix, newest=LOADED, payloads=True)
    kind = LoadingTaskList if mode == "blocking" else TaskList

    def listed(*states: TaskState) -> TaskList:
        loaded = [shown(team, info) for state in states for info in found[state].newest]
        return kind(sum(found[state].count for state in states), loaded[:LOADED], _loading(team, states))

    return TaskQueueState(
        pending=listed("ready", "waiting"),
        in_progress=listed("claimed"),
        completed=listed("done"),
        dead=listed("dead"),
    )


def _loading(team: Folder, states: tuple[TaskState, ...]) -> Loading:
    async def load() -> list[TeamTask]:
        found = await team.space.queue.summaries(team.prefix, newest=limits.COUNT, payloads=True)
        return [shown(team, info) for state in states for info in found[state].newest]

    return load


async def remove_over(team: Folder, before: datetime) -> int:
    """Remove tasks that were completed or died before then, and return how many."""
    removed = 0
    for state in _ENDED:
        async for info in _listed(team, state):
            if info.due_at >= before:  # the oldest stand first
                break
            with suppress(TransitionError):  # it was requeued since
                removed += await team.space.queue.remove(info.id)
    return removed


async def remove_all(team: Folder) -> int:
    """Remove the tasks of a team wherever they stand, and return how many."""
    return sum(
        [await team.space.queue.discard(info.id) for state in STATES async for info in _listed(team, state)]
    )


async def _listed(team: Folder, state: TaskState) -> AsyncIterator[TaskInfo]:
    after: str | None = None
    while page := await team.space.queue.list(state, after=after, limit=_PAGE):
        for info in page:
            if info.id.startswith(team.prefix):
                yield info
        after = page[-1].cursor
