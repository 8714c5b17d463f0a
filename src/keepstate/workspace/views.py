"""A state as somebody looks at it: all of it as a dict, or what is recent as text of bounded length."""

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
    shown,
)

_VALUE_CHARS: Final = 200
"""Of one value that the text shows; the rest is cut."""
_ITEMS: Final = _VALUE_CHARS // 3 + 1
"""Each has three characters at least, with what stands between."""


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
        state: A live state, or one that was checked out.
        focus: What is of interest.
        max_chars: How long the text may be; older events are left out first.

    Raises:
        InvalidError: There is no such focus, or this is no state.
    """
    _admit(state)
    if focus == "full":
        return dict(state)
    if focus != "recent":
        raise InvalidError(f"there is no focus {focus!r}; give 'full' or 'recent'")
    if type(max_chars) is not int or max_chars < 1:
        raise InvalidError(f"`max_chars` is {max_chars!r}; it must be 1 or more")
    return _recent(state, max_chars)


def _admit(state: object) -> None:
    if not isinstance(state, Mapping):
        raise InvalidError(f"{state!r} is no state; give a Live, or what checkout returned")


def _recent(state: Mapping[str, Any], max_chars: int) -> str:
    lines = ["Variables:", *(f"  {name} = {_shown(value)}" for name, value in state.items())]
    text = "\n".join(lines if state else ["Variables: none"])
    happened: list[TaskEvent] = getattr(state, "happened", [])
    room = max_chars - len(text) - len("\nEvents:\n  …")
    kept: list[str] = []
    for event in reversed(happened):
        told = _told(event)
        room -= len(told) + 1
        if room < 0:
            kept.append("  …")
            break
        kept.append(told)
    if kept:
        text = "\n".join([text, "Events:", *reversed(kept)])
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _told(event: TaskEvent) -> str:
    if isinstance(event, TaskStartEvent):
        inputs = ", ".join(f"{name}={_shown(value)}" for name, value in event.inputs.items())
        told = f"{event.task_name}({inputs}) began: {event.message}"
    elif isinstance(event, ActionEvent):
        thought = f"thought: {event.thinking}\n" if event.thinking else ""
        told = f"{thought}ran:\n{event.code}"
    elif isinstance(event, OutputEvent):
        told = f"printed: {''.join(event.parts)}"
    elif isinstance(event, ErrorEvent):
        told = f"raised {event.error}"
    elif isinstance(event, SuccessEvent):
        told = f"{event.task_name} ended with {_shown(event.result)}"
    elif isinstance(event, FailEvent):
        told = f"{event.task_name} failed: {event.message}"
    else:
        told = repr(event)
    return "  " + told.rstrip("\n").replace("\n", "\n    ")


def _shown(value: object) -> str:
    text = shown(_beginning(value))
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 1]}…"


def _beginning(value: Any) -> Any:
    """Return at least as much of a value as is shown of it: to show all of a long list would take long."""
    kind = kind_of(value)
    if kind is list or kind is tuple:
        return value[:_ITEMS]
    if kind is dict:
        return dict(islice(value.items(), _ITEMS))
    return value[:_VALUE_CHARS] if kind is str or kind is bytes else value
