"""Each promise of a part that a store broke is found in the log and the notes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from keepstate_testing.chaos.promises import promises
from keepstate_testing.chaos.workload import ACCOUNTS, COUNTER, DONE, GUARDED
from keepstate_testing.proof import End, History, read_end
from keepstate_testing.proof.operations import Note

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.opening import source_of
from keepstate.stores.memory import MemoryStore

SPACE = "chaos/0"


def counts_of(
    work: Callable[[Space], Awaitable[None]], *notes: Note, without: bytes = b"?"
) -> dict[str, int]:
    """Return what is found after some work, with notes of it, and without the entries under a prefix."""
    store = finish(MemoryStore(runner=ThreadRunner()).open())

    async def whole() -> End:
        await work(Keepstate(source_of(store, "blocking")).space(SPACE))
        return await read_end(store, SPACE)

    end = finish(whole())
    finish(store.close())
    entries = {key: entry for key, entry in end.entries.items() if not key.startswith(without)}
    found = promises(History(SPACE, notes=list(notes)), msgspec.structs.replace(end, entries=entries))
    return {kind: count for kind, count in found.counts().items() if count}


def note(what: str, about: str = "", number: int = 0) -> Note:
    return Note(SPACE, what, about, number)


async def count_twice(space: Space) -> None:
    for _ in range(2):
        await space.documents.update(COUNTER, lambda n: n + 1, default=0)


async def do_a_task(space: Space) -> None:
    await space.queue.put("payload", id="t")
    [task] = await space.queue.claim("w", lease_s=9)
    async with space.transaction() as tx:
        await tx.queue.complete(task)
        await tx.documents.update(DONE, lambda n: n + 1, default=0)


async def transfer(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.documents.put(ACCOUNTS[0], 93)
        await tx.documents.put(ACCOUNTS[1], 107)


async def hold_twice(space: Space) -> None:
    for _ in range(2):
        async with await space.leases.acquire("l", 9) as lease, space.transaction(lease=lease) as tx:
            await tx.documents.put(GUARDED, lease.token)


NOTES = (note("counted"), note("counted"), note("put", "t"), note("completed", "t", 1))


def test_what_was_done_in_order_keeps_every_promise() -> None:
    async def work(space: Space) -> None:
        for part in (count_twice, do_a_task, transfer, hold_twice):
            await part(space)

    assert counts_of(work, *NOTES) == {}


def test_an_increment_less_than_acknowledged_is_a_loss() -> None:
    assert counts_of(count_twice, *[note("counted")] * 3) == {"lost": 1}


def test_an_increment_of_an_old_value_is_a_loss() -> None:
    async def work(space: Space) -> None:
        await count_twice(space)
        await space.documents.put(COUNTER, 2)

    assert counts_of(work) == {"lost": 1}


def test_money_from_nowhere_is_half_a_transfer() -> None:
    async def work(space: Space) -> None:
        await transfer(space)
        await space.documents.put(ACCOUNTS[2], 101)

    assert counts_of(work) == {"partial": 1}


def test_a_transaction_that_saw_half_a_transfer_is_a_disorder() -> None:
    assert counts_of(transfer, note("unbalanced", number=7)) == {"disordered": 1}


def test_a_task_that_is_gone_is_lost() -> None:
    assert counts_of(count_twice, note("put", "t")) == {"lost": 1}


def test_a_completed_task_that_is_not_done_is_lost() -> None:
    async def work(space: Space) -> None:
        await space.queue.put("payload", id="t")

    assert counts_of(work, note("completed", "t", 1)) == {"lost": 1}


def test_a_task_completed_by_two_holders_is_told() -> None:
    assert counts_of(do_a_task, note("completed", "t", 1), note("completed", "t", 2)) == {"applied_twice": 1}


def test_a_task_counted_twice_is_told() -> None:
    async def work(space: Space) -> None:
        await do_a_task(space)
        await space.documents.update(DONE, lambda n: n + 1)

    assert counts_of(work) == {"applied_twice": 1}


@pytest.mark.parametrize("index", ["ready", "waiting"])
def test_a_task_without_its_place_is_half_written(index: str) -> None:
    async def work(space: Space) -> None:
        await space.queue.put("payload", id="t", delay_s=0 if index == "ready" else 9)

    assert counts_of(work, note("put", "t"), without=layout.INDEXES[index]) == {"partial": 1}


def test_a_write_of_a_former_holder_is_a_disorder() -> None:
    async def work(space: Space) -> None:
        await hold_twice(space)
        await space.documents.put(GUARDED, 1)

    assert counts_of(work) == {"disordered": 1}


def booking(holder: str, *, is_renewed: bool) -> dict[str, object]:
    return {"holder": holder, "is_renewed": is_renewed}


async def book_in_turn(space: Space) -> None:
    await space.documents.put("slot/a", booking("x", is_renewed=False))
    await space.documents.put("slot/a", booking("x", is_renewed=True))
    await space.documents.delete("slot/a")
    await space.documents.put("slot/a", booking("y", is_renewed=False))


def test_a_slot_may_have_one_holder_after_another() -> None:
    assert counts_of(book_in_turn) == {}


@pytest.mark.parametrize(("holder", "is_renewed"), [("x", False), ("y", False), ("x", True)])
def test_a_slot_with_two_live_holders_is_a_disorder(holder: str, is_renewed: bool) -> None:
    async def work(space: Space) -> None:
        await book_in_turn(space)
        await space.documents.put("slot/a", booking(holder, is_renewed=is_renewed))

    assert counts_of(work) == {"disordered": 1}


def test_a_renewal_of_a_booking_that_has_ended_is_a_disorder() -> None:
    async def work(space: Space) -> None:
        await book_in_turn(space)
        await space.documents.delete("slot/a")
        await space.documents.put("slot/a", booking("y", is_renewed=True))

    assert counts_of(work) == {"disordered": 1}
