"""Collections with indexes: each record is at its place in each index, on every backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

import keepstate
from keepstate.engine.documents.collection import Collection
from keepstate.engine.documents.collection_indexes import Indexes
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.stores.protocol import Batch, Delete, Put
from keepstate.values.key import pack
from tests.engine.conftest import Turned


@keepstate.register("tests.collections.Order")
@dataclass
class Order:
    owner: str
    at: int
    state: str = "open"


Functions = dict[str, Callable[[Order], Any]]
INDEX: Functions = {
    "owner": lambda order: (order.owner, order.at),
    "open": lambda order: (order.at,) if order.state == "open" else None,
}
MORE: Functions = {**INDEX, "state": lambda order: (order.state, order.at)}


def orders(place: Space | Transaction, index: Functions = INDEX, version: int = 1) -> Collection[Order]:
    return place.collection("orders", Order, index=index, version=version)


async def ats(found: Collection[Order], index: str, *prefix: Any, **options: Any) -> list[int]:
    return [order.at for order in await found.by(index, *prefix, **options)]


@pytest.fixture(params=["plain", "recorded"])
def place(request: pytest.FixtureRequest, ks: Keepstate) -> Space:
    return ks.space("run/1", record=request.param == "recorded")


# ---- what an index shows


async def test_records_are_found_in_the_order_of_each_index(place: Space) -> None:
    found = orders(place)
    for number in (3, 1, 2, 5, 4):
        await found.put(f"o{number}", Order("ann" if number % 2 else "bob", number))
    await found.update("o3", lambda order: replace(order, state="done"))
    await found.put("o5", Order("bob", 5))
    assert await found.delete("o2") is True
    assert await found.delete("o2") is False

    assert await ats(found, "owner") == [1, 3, 4, 5]
    assert await ats(found, "owner", "ann") == [1, 3]
    assert await ats(found, "owner", "bob", reverse=True) == [5, 4]
    assert await ats(found, "open", reverse=True) == [5, 4, 1]
    assert await ats(found, "owner", "bob", 4) == [4]
    assert await ats(found, "owner", "b") == []
    assert await found.get("o3") == Order("ann", 3, "done")
    assert await found.get_each("o1", "o9") == {"o1": Order("ann", 1)}


async def test_an_index_agrees_with_the_records_after_any_writes(place: Space) -> None:
    found, model, chosen = orders(place, MORE), dict[str, Order](), random.Random(11)
    for _ in range(60):
        id = str(chosen.randrange(6))
        order = Order(chosen.choice("ab"), chosen.randrange(3), chosen.choice(["open", "done"]))
        match chosen.randrange(4):
            case 0:
                assert await found.delete(id) is (model.pop(id, None) is not None)
            case 1 if id in model:
                model[id] = await found.update(id, lambda old, new=order: replace(old, at=new.at))
            case 2:
                async with place.transaction() as tx:
                    inner = orders(tx, MORE)
                    await inner.delete(id)
                    await inner.put(id, order)
                model[id] = order
            case _:
                await found.put(id, order)
                model[id] = order

        for index, function in MORE.items():
            places = {id: function(order) for id, order in model.items()}
            wanted = sorted((there, id) for id, there in places.items() if there is not None)
            assert list(await found.by(index)) == [model[id] for _, id in wanted]
            assert list(await found.by(index, reverse=True)) == [model[id] for _, id in wanted[::-1]]


async def test_a_page_of_an_index_leads_on_and_back(space: Space) -> None:
    found = orders(space)
    for number in range(7):
        await found.put(str(number), Order("ann", number))
    await found.put("other", Order("bob", 9))

    first = await found.by("owner", "ann", reverse=True, limit=3)
    second = await found.by("owner", "ann", reverse=True, limit=3, after=first.next)
    third = await found.by("owner", "ann", reverse=True, limit=3, after=second.next)
    back = await found.by("owner", "ann", reverse=True, limit=3, before=third.previous)

    assert [[order.at for order in page] for page in (first, second, third, back)] == [
        [6, 5, 4], [3, 2, 1], [0], [3, 2, 1],
    ]  # fmt: skip
    assert (first.previous, third.next) == (None, None)


async def test_a_cursor_of_an_index_is_good_for_its_listing_only(ks: Keepstate, space: Space) -> None:
    for name in ("run/1", "other"):
        for number in range(3):
            await orders(ks.space(name)).put(str(number), Order("ann", number))
    found = orders(space)
    cursor = (await found.by("owner", "ann", limit=1)).next

    for listing in (
        found.by("owner", after=cursor),
        found.by("open", after=cursor),
        orders(ks.space("other")).by("owner", "ann", after=cursor),
        space.documents.page(after=cursor),
    ):
        with pytest.raises(InvalidError, match="of another"):
            await listing
    assert await ats(found, "owner", "ann", after=cursor) == [1, 2]


async def test_places_of_all_kinds_are_sorted(space: Space) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    places: list[tuple[Any, ...]] = [
        (), (b"a",), ("a",), ("a", 1), ("a\0",), ("b",), (-1 << 70,), (-5,), (0,), (300,), (UUID(int=7),),
    ]  # fmt: skip
    found = space.collection("things", dict, index={"at": lambda thing: places[thing["n"]]})
    times = space.collection("times", int, index={"at": lambda days: (when + timedelta(days=days),)})
    for n in random.Random(3).sample(range(len(places)), len(places)):
        await found.put(str(n), {"n": n})
    for days in (3, -2, 0):
        await times.put(str(days), days)

    assert [thing["n"] for thing in await found.by("at")] == list(range(len(places)))
    assert list(await times.by("at")) == [-2, 0, 3]
    assert list(await times.by("at", when)) == [0]


async def test_a_transaction_reads_its_own_index_and_applies_it_whole(place: Space) -> None:
    found = orders(place)
    await found.put("a", Order("ann", 1))
    with pytest.raises(RuntimeError):
        async with place.transaction() as tx:
            await orders(tx).put("b", Order("ann", 2))
            await orders(tx).delete("a")
            assert await ats(orders(tx), "owner") == [2]
            raise RuntimeError
    assert await ats(found, "owner") == [1]

    async with place.transaction() as tx:
        await orders(tx).put("b", Order("ann", 2))
        await orders(tx).update("b", lambda order: replace(order, at=3))
        await tx.documents.put("free", 1)

    assert await ats(found, "owner") == [1, 3]


async def test_an_index_expires_with_its_record(turned: Turned) -> None:
    found = orders(turned.space)
    await found.put("short", Order("ann", 1), ttl_s=10)
    await found.put("long", Order("ann", 2))
    await found.put("kept", Order("ann", 3), ttl_s=10)
    turned.clock.advance(6_000)
    await found.update("short", lambda order: replace(order, state="done"))
    await found.put("kept", Order("ann", 3))
    assert await ats(found, "owner") == [1, 2, 3]

    turned.clock.advance(4_001)

    assert await ats(found, "owner") == [2, 3]
    assert await found.get("short") is None
    turned.clock.advance(3_600_000)
    assert await ats(found, "owner") == [2, 3]


async def test_a_function_that_changes_the_record_in_place_moves_it(place: Space) -> None:
    found = orders(place)
    await found.put("1", Order("ann", 1))

    def hand_over(order: Order) -> Order:
        order.owner = "bob"
        return order

    await found.update("1", hand_over)
    async with place.transaction() as tx:
        await orders(tx).put("2", Order("ann", 2))
        await orders(tx).update("2", hand_over)

    assert await ats(found, "owner", "ann") == []
    assert await ats(found, "owner", "bob") == [1, 2]


async def test_a_prefix_finds_whole_texts_only(space: Space) -> None:
    index: Functions = {"owner": INDEX["owner"], "owner\0at": lambda order: (order.at,)}
    found = orders(space, index)
    for at, owner in enumerate(["ann", "ann\0bob", "ann\1", "annabel"]):
        await found.put(str(at), Order(owner, at))

    for reverse in (False, True):
        assert await ats(found, "owner", "ann", reverse=reverse) == [0]
    assert await ats(found, "owner") == [0, 1, 2, 3]
    assert await ats(found, "owner", reverse=True, limit=2) == [3, 2]
    page = await found.by("owner", limit=3)
    assert await ats(found, "owner", after=page.next) == [3]


async def test_a_build_that_outlives_a_record_for_a_moment_shows_nothing(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = turned.space.collection("orders", Order)
    for id in ("gone", "again"):
        await plain.put(id, Order("ann", 1), ttl_s=10)
    await plain.put("kept", Order("ann", 2))
    value_of = Indexes._value

    async def slow(self: Any, unit: Any, entry: Any) -> Any:
        turned.clock.advance(1_000)
        return await value_of(self, unit, entry)

    found = orders(turned.space)
    with monkeypatch.context() as patched:
        patched.setattr(Indexes, "_value", slow)
        await found.reindex()
    turned.clock.advance(7_500)
    await found.put("again", Order("bob", 3))

    assert await ats(found, "owner") == [2, 3]
    assert await ats(found, "owner", "ann") == [2]


async def test_concurrent_writers_leave_one_place_for_each_record(ks: Keepstate, space: Space) -> None:
    handles = [orders(space), orders(ks.space("run/1"))]

    async def move(number: int) -> None:
        await handles[number % 2].update(
            "one", lambda order: replace(order, at=order.at + 1), default=Order("ann", 0)
        )

    await asyncio.gather(*(move(number) for number in range(12)))

    assert await ats(handles[0], "owner") == [12]


# ---- only through the collection


async def test_records_are_written_through_the_collection_only(ks: Keepstate, place: Space) -> None:
    await place.documents.put("free", 0)
    await orders(place).put("a", Order("ann", 1))
    async with keepstate.open(ks.store) as other:
        unaware = other.space("run/1")
        for documents in (place.documents, unaware.documents):
            for write in (
                documents.put("orders/b", 1),
                documents.put("orders/a", Order("ann", 1)),
                documents.delete("orders/a"),
                documents.update("orders/a", lambda order: order),
                documents.delete_all("orders/"),
            ):
                with pytest.raises(InvalidError, match="indexed collection 'orders'"):
                    await write
            await documents.put("free", 1)
            await documents.put("ordersx", 1)
        with pytest.raises(InvalidError, match="through it only"):
            async with unaware.transaction() as tx:
                await orders(tx).put("b", Order("bob", 2))
                await tx.documents.put("orders/b", Order("eve", 3))
    assert await ats(orders(place), "owner") == [1]
    assert await place.documents.get("orders/a") == Order("ann", 1)


@pytest.mark.parametrize("prefix", ["", "order", "orders/", "orders/1"])
async def test_nothing_is_deleted_if_records_are_among_the_documents(place: Space, prefix: str) -> None:
    async with place.transaction() as tx:
        for number in range(600):
            await tx.documents.put(f"order{number:03}", number)
    await orders(place).put("1", Order("ann", 1))
    before = await place.revision()

    with pytest.raises(
        InvalidError, match=r"delete_all\(.*\) includes records of the indexed collection 'orders'"
    ):
        await place.documents.delete_all(prefix)
    with pytest.raises(InvalidError, match="includes records"):
        async with place.transaction() as tx:
            await tx.documents.delete_all(prefix)

    assert await place.revision() == before
    await orders(place).delete("1")
    assert await place.documents.delete_all("order") == 600


async def test_a_collection_that_begins_between_is_noticed(ks: Keepstate) -> None:
    async with keepstate.open(ks.url) as other:
        if ks.url.startswith(("file:", "tiered")):
            return  # one process, one handle
        unaware, aware = other.space("run/1"), ks.space("run/1")
        await unaware.documents.put("free", 1)
        await orders(aware).put("a", Order("ann", 1))

        with pytest.raises(InvalidError, match="indexed collection"):
            await unaware.documents.put("orders/b", 1)
        await ks.drop("run/1")
        await unaware.documents.put("orders/b", 1)


async def test_a_dropped_space_has_no_rules(ks: Keepstate, space: Space) -> None:
    await orders(space).put("a", Order("ann", 1))
    await ks.drop(space.name)

    await space.documents.put("orders/a", 1)
    assert await space.documents.get("orders/a") == 1


async def test_a_collection_without_index_is_plain_documents(space: Space) -> None:
    plain = space.collection("plain", Order)
    await space.documents.put("plain/a", Order("ann", 1))
    await plain.put("b", Order("bob", 2))

    assert [id async for id in plain.ids()] == ["a", "b"]
    assert [order.owner async for order in plain.values()] == ["ann", "bob"]
    assert await plain.update("b", lambda order: replace(order, at=3)) == Order("bob", 3)
    with pytest.raises(InvalidError, match="no index"):
        await plain.by("owner")
    with pytest.raises(InvalidError):
        await plain.put("c", 1)  # type: ignore[arg-type]


# ---- building


async def test_records_from_before_the_index_are_indexed_by_reindex(place: Space) -> None:
    for number in range(5):
        await place.documents.put(f"orders/{number}", Order("ann", number))
    found = orders(place)
    for call in (found.by("owner"), found.put("9", Order("ann", 9))):
        with pytest.raises(InvalidError, match=r"reindex\(\)"):
            await call

    assert await found.reindex() == 5
    assert await ats(found, "owner", reverse=True) == [4, 3, 2, 1, 0]


async def test_a_higher_version_reads_once_it_is_built(place: Space) -> None:
    old, new = orders(place), orders(place, MORE, 2)
    for number in range(4):
        await old.put(str(number), Order("ann", number))
    with pytest.raises(InvalidError, match="has version 1"):
        await new.by("state")

    await new.put("4", Order("bob", 4))
    with pytest.raises(InvalidError, match="a new one was begun"):
        await new.by("state")
    for call in (old.put("5", Order("x", 5)), old.delete("0"), old.by("owner"), old.reindex()):
        with pytest.raises(InvalidError, match="version 2 has taken over"):
            await call
    await new.delete("3")

    assert await new.reindex() == 4
    assert await ats(new, "state", "open") == [0, 1, 2, 4]
    assert await ats(new, "owner") == [0, 1, 2, 4]


async def test_a_former_build_is_deleted(space: Space) -> None:
    found = orders(space)
    for number in range(3):
        await found.put(str(number), Order("ann", number))
    assert await found.reindex() == 3
    store = space.executor.home

    page = await (await store.opened()).scan(space.executor.stored_name, layout.INDEX)
    assert len(page.entries) == 6
    assert all(entry.key.startswith(layout.INDEX + pack("orders", 2)) for entry in page.entries)


async def test_a_transaction_after_a_build_meets_nobody(place: Space) -> None:
    found = orders(place)
    for at in range(3):
        await found.put(str(at), Order("ann", at))
    await found.reindex()

    async with place.transaction() as tx:
        await orders(tx).put("3", Order("ann", 3))

    assert await ats(found, "owner") == [0, 1, 2, 3]


async def test_changed_functions_need_a_version(space: Space) -> None:
    await orders(space).put("a", Order("ann", 1))

    with pytest.raises(InvalidError, match="pass version=2"):
        await orders(space, MORE).by("owner")
    changed = orders(space, {**INDEX, "owner": lambda order: (order.at, order.owner)})
    with pytest.raises(InvalidError, match="the function has changed"):
        await changed.by("owner")


async def test_an_interrupted_build_is_completed(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await space.documents.put(f"orders/{number}", Order("ann", number))
    found = orders(space)

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Indexes, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            await found.reindex()
    await found.update("3", lambda order: replace(order, at=30))
    await found.delete("0")

    assert await found.reindex() == 4
    assert await ats(found, "owner") == [1, 2, 4, 30]


async def test_writers_during_a_build_are_in_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        await space.documents.put(f"orders/{number}", Order("ann", number))
    found, finish = orders(space), Indexes._finish

    async def finish_late(indexes: Any, rule: Any) -> None:
        await found.put("new", Order("ann", 8))
        await found.update("0", lambda order: replace(order, at=9))
        await found.delete("1")
        await finish(indexes, rule)

    monkeypatch.setattr(Indexes, "_finish", finish_late)
    await found.reindex()

    assert await ats(found, "owner") == [2, 3, 8, 9]


async def test_a_rollback_asks_for_a_new_build(ks: Keepstate) -> None:
    space = ks.space("recorded", record=True)
    found = orders(space)
    await found.put("a", Order("ann", 1))
    await found.put("b", Order("bob", 2))
    await space.documents.put("free", 1)
    await space.documents.put("free", 2)

    await space.history.rollback(steps=1)
    assert await ats(found, "owner") == [1, 2], "no record was changed"
    await space.history.rollback(steps=4)
    with pytest.raises(InvalidError, match=r"reindex\(\)"):
        await found.by("owner")
    await found.put("c", Order("ann", 3))

    assert await found.reindex() == 2
    assert await ats(found, "owner") == [1, 3]
    assert dict(await space.at()).keys() == {"orders/a", "orders/c"}


# ---- damage


async def test_an_entry_without_its_record_is_damage(space: Space) -> None:
    found = orders(space)
    await found.put("a", Order("ann", 1))
    store = await space.executor.store()
    key = layout.named_key(layout.DOCUMENTS, "orders/a")
    await store.apply([Batch(space.executor.stored_name, [Delete(key)])])

    with pytest.raises(CorruptError, match="record is missing"):
        await found.by("owner")


@pytest.mark.parametrize("forgotten", ["update", "delete"])
async def test_an_index_that_forgets_is_caught(
    space: Space, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """The planted bug: the former place of a record stays in the index."""
    found = orders(space)
    await found.put("a", Order("ann", 1))
    keys = Indexes._keys
    monkeypatch.setattr(Indexes, "_keys", lambda *_: set())
    if forgotten == "update":
        await found.update("a", lambda order: replace(order, at=2))
    else:
        await found.delete("a")
    monkeypatch.setattr(Indexes, "_keys", keys)

    with pytest.raises((CorruptError, InvalidError)):
        await found.by("owner")


# ---- arguments


async def test_wrong_arguments_are_named(space: Space) -> None:
    for wrong in ("", "a/b", "x" * 101, 1, "\ud800"):
        with pytest.raises(InvalidError, match="`name`"):
            space.collection(wrong, Order)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="`index`"):
            space.collection("orders", Order, index={wrong: len})  # type: ignore[dict-item]
    with pytest.raises(InvalidError, match="`version`"):
        space.collection("orders", Order, index=INDEX, version=0)
    with pytest.raises(InvalidError, match="at most 16"):
        space.collection("orders", Order, index={str(n): lambda _: () for n in range(17)})
    with pytest.raises(InvalidError):
        space.collection("orders", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="has open, owner"):
        await orders(space).by("none")
    with pytest.raises(NotFoundError):
        await orders(space).update("none", lambda order: order)
    with pytest.raises(InvalidError):
        await orders(space).put("a", Order("ann", "x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["text", (1.5,), (True,), (None,), (datetime(2026, 1, 1),), ("x" * 500,)])
async def test_a_wrong_place_is_refused_before_anything_is_written(space: Space, place: Any) -> None:
    found = space.collection("things", int, index={"at": lambda _: place})

    with pytest.raises(InvalidError, match="index 'at' of record 'a'"):
        await found.put("a", 1)
    assert await found.get("a") is None


async def test_a_transaction_that_goes_on_after_a_wrong_place_leaves_no_record_out(place: Space) -> None:
    index: Functions = {"owner": lambda order: (order.owner, 1 // len(order.owner))}
    found = orders(place, index)
    await found.put("1", Order("ann", 1))

    async with place.transaction() as tx:
        inside = orders(tx, index)
        for id in ("1", "2"):
            with pytest.raises(ZeroDivisionError):
                await inside.put(id, Order("", 2))
        await inside.put("3", Order("bob", 3))

    assert await ats(found, "owner") == [1, 3]
    assert await found.get("2") is None


async def test_a_transaction_that_begins_a_build_does_not_read_it(place: Space) -> None:
    await orders(place).put("1", Order("ann", 1))

    async with place.transaction() as tx:
        newer = orders(tx, MORE, version=2)
        await newer.put("2", Order("ann", 2))
        with pytest.raises(InvalidError, match="not complete"):
            await newer.by("owner")


# ---- blocking mode


def test_blocking_calls_index_alike(url: str) -> None:
    with keepstate.sync.open(url) as ks:
        space = ks.space("run/1")
        found = space.collection("orders", Order, index=INDEX)
        for number in range(4):
            found.put(str(number), Order("ann", number))
        with space.transaction() as tx:
            tx.collection("orders", Order, index=INDEX).update("0", lambda order: replace(order, at=7))
        found.delete("1")

        assert [order.at for order in found.by("owner", "ann", reverse=True)] == [7, 3, 2]
        with pytest.raises(InvalidError, match="through it only"):
            space.documents.put("orders/2", 1)
        assert found.reindex() == 3
        assert [order.at for order in found.by("open")] == [2, 3, 7]


# ---- wrappers


async def wrapped_in(kind: str, folder: Path) -> Any:
    from keepstate.stores.memory import MemoryStore
    from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
    from keepstate.stores.wrappers.measured import MeasuredStore

    store = MemoryStore()
    if kind == "tiered":
        return keepstate.open(f"tiered+sqlite:///{folder}/tiered.db?hot_bytes=100000")
    if kind == "encrypted":
        return keepstate.open(EncryptedStore(store, KeyRing(b"\7" * 32)))
    return keepstate.open(MeasuredStore(store, lambda _: None))


@pytest.mark.parametrize("kind", ["encrypted", "measured", "tiered"])
async def test_wrapped_stores_index_and_page_alike(kind: str, tmp_path: Path) -> None:
    async with await wrapped_in(kind, tmp_path) as ks:
        space = ks.space("run/1")
        found = orders(space)
        for number in range(5):
            await found.put(str(number), Order("ann", number), ttl_s=60)
        await found.delete("2")
        page = await found.by("owner", "ann", reverse=True, limit=2)

        assert [order.at for order in page] == [4, 3]
        assert await ats(found, "owner", "ann", reverse=True, after=page.next) == [1, 0]
        assert await found.reindex() == 4
        assert await ats(found, "open") == [0, 1, 3, 4]
        rows = await space.documents.page(prefix="orders/", reverse=True, limit=1)
        assert [entry.key for entry in rows] == ["orders/4"]
        rows = await space.documents.page(prefix="orders/", reverse=True, after=rows.next)
        assert [entry.key for entry in rows] == ["orders/3", "orders/1", "orders/0"]
        async with space.transaction(token="t") as tx:
            await orders(tx).put("9", Order("bob", 9))
        async with space.transaction(token="t") as again:
            await orders(again).put("9", Order("bob", 10))
        assert await ats(found, "owner", "bob") == [9]


# ---- mixed versions


async def test_fields_that_a_later_version_has_added_to_the_rules_survive_every_write(place: Space) -> None:
    found, later, of_rule = orders(place), ["a wish", 7], [{"unique": True}]
    store = await place.executor.home.opened()

    async def fields() -> list[Any]:
        (entry,) = (await store.read(place.name, [layout.RULES])).entries
        assert entry is not None
        stored: list[Any] = msgspec.msgpack.decode(entry.value)
        return stored

    await found.put("1", Order("ann", 1))
    stored = await fields()
    stored[3]["orders"] += of_rule
    await store.apply([Batch(place.name, [Put(layout.RULES, msgspec.msgpack.encode([*stored, *later]))])])
    await place.collection("others", Order, index=INDEX, version=1).put("1", Order("ann", 1))
    await place.documents.put("soon", 1, ttl_s=60)
    again = orders(place, MORE, 2)
    await again.reindex()
    await again.put("2", Order("ann", 2))

    rules = await fields()
    assert rules[4:] == later
    assert rules[3]["orders"][4:] == of_rule
    assert await ats(again, "state", "open") == [1, 2]


@pytest.mark.parametrize("collections", [1, {"orders": 1}, {"orders": [1]}, {"orders": [0, 1, True, []]}])
async def test_rules_that_make_no_sense_are_damage(space: Space, collections: object) -> None:
    store = await space.executor.home.opened()
    stored = msgspec.msgpack.encode([1, None, False, collections])
    await store.apply([Batch(space.name, [Put(layout.RULES, stored)])])

    with pytest.raises(CorruptError):
        await orders(space).put("1", Order("ann", 1))
