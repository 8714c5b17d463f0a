"""Views of a state: all variables as a dict, or recent events as text of bounded length."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Literal, overload

from keepstate.engine.history.in_place import kind_of
from keepstate.errors import InvalidError
from keepstate.workspace.task_events import (
    ActionEvent,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
    safe_repr,
)

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
    if focus != "recent":
        raise InvalidError(f"`focus` is {focus!r}. Use 'full' or 'recent'.")
    if type(max_chars) is not int or max_chars < 1:
        raise InvalidError(f"`max_chars` is {max_chars!r}. Pass 1 or more.")
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
