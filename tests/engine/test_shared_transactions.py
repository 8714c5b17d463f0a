"""One transaction used by many tasks at once: what each does is done as if it were alone."""

from __future__ import annotations

import asyncio

import pytest

from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ClosedError, NotFoundError
from tests.engine.conftest import Turned


async def test_no_update_of_tasks_in_one_transaction_is_lost(space: Space) -> None:
    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    async with space.transaction() as tx:
        await asyncio.gather(
            *(tx.documents.update("n", slow, default=0) for _ in range(20)),
            *(tx.documents.put(f"d{number}", number) for number in range(20)),
        )

    assert await space.documents.get("n") == 20
    assert {key: value async for key, value in space.documents.items("d*")} == {f"d{n}": n for n in range(20)}
    assert await space.revision() == 1


async def test_work_of_several_steps_is_whole_among_others_that_join_a_transaction(space: Space) -> None:
    await space.documents.put("n", 0)

    async with space.transaction() as tx:

        async def more(joined: Transaction) -> None:
            value = await joined.documents.get("n")
            await asyncio.sleep(0)
            await joined.documents.put("n", value + 1)

        async def twice(joined: Transaction) -> None:
            await run_in_transaction(joined, more)
            await run_in_transaction(joined, more)

        await asyncio.gather(
            *(run_in_transaction(tx, more) for _ in range(10)), run_in_transaction(tx, twice)
        )

    assert await space.documents.get("n") == 12


async def test_tasks_read_and_change_what_a_transaction_lists(space: Space) -> None:
    async with space.transaction() as tx:
        for number in range(8):
            await tx.documents.put(f"d{number}", 0)

    async def counted(tx: Transaction) -> int:
        total = 0
        async for key in tx.documents.keys("d*"):
            await tx.documents.update(key, lambda n: n + 1)
            total += 1
        return total

    async with space.transaction() as tx:
        totals = await asyncio.gather(*(counted(tx) for _ in range(4)))

    assert totals == [8] * 4
    assert [value async for _, value in space.documents.items("d*")] == [4] * 8


async def test_a_function_that_updates_may_use_the_transaction_from_tasks_of_its_own(space: Space) -> None:
    async with space.transaction() as tx:

        async def plus(key: str) -> int:
            found: int = await tx.documents.update(key, lambda n: n + 1, default=0)
            return found

        async def total(n: int) -> int:
            return n + sum(await asyncio.gather(*(plus("inner") for _ in range(4))))

        async with asyncio.timeout(60):
            await asyncio.gather(*(tx.documents.update("n", total, default=0) for _ in range(3)))

    assert await space.documents.get("inner") == 12
    assert await space.documents.get("n") == sum(range(1, 13))


async def test_a_cancelled_caller_lets_the_others_of_its_transaction_go_on(space: Space) -> None:
    async with space.transaction() as tx:
        going_on = asyncio.Event()

        async def slow(n: int) -> int:
            await going_on.wait()
            return n + 1

        first = asyncio.create_task(tx.documents.update("n", slow, default=0))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(tx.documents.put(f"d{number}", number)) for number in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        going_on.set()
        async with asyncio.timeout(60):
            ended = await asyncio.gather(first, *waiting, return_exceptions=True)

    assert [type(end) for end in ended] == [int, asyncio.CancelledError, int, int]
    assert [key async for key in space.documents.keys("*")] == ["d1", "d2", "n"]


async def test_a_caller_that_is_cancelled_when_its_turn_has_come_passes_it_on(turned: Turned) -> None:
    async with turned.space.transaction() as tx:
        going_on = asyncio.Event()

        async def slow(n: int) -> int:
            await going_on.wait()
            waiting[0].cancel()
            return n

        first = asyncio.create_task(tx.documents.update("n", slow, default=0))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(tx.documents.put(f"d{number}", number)) for number in range(2)]
        await asyncio.sleep(0)
        going_on.set()
        async with asyncio.timeout(60):
            await asyncio.gather(first, *waiting, return_exceptions=True)

        assert await tx.documents.get("d1") == 1


async def test_what_is_still_waiting_when_its_transaction_ends_is_refused(space: Space) -> None:
    going_on = asyncio.Event()

    async def slow(n: int) -> int:
        await going_on.wait()
        return n + 1

    async with space.transaction() as tx:
        begun = asyncio.create_task(tx.documents.update("n", slow, default=0))
        await asyncio.sleep(0)
        late = asyncio.create_task(tx.documents.put("late", 1))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(going_on.set)

    with pytest.raises(ClosedError):
        await late
    assert await begun == await space.documents.get("n") == 1
    assert await space.documents.get("late") is None


async def test_transactions_in_one_another_wait_for_nobody(space: Space) -> None:
    async with space.transaction() as outer:

        async def change(n: int) -> int:
            async with space.transaction() as inner:
                await inner.documents.put("inner", n)
            return n + 1

        async with asyncio.timeout(60):
            await outer.documents.update("n", change, default=0)

    assert [key async for key in space.documents.keys("*")] == ["inner", "n"]


async def test_a_call_that_raises_lets_the_next_one_in(space: Space) -> None:
    async with space.transaction() as tx:
        with pytest.raises(NotFoundError):
            await tx.documents.update("absent", {"a": 1})
        async with asyncio.timeout(60):
            await tx.documents.put("a", 1)

    assert await space.documents.get("a") == 1
