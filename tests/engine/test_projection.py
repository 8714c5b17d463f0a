"""Projections: each event counted exactly once, whoever is killed, and all of them again when asked."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import Event, EventStream, Projection, Space, Transaction, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, PrunedError, UnsupportedError
from tests.engine.conftest import Turned
from tests.processes import Program, project_orders

ORDERS = [{"customer": f"c{n % 3}", "amount": n} for n in range(30)]


async def total(tx: Transaction, event: Event) -> None:
    key = f"total/{event.data['customer']}"
    await tx.documents.update(key, lambda sum: sum + event.data["amount"], default=0)


TOTALS = {f"total/c{k}": sum(n for n in range(30) if n % 3 == k) for k in range(3)}


async def totals(space: Space) -> dict[str, Any]:
    return {key: value async for key, value in space.documents.items("total/*")}


@pytest.fixture
def orders(space: Space) -> EventStream:
    return space.events.stream("orders")


async def test_a_projection_counts_each_event_once(space: Space, orders: EventStream) -> None:
    projection = Projection(orders, "totals", total, documents="total/*")
    await orders.append(*ORDERS[:20])
    counted = await projection.run(at_once=7)
    last = await orders.append(*ORDERS[20:])

    assert (counted, await projection.run(), await projection.run()) == (20, 10, 0)
    assert await totals(space) == TOTALS
    assert await projection.number() == last


async def test_any_number_may_run_the_same_projection(ks: Keepstate, orders: EventStream) -> None:
    await orders.append(*ORDERS)
    made = [Projection(orders, "totals", total, documents="total/*") for _ in range(4)]

    counts = await asyncio.gather(*(each.run(at_once=3) for each in made))

    assert sum(counts) == 30
    assert await totals(ks.space("run/1")) == TOTALS


async def test_what_fails_counts_nothing_of_its_batch(space: Space, orders: EventStream) -> None:
    await orders.append(*ORDERS)

    async def failing(tx: Transaction, event: Event) -> None:
        await total(tx, event)
        if event.data["amount"] == 12:
            raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError, match="out of paper"):
        await Projection(orders, "totals", failing, documents="total/*").run(at_once=5)

    assert sum((await totals(space)).values()) == sum(range(10))
    await Projection(orders, "totals", total, documents="total/*").run()
    assert await totals(space) == TOTALS


async def test_a_rebuild_comes_to_the_same_and_touches_nothing_else(
    space: Space, orders: EventStream
) -> None:
    projection = Projection(orders, "totals", total, documents="total/*")
    await orders.append(*ORDERS)
    await projection.run()
    await space.documents.put("total/stray", 1)
    await space.documents.put("another", 1)

    assert await projection.rebuild() == 30
    assert await totals(space) == TOTALS
    assert await space.documents.get("another") == 1


async def test_a_rebuild_begins_anew_wherever_others_have_taken_the_projection_meanwhile(
    space: Space, orders: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (Projection(orders, "totals", total, documents="total/*") for _ in range(2))
    await orders.append(*ORDERS[:20])
    await here.run()
    await space.documents.put("total/c0", 999)
    await orders.append(*ORDERS[20:])
    page = orders.page

    async def slow(after: int | None, limit: int, *, whole: bool) -> list[Event]:
        """Let somebody else go on with the projection before it has looked."""
        monkeypatch.undo()
        await there.run()
        return await page(after, limit, whole=whole)

    monkeypatch.setattr(orders, "page", slow)
    await here.rebuild()

    assert await totals(space) == TOTALS


async def test_a_new_version_begins_anew(space: Space, orders: EventStream) -> None:
    await orders.append(*ORDERS)
    await Projection(orders, "totals", total, documents="total/*").run()

    async def count(tx: Transaction, event: Event) -> None:
        await tx.documents.update("total/orders", lambda n: n + 1, default=0)

    assert await Projection(orders, "totals", count, documents="total/*", version=2).run() == 30
    assert await totals(space) == {"total/orders": 30}


async def test_an_older_version_is_refused_once_a_newer_one_has_begun(
    space: Space, orders: EventStream
) -> None:
    old = Projection(orders, "totals", total, documents="total/*")
    new = Projection(orders, "totals", total, documents="total/*", version=2)
    await orders.append(*ORDERS[:20])
    await old.run()
    await new.run()
    last = await orders.append(*ORDERS[20:])

    for refused in (old.run(), old.rebuild(), anext(old.follow())):
        with pytest.raises(UnsupportedError, match=r"version 2 has taken over; .* version=3"):
            await refused
    assert await old.number() == await new.number() != last
    assert await new.run() == 10
    assert await totals(space) == TOTALS


async def test_events_that_write_much_are_applied_in_batches_that_fit(
    space: Space, orders: EventStream
) -> None:
    called: list[int] = []

    async def lines(tx: Transaction, event: Event) -> None:
        called.append(event.data["amount"])
        for n in range(60):
            await tx.documents.put(f"line/{event.data['amount']}/{n}", n)

    await orders.append(*ORDERS)
    projection = Projection(orders, "lines", lines, documents="line/*")

    assert await projection.run() == 30
    assert sum([1 async for _ in space.documents.keys("line/*")]) == 30 * 60
    assert len(called) == 30 + 30
    await orders.append(*ORDERS[:20])
    assert await projection.run(at_once=20) == 20
    assert len(called) == 60 + 20 + 20  # more than fitted before were tried once


async def test_small_events_after_a_large_one_are_applied_many_at_once_again(
    space: Space, orders: EventStream
) -> None:
    async def lines(tx: Transaction, event: Event) -> None:
        for n in range(event.data["lines"]):
            await tx.documents.put(f"line/{event.number}/{n}", n)

    projection = Projection(orders, "lines", lines, documents="line/*")
    await orders.append(*({"lines": 600 if n in (8, 9) else 1} for n in range(16)))
    await projection.run()
    await orders.append(*({"lines": 1} for _ in range(64)))
    before = await space.revision()

    assert await projection.run() == 64
    assert await space.revision() - before <= 4


async def test_where_more_events_never_fit_that_is_tried_seldom(turned: Turned) -> None:
    orders, called = turned.space.events.stream("orders"), 0

    async def lines(tx: Transaction, event: Event) -> None:
        nonlocal called
        called += 1
        for n in range(120):
            await tx.documents.put(f"line/{n}/{event.data['number']}", n)

    await orders.append(*({"number": number} for number in range(200)))

    assert await Projection(orders, "lines", lines, documents="line/*").run(at_once=16) == 200
    assert called <= 200 + 5 * 16


async def test_an_event_that_writes_more_than_a_batch_holds_is_named(turned: Turned) -> None:
    orders = turned.space.events.stream("orders")

    async def lines(tx: Transaction, event: Event) -> None:
        for n in range(1_001):
            await tx.documents.put(f"line/{n}", n)

    place = await orders.append(*ORDERS[:1])
    with pytest.raises(InvalidError, match=f"writes of projection 'lines' for event {place} .*do not fit"):
        await Projection(orders, "lines", lines, documents="line/*").run()


async def test_what_apply_asks_for_wrongly_is_told_as_it_is(turned: Turned) -> None:
    orders = turned.space.events.stream("orders")

    async def wrong(tx: Transaction, event: Event) -> None:
        await tx.documents.put("", 1)

    await orders.append(*ORDERS)
    with pytest.raises(InvalidError, match=r"^(?!.*fit one batch)"):
        await Projection(orders, "wrong", wrong, documents="wrong/*").run()


async def test_a_follower_counts_what_comes(space: Space, orders: EventStream) -> None:
    projection = Projection(orders, "totals", total, documents="total/*")

    async def follow() -> None:
        count = 0
        async for done in projection.follow():
            count += done
            if count == 30:
                return

    following = asyncio.create_task(follow())
    for order in ORDERS:
        await orders.append(order)
    await asyncio.wait_for(following, 60)

    assert await totals(space) == TOTALS


async def test_truncation_waits_for_projections_and_they_know_what_is_gone(
    space: Space, orders: EventStream
) -> None:
    projection = Projection(orders, "totals", total, documents="total/*")
    await orders.append(*ORDERS[:10])
    await projection.run()
    last = await orders.append(*ORDERS[10:])

    with pytest.raises(InvalidError, match="projection 'totals'"):
        await orders.truncate(last)
    await projection.run()
    assert await orders.truncate(last) == 30
    with pytest.raises(PrunedError):
        await projection.rebuild()
    with pytest.raises(PrunedError):
        await Projection(orders, "others", total, documents="other/*").run()
    assert await totals(space) == TOTALS


async def test_truncation_waits_for_a_projection_that_stands_within_a_batch(orders: EventStream) -> None:
    async def failing(tx: Transaction, event: Event) -> None:
        if event.data != ORDERS[0]:
            raise RuntimeError("out of paper")

    await orders.append(*ORDERS[:3])
    with pytest.raises(RuntimeError, match="out of paper"):
        await Projection(orders, "totals", failing, documents="total/*").run(at_once=1)
    first, second, _ = [event.number or 0 for event in await orders.read()]

    with pytest.raises(InvalidError, match=f"projection 'totals' .* is at event {first}, before {second}"):
        await orders.truncate(second)
    assert await orders.truncate(first) == 1


async def test_what_makes_no_projection_is_refused(turned: Turned) -> None:
    stream = turned.space.events.stream("orders")
    good: dict[str, Any] = {"stream": stream, "name": "totals", "apply": total, "documents": "total/*"}
    for wrong in (
        {"stream": 1},
        {"name": ""},
        {"name": "a" * 101},
        {"apply": 1},
        {"documents": 1},
        {"version": 0},
    ):
        with pytest.raises(InvalidError):
            Projection(**{**good, **wrong})
    async with turned.space.transaction() as tx:
        with pytest.raises(InvalidError, match="takes effect immediately"):
            Projection(**{**good, "stream": EventStream(tx, "orders")})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[str, sync.EventStream]]:
    url = f"sqlite:///{tmp_path}/shop.db"
    with sync.open(url) as ks:
        yield url, ks.space("shop").events.stream("orders")


def killed_again_and_again(url: str, orders: sync.EventStream, *, kills: int, count: int) -> int:
    """Let a projection run in processes that are killed at random moments; returns how many kills it met."""
    chance = random.Random(7)
    for start in range(0, count, 500):
        orders.append(
            *({"customer": f"c{n % 7}", "amount": n} for n in range(start, min(count, start + 500)))
        )
    met = 0
    for _ in range(kills):
        process = Program(project_orders.__file__, url, stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.04))
            process.kill()
        met += process.returncode != 0
    return met


@pytest.mark.parametrize(
    ("kills", "count"),
    [pytest.param(6, 400, marks=pytest.mark.slow), pytest.param(100, 6_000, marks=pytest.mark.deep)],
)
def test_a_projection_that_is_killed_at_random_comes_to_what_a_fold_comes_to(
    shop: tuple[str, sync.EventStream], kills: int, count: int
) -> None:
    url, orders = shop
    met = killed_again_and_again(url, orders, kills=kills, count=count)

    with keepstate.sync.open(url) as ks:
        space = ks.space("shop")
        projection = sync.Projection(orders, "totals", project_orders.total, documents="total/*")
        projection.run(at_once=100)

        assert met > kills // 2
        assert dict(space.documents.items("total/*")) == orders.fold(project_orders.totals, {})
