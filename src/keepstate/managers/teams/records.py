"""What a team is, as callers give it and as they get it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Literal, get_args

from keepstate.errors import InvalidError
from keepstate.managers.records import record

TeamTaskStatus = Literal["pending", "delayed", "in_progress", "completed", "dead"]
Priority = Literal["low", "normal", "high", "critical"]

PRIORITIES: Final[dict[str, int]] = {"low": -10, "normal": 0, "high": 10, "critical": 20}
"""What a task's `priority` stands for; an int is taken as it is."""

IDLE: Final = "idle"
"""The status of an agent that can be given something to do."""
WORKING: Final = "working"
"""The status of one that was. All others are the application's own."""


@record("AgentCoordinationState")
class AgentCoordinationState:
    """One agent of a team.

    Attributes:
        agent_id: Its name in the team.
        status: Any text; `idle` is who can be given a task.
        capabilities: What it can do.
        current_task: The id of what it works on.
        metadata: Whatever the application wants to keep with it.
        tasks: The ids of all tasks that it holds, the newest last; kept by the manager.
    """

    agent_id: str
    status: str = IDLE
    capabilities: list[str] = field(default_factory=list[str])
    current_task: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    tasks: list[str] = field(default_factory=list[str])


@record("TeamTask")
class TeamTask:
    """A task of a team, as it stood when it was read.

    Attributes:
        id: Its name in the team.
        task: The task as it was enqueued.
        status: `pending`, `delayed` (not to be done yet), `in_progress`, `completed` or `dead`.
        agent_id: Who holds it, or held it last.
        attempt: The how-manieth time it was given to an agent.
        max_attempts: After so many failures it is dead.
        token: Fences this holder from later ones: each has a higher one.
        result: What it was completed with.
        error: What its last failure said.
        enqueued_at: When it was enqueued, by the store's clock.
        due_at: When it can be claimed; of one in progress, when its lease ends; of others, when they ended.
    """

    id: str
    task: dict[str, Any]
    status: TeamTaskStatus = "pending"
    agent_id: str | None = None
    attempt: int = 0
    max_attempts: int = 5
    token: int = 0
    result: Any = None
    error: str | None = None
    enqueued_at: datetime | None = None
    due_at: datetime | None = None


@record("TaskQueueState")
class TaskQueueState:
    """The tasks of a team.

    What `create_team` is given holds tasks as dicts, in `pending`. What is read holds `TeamTask`s in lists
    that know their exact length and have their newest items loaded.

    Attributes:
        pending: To be done, also those that are delayed.
        in_progress: Held by an agent.
        completed: Done within the last week.
        dead: Failed as often as they were allowed to.
    """

    pending: Sequence[Any] = ()
    in_progress: Sequence[Any] = ()
    completed: Sequence[Any] = ()
    dead: Sequence[Any] = ()


@record("TeamState")
class TeamState:
    """A team: its agents by id, and its tasks."""

    team_id: str
    agents: dict[str, AgentCoordinationState] = field(default_factory=dict[str, AgentCoordinationState])
    task_queue: TaskQueueState = field(default_factory=TaskQueueState)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


def priority_of(task: dict[str, Any]) -> int:
    """Return a task's place in the queue: higher ones first.

    Raises:
        InvalidError: Its `priority` is no int and none of the known words.
    """
    given = task.get("priority", "normal")
    if type(given) is int:
        return given
    if type(given) is str and given in PRIORITIES:
        return PRIORITIES[given]
    raise InvalidError(f"`priority` is {given!r}; it is an int or one of {', '.join(get_args(Priority))}")


def needed_for(task: dict[str, Any]) -> str | None:
    """Return the capability that a task asks for: its `capability`, if it names one."""
    needed = task.get("capability")
    return needed if type(needed) is str else None


def is_fit(task: dict[str, Any], wanted: str | None, capabilities: Sequence[str]) -> bool:
    """Return whether an agent may take a task.

    Args:
        task: The task as it was enqueued.
        wanted: Only tasks of this `capability`; of this `type`, where they name no capability.
        capabilities: What the agent can do. Without `wanted` it takes what it can do, and what asks for
            nothing.
    """
    needed = needed_for(task)
    if wanted is not None:
        return (needed if needed is not None else task.get("type")) == wanted
    return needed is None or needed in capabilities
