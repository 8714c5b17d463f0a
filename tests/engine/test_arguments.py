"""Every argument of every public call: a wrong type or size is refused, in words, in both modes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any

import pytest

import keepstate
from keepstate import InvalidError, sync
from tests.engine.argument_calls import CALLS

WORDS = r".{20}"
"""What an error says at the least."""

ANYTHING = {
    "EventStream.fold(initial)",
    "Documents.get(default)",
    "Document.get(default)",
    "Queue.fail(error)",
    "Task.fail(error)",
    "Task.step(args)",
}
"""What takes every object there is."""


def test_every_argument_of_every_public_call_is_tried() -> None:
    twins = (
        sync.Keepstate, sync.Space, sync.Documents, sync.Document, sync.Events, sync.EventStream, sync.Leases,
        sync.Lease, sync.Queue, sync.Task, sync.Schedules, sync.UsageLedger,
    )  # fmt: skip
    there = {
        f"{twin.__name__}.{name}({parameter})"
        for twin in twins
        for name, method in inspect.getmembers(twin, inspect.isfunction)
        if not name.startswith("_")
        for parameter in list(inspect.signature(method).parameters)[1:]
    }

    assert there == set(CALLS) | ANYTHING


@pytest.mark.parametrize("name", CALLS)
def test_a_blocking_call_refuses_a_wrong_argument(name: str) -> None:
    call = CALLS[name]
    with sync.open("memory://") as ks:
        space = ks.space("run/1")
        space.documents.put("there", {"a": 1})
        target: Any = {"ks": ks, "space": space}.get(call.on)
        if call.on == "lease":
            target = space.leases.acquire("held", 60)
        elif call.on == "task":
            space.queue.put(1)
            (target,) = space.queue.claim("w", lease_s=60)
        before = space.revision()

        for wrong in call.wrong:
            with pytest.raises(InvalidError, match=WORDS), ExitStack() as blocks:
                answer = call.make(target, wrong)
                if isinstance(answer, AbstractContextManager):
                    blocks.enter_context(answer)
                elif isinstance(answer, Iterator):
                    next(answer)
        assert space.revision() == before


@pytest.mark.parametrize("name", CALLS)
async def test_an_asynchronous_call_refuses_a_wrong_argument(name: str) -> None:
    call = CALLS[name]
    async with keepstate.open("memory://") as ks:
        space = ks.space("run/1")
        await space.documents.put("there", {"a": 1})
        target: Any = {"ks": ks, "space": space}.get(call.on)
        if call.on == "lease":
            target = await space.leases.acquire("held", 60)
        elif call.on == "task":
            await space.queue.put(1)
            (target,) = await space.queue.claim("w", lease_s=60)
        before = await space.revision()

        for wrong in call.wrong:
            with pytest.raises(InvalidError, match=WORDS):
                async with AsyncExitStack() as blocks:
                    answer = call.make(target, wrong)
                    if isinstance(answer, AbstractAsyncContextManager):
                        await blocks.enter_async_context(answer)
                    elif isinstance(answer, AsyncIterator):
                        await anext(answer)
                    elif isinstance(answer, Awaitable):
                        await answer
        assert await space.revision() == before
