"""What happens while an agent works on a task, in order, kept beside its variables and not among them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from keepstate.errors import InvalidError


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        timestamp: When, in UTC.
        agent_name: Whose task it was.
        task_name: Which task.
        commit_hash: The commit at which the state is as it was after this; None where nothing is committed.
        commit_before: The commit before it.
    """

    timestamp: datetime
    agent_name: str
    task_name: str
    commit_hash: str | None = None
    commit_before: str | None = None


class TaskStartEvent(TaskEvent, frozen=True, kw_only=True):
    """A task was called, with its inputs by name; `message` is what its docstring asks for."""

    inputs: dict[str, Any]
    message: str


class ActionEvent(TaskEvent, frozen=True, kw_only=True):
    """The policy took a step: the source that was run, and what it thought, if it told."""

    code: str
    thinking: str = ""


class OutputEvent(TaskEvent, frozen=True, kw_only=True):
    """A step printed something; one part for each call of `print`."""

    parts: list[str]


class ErrorEvent(TaskEvent, frozen=True, kw_only=True):
    """A step raised; if it is `recoverable` the policy is asked for another."""

    error: str
    recoverable: bool


class SuccessEvent(TaskEvent, frozen=True, kw_only=True):
    """The task ended with a result."""

    result: Any


class FailEvent(TaskEvent, frozen=True, kw_only=True):
    """The task ended without one."""

    message: str


class Remembering(Protocol):
    """A state that keeps what happened."""

    @property
    def happened(self) -> list[TaskEvent]:
        """Returns all events, in order, in a list of their own."""
        ...


def events(state: Remembering) -> list[TaskEvent]:
    """Returns what happened on a state, in order.

    Raises:
        InvalidError: It is no state, and keeps no events.
    """
    try:
        return state.happened
    except AttributeError as error:
        raise InvalidError(
            f"{state!r} keeps no events; give the state that its tasks were called with"
        ) from error
