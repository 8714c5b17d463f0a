"""Updates: what their functions may write, what would never end, and how those of one document take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from time import sleep

import pytest

import keepstate.sync
from keepstate.engine.kernel import locks
from keepstate.engine.space.space import Space, Transaction
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
        with pytest.raises(InvalidError, match="Return the new value from the function"):
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

    with pytest.raises(AttemptsExhaustedError, match="had 1000 conflicts in a row"):
        await turned.space.documents.update("n", change, default=0)
    assert len(calls) == 1000


# ---- in turn


async def test_updates_of_one_document_do_not_make_each_other_s_work_void(space: Space) -> None:
    calls: list[int] = []

    async def change(value: int) -> int:
        calls.append(value)
        await asyncio.sleep(0)
        return value + 1

    await space.documents.put("n", 0)
    await asyncio.gather(*(space.documents.update("n", change) for _ in range(40)))

    assert await space.documents.get("n") == 40
    assert len(calls) < 60  # 40, but where a server took longer than who waits is ready to
    assert not locks._queues


def test_updates_by_threads_come_in_turn() -> None:
    calls: list[int] = []

    def change(value: int) -> int:
        calls.append(value)
        sleep(0.0005)
        return value + 1

    with keepstate.sync.open("memory://") as ks, ThreadPoolExecutor(8) as threads:
        documents = ks.space("a").documents
        documents.put("n", 0)
        for done in [threads.submit(documents.update, "n", change) for _ in range(80)]:
            done.result()

        assert documents.get("n") == 80
    assert len(calls) < 100


async def test_updates_that_update_each_other_s_documents_end(space: Space) -> None:
    async def crossing(mine: str, other: str) -> None:
        async def change(value: int) -> int:
            await asyncio.sleep(0.01)
            await space.documents.update(other, lambda seen: seen, default=0)
            return value + 1

        await space.documents.update(mine, change, default=0)

    async with asyncio.timeout(60):
        await asyncio.gather(crossing("a", "b"), crossing("b", "a"))

    assert [await space.documents.get(name) for name in "ab"] == [1, 1]


async def test_a_slow_function_holds_nobody_up_for_long(turned: Turned) -> None:
    others_are_done = asyncio.Event()
    at_work = asyncio.Event()

    async def slow(value: int) -> int:
        at_work.set()
        await others_are_done.wait()
        return value + 100

    slowly = asyncio.create_task(turned.space.documents.update("n", slow, default=0))
    await at_work.wait()
    await asyncio.gather(*(turned.space.documents.update("n", lambda n: n + 1, default=0) for _ in range(5)))
    others_are_done.set()
    await slowly

    assert await turned.space.documents.get("n") == 105
    assert not locks._queues


async def test_who_gives_up_waiting_or_working_holds_nobody_up(turned: Turned) -> None:
    at_work = asyncio.Event()

    async def stuck(value: int) -> int:
        at_work.set()
        await asyncio.Event().wait()
        return value

    def add(value: int) -> int:
        return value + 1

    first = asyncio.create_task(turned.space.documents.update("n", stuck, default=0))
    await at_work.wait()
    waiting = [asyncio.create_task(turned.space.documents.update("n", add, default=0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    first.cancel()
    await asyncio.gather(*waiting, first, return_exceptions=True)

    assert await turned.space.documents.get("n") == 2
    assert not locks._queues
