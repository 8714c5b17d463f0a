"""The public methods of all managers, found by their signatures, and values for their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from keepstate import (
    AgentStateStore,
    KnowledgeStateManager,
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


def methods(manager: type[Manager]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each public method, the hints of its arguments, and a value for each that must be given."""
    for name, method in inspect.getmembers(manager, inspect.isfunction):
        if not name.startswith("_"):
            taken = list(inspect.signature(method).parameters.values())[1:]
            known = get_type_hints(method)
            hints = {each.name: known[each.name] for each in taken if each.kind is not each.VAR_KEYWORD}
            needed = [each.name for each in taken if each.default is each.empty and each.name in hints]
            yield name, hints, {each: example(hints[each]) for each in needed}


def anything(*given: object) -> None:
    """Take what it is given."""


def parts(hint: Any) -> list[Any]:
    """Return the types that a hint joins."""
    return [hint] if get_origin(hint) in (None, Mapping, Callable) else list(get_args(hint)) or [hint]


def fits(value: object, hint: Any) -> bool:
    """Return whether a value is no wrong one, as far as a hint tells."""
    if hint in (Any, object):
        return True
    for part in parts(hint):
        kind = get_origin(part) or part
        if not isinstance(kind, type) or isinstance(value, kind) or (kind is float and type(value) is int):
            return True
    return False


def example(hint: Any) -> Any:
    """Return a value that fits a hint."""
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
    return anything


async def done(answer: Any) -> None:
    """Await what a method returned, or enters it, where it is to be."""
    if isinstance(answer, AbstractAsyncContextManager):
        async with answer:
            return
    if inspect.isawaitable(answer):
        await answer
