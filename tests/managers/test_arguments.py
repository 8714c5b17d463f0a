"""Each argument of a manager's constructor and methods: what is of no type it may be raises `InvalidError`.

The methods are found by their signatures, so that a new one is tried too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from enum import Enum
from math import nan
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from keepstate import (
    AgentStateStore,
    InvalidError,
    KnowledgeStateManager,
    MemoryBackend,
    NotFoundError,
    OrchestrationStateManager,
    SpeechStateManager,
    StateConfig,
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
        for name, method in inspect.getmembers(manager, inspect.isfunction):
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


async def done(answer: Any) -> None:
    """Awaits what a method returned, or enters it, where it is to be."""
    if isinstance(answer, AbstractAsyncContextManager):
        async with answer:
            return
    if inspect.isawaitable(answer):
        await answer


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
                await done(getattr(made, name)(**{**given, argument: wrong}))
            except InvalidError as refused:
                told: str | None = str(refused)
            except NotFoundError:  # the subject is looked for first
                continue
            else:
                told = None

            assert told, f"{argument}={wrong!r} was taken"


NOWHERE = (5, 1.5, b"a", ["a"], {}, object())
CANNOT_BE: dict[str, tuple[Any, ...]] = {
    "config": ("memory", {}, MemoryBackend()),
    **dict.fromkeys(("persistence", "url", "redis_url", "file_path"), NOWHERE),
    "space": (*NOWHERE, "run/42"),
    "checkpoint_interval": (0, -1, 1.5, "5", True),
    "sync_interval": (-1, nan, "1", None, True),
    "lease_s": (0, -1, nan, "1", None, True),
    "cache_results": (1, "yes", None),
    "cache_ttl": (0, -1, nan, "1", True),
}


@pytest.mark.parametrize("manager", MANAGERS)
def test_what_a_manager_cannot_be_made_of_is_refused(manager: type[Manager]) -> None:
    for argument in inspect.signature(manager).parameters:
        for wrong in CANNOT_BE[argument] if argument != "_colour" else ():
            with pytest.raises(InvalidError):
                manager(**{argument: wrong})


@pytest.mark.parametrize("shards", [0, -1, 1_001, 1 << 40, 2.0, True])
def test_a_state_has_up_to_a_thousand_shards(shards: Any) -> None:
    with pytest.raises(InvalidError, match=r"`shards`.* 1 to 1000"):
        StateConfig(shards=shards)

    assert StateConfig(shards=1_000).shards == 1_000
