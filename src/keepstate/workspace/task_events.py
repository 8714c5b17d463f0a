"""What happens while an agent works on a task, in order, kept beside its variables and not among them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.values.schema import CLASSES


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        timestamp: When, in UTC.
        agent_name: Whose task it was.
        task_name: Which task.
        commit_hash: The commit at which the state is as it was after this; None where nothing is committed.
        commit_before: The commit at which it is as it was before; the same one if this changed nothing, None
            if it was the first.
    """

    timestamp: datetime
    agent_name: str
    task_name: str
    commit_hash: str | None = None
    commit_before: str | None = None


@CLASSES.register("keepstate.task.start")
class TaskStartEvent(TaskEvent, frozen=True, kw_only=True):
    """A task was called, with its inputs by name; `message` is what its docstring asks for."""

    inputs: dict[str, Any]
    message: str


@CLASSES.register("keepstate.task.action")
class ActionEvent(TaskEvent, frozen=True, kw_only=True):
    """The policy took a step: the source that was run, and what it thought, if it told."""

    code: str
    thinking: str = ""


@CLASSES.register("keepstate.task.output")
class OutputEvent(TaskEvent, frozen=True, kw_only=True):
    """A step printed something; one part for each call of `print`."""

    parts: list[str]


@CLASSES.register("keepstate.task.error")
class ErrorEvent(TaskEvent, frozen=True, kw_only=True):
    """A step raised; if it is `recoverable` the policy is asked for another."""

    error: str
    recoverable: bool


@CLASSES.register("keepstate.task.success")
class SuccessEvent(TaskEvent, frozen=True, kw_only=True):
    """The task ended with a result."""

    result: Any


@CLASSES.register("keepstate.task.fail")
class FailEvent(TaskEvent, frozen=True, kw_only=True):
    """The task ended without one."""

    message: str


def storable(event: TaskEvent, codec: Codec) -> TaskEvent:
    """Return an event, with text in place of what cannot be stored."""
    try:
        codec.canonical(event)
    except InvalidError:
        if isinstance(event, TaskStartEvent):
            inputs = {name: _stored_or_shown(value, codec) for name, value in event.inputs.items()}
            return msgspec.structs.replace(event, inputs=inputs)
        if isinstance(event, SuccessEvent):
            return msgspec.structs.replace(event, result=_stored_or_shown(event.result, codec))
        raise
    return event


def _stored_or_shown(value: object, codec: Codec) -> object:
    try:
        codec.canonical(value)
    except InvalidError:
        return shown(value)
    return value


def shown(value: object) -> str:
    """Return a value as people read it, whatever its class makes of that."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  somebody's own __repr__
        return f"<{type(value).__name__} that cannot be shown: {error}>"


class Remembering(Protocol):
    """A state that keeps what happened."""

    @property
    def happened(self) -> list[TaskEvent]:
        """All events, in order, in a list of their own."""
        ...


def events(state: Remembering) -> list[TaskEvent]:
    """Return what happened on a state, in order.

    Raises:
        InvalidError: It is no state, and keeps no events.
    """
    try:
        return state.happened
    except AttributeError as error:
        raise InvalidError(
            f"{state!r} keeps no events; give the state that its tasks were called with"
        ) from error
