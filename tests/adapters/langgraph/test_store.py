"""`KeepstateStore` gives LangGraph's memory on every backend, and the same on each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, time
from typing import Any

import pytest
from langgraph.store.base import (
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)

import keepstate.sync
from keepstate._finish import finish
from keepstate.adapters.langgraph.store import KeepstateStore
from keepstate.errors import StoreUnavailableError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Store
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.testing.clocks import ManualClock


@pytest.fixture
def store(any_url: str) -> Iterator[KeepstateStore]:
    with KeepstateStore(any_url) as store:
        yield store


@pytest.fixture
def memory() -> Iterator[KeepstateStore]:
    with KeepstateStore("memory://") as store:
        yield store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@contextmanager
def turned(clock: ManualClock, **options: Any) -> Generator[KeepstateStore]:
    """Yield a store whose time the test moves."""
    opened = finish(MemoryStore(runner="blocking", clock=clock).open())
    with KeepstateStore(opened, **options) as store:
        yield store
    finish(opened.close())


def keys(found: list[SearchItem]) -> list[str]:
    return [item.key for item in found]


# ---- on every backend


def test_what_is_put_is_got_and_deleted(store: KeepstateStore) -> None:
    store.put(("users", "7"), "prefs", {"theme": "dark", "sizes": [1, 2.5, None], "más": "\ud800"})
    first = store.get(("users", "7"), "prefs")
    store.delete(("users", "7"), "prefs")

    assert first is not None and first.value == {"theme": "dark", "sizes": [1, 2.5, None], "más": "\ud800"}
    assert (first.namespace, first.key) == (("users", "7"), "prefs")
    assert store.get(("users", "7"), "prefs") is None
    assert store.list_namespaces() == []


def test_both_modes_of_one_object_see_one_order(store: KeepstateStore) -> None:
    async def count() -> None:
        for _ in range(10):
            found = await store.aget(("n",), "count")
            await store.aput(("n",), "count", {"n": 1 + (found.value["n"] if found else 0)})
            blocking = store.get(("n",), "count")
            assert blocking is not None
            store.put(("n",), "count", {"n": blocking.value["n"] + 1})
        last = await store.aget(("n",), "count")
        await store.aclose()

        assert last is not None and last.value == {"n": 20}

    asyncio.run(count())


def test_a_batch_answers_in_order_from_what_was_there_before_and_its_last_put_wins(
    store: KeepstateStore,
) -> None:
    store.put(("a",), "k", {"v": 0})
    results = store.batch(
        [
            PutOp(("a",), "k", {"v": 1}),
            GetOp(("a",), "k"),
            SearchOp(("a",)),
            PutOp(("a",), "k", {"v": 2}),
            ListNamespacesOp(),
            PutOp(("b",), "k", {"v": 3}),
            GetOp(("b",), "k"),
        ]
    )
    after = store.get(("a",), "k")

    assert [results[place] for place in (0, 3, 5, 6)] == [None] * 4
    assert getattr(results[1], "value", None) == {"v": 0}
    assert [item.value for item in results[2]] == [{"v": 0}]  # type: ignore[union-attr]
    assert results[4] == [("a",)]
    assert after is not None and after.value == {"v": 2}


def test_search_pages_through_what_was_put_last_first(store: KeepstateStore) -> None:
    for number in range(12):
        store.put(("log",), f"{number}", {"n": number, "even": number % 2 == 0})
    store.put(("log",), "3", {"n": 3, "even": False})

    assert keys(store.search(("log",), limit=4)) == ["3", "11", "10", "9"]
    assert keys(store.search(("log",), limit=4, offset=4)) == ["8", "7", "6", "5"]
    assert keys(store.search(("log",), filter={"even": True}, limit=3)) == ["10", "8", "6"]
    assert keys(store.search(("log",), filter={"n": {"$gte": 4, "$lt": 6}})) == ["5", "4"]


def test_a_prefix_ends_where_a_segment_ends(store: KeepstateStore) -> None:
    for namespace in (("a",), ("ab",), ("a", "b"), ("a*",), ("A",), ("a", "b", "c")):
        store.put(namespace, "k.x..y", {"at": "/".join(namespace)})
    found = store.search(("a",))

    assert sorted(item.value["at"] for item in found) == ["a", "a/b", "a/b/c"]
    assert {item.key for item in found} == {"k.x..y"}
    assert [item.value["at"] for item in store.search(("a*",))] == ["a*"]
    assert len(store.search(())) == 6


def test_namespaces_are_listed_by_prefix_suffix_wildcard_and_depth(store: KeepstateStore) -> None:
    for namespace in (("u", "1", "prefs"), ("u", "2", "prefs"), ("u", "1", "facts", "old"), ("v",)):
        store.put(namespace, "k", {})

    assert store.list_namespaces(prefix=("u",), max_depth=2) == [("u", "1"), ("u", "2")]
    assert store.list_namespaces(suffix=("prefs",)) == [("u", "1", "prefs"), ("u", "2", "prefs")]
    assert store.list_namespaces(prefix=("u", "*", "facts")) == [("u", "1", "facts", "old")]
    assert store.list_namespaces(prefix=("u",), suffix=("*", "old")) == [("u", "1", "facts", "old")]
    assert store.list_namespaces(limit=1, offset=1) == [("u", "1", "prefs")]


def test_no_put_of_two_threads_is_lost(store: KeepstateStore) -> None:
    def work(worker: int) -> None:
        for number in range(20):
            store.batch(
                [PutOp((f"w{worker}",), f"{number}", {"n": number}), PutOp(("all",), "k", {"w": worker})]
            )

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [len(store.search((f"w{worker}",), limit=99)) for worker in range(2)] == [20, 20]


def test_many_tasks_at_once_each_get_their_turn(any_url: str) -> None:
    async def each(store: KeepstateStore, number: int) -> Any:
        await store.aput((f"n{number % 3}",), f"{number}", {"n": number})
        return await store.aget((f"n{number % 3}",), f"{number}")

    async def many() -> list[Any]:
        async with KeepstateStore(any_url) as store:
            return await asyncio.gather(*(each(store, number) for number in range(150)))

    assert [item.value["n"] for item in asyncio.run(many())] == list(range(150))


# ---- what does not depend on where


def test_a_value_is_a_copy_both_ways(memory: KeepstateStore) -> None:
    given: dict[str, Any] = {"tags": ["a"]}
    memory.put(("n",), "k", given)
    given["tags"].append("later")
    ops = [GetOp(("n",), "k"), GetOp(("n",), "k")]
    first, second = memory.batch(ops)
    first.value["tags"].append("mine")  # type: ignore[union-attr]

    assert second.value == {"tags": ["a"]}  # type: ignore[union-attr]
    assert memory.get(("n",), "k").value == {"tags": ["a"]}  # type: ignore[union-attr]


def test_an_item_keeps_when_it_was_created_until_it_is_deleted(clock: ManualClock) -> None:
    with turned(clock) as store:
        store.put(("n",), "k", {})
        first = store.get(("n",), "k")
        clock.advance(60_000)
        store.put(("n",), "k", {})
        second = store.get(("n",), "k")

    assert first is not None and second is not None
    assert second.created_at == first.created_at < second.updated_at


def test_an_item_that_is_put_again_at_once_is_newer_and_the_last_one_put_comes_first(
    clock: ManualClock,
) -> None:
    with turned(clock) as store:
        for key in ("a", "a", "a", "b"):
            store.put(("n",), key, {})
        again, once = store.get(("n",), "a"), store.get(("n",), "b")
        order = keys(store.search(("n",)))

    assert again is not None and once is not None
    assert again.updated_at > again.created_at == once.updated_at
    assert order == ["b", "a"]


def test_what_has_outlived_its_time_is_not_given(clock: ManualClock) -> None:
    with turned(clock, ttl={"default_ttl": 10, "refresh_on_read": False}) as store:
        store.put(("n",), "short", {}, ttl=1)
        store.put(("n",), "usual", {})
        store.put(("n",), "for ever", {}, ttl=None)
        clock.advance(2 * 60_000)
        after_two = keys(store.search(("n",)))
        clock.advance(9 * 60_000)
        after_eleven = keys(store.search(("n",)))
        namespaces = store.list_namespaces()
        swept = store.sweep_ttl()

    assert after_two == ["for ever", "usual"]
    assert after_eleven == ["for ever"]
    assert namespaces == [("n",)]
    assert swept == 2


def test_reading_refreshes_a_time_to_live_unless_it_is_told_not_to(clock: ManualClock) -> None:
    with turned(clock) as store:
        for key in ("got", "found", "left"):
            store.put(("n", key), "k", {}, ttl=10)
        for _ in range(3):
            clock.advance(6 * 60_000)
            got = store.get(("n", "got"), "k"), store.search(("n", "found"))
            store.get(("n", "left"), "k", refresh_ttl=False)
        left = store.get(("n", "left"), "k")
        updated = store.get(("n", "got"), "k")

    assert got[0] is not None and len(got[1]) == 1
    assert left is None
    assert updated is not None and updated.updated_at == updated.created_at


def test_a_sweeper_ends_with_its_store(memory: KeepstateStore) -> None:
    memory.start_ttl_sweeper(0.001)
    before = [thread.name for thread in threading.enumerate()]
    memory.close()

    assert "keepstate ttl sweeper" in before
    assert "keepstate ttl sweeper" not in [thread.name for thread in threading.enumerate()]


class Restarted(StoreWrapper):
    """A store whose server is away for the first sweep."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sweeps, self.is_back = 0, threading.Event()

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Raise once, and then sweeps."""
        self.sweeps += 1
        if self.sweeps == 1:
            raise StoreUnavailableError("the server is being restarted")
        self.is_back.set()
        return await super().sweep(prefix, limit=limit)


def test_a_sweeper_goes_on_when_a_server_is_back(caplog: pytest.LogCaptureFixture) -> None:
    opened = Restarted(finish(MemoryStore(runner="blocking").open()))
    with KeepstateStore(opened) as store:
        store.start_ttl_sweeper(0.0005)

        assert opened.is_back.wait(60)
    assert "is being restarted" in caplog.text
    finish(opened.close())


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"n": 1}, ["int", "float"]),
        ({"n": True}, ["bool"]),
        ({"n": None}, ["absent", "none"]),
        ({"n": {"$ne": 1}}, ["absent", "bool", "none", "text", "time"]),
        ({"n": {"$eq": "1"}}, ["text"]),
        ({"n": {"$gt": 0}}, ["int", "float", "time"]),
        ({"n": {"$gte": "0", "$lte": "1"}}, ["text"]),
        ({"n": {"$lt": 1}}, []),
        ({"deep": {"a": {"$gt": 1}}}, ["int"]),
        ({"deep.a": 2}, ["int"]),
        ({"list": [1, {"a": 1}]}, ["float"]),
        ({"list": [{"$lt": 2}, {"a": {"$gte": 1}}]}, ["float"]),
        ({"list": [{"$gt": 2}, {"a": 1}]}, []),
        ({"time": {"$gt": time(0)}}, ["time"]),
        ({"time": {"$gt": time(0, tzinfo=UTC)}}, []),
        ({"x') OR 1=1 --": 1}, []),
    ],
)
def test_a_filter_compares_as_json_does(
    memory: KeepstateStore, conditions: dict[str, Any], expected: list[str]
) -> None:
    values: dict[str, dict[str, Any]] = {
        "int": {"n": 1, "deep": {"a": 2, "b": 3}},
        "float": {"n": 1.0, "list": [1, {"a": 1, "b": 2}]},
        "bool": {"n": True},
        "text": {"n": "1"},
        "none": {"n": None},
        "time": {"n": 7, "time": time(1)},
        "absent": {},
    }
    memory.batch([PutOp(("n",), key, value) for key, value in values.items()])

    assert sorted(keys(memory.search(("n",), filter=conditions))) == sorted(expected)


def test_a_condition_of_a_listing_that_is_empty_holds_for_all(memory: KeepstateStore) -> None:
    memory.put(("a", "b"), "k", {})
    conditions = (MatchCondition("prefix", ()), MatchCondition("suffix", ()))

    assert memory.batch([ListNamespacesOp(conditions)]) == [[("a", "b")]]


def test_a_namespace_of_many_items_is_passed_over_in_a_listing(
    memory: KeepstateStore,
) -> None:
    memory.batch([PutOp(("big",), f"{number:04}", {}) for number in range(700)])
    memory.put(("big", "!"), "below and before", {})
    memory.put(("big", "z"), "below and behind", {})

    assert memory.list_namespaces() == [("big",), ("big", "!"), ("big", "z")]
    assert len(memory.search(("big",), limit=1000)) == 702


@pytest.mark.parametrize("size", [430, 433, 434, 450, 494])
def test_namespaces_with_long_names_are_listed_however_many_items_they_have(
    memory: KeepstateStore, size: int
) -> None:
    names = [("n" * size + last,) for last in "abc"]
    memory.batch([PutOp(name, f"{number:03}", {}) for name in names for number in range(300)])

    assert memory.list_namespaces() == names


def test_memories_are_read_as_they_were_where_they_are_recorded(any_url: str) -> None:
    with KeepstateStore(any_url, record=True, author="agent") as store:
        store.put(("users", "7"), "prefs", {"theme": "light"})
        store.put(("users", "7"), "prefs", {"theme": "dark"})
    with keepstate.sync.open(any_url) as ks:
        kept = [] if any_url.startswith("memory") else list(ks.space("store").history.log())

    assert [commit.author for commit in kept] == ["agent"] * len(kept)
    assert any_url.startswith("memory") or len(kept) == 2


def test_reading_adds_nothing_to_the_record_and_it_knows_when_an_item_is_gone(clock: ManualClock) -> None:
    opened = finish(MemoryStore(runner="blocking", clock=clock).open())

    def put(key: str, ttl: float | None = None) -> list[str]:
        """Put an item as who has just come, and return what the record has."""
        with KeepstateStore(opened, record=True) as store:
            store.put(("n",), key, {}, ttl=ttl)
            space = keepstate.sync.Keepstate(store._handles.blocking()).space("store")
            return [name.removeprefix("n..") for name, _ in space.at("main").items()]

    put("k", ttl=10)
    with KeepstateStore(opened, record=True) as store:
        for _ in range(3):
            clock.advance(6 * 60_000)
            store.get(("n",), "k")
            store.search(("n",))
        history = keepstate.sync.Keepstate(store._handles.blocking()).space("store").history
        count = len([*history.log()])
    then = put("other")
    clock.advance(40 * 60_000)

    assert count == 1
    assert then == ["k", "other"]
    assert put("third") == ["other", "third"]
    finish(opened.close())


def test_setting_up_does_nothing_and_may_be_awaited(memory: KeepstateStore) -> None:
    async def use() -> list[SearchItem]:
        async with KeepstateStore.from_conn_string("memory://") as store:
            await store.setup()
            await store.aput(("n",), "k", {})
            return await store.asearch(("n",))

    memory.setup()

    assert memory.supports_ttl
    assert len(asyncio.run(use())) == 1
