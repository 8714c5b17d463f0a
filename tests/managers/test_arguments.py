"""Each argument of each public method of a manager: what is of no type it may be raises `InvalidError`.

The methods are found by their signatures, so that a new one is tried too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from keepstate import (
    AgentStateStore,
    InvalidError,
    KnowledgeStateManager,
    NotFoundError,
    OrchestrationStateManager,
    SpeechStateManager,
    StateManager,
    ToolStateManager,
    WorkflowStateManager,
)
from keepstate.managers.manager import Manager

MANAGERS: tuple[type[Manager], ...] = (
    StateManager, AgentStateStore, WorkflowStateManager, OrchestrationStateManager,
    KnowledgeStateManager, ToolStateManager, SpeechStateManager,
)  # fmt: skip
WRONG = (None, 5, 1.5, b"a", ["a"], {}, object())
TAKES_ANYTHING = {"unsubscribe"}
"""Answers that nothing like it was subscribed."""


def calls() -> Iterator[Any]:
    """Yields each method with the name of one of its arguments."""
    for manager in MANAGERS:
        for name, method in inspect.getmembers(manager, inspect.iscoroutinefunction):
            if not name.startswith("_") and name not in TAKES_ANYTHING:
                for argument in list(inspect.signature(method).parameters)[1:]:
                    yield pytest.param(manager, name, argument, id=f"{manager.__name__}.{name}({argument})")


def parts(hint: Any) -> list[Any]:
    """Returns the types that a hint joins."""
    return [hint] if get_origin(hint) in (None, Mapping, Callable) else list(get_args(hint)) or [hint]


def fits(value: object, hint: Any) -> bool:
    """Says whether a value is no wrong one, as far as a hint tells."""
    if hint in (Any, object):
        return True
    for part in parts(hint):
        kind = get_origin(part) or part
        if not isinstance(kind, type) or isinstance(value, kind) or (kind is float and type(value) is int):
            return True
    return False


def example(hint: Any) -> Any:
    """Returns a value that fits a hint."""
    kind = get_origin(parts(hint)[0]) or parts(hint)[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    known = {
        str: "x",
        int: 1,
        float: 1.0,
        bool: True,
        datetime: datetime(2001, 1, 1),
        timedelta: timedelta(1),
    }
    if kind in known:
        return known[kind]
    if kind in (Mapping, dict):
        return {"id": "x"}
    if hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind)
        needed = [each for each in fields(kind) if each.default is each.default_factory is MISSING]
        return kind(**{each.name: example(hints[each.name]) for each in needed})
    return len


@pytest.mark.parametrize(("manager", "name", "argument"), list(calls()))
async def test_what_is_of_no_type_an_argument_may_be_is_refused(
    manager: type[Manager], name: str, argument: str
) -> None:
    method = getattr(manager, name)
    hints = get_type_hints(method)
    needed = [
        each.name
        for each in list(inspect.signature(method).parameters.values())[1:]
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    ]
    given = {each: example(hints[each]) for each in needed}
    async with manager(persistence="memory://") as made:
        for wrong in WRONG:
            if fits(wrong, hints[argument]):
                continue
            try:
                await getattr(made, name)(**{**given, argument: wrong})
            except InvalidError as refused:
                told: str | None = str(refused)
            except NotFoundError:  # the subject is looked for first
                continue
            else:
                told = None

            assert told, f"{argument}={wrong!r} was taken"
