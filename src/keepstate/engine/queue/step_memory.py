"""Steps of a task as one attempt knows them: what is recorded, what it waits for, and what it asks people.

The approvals of a space are a room above this one, which gives them to the queue by a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.queue.step_records import Answer, StepRecord
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import ApprovalClosedError, InvalidError, StepUnknownError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

AnyApprovals: TypeAlias = Any
"""The `Approvals` of a transaction."""
AnyApproval: TypeAlias = Any
"""An `Approval`."""


@dataclass(slots=True)
class Waits:
    """Conditions that a suspended attempt waits for.

    Attributes:
        due_ms: The earliest time at which one of its waits ends.
        messages: The names of messages.
        after: The ids of other tasks.
        marks: Keys of entries, by the name that is waited on: the wait is over once one is absent.
    """

    due_ms: int | None = None
    messages: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    marks: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def add_due(self, due_ms: int) -> None:
        """Wait until a time at most."""
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)


class StepMemory:
    """The steps of a task, as one attempt knows them.

    Attributes:
        life_ms: The time at which the task was put.
        is_empty: Whether the task had no steps when it was claimed.
        rows: The recorded steps by name; None until they are read.
        used: The names that this attempt has used.
        numbers: The number of the next step.
        running: The number of steps that run now.
        intents: The entries of open steps that this attempt has begun, by name.
        lock: Lets one step read the rows, for all.
        idle: Is given when no step runs any more.
        waits: What the handler waits for; None as long as it does not.
    """

    def __init__(self, record: TaskRecord) -> None:
        self.life_ms, self.is_empty = record.put_at_ms, not record.has_steps
        self.rows: dict[str, StepRecord] | None = {} if self.is_empty else None
        self.used: set[str] = set()
        self.numbers = self.running = 0
        self.waits: Waits | None = None
        self.intents: dict[str, Entry | None] = {}
        self.lock: FifoLock | None = None
        self.idle: Any = None

    @property
    def size_bytes(self) -> int:
        """The size of all results."""
        return sum(row.size_bytes for row in (self.rows or {}).values())

    def take_number(self) -> int:
        """Return the number of a new step."""
        number = self.numbers
        self.numbers += 1
        return number


def encode_result(
    executor: Executor, memory: StepMemory, task_id: str, key: bytes, name: str, value: object
) -> bytes:
    """Return the encoded result of a step, after verifying that the task has room for it."""
    try:
        stored = executor.encode(value, key)
    except InvalidError as error:
        raise InvalidError(
            f"the result of step {name!r} of task {task_id!r} cannot be stored: {error}", path=error.path
        ) from error
    if memory.size_bytes + len(stored) > limits.STEPS_BYTES:
        raise InvalidError(
            f"the results of the steps of task {task_id!r} have over {limits.STEPS_BYTES >> 20} MiB with "
            f"that of {name!r}. Store large results elsewhere, and return their names"
        )
    return stored


def unknown_error(executor: Executor, task_id: str, name: str) -> StepUnknownError:
    """Return the error for a step with `once` that another attempt has left open."""
    return StepUnknownError(
        f"step {name!r} of task {task_id!r} of {executor.name!r} was begun, and its end unknown. "
        f"Find out, then call queue.settle({task_id!r}, {name!r}, result), or with NOT_DONE",
        task=task_id,
        step=name,
        current="open",
        wanted="done",
    )


# ---- questions


class NoDefault(Enum):
    """The type of `NO_DEFAULT`."""

    NO_DEFAULT = "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT
"""For `task.ask`: an approval that expires is an error."""


class Asker(Protocol):
    """A claimed task that asks."""

    id: str
    token: int


def check_default(default: object, *, has_schema: bool) -> None:
    """Raise `InvalidError` for a default that is not an answer."""
    if default is not NO_DEFAULT and not has_schema and type(default) is not bool:
        raise InvalidError(f"`default` is {default!r:.60}; the approval asks for yes or no")


async def ask_once(
    approvals: AnyApprovals, task: Asker, name: str, question: str, asked: Mapping[str, Any]
) -> str:
    """Ask a question of a task, and return the id of its approval."""
    id = f"{task.id}/{name}"
    if await approvals.get(id) is not None:  # of an earlier run of this task
        id += f"/{task.token}"
    found: str = (await approvals.ask(question, id=id, task=task.id, **asked)).id
    return found


async def note_end(approvals: AnyApprovals, id: str) -> str:
    """Store that an approval has expired, if it has, and return its id."""
    await approvals.expire(id)
    return id


def answer_of(approval: AnyApproval, default: Any, space: str, *, has_schema: bool) -> Answer:
    """Return the answer to a closed approval, or the default of an expired one.

    Raises:
        ApprovalClosedError: It was withdrawn, or has expired and there is no default.
    """
    if approval.answer is not None:
        answer: Answer = approval.answer
        return answer
    if approval.state == "expired" and default is not NO_DEFAULT:
        is_yes = default is True and not has_schema
        return Answer(default, is_yes, None, approval.closed_at, "", approval.subject)
    told = "has expired, and there is no default" if approval.state == "expired" else "was withdrawn"
    raise ApprovalClosedError(
        f"approval {approval.id!r} of {space!r} {told}",
        space=space,
        approval=approval.id,
        state=approval.state,
    )
