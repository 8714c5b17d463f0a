"""Tasks by name and by the hundred: one taken out of turn, where all stand, what else a claim does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest

import keepstate
from keepstate.engine.queue.tasks import STATES, TaskState
from keepstate.engine.space.space import Space, Transaction, on_claim
from keepstate.errors import ConflictError, InvalidError, LeaseLostError, NotFoundError, TransitionError
from keepstate.stores.hints import HintListener
from keepstate.stores.memory import MemoryStore
from keepstate.stores.wrappers.wrapper import StoreWrapper
from tests.engine.conftest import Turned


async def test_a_task_is_taken_by_its_id_out_of_turn(space: Space) -> None:
    for name in ("a", "b", "c"):
        await space.queue.put(name, id=name)

    task = await space.queue.take("b", "w", lease_s=10)

    assert (task.id, task.payload, task.attempt, task.worker) == ("b", "b", 1, "w")
    rest = await space.queue.claim("v", lease_s=10, count=9)
    assert [each.id for each in rest] == ["a", "c"]
    await task.complete()


async def test_a_delayed_task_can_be_taken_by_its_id(space: Space) -> None:
    await space.queue.put(1, id="t", delay_s=1000)

    await space.queue.take("t", "w", lease_s=10)

    assert (await space.queue.counts())["waiting"] == 0


async def test_what_is_held_done_or_absent_cannot_be_taken(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await space.queue.take("t", "w", lease_s=10)

    with pytest.raises(ConflictError, match="held by worker 'w'"):
        await space.queue.take("t", "v", lease_s=10)
    with pytest.raises(NotFoundError):
        await space.queue.take("other", "v", lease_s=10)
    await task.complete()
    with pytest.raises(TransitionError, match="done"):
        await space.queue.take("t", "v", lease_s=10)


async def test_a_task_whose_lease_is_over_can_be_taken(turned: Turned) -> None:
    space = turned.space
    await space.queue.put(1, id="t")
    await space.queue.take("t", "w", lease_s=10)
    turned.clock.advance(11_000)

    again = await space.queue.take("t", "v", lease_s=10)

    assert (again.worker, again.attempt, again.token > 0) == ("v", 2, True)


async def test_a_task_is_taken_in_a_transaction_or_not_at_all(space: Space) -> None:
    await space.queue.put(1, id="t")

    with pytest.raises(ZeroDivisionError):
        async with space.transaction() as tx:
            await tx.queue.take("t", "w", lease_s=10)
            raise ZeroDivisionError
    assert (await space.queue.counts())["ready"] == 1
    async with space.transaction() as tx:
        await tx.queue.take("t", "w", lease_s=10)
        await tx.documents.put("w", "working")
    assert (await space.queue.counts())["claimed"] == 1


async def test_a_task_put_by_the_transaction_cannot_be_taken_by_it(space: Space) -> None:
    with pytest.raises(InvalidError, match="after the transaction"):
        async with space.transaction() as tx:
            await tx.queue.put(1, id="t")
            await tx.queue.take("t", "w", lease_s=10)


async def test_two_who_take_one_task_at_once_are_one_holder(space: Space) -> None:
    await space.queue.put(1, id="t")

    async def take(worker: str) -> str:
        try:
            return (await space.queue.take("t", worker, lease_s=10)).worker or ""
        except ConflictError:
            return ""

    held = await asyncio.gather(*(take(f"w{number}") for number in range(8)))

    info = await space.queue.get("t")
    assert info is not None
    assert [worker for worker in held if worker] == [info.worker]


async def test_what_a_claim_with_does_applies_with_it(space: Space) -> None:
    for name in ("a", "b"):
        await space.queue.put(name, id=name)

    async def tell(tx: Transaction, task_id: str, former: str | None) -> None:
        await tx.documents.put("busy with", task_id)

    before = await space.revision()
    (task,) = await space.queue.claim_with(
        "w", lease_s=10, match=None, on_claim=on_claim(space.executor, tell)
    )

    assert await space.documents.get("busy with") == task.id == "a"
    assert await space.revision() == before + 1


async def test_a_claim_whose_addition_fails_claims_nothing(space: Space) -> None:
    await space.queue.put(1, id="t")

    async def fail(tx: Transaction, task_id: str, former: str | None) -> None:
        await tx.documents.put("busy with", task_id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await space.queue.claim_with("w", lease_s=10, match=None, on_claim=on_claim(space.executor, fail))

    assert (await space.queue.counts())["ready"] == 1
    assert await space.documents.get("busy with") is None


async def test_a_claim_chooses_by_documents_that_are_read_along_with_the_tasks(space: Space) -> None:
    await space.documents.put("w", ["b"])
    for name in ("a", "b"):
        await space.queue.put(name, id=name)

    def match(task_id: str, payload: str, documents: Mapping[str, Any]) -> bool:
        return payload in documents["w"] and "absent" not in documents

    tasks = [
        await space.queue.claim_with("w", lease_s=10, match=match, on_claim=None, documents=("w", "absent"))
        for _ in range(2)
    ]

    assert [[task.id for task in found] for found in tasks] == [["b"], []]


async def test_a_claim_chosen_by_a_document_that_changes_meanwhile_is_chosen_anew(space: Space) -> None:
    await space.documents.put("w", 1)
    await space.queue.put(1, id="t")
    asked: list[int] = []

    async def match(task_id: str, payload: int, documents: Mapping[str, Any]) -> bool:
        asked.append(documents["w"])
        if len(asked) == 1:
            await space.documents.put("w", 2)
        return True

    (task,) = await space.queue.claim_with("w", lease_s=10, match=match, on_claim=None, documents=("w",))  # type: ignore[arg-type]

    assert task.id == "t" and asked == [1, 2]


async def test_each_task_is_read_by_its_id(space: Space) -> None:
    for name in ("a", "b"):
        await space.queue.put(name, id=name)
    found = await space.queue.get_each("b", "none", "a", payloads=True)

    assert [info and (info.id, info.payload) for info in found] == [("b", "b"), None, ("a", "a")]
    assert await space.queue.get_each() == []
    twice = await space.queue.get_each("a", "b", "a")
    assert [info.id for info in twice if info is not None] == ["a", "b", "a"]


@pytest.mark.parametrize("state", STATES)
async def test_a_task_is_discarded_wherever_it_stands(space: Space, state: TaskState) -> None:
    await space.queue.put(1, id="t", delay_s=1000 if state == "waiting" else 0, max_attempts=1)
    task = await space.queue.take("t", "w", lease_s=10) if state in ("claimed", "done", "dead") else None
    if task is not None and state == "done":
        await task.complete(1)
    elif task is not None and state == "dead":
        await task.fail("no")
    elif state == "cancelled":
        await space.queue.cancel("t")
    stood = await space.queue.counts()
    discarded = [await space.queue.discard("t") for _ in range(2)]

    assert stood[state] == 1 and discarded == [True, False]
    assert set((await space.queue.counts()).values()) == {0} and await space.queue.get("t") is None
    if task is not None and state == "claimed":
        with pytest.raises(LeaseLostError):
            await task.complete(1)
    await space.queue.put(2, id="t")
    (again,) = await space.queue.claim("w", lease_s=10)
    assert again.payload == 2


async def test_a_task_put_by_the_transaction_cannot_be_discarded_by_it(space: Space) -> None:
    with pytest.raises(InvalidError, match="after the transaction"):
        async with space.transaction() as tx:
            await tx.queue.put(1, id="t")
            await tx.queue.discard("t")


async def test_tasks_of_others_cost_a_claim_a_read_for_each_hundred(space: Space) -> None:
    for number in range(250):
        await space.queue.put({"for": "b"}, id=f"b{number}")  # unfit
    await space.queue.put({"for": "a"}, id="a")
    asked: list[str] = []

    def match(task_id: str, payload: dict[str, str]) -> bool:
        asked.append(task_id)
        return payload["for"] == "a"

    (task,) = await space.queue.claim("w", lease_s=10, match=match)

    assert task.id == "a"
    assert len(asked) == 251  # each once


async def test_a_listing_gives_payloads_and_tokens_if_asked(space: Space) -> None:
    for number in range(5):
        await space.queue.put({"n": number, "text": "x" * 300_000}, id=f"t{number}")
    await space.queue.claim("w", lease_s=10, count=2)

    claimed = await space.queue.list("claimed", payloads=True)

    assert sorted(info.payload["n"] for info in claimed) == [0, 1]
    assert all(info.token > 0 for info in claimed)
    assert all(info.payload is None for info in await space.queue.list("ready"))
    ready = await space.queue.list("ready", payloads=True)
    assert [info.payload["n"] for info in ready] == [2, 3, 4]


async def test_values_over_the_limit_of_one_read_are_listed_all_the_same(space: Space) -> None:
    for number in range(12):
        await space.queue.put("x" * 1_000_000, id=f"t{number}")

    found = await space.queue.list("ready", payloads=True)

    assert [len(info.payload) for info in found] == [1_000_000] * 12


async def test_standings_count_all_and_show_the_newest_first(space: Space) -> None:
    for number in range(130):
        await space.queue.put(number, id=f"t{number}", priority=number % 3)
    await space.queue.put(0, id="later", delay_s=1000)
    (task,) = await space.queue.claim("w", lease_s=10)
    await task.complete("done")

    found = await space.queue.summaries(newest=100, payloads=True)

    counts = {state: standing.count for state, standing in found.items()}
    assert counts == {**dict.fromkeys(STATES, 0), "ready": 129, "waiting": 1, "done": 1}
    newest = [info.payload for info in found["ready"].newest]
    assert newest == [number for number in range(129, -1, -1) if f"t{number}" != task.id][:100]
    assert found["done"].newest[0].result == "done"


async def test_standings_of_some_ids_leave_out_the_others(space: Space) -> None:
    for name in ("a/1", "a/2", "b/1"):
        await space.queue.put(name, id=name)

    found = await space.queue.summaries("a/", newest=1)

    assert (found["ready"].count, [info.id for info in found["ready"].newest]) == (2, ["a/2"])


async def test_a_transaction_sees_where_its_own_tasks_stand(space: Space) -> None:
    await space.queue.put(1, id="a")

    async with space.transaction() as tx:
        await tx.queue.put(2, id="b")
        await tx.queue.put(3, id="c", delay_s=9)
        await tx.queue.take("a", "w", lease_s=10)
        found = await tx.queue.summaries(payloads=True)
        counts = await tx.queue.counts()

    assert {state: [info.id for info in each.newest] for state, each in found.items() if each.count} == {
        "ready": ["b"],
        "waiting": ["c"],
        "claimed": ["a"],
    }
    assert counts == {state: each.count for state, each in found.items()}


async def test_only_what_is_over_can_be_removed(space: Space) -> None:
    await space.queue.put(1, id="done")
    await space.queue.put(2, id="dead", max_attempts=1)
    await space.queue.put(3, id="alive")
    await (await space.queue.take("done", "w", lease_s=10)).complete("result")
    await (await space.queue.take("dead", "w", lease_s=10)).fail("no")

    assert await space.queue.remove("done") and await space.queue.remove("dead")
    assert not await space.queue.remove("done")
    with pytest.raises(TransitionError, match="ready"):
        await space.queue.remove("alive")
    assert await space.queue.counts() == {
        "ready": 1,
        "waiting": 0,
        "claimed": 0,
        "done": 0,
        "dead": 0,
        "cancelled": 0,
    }
    await space.queue.put(4, id="done")
    assert (await space.queue.take("done", "w", lease_s=10)).payload == 4


async def test_documents_go_on_behind_a_name(space: Space) -> None:
    for name in ("a", "b/1", "b/2", "b/3", "c"):
        await space.documents.put(name, name)

    assert [key async for key in space.documents.keys("b/*", after="b/1")] == ["b/2", "b/3"]
    assert [key async for key, _ in space.documents.items("b/*", after="b/2x")] == ["b/3"]
    assert [key async for key in space.documents.keys("b/*", after="a")] == ["b/1", "b/2", "b/3"]
    assert [key async for key in space.documents.keys("b/*", after="c")] == []


class Overheard(StoreWrapper):
    """Counts who listens."""

    listeners = 0

    def listen(self, spaces: Collection[str]) -> HintListener:
        self.listeners += 1
        return super().listen(spaces)


async def test_who_need_not_wait_listens_to_nobody() -> None:
    store = await Overheard(MemoryStore()).open()
    async with keepstate.open(store) as ks:
        space = ks.space("s")
        await space.queue.put(1, id="t")
        found = [await space.queue.claim("w", lease_s=10, wait_s=wait_s) for wait_s in (9, 0)]
        async with await space.leases.acquire("l", 10, wait_s=9):
            with pytest.raises(ConflictError):
                await space.leases.acquire("l", 10)
    await store.close()

    assert [len(tasks) for tasks in found] == [1, 0] and store.listeners == 0
