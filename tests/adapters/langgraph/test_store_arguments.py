"""What the store is asked that cannot work is refused in words, before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from inspect import iscoroutinefunction
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.sqlite import SqliteStore

from keepstate.adapters.langgraph import KeepstateSaver, KeepstateStore
from keepstate.errors import ClosedError, InvalidError
from tests.adapters.langgraph.saving import config

NO_LABELS: tuple[Any, ...] = ("str", 5, None, ("a.b",), ("a", ""), ("a", 5), {"a": 1})
NO_KEY: tuple[Any, ...] = (5, None, b"k", ("k",), "\ud800", "k" * 600)
NO_VALUE: tuple[Any, ...] = ("s", [1], 5, {1: 2}, {"x": object()}, {"x": [lambda: 1]}, {"x": iter("a")})
NO_TTL: tuple[Any, ...] = (0, -1, "1", True, nan, inf, 1e30, 10**400)
NO_INDEX: tuple[Any, ...] = (True, "text", 5, [5], {"text": 1})
NO_COUNT: tuple[Any, ...] = (-1, "1", None, 1.0, True)
NO_FILTER: tuple[Any, ...] = (
    *("x", 5, ["x"], {5: 1}, {"n": {"$in": [1]}}, {"n": {"$gt": 1, "x": 2}}),
    *({"a": {"n": {"$gtt": 1}}}, {"a": [{"n": {"$in": [1]}}]}, {"a": {"$eq": {"n": {"$gtt": 1}}}}),
)
NO_DEPTH: tuple[Any, ...] = (0, -1, "1", 1.0, True)
NO_OPS: tuple[Any, ...] = (None, 5, [5], [None], ["put"], [("put", "k")])

WRONG: list[Any] = [
    *(PutOp(each, "k", {}) for each in ((), ("\ud800",), *NO_LABELS)),
    *(GetOp(each, "k") for each in ((), ("\ud800",), *NO_LABELS)),
    *(SearchOp(each) for each in NO_LABELS),
    *(ListNamespacesOp((MatchCondition("prefix", each),)) for each in NO_LABELS),
    *(PutOp(("a",), each, {}) for each in NO_KEY),
    *(GetOp(("a",), each) for each in NO_KEY),
    *(PutOp(("a",), "k", each) for each in NO_VALUE),
    *(PutOp(("a",), "k", {}, ttl=each) for each in NO_TTL),
    *(PutOp(("a",), "k", {}, each) for each in NO_INDEX),
    *(SearchOp((), limit=each) for each in NO_COUNT),
    *(SearchOp((), offset=each) for each in NO_COUNT),
    *(SearchOp((), each) for each in NO_FILTER),
    *(SearchOp((), query=each) for each in (5, b"q", ["q"])),
    *(ListNamespacesOp(limit=each) for each in NO_COUNT),
    *(ListNamespacesOp(offset=each) for each in NO_COUNT),
    *(ListNamespacesOp(max_depth=each) for each in NO_DEPTH),
    ListNamespacesOp((MatchCondition("middle", ("a",)),)),  # type: ignore[arg-type]
]


@pytest.fixture
def memory() -> Iterator[KeepstateStore]:
    with KeepstateStore("memory://") as store:
        yield store


@pytest.mark.parametrize("op", WRONG, ids=lambda op: type(op).__name__)
def test_a_batch_with_a_wrong_operation_does_nothing(memory: KeepstateStore, op: Any) -> None:
    with pytest.raises((InvalidError, InvalidNamespaceError)):
        memory.batch([PutOp(("a",), "other", {}), op])
    with pytest.raises((InvalidError, InvalidNamespaceError)):
        asyncio.run(memory.abatch([PutOp(("a",), "other", {}), op]))

    assert memory.search(()) == []


@pytest.mark.parametrize("key", NO_KEY)
def test_a_key_that_is_none_is_refused_by_each_call(memory: KeepstateStore, key: Any) -> None:
    memory.put(("a",), str(key)[:400].encode(errors="replace").decode(), {"n": 1})
    for call in (
        lambda: memory.put(("a",), key, {}),
        lambda: memory.get(("a",), key),
        lambda: memory.delete(("a",), key),
        lambda: asyncio.run(memory.aput(("a",), key, {})),
        lambda: asyncio.run(memory.aget(("a",), key)),
        lambda: asyncio.run(memory.adelete(("a",), key)),
    ):
        with pytest.raises(InvalidError):
            call()

    assert [item.value for item in memory.search(())] == [{"n": 1}]


def test_an_object_that_cannot_be_stored_is_told_by_its_item_and_what_helps(memory: KeepstateStore) -> None:
    with pytest.raises(InvalidError) as refused:
        memory.put(("users", "ann"), "k", {"x": object()})

    assert str(refused.value).startswith("item 'k' of ('users', 'ann'): value.x: ")
    assert "pickle=" not in str(refused.value) and "keepstate.register" in str(refused.value)
    assert refused.value.path == "value.x"


@pytest.mark.parametrize("ops", NO_OPS)
def test_what_is_no_list_of_operations_is_refused(memory: KeepstateStore, ops: Any) -> None:
    with pytest.raises(InvalidError):
        memory.batch(ops)


@pytest.mark.parametrize(
    "options",
    [
        {"url": 5},
        {"url": ":memory:"},
        {"ttl": "60"},
        {"ttl": {"default_ttl": 0}},
        {"ttl": {"default_tll": 5}},
        {"ttl": {"default_ttl": "1"}},
        {"ttl": {"sweep_interval_minutes": -1}},
        {"index": "text"},
        {"index": {"dims": 2}},
        {"index": {"dims": 2, "embed": len, "field": ["text"]}},
        {"index": {"dims": "2", "embed": len}},
        {"index": {"dims": 2, "embed": len, "fields": 5}},
        {"index": {"dims": 2, "embed": len, "fields": [5]}},
        {"space": ""},
        {"space": 5},
        {"tenant": 5},
        {"author": 5},
    ],
    ids="-".join,
)
def test_a_store_that_cannot_be_is_refused_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        KeepstateStore(**{"url": "memory://", **options})


def test_a_namespace_and_key_of_five_hundred_bytes_are_kept_with_vectors() -> None:
    long = ("n" * 200, "ä" * 100), "k" * 97
    with KeepstateStore(
        "memory://", index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]}
    ) as store:
        store.put(*long, {"text": "found"})

        assert [item.key for item in store.search((), query="found")] == [long[1]]
        with pytest.raises(InvalidError, match="have 501 bytes of UTF-8 together; they may have 500"):
            store.put(long[0], long[1] + "k", {})


def test_a_value_is_stored_as_it_was_when_it_was_put(tmp_path: Path) -> None:
    async def put() -> Any:
        async with KeepstateStore(f"sqlite:///{tmp_path}/a.db", index={"dims": 1, "embed": late}) as store:
            value = {"tags": [{"name": "then"}]}
            putting = asyncio.ensure_future(store.aput(("n",), "k", value))
            await asyncio.sleep(0)
            value["tags"][0]["name"] = "later"
            await putting
            return await store.aget(("n",), "k")

    async def late(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return [[float(len(text))] for text in texts]

    assert asyncio.run(put()).value == {"tags": [{"name": "then"}]}


def test_a_closed_store_says_so(memory: KeepstateStore) -> None:
    memory.put(("a",), "k", {})
    memory.close()

    with pytest.raises(ClosedError):
        memory.get(("a",), "k")


# ---- a file of LangGraph's own


def test_a_file_of_langgraphs_saver_is_refused_with_the_command_that_brings_it_over(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/app.db") as theirs:
        theirs.setup()
    expected = f"keepstate langgraph import --from sqlite:///{tmp_path}/app.db"

    async def asked() -> None:
        async with KeepstateSaver.from_conn_string(f"sqlite:///{tmp_path}/app.db") as saver:
            await saver.aget_tuple(config())

    with KeepstateSaver(f"sqlite:///{tmp_path}/app.db") as saver:
        with pytest.raises(InvalidError, match=expected):
            saver.get_tuple(config())
        with pytest.raises(InvalidError, match=expected):
            list(saver.list(None))
    with pytest.raises(InvalidError, match=expected):
        asyncio.run(asked())


def test_a_file_of_langgraphs_store_is_refused_as_what_it_is(tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(f"{tmp_path}/app.db") as theirs:
        theirs.setup()

    with (
        KeepstateStore(f"sqlite:///{tmp_path}/app.db") as store,
        pytest.raises(InvalidError, match="holds items of LangGraph's own store"),
    ):
        store.search(())


def test_asynchronous_calls_are_coroutines_that_refuse_a_key_when_awaited() -> None:
    key: Any = 5

    async def ask(store: KeepstateStore) -> None:
        calls = store.aget(("a",), key), store.aput(("a",), key, {}), store.adelete(("a",), key)
        for call in calls:
            with pytest.raises(InvalidError, match="`key` is 5"):
                await call

    with KeepstateStore("memory://") as store:
        assert all(map(iscoroutinefunction, (store.aget, store.aput, store.adelete)))
        asyncio.run(ask(store))
