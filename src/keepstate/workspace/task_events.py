"""Events of agents' tasks, in order, stored next to the variables and not among them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.values.schema import CLASSES


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a task.

    Attributes:
        timestamp: Time of the event, UTC.
        agent_name: The agent of the task.
        task_name: The task.
        commit_hash: The commit with the state after this event; None if nothing is committed.
        commit_before: The commit with the state before this event: the same one if the event changed nothing,
            None if it was the first.
    """

    timestamp: datetime
    agent_name: str
    task_name: str
    commit_hash: str | None = None
    commit_before: str | None = None


@CLASSES.register("keepstate.task.start")
class TaskStartEvent(TaskEvent, frozen=True, kw_only=True):
    """The call of a task, with its inputs by name; `message` is its docstring."""

    inputs: dict[str, Any]
    message: str


@CLASSES.register("keepstate.task.action")
class ActionEvent(TaskEvent, frozen=True, kw_only=True):
    """A step of the policy: its source, and the policy's thinking, if it was returned."""

    code: str
    thinking: str = ""


@CLASSES.register("keepstate.task.output")
class OutputEvent(TaskEvent, frozen=True, kw_only=True):
    """The output of a step; one part for each call of `print`."""

    parts: list[str]


@CLASSES.register("keepstate.task.error")
class ErrorEvent(TaskEvent, frozen=True, kw_only=True):
    """The exception of a step; if it is `recoverable`, the policy is asked for another step."""

    error: str
    recoverable: bool


@CLASSES.register("keepstate.task.success")
class SuccessEvent(TaskEvent, frozen=True, kw_only=True):
    """The end of a task with a result."""

    result: Any


@CLASSES.register("keepstate.task.fail")
class FailEvent(TaskEvent, frozen=True, kw_only=True):
    """The end of a task without a result."""

    message: str


def to_storable(event: TaskEvent, codec: Codec) -> TaskEvent:
    """Return an event with text in place of values that cannot be stored."""
    try:
        codec.canonical(event)
    except InvalidError:
        if isinstance(event, TaskStartEvent):
            inputs = {name: _to_storable_value(value, codec) for name, value in event.inputs.items()}
            return msgspec.structs.replace(event, inputs=inputs)
        if isinstance(event, SuccessEvent):
            return msgspec.structs.replace(event, result=_to_storable_value(event.result, codec))
        raise
    return event


def _to_storable_value(value: object, codec: Codec) -> object:
    try:
        codec.canonical(value)
    except InvalidError:
        return safe_repr(value)
    return value


def safe_repr(value: object) -> str:
    """Return the repr of a value, or a description if its `__repr__` fails."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the `__repr__` of the caller's class
        return f"<{type(value).__name__} with a failing __repr__: {error}>"


class HasTaskEvents(Protocol):
    """A state that stores task events."""

    @property
    def task_events(self) -> list[TaskEvent]:
        """A new list of all events, in order."""
        ...


def events(state: HasTaskEvents) -> list[TaskEvent]:
    """Return the task events of a state, in order.

    Raises:
        InvalidError: The value is not a state and has no events.
    """
    try:
        return state.task_events
    except AttributeError as error:
        raise InvalidError(
            f"{state!r} has no events. Pass the state that its tasks were called with."
        ) from error
