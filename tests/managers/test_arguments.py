"""Each argument of a manager's constructor and methods: what is of no type it may be raises `InvalidError`.

The methods are found by their signatures, so that a new one is tried too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import Any, get_type_hints

import pytest

from keepstate import (
    AgentCoordinationState,
    AgentRecoveryManager,
    InvalidError,
    KeepstateError,
    KnowledgeStateManager,
    MemoryBackend,
    NotFoundError,
    OrchestrationStateManager,
    SpeechStateManager,
    StateConfig,
    TaskQueueState,
    TeamState,
    ToolExecution,
    ToolStateManager,
    WorkflowState,
    WorkflowStateManager,
    sync,
)
from keepstate.managers.binding import ManagerStorage
from keepstate.managers.manager import Manager
from tests.managers.calls import MANAGERS, done, fits, methods, parts

WRONG: tuple[Any, ...] = (None, 5, 1.5, b"a", ["a"], {}, object())
TAKES_ANYTHING = {"unsubscribe"}
"""Answers that nothing like it was subscribed."""
NUMBERS = (inf, nan, 1e300, 0, -1, 1 << 70, -1 << 70, 10**400)
FARTHEST: dict[type, tuple[Any, ...]] = {
    int: NUMBERS,
    float: NUMBERS,
    str: ("\ud800", "x" * 100_000, "\0"),
    timedelta: (timedelta.max, timedelta.min, timedelta(0), timedelta(-1)),
    datetime: (
        datetime.max,
        datetime.min,
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    ),
}
WAITS = {"wait_s", "timeout_s"}
"""How long to wait, which may be long."""


def calls() -> Iterator[Any]:
    """Yield each method with the name of one of its arguments."""
    for manager in MANAGERS:
        for name, hints, given in methods(manager):
            if name not in TAKES_ANYTHING:
                for argument, hint in hints.items():
                    called = f"{manager.__name__}.{name}({argument})"
                    yield pytest.param(manager, name, argument, hint, given, id=called)


@pytest.mark.parametrize(("manager", "name", "argument", "hint", "given"), list(calls()))
async def test_what_is_of_no_type_an_argument_may_be_is_refused(
    manager: type[Manager], name: str, argument: str, hint: Any, given: dict[str, Any]
) -> None:
    async with manager(persistence="memory://") as made:
        for wrong in WRONG:
            if fits(wrong, hint):
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


def farthest(value: Any, hint: Any) -> Iterator[Any]:
    """Yield values as far out as the types of a hint let them be, and records with a field so."""
    for part in parts(hint):
        yield from FARTHEST.get(part, ()) if isinstance(part, type) else ()
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        for each in fields(value):
            for far in farthest(getattr(value, each.name), hints[each.name]):
                yield replace(value, **{each.name: far})


async def begin(made: Any) -> None:
    """Let there be a subject `x`, so that more than its absence is told."""
    if isinstance(made, OrchestrationStateManager):
        agents, queue = {"x": AgentCoordinationState("x")}, TaskQueueState(pending=[{"id": "x"}, {"id": "y"}])
        await made.create_team(TeamState("x", agents, queue))
        await made.claim_task("x", "x")
    elif isinstance(made, WorkflowStateManager):
        await made.create(WorkflowState("x"))
    elif isinstance(made, ToolStateManager):
        await made.start_execution(ToolExecution("x", "x"))
    elif isinstance(made, SpeechStateManager):
        await made.create_session("x", session_id="x")
    elif isinstance(made, KnowledgeStateManager):
        await made.fail_document("x", "x", "no")


@pytest.mark.parametrize("manager", MANAGERS)
async def test_the_farthest_numbers_times_and_texts_are_taken_or_refused(manager: type[Manager]) -> None:
    tried = 0
    for name, hints, given in methods(manager):
        for argument, hint in hints.items():
            for far in farthest(given.get(argument), hint):
                if argument in WAITS and far == far and far > 1:
                    continue
                async with manager(persistence="memory://") as made:
                    await begin(made)
                    with suppress(KeepstateError):
                        await done(getattr(made, name)(**{**given, argument: far}))
                    tried += 1

    assert tried > 30


NOWHERE: tuple[Any, ...] = (5, 1.5, b"a", ["a"], {}, object())
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
    own = inspect.signature(manager).parameters
    for argument in {*own, *ManagerStorage.__annotations__} - {"storage", "_mode"}:
        for wrong in CANNOT_BE[argument]:
            with pytest.raises(InvalidError):
                manager(**{argument: wrong})


@pytest.mark.parametrize("manager", [*MANAGERS, AgentRecoveryManager])
def test_blocking_managers_are_made_of_the_same_arguments(manager: type[Any]) -> None:
    twin = getattr(sync, manager.__name__)

    taken = inspect.signature(manager).parameters.values()
    same = inspect.signature(twin).parameters.values()
    assert [(each.name, each.kind, each.default) for each in taken if each.name != "_mode"] == [
        (each.name, each.kind, each.default) for each in same
    ]


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("unknown", ["peristence", "records", "kind"])
def test_an_argument_that_a_manager_does_not_have_is_named(manager: type[Manager], unknown: str) -> None:
    for made in (manager, getattr(sync, manager.__name__)):
        with pytest.raises(TypeError, match=f"{manager.__name__} got .* '{unknown}'"):
            made(**{unknown: None})
    with pytest.raises(TypeError, match="'_mode'"):
        getattr(sync, manager.__name__)(_mode="async")


@pytest.mark.parametrize("shards", [0, -1, 1_001, 1 << 40, 2.0, True])
def test_a_state_has_up_to_a_thousand_shards(shards: Any) -> None:
    with pytest.raises(InvalidError, match=r"`shards`.* 1 to 1000"):
        StateConfig(shards=shards)

    assert StateConfig(shards=1_000).shards == 1_000
