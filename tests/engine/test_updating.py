"""Functions that are given to `update`: what they may write, and what would never end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context

import pytest

import keepstate.sync
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import AttemptsExhaustedError, InvalidError
from tests.engine.conftest import Turned


async def _put(space: Space) -> None:
    await space.documents.put("n", 99)


async def _delete(space: Space) -> None:
    await space.documents.delete("n")


async def _update(space: Space) -> None:
    await space.documents.update("n", {"x": 1}, default={})


async def _transact(space: Space) -> None:
    async def put(tx: Transaction) -> None:
        await tx.documents.put("n", 99)

    await space.transact(put)


@pytest.mark.parametrize("write", [_put, _delete, _update, _transact])
async def test_a_function_that_writes_the_document_it_updates_is_refused_by_name(
    turned: Turned, write: Callable[[Space], Awaitable[None]]
) -> None:
    await turned.space.documents.put("n", {})

    async def change(value: object) -> object:
        await write(turned.space)
        return value

    with pytest.raises(InvalidError, match="document 'n' of 'run/1' is written inside the function"):
        await turned.space.documents.update("n", change)
    assert await turned.space.documents.get("n") == {}


def test_a_plain_function_that_writes_the_document_it_updates_is_refused() -> None:
    with keepstate.sync.open("memory://") as ks:
        documents = ks.space("a").documents
        with pytest.raises(InvalidError, match="let the function return the new value"):
            documents.update("n", lambda old: (documents.put("n", 99), old + 1)[1], default=0)

        assert documents.get("n") is None


async def test_a_function_may_write_other_documents(space: Space) -> None:
    async def change(value: int) -> int:
        await space.documents.update("seen", lambda seen: [*seen, value], default=[])
        return value + 1

    await space.documents.update("n", change, default=0)
    await space.documents.update("n", change)

    assert (await space.documents.get("n"), await space.documents.get("seen")) == (2, [0, 1])


async def test_a_task_that_a_function_started_may_write_once_the_function_has_returned(space: Space) -> None:
    started: list[asyncio.Task[None]] = []
    returned = asyncio.Event()

    async def later() -> None:
        await returned.wait()
        await _put(space)

    def change(value: int) -> int:
        started.append(asyncio.create_task(later()))
        return value + 1

    await space.documents.update("n", change, default=0)
    returned.set()
    await started[0]

    assert await space.documents.get("n") == 99


async def test_an_update_that_others_defeat_for_ever_ends(turned: Turned) -> None:
    calls: list[int] = []

    async def change(value: int) -> int:
        calls.append(value)
        turned.clock.advance(100)
        await asyncio.create_task(_put(turned.space), context=Context())
        return value + 1

    with pytest.raises(AttemptsExhaustedError, match="had a conflict 1000 times"):
        await turned.space.documents.update("n", change, default=0)
    assert len(calls) == 1000
