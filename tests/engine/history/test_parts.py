"""Parts of states: outlines, ranges of lists, and differences of a path, which read little else."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import keepstate
from keepstate import Checkout, InvalidError, NotFoundError, Outline, ValueSummary
from keepstate.engine.history.history import History
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Reading
from tests.engine.history.conftest import blocking_history, history_of

ROWS = 90_000


class CountingStore(MemoryStore):
    """A store that counts the entries and bytes that it is asked for."""

    calls = 0
    entries = 0
    read_bytes = 0

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        found = await super().read(space, keys, at_ms=at_ms)
        self.calls += 1
        self.entries += len(keys)
        self.read_bytes += sum(len(entry.value) for entry in found.entries if entry is not None)
        return found


@asynccontextmanager
async def cold(state: dict[str, Any]) -> AsyncGenerator[tuple[CountingStore, History]]:
    """Yield a store with one state, and its history, of which nothing is cached."""
    store = CountingStore()
    await store.open()
    async with keepstate.open(store) as ks:
        await history_of(ks.space("run/1")).commit(state)
    async with keepstate.open(store) as ks:
        store.calls = store.entries = store.read_bytes = 0
        yield store, history_of(ks.space("run/1"))
    await store.close()


async def pages(checkout: Checkout, path: Any, limit: int) -> list[Outline]:
    found = [await checkout.outline(path, limit=limit)]
    while found[-1].next is not None:
        found.append(await checkout.outline(path, after=found[-1].next, limit=limit))
    return found


# ---- outlines


async def test_an_outline_shows_plain_values_and_how_large_the_others_are(everywhere: History) -> None:
    state = {
        "zeta": {"a": 1},
        "rows": [{"n": n, "text": "x" * 90} for n in range(300)],
        "index": {f"k{n}": n for n in reversed(range(900))},
        "note": "short",
        "text": "long " * 2_000,
        "both": ({1, 2}, 3),
        "none": None,
    }
    await everywhere.commit(state)
    checkout = await everywhere.checkout(load=False)

    outline = await checkout.outline()

    assert outline == Outline(
        "dict",
        7,
        {
            "zeta": ValueSummary("dict", 1),
            "rows": ValueSummary("list", 300),
            "index": ValueSummary("dict", 900),
            "note": "short",
            "text": ValueSummary("large", 10_003),
            "both": ValueSummary("tuple", 2),
            "none": None,
        },
        None,
    )
    assert list(outline.children) == list(state)
    assert await checkout.outline("index", after=1, limit=2) == Outline(
        "dict", 900, {"k897": 897, "k896": 896}, 3
    )
    assert await checkout.outline("rows[7]") == Outline("dict", 2, {"n": 7, "text": "x" * 90}, None)
    assert list((await checkout.outline("rows", after=297)).children) == [298, 299]


@pytest.mark.parametrize("count", [0, 1, 7, 500])
@pytest.mark.parametrize("limit", [1, 3, 7, 1_000])
async def test_the_pages_of_an_outline_are_the_whole_in_order(
    history: History, count: int, limit: int
) -> None:
    state = {"d": {f"k{n * 7 % 501}": n for n in range(count)}, "l": ["x" * 20] * count}
    await history.commit(state)
    checkout = await history.checkout(load=False)

    for path, expected in (("d", state["d"]), ("l", dict(enumerate(state["l"])))):
        if count > 10 * limit:
            continue
        found = await pages(checkout, path, limit)

        assert [pair for page in found for pair in page.children.items()] == [*expected.items()]
        assert {page.count for page in found} == {count}
        assert all(len(page.children) == limit for page in found[:-1])


async def test_an_outline_of_a_large_dict_reads_a_page() -> None:
    index = {f"k{n}": "x" * 60 for n in reversed(range(20_000))}
    async with cold({"index": index, "text": "x" * 100_000}) as (store, history):
        checkout = await history.checkout(load=False)
        await checkout.outline()
        assert store.read_bytes < 2_000

        page = await checkout.outline("index", after=9_999, limit=20)

    assert list(page.children) == [f"k{n}" for n in reversed(range(9_980, 10_000))]
    assert store.calls <= 24
    assert store.entries < 200


@pytest.mark.parametrize("path", ["n", "text", "both"])
async def test_only_a_list_or_dict_has_an_outline(history: History, path: str) -> None:
    await history.commit({"n": 1, "text": "x" * 9_000, "both": (1, 2)})
    checkout = await history.checkout()

    with pytest.raises(InvalidError, match=rf"{path} is not a list or dict"):
        await checkout.outline(path)
    with pytest.raises(InvalidError, match=rf"{path} is not a list"):
        await checkout.slice(path)


@pytest.mark.parametrize(
    "options", [{"after": -1}, {"after": "k"}, {"after": True}, {"limit": 0}, {"limit": None}]
)
async def test_a_wrong_page_of_an_outline_is_refused(history: History, options: dict[str, Any]) -> None:
    await history.commit({"n": 1})
    checkout = await history.checkout()

    with pytest.raises(InvalidError, match=r"`after`|`limit`"):
        await checkout.outline(**options)
    with pytest.raises(NotFoundError, match="no x"):
        await checkout.outline("x")


# ---- ranges of lists


@pytest.mark.parametrize("count", [0, 5, 700])
async def test_a_range_of_a_list_is_that_of_python(history: History, count: int) -> None:
    rows = [{"n": n} if n % 2 else "x" * (n % 5 * 900) for n in range(count)]
    await history.commit({"rows": rows})
    checkout = await history.checkout(load=False)

    for start in (None, 0, 3, 699, 9_999, -1, -5, -9_999):
        for stop in (None, 0, 2, 16, 400, -1, -699, 9_999):
            assert await checkout.slice("rows", start, stop) == rows[start:stop]


async def test_a_range_is_read_on_every_backend(everywhere: History) -> None:
    rows = [{"n": n, "text": "x" * 90} for n in range(2_000)]
    await everywhere.commit({"deep": [{"rows": rows}]})
    checkout = await everywhere.checkout(load=False)

    assert await checkout.slice("deep[0].rows", -3) == rows[-3:]
    assert await checkout.slice(("deep", 0, "rows"), 990, 1_010) == rows[990:1_010]


async def test_a_hundred_of_ninety_thousand_rows_are_read_from_a_few_objects() -> None:
    async with cold({"rows": [{"n": n, "name": f"row {n}"} for n in range(ROWS)]}) as (store, history):
        checkout = await history.checkout(load=False)

        rows = await checkout.slice("rows", 45_000, 45_100)

    assert [row["n"] for row in rows] == [*range(45_000, 45_100)]
    assert store.calls <= 9
    assert store.entries <= 24
    assert store.read_bytes <= 16_000


@pytest.mark.timed
def test_a_hundred_of_ninety_thousand_rows_take_at_most_10_ms(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db?durability=normal"
    rows = [{"n": n, "text": f"row {n} " * 5} for n in range(ROWS)]
    with keepstate.sync.open(url) as ks:
        blocking_history(ks).commit({"rows": rows})
    took_s: list[float] = []
    for begin in range(0, ROWS, ROWS // 20):
        with keepstate.sync.open(url) as ks:
            checkout = blocking_history(ks).checkout(load=False)
            began_s = time.perf_counter()
            found = checkout.slice("rows", begin, begin + 100)
            took_s.append(time.perf_counter() - began_s)
            assert found == rows[begin : begin + 100]

    assert statistics.median(took_s) <= 0.010, took_s


def test_parts_are_read_in_blocking_use(tmp_path: Any) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/keepstate.db") as ks:
        history = blocking_history(ks)
        history.commit({"rows": [*range(5_000)], "b": 1, "a": 2})
        checkout = history.checkout(load=False)

        assert checkout.slice("rows", -2) == [4_998, 4_999]
        assert checkout.outline(limit=2).children == {"rows": ValueSummary("list", 5_000), "b": 1}
        assert history.diff("main", "main", path="rows", limit=1) == []


@pytest.mark.parametrize("path", [1, None, b"rows", [], ["rows"]])
async def test_what_is_not_a_path_is_refused(history: History, path: Any) -> None:
    await history.commit({"rows": [1]})
    checkout = await history.checkout()

    for call in (checkout.outline, checkout.slice):
        with pytest.raises(InvalidError, match="is not a path"):
            await call(path)


@pytest.mark.parametrize("bounds", [("1", None), (None, 2.0), (True, None)])
async def test_a_wrong_range_is_refused(history: History, bounds: Any) -> None:
    await history.commit({"rows": [1], "d": {}})
    checkout = await history.checkout()

    with pytest.raises(InvalidError, match=r"`start`|`stop`"):
        await checkout.slice("rows", *bounds)
    with pytest.raises(InvalidError, match="d is a dict"):
        await checkout.slice("d")


# ---- differences of a part


async def test_a_diff_of_a_path_tells_of_this_part_only(everywhere: History) -> None:
    rows = [{"n": n} for n in range(500)]
    await everywhere.commit({"rows": rows, "n": 1, "gone": [1]})
    await everywhere.commit({"rows": [*rows[1:], {"n": -1}], "n": 2, "new": {"a": 1}})

    async def told(path: Any, limit: int | None = None) -> list[str]:
        return [str(one) for one in await everywhere.diff("main~1", "main", path=path, limit=limit)]

    assert await told("n") == ["~ n"]
    assert await told("rows") == ["- rows[0]", "+ rows[499]"]
    assert await told("rows[-1]") == ["~ rows[499].n"]
    assert await told("rows", 1) == ["- rows[0]"]
    assert await told("new") == ["+ new"]
    assert await told(("new", "a")) == ["+ new.a"]
    assert await told("gone[0]") == ["- gone[0]"]
    assert await told(None, 2) == ["~ n", "+ new"]
    with pytest.raises(NotFoundError, match="no other"):
        await told("other")
    with pytest.raises(InvalidError, match="`limit`"):
        await told("n", 0)


async def test_a_limited_diff_does_not_read_the_values_of_others() -> None:
    async with cold({"docs": [f"{n} " * 9_000 for n in range(100)]}) as (store, history):
        await history.commit({"docs": []})
        store.read_bytes = 0

        found = await history.diff("main~1", "main", limit=2)

    assert [one.old_path for one in found] == [("docs", 0), ("docs", 1)]
    assert store.read_bytes < 30_000


# ---- the order of keys


async def test_dicts_come_back_in_their_order_from_every_moment(everywhere: History) -> None:
    """Also dicts that are trees, at every depth, through each way to change a state."""
    big = {f"k{n * 37 % 1_009}": "x" * 20 for n in range(1_000)}
    message = {"role": "tool", "content": "x" * 5_000, "args": {"z": 1, "a": [{"q": 1, "b": big}]}}
    await everywhere.commit({"z": 1, "big": big, "messages": [message], "a": 2})
    await everywhere.append("messages", message, {"y": 1} | message)
    draft = await everywhere.begin()
    del draft["big"]["k37"]
    draft["big"]["k37"] = "moved"
    draft["z"] = draft.pop("z")
    await draft.commit()
    part = await everywhere.begin(load=["big"])
    part["big"] = {"first": 1} | part["big"]
    part["last"] = 1
    await part.commit()

    first, appended, moved, last = [await everywhere.checkout(f"main#{n}") for n in (1, 2, 3, 4)]
    assert [list(one) for one in (first, moved, last)] == [
        ["z", "big", "messages", "a"],
        ["big", "messages", "a", "z"],
        ["big", "messages", "a", "z", "last"],
    ]
    order = list(big)
    assert list(first["big"]) == list(appended["big"]) == order
    assert list(moved["big"]) == [*(key for key in order if key != "k37"), "k37"]
    assert list(last["big"]) == ["first", *moved["big"]]
    assert list(first["messages"][0]) == ["role", "content", "args"]
    assert list(appended["messages", 2]) == ["y", "role", "content", "args"]
    assert list(appended["messages", 2, "args", "a", 0, "b"]) == order
    told = [str(one) for one in await everywhere.diff("main#2", "main#3")]
    assert told == ["~ big.k37", "~ big (order of keys)", "~ . (order of keys)"]


async def test_an_order_is_verified_collected_and_carried_like_all_else(
    everywhere: History, tmp_path: Any
) -> None:
    states = [{"d": {f"k{n * 7 % 501}": n for n in range(500)}}]
    states.append({"d": dict(reversed(states[0]["d"].items()))})
    for state in states:
        await everywhere.commit(state)
    await everywhere.append("log", 1)
    assert (await everywhere.verify()).problems == ()
    await everywhere.collect()
    await everywhere.export_bundle(tmp_path / "all.bundle")
    with keepstate.sync.open(f"sqlite:///{tmp_path}/copy.db") as ks:
        copy = blocking_history(ks)
        copy.import_bundle(tmp_path / "all.bundle")
        assert copy.verify().problems == ()
        for number, state in enumerate(states, 1):
            assert list(copy.checkout(f"main#{number}")["d"]) == list(state["d"])

    await everywhere.prune(keep_last=1)

    assert list((await everywhere.checkout())["d"]) == list(states[1]["d"])
    assert (await everywhere.verify()).problems == ()


async def test_a_merge_brings_its_order_into_the_draft(history: History) -> None:
    big = {f"k{n}": n for n in range(1_000)}
    await history.commit({"a": 1, "b": 2, "big": big})
    one, other = await history.begin(), await history.begin()
    one["big"] = dict(reversed(big.items()))
    one["b"] = one.pop("b")
    one["a"] = one.pop("a")
    await one.commit()
    other["new"] = 1
    held = other["big"]
    held["last"] = 1

    await other.commit(on_conflict="merge")

    assert list(other) == ["big", "b", "a", "new"]
    assert other["big"] is held
    assert list(held) == [*reversed(big), "last"]
    await other.commit()
    assert await history.diff("main~1", "main") == []
