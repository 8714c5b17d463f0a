"""Events of agents' tasks, and views: all variables as a dict, or recent events as text of bounded length.

Events are stored in order next to the variables, and not among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal, Protocol, overload

import msgspec

from keepstate.engine.kernel.arguments import check_choice
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.codec import Codec
from keepstate.values.schema import CLASSES
from keepstate.values.types import kind_of


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


_VALUE_CHARS: Final = 200
"""Maximum length of one value in the text; longer ones are truncated."""
_ITEMS: Final = _VALUE_CHARS // 3 + 1
"""Each item takes at least three characters, with its separator."""


@overload
def view(state: Mapping[str, Any], *, focus: Literal["full"]) -> dict[str, Any]: ...
@overload
def view(
    state: Mapping[str, Any], *, focus: Literal["recent"] = "recent", max_chars: int = 16_000
) -> str: ...
def view(
    state: Mapping[str, Any], *, focus: Literal["full", "recent"] = "recent", max_chars: int = 16_000
) -> dict[str, Any] | str:
    """Return all variables as a dict (`full`), or the variables and the last events as text (`recent`).

    Args:
        state: A live state, or a checkout.
        focus: `full` or `recent`.
        max_chars: Maximum length of the text; older events are dropped first.

    Raises:
        InvalidError: The focus does not exist, or the value is not a state.
    """
    _check_mapping(state)
    if focus == "full":
        return dict(state)
    check_choice("focus", focus, "full", "recent")
    limits.admit_count("max_chars", max_chars)
    return _format_recent(state, max_chars)


def _check_mapping(state: object) -> None:
    if not isinstance(state, Mapping):
        raise InvalidError(f"{state!r} is not a state. Pass a Live, a Versioned, or a checkout.")


def _format_recent(state: Mapping[str, Any], max_chars: int) -> str:
    lines = ["Variables:", *(f"  {name} = {_format_value(value)}" for name, value in state.items())]
    text = "\n".join(lines if state else ["Variables: none"])
    task_events: list[TaskEvent] = getattr(state, "task_events", [])
    room = max_chars - len(text) - len("\nEvents:\n  …")
    kept: list[str] = []
    for event in reversed(task_events):
        line = _format_event(event)
        room -= len(line) + 1
        if room < 0:
            kept.append("  …")
            break
        kept.append(line)
    if kept:
        text = "\n".join([text, "Events:", *reversed(kept)])
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _format_event(event: TaskEvent) -> str:
    if isinstance(event, TaskStartEvent):
        inputs = ", ".join(f"{name}={_format_value(value)}" for name, value in event.inputs.items())
        text = f"{event.task_name}({inputs}) began: {event.message}"
    elif isinstance(event, ActionEvent):
        thought = f"thought: {event.thinking}\n" if event.thinking else ""
        text = f"{thought}ran:\n{event.code}"
    elif isinstance(event, OutputEvent):
        text = f"printed: {''.join(event.parts)}"
    elif isinstance(event, ErrorEvent):
        text = f"raised {event.error}"
    elif isinstance(event, SuccessEvent):
        text = f"{event.task_name} ended with {_format_value(event.result)}"
    elif isinstance(event, FailEvent):
        text = f"{event.task_name} failed: {event.message}"
    else:
        text = repr(event)
    return "  " + text.rstrip("\n").replace("\n", "\n    ")


def _format_value(value: object) -> str:
    text = safe_repr(_prefix(value))
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 1]}…"


def _prefix(value: Any) -> Any:
    """Return a prefix that covers the shown text, because long values are slow to format."""
    kind = kind_of(value)
    if kind is list or kind is tuple:
        return value[:_ITEMS]
    if kind is dict:
        return dict(islice(value.items(), _ITEMS))
    return value[:_VALUE_CHARS] if kind is str or kind is bytes else value
