"""Records of a team, lists of its tasks, and a short-lived cache of both, as callers pass and receive them.

Invariant of the cache: a cached read never hides a later write of the same manager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from copy import deepcopy
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, cast, get_args, overload

from keepstate._clock import Clock
from keepstate._finish import finish
from keepstate.errors import InvalidError, NotLoadedError
from keepstate.managers.records import record

T = TypeVar("T")

TeamTaskStatus = Literal["pending", "delayed", "in_progress", "completed", "dead", "cancelled"]
Priority = Literal["low", "normal", "high", "critical"]

PRIORITIES: Final[dict[str, int]] = {"low": -10, "normal": 0, "high": 10, "critical": 20}
"""Numbers of the named priorities; an int is used unchanged."""

_SUBJECTS: Final = 256
LOADED: Final = 100
"""Number of the newest tasks of a list that are loaded."""
IDLE: Final = "idle"
"""The status of an agent that can be given a task."""
WORKING: Final = "working"
"""The status of an agent that was given a task. All other statuses belong to the application."""


@record("AgentCoordinationState")
class AgentCoordinationState:
    """One agent of a team.

    Attributes:
        agent_id: Id of the agent in the team.
        status: Any text; an agent that is `idle` can be given a task.
        capabilities: Capabilities of the agent.
        current_task: Id of the task that it works on.
        metadata: Data of the application.
        tasks: Ids of all tasks that it holds, newest last; maintained by the manager.
    """

    agent_id: str
    status: str = IDLE
    capabilities: list[str] = field(default_factory=list[str])
    current_task: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    tasks: list[str] = field(default_factory=list[str])


@record("TeamTask")
class TeamTask:
    """A task of a team, as read.

    Attributes:
        id: Id of the task in the team.
        task: The task as enqueued.
        status: `pending`, `delayed` (cannot be claimed yet), `in_progress`, `completed`, `dead` or
            `cancelled`.
        agent_id: The current or last holder.
        attempt: Attempt number, from 1; 0 before the first.
        max_attempts: Number of failures after which it is dead.
        token: Fencing token; each holder has a higher one.
        result: Result of its completion.
        error: The error of its last failure.
        enqueued_at: Time of enqueuing, by the store's clock.
        due_at: Time from which it can be claimed. In progress: the end of its lease. Otherwise: its end.
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


LoadTasks = Callable[[], Coroutine[Any, Any, list[TeamTask]]]


class TaskList(Sequence[TeamTask]):
    """Tasks, newest first. `len` is exact as of the read, however many are loaded.

    Access to a task that is not loaded raises `NotLoadedError`. `await tasks.load()` returns all.
    """

    def __init__(self, count: int, newest: Sequence[TeamTask], load_all: LoadTasks) -> None:
        self._count, self._loaded, self._load_all = count, list(newest), load_all

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}, {len(self._loaded)} loaded>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> TeamTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TeamTask]: ...
    def __getitem__(self, index: int | slice) -> TeamTask | Sequence[TeamTask]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(f"there are {self._count} tasks, and none at index {index}")
        if position >= len(self._loaded):
            self._load_to(position)
        return self._loaded[position]

    def __iter__(self) -> Iterator[TeamTask]:
        yield from (self[index] for index in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(a == b for a, b in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a list has none

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskList:
        return type(self)(self._count, deepcopy(self._loaded, memo), self._load_all)

    async def load(self) -> list[TeamTask]:
        """Read all tasks of the list as they are now."""
        return await self._load_all()

    def _load_to(self, index: int) -> None:
        raise NotLoadedError(
            f"task {index} of {self._count} is not loaded, only the newest {len(self._loaded)} are. "
            "Read all with `await tasks.load()`."
        )


class LoadingTaskList(TaskList):
    """A task list for blocking mode, which loads tasks on access."""

    def _load_to(self, index: int) -> None:
        known = {task.id for task in self._loaded}
        self._loaded += [task for task in finish(self._load_all()) if task.id not in known]
        if index >= len(self._loaded):
            raise NotLoadedError(
                f"only {len(self._loaded)} of {self._count} tasks are left in the list. Read the queue again."
            )


@record("TaskQueueState")
class TaskQueueState:
    """The tasks of a team.

    The argument of `create_team` has tasks as dicts, in `pending`. Reads return `TeamTask`s in lists that
    have their exact length and their newest items loaded.

    Attributes:
        pending: Tasks that are available or delayed.
        in_progress: Tasks held by an agent.
        completed: Tasks completed within the last week.
        dead: Tasks that failed `max_attempts` times.
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
    """Return the priority of a task in the queue; higher priorities come first.

    Raises:
        InvalidError: Its `priority` is neither an int nor a known name.
    """
    given = task.get("priority", "normal")
    if type(given) is int:
        return given
    if type(given) is str and given in PRIORITIES:
        return PRIORITIES[given]
    raise InvalidError(f"`priority` is {given!r}. Pass an int or one of {', '.join(get_args(Priority))}.")


def needed_capability(task: dict[str, Any]) -> str | None:
    """Return the capability that a task needs: its `capability`, if that is text."""
    needed = task.get("capability")
    return needed if type(needed) is str else None


def is_fit(task: dict[str, Any], wanted: str | None, capabilities: Sequence[str]) -> bool:
    """Return whether an agent may take a task.

    Args:
        task: The task as enqueued.
        wanted: The required `capability`, or `type` if the task has no capability. By default the task must
            need none, or one that the agent has.
        capabilities: Capabilities of the agent.
    """
    needed = needed_capability(task)
    if wanted is not None:
        return (needed if needed is not None else task.get("type")) == wanted
    return needed is None or needed in capabilities


class ReadCache:
    """A cache of reads by subject, each valid for `keep_s` seconds; 0 turns it off."""

    def __init__(self, clock: Clock, keep_s: float) -> None:
        self._clock, self._keep_s = clock, keep_s
        self._cached: OrderedDict[str, dict[str, tuple[float, Any]]] = OrderedDict()
        self._writes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": OrderedDict()}

    async def get(self, subject: str, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return a copy of a cached read, or of a new one."""
        if not self._keep_s:
            return await read()
        now_s, writes = self._clock.monotonic_s(), self._writes
        answers = self._cached.get(subject)
        if answers is not None and what in answers and now_s - answers[what][0] < self._keep_s:
            lately: T = deepcopy(answers[what][1])
            return lately
        answer = await read()
        if writes == self._writes:  # otherwise the answer may be older than a write of this manager
            self._cached.setdefault(subject, {})[what] = now_s, deepcopy(answer)
            if len(self._cached) > _SUBJECTS:
                self._cached.popitem(last=False)
        return answer

    def invalidate(self, subject: str) -> None:
        """Drop the cached reads of a subject that is being or has been written."""
        self._writes += 1
        self._cached.pop(subject, None)
