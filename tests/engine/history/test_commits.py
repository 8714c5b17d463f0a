"""Commits: each moment can be read again, and nothing else is written than what changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.engine.history.history import History
from keepstate.errors import ConflictError, InvalidError, NotFoundError, NotLoadedError
from tests.engine.conftest import Turned
from tests.engine.history.conftest import history_of


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number} " * 80, "meta": {"n": number}}


async def test_each_moment_comes_back(history: History) -> None:
    messages = [message(number) for number in range(120)]
    for one in messages:
        await history.append("messages", one)

    for number in (1, 2, 17, 64, 119, 120):
        checkout = await history.checkout(f"main#{number}")
        assert dict(checkout) == {"messages": messages[:number]}
        assert checkout.commit.number == number


@pytest.mark.slow
async def test_each_moment_comes_back_on_every_backend(everywhere: History) -> None:
    messages = [message(number) for number in range(40)]
    for one in messages:
        await everywhere.append("messages", one)
    await everywhere.commit({"messages": messages[10:], "plan": None}, message="summary")

    for number in (1, 20, 40):
        assert dict(await everywhere.checkout(f"main#{number}")) == {"messages": messages[:number]}
    assert dict(await everywhere.checkout()) == {"messages": messages[10:], "plan": None}
    assert [commit.number async for commit in everywhere.log(limit=3)] == [41, 40, 39]


async def test_a_whole_state_can_be_committed_and_tells_what_it_is(history: History) -> None:
    state = {"plan": {"steps": [1, 2]}, "n": None, "tags": {"a"}}

    commit = await history.commit(state, message="first", author="ada")

    assert (commit.number, commit.branch, commit.parents) == (1, "main", ())
    assert commit.to_dict()["author"] == "ada"
    assert commit.to_dict()["created_at"] == commit.created_at.isoformat()
    assert dict(await history.checkout(commit)) == state
    assert (await history.find("main")) == commit


async def test_an_appended_list_grows_whatever_its_place(history: History) -> None:
    await history.commit({"runs": [{"log": []}], "other": {"deep": {"list": [0]}}})
    for number in range(300):
        await history.append(("runs", 0, "log"), message(number))
    await history.append(("other", "deep", "list"), 1, 2)
    await history.append(("other", "deep", "new"), 3)

    state = await history.checkout()
    assert state["runs"] == [{"log": [message(number) for number in range(300)]}]
    assert state["other"] == {"deep": {"list": [0, 1, 2], "new": [3]}}


@pytest.mark.parametrize(
    ("path", "error"),
    [("n", InvalidError), ("d", InvalidError), (("d", "x", "y"), NotFoundError), (("l", 9), NotFoundError),
     ((), InvalidError), (("l", "x"), NotFoundError), (3, InvalidError)],
)  # fmt: skip
async def test_what_is_no_list_cannot_be_appended_to(
    history: History, path: Any, error: type[Exception]
) -> None:
    await history.commit({"n": 1, "d": {}, "l": []})

    with pytest.raises(error):
        await history.append(path, 1)
    assert [commit.number async for commit in history.log()] == [1]


async def test_an_expected_head_guards_a_commit(history: History) -> None:
    first = await history.commit({"n": 1}, expected_head="")
    with pytest.raises(ConflictError):
        await history.commit({"n": 2}, expected_head="")
    second = await history.commit({"n": 2}, expected_head=first)
    with pytest.raises(ConflictError, match=first.id[:10]):
        await history.commit({"n": 3}, expected_head=first.id)

    assert (await history.find()).id == second.id


async def test_a_commit_on_an_older_head_merges_if_asked(history: History) -> None:
    first = await history.commit({"a": 1, "b": 1})
    await history.commit({"a": 2, "b": 1}, expected_head=first)

    merged = await history.commit({"a": 1, "b": 2}, expected_head=first, on_conflict="merge")

    assert len(merged.parents) == 2
    assert dict(await history.checkout()) == {"a": 2, "b": 2}
    assert len([commit async for commit in history.log()]) == 4
    with pytest.raises(InvalidError, match="expected_head"):
        await history.commit({}, on_conflict="merge")


async def test_a_commit_is_found_by_what_stands_for_it(turned: Turned) -> None:
    history = history_of(turned.space)
    commits = []
    for number in range(9):
        commits.append(await history.commit({"n": number}))
        turned.clock.advance(60_000)
    await history.tag("five", "main#5")

    for ref, number in [
        ("main", 9), ("main~", 8), ("main~3", 6), ("main#4", 4), ("five", 5), ("five~2", 3), (commits[6], 7),
        (commits[1].id, 2), (commits[1].id[:12], 2), (commits[3].id[:12] + "~1", 3),
        (commits[4].created_at, 5), (commits[4].created_at + timedelta(seconds=59), 5),
        (f"main@{commits[2].created_at.isoformat()}", 3), (commits[7].id + "#2", 2),
    ]:  # fmt: skip
        assert (await history.find(ref)).id == commits[number - 1].id, ref


@pytest.mark.parametrize(
    ("ref", "error"),
    [("other", NotFoundError), ("main~1", NotFoundError), ("main#2", NotFoundError),
     ("main#0", NotFoundError),
     ("0" * 40, NotFoundError), ("main~x", InvalidError), ("", InvalidError), (3, InvalidError),
     ("main@soon", InvalidError), (datetime(2026, 1, 1), InvalidError),
     (datetime(1999, 1, 1, tzinfo=UTC), NotFoundError)],
)  # fmt: skip
async def test_what_stands_for_no_commit_is_refused(
    history: History, ref: Any, error: type[Exception]
) -> None:
    await history.commit({})

    with pytest.raises(error):
        await history.checkout(ref)


async def test_a_beginning_that_two_ids_share_is_refused(history: History) -> None:
    ids = set[str]()
    number = 0
    while len({id[:4] for id in ids}) == len(ids):
        ids.add((await history.commit({"n": number})).id)
        number += 1
    (shared,) = {id[:4] for id in ids if sum(other[:4] == id[:4] for other in ids) > 1}

    with pytest.raises(InvalidError, match="more than one"):
        await history.checkout(shared)


async def test_only_what_is_asked_for_is_loaded(history: History) -> None:
    await history.commit({"k": 1, "messages": [message(number) for number in range(500)]})
    checkout = await history.checkout(load=["k"])

    assert checkout["k"] == 1
    for touch in (lambda: checkout["messages"], lambda: len(checkout), lambda: list(checkout)):
        with pytest.raises(NotLoadedError, match="load"):
            touch()
    assert await checkout.fetch(("messages", 400, "meta", "n")) == 400
    assert await checkout.fetch(("messages", -1, "meta")) == {"n": 499}
    await checkout.load(("messages", 3))
    assert checkout["messages", 3, "meta"] == {"n": 3}
    await checkout.load()
    assert set(checkout) == {"k", "messages"}
    with pytest.raises(NotFoundError):
        await history.checkout(load=["other"])


async def test_a_checkout_is_read_only_and_says_so(history: History) -> None:
    await history.commit({"list": [1]})
    checkout = await history.checkout()
    checkout["list"].append(2)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: checkout.__setitem__("n", 1),
        lambda: checkout.__delitem__("list"),
        lambda: checkout.update(n=1),
        lambda: checkout.setdefault("n", 1),
        lambda: checkout.pop("list"),
        checkout.popitem,
        checkout.clear,
    )

    for change in changes:
        with pytest.raises(InvalidError, match="begin"):
            change()
    assert (await history.checkout())["list"] == [1]


async def test_a_checkout_that_is_shared_shows_everybody_the_same(history: History) -> None:
    await history.commit({"list": [{"n": n} for n in range(500)], "dict": {"in": [1]}, "late": [1], "n": 1})
    checkout = await history.checkout(load=["list", "dict", "n"])
    checkout["list"].append(2)
    checkout["dict", "in"].append(2)
    checkout["dict"]["in"].append(2)
    checkout["list", 0]["n"] = "changed"
    dict(checkout["list", 3]).clear()
    await checkout.load("late")
    checkout["late"].append(2)

    assert checkout["list"] == [{"n": n} for n in range(500)]
    assert checkout["list", 0] == {"n": 0}
    assert (checkout["dict"], checkout["dict", "in"], checkout["dict", "in", 0]) == ({"in": [1]}, [1], 1)
    assert (checkout["late"], checkout["n"]) == ([1], 1)


async def test_an_item_that_cannot_be_appended_is_named(history: History) -> None:
    with pytest.raises(InvalidError, match=r"item 1 appended to a\.list .*: x: .*not registered"):
        await history.append(("a", "list"), 1, {"x": object()})


async def test_who_looks_beyond_the_first_commit_hears_how_many_there_are(history: History) -> None:
    await history.commit({"a": 1})

    with pytest.raises(NotFoundError, match="line of 1 commits"):
        await history.find("main~1")
    with pytest.raises(NotFoundError, match="at least 4 digits"):
        await history.find((await history.find()).id[:3])
    with pytest.raises(InvalidError, match="for UTC write 2026-11-21T11:09:00Z"):
        await history.find("main@2026-11-21T11:09")


async def test_an_order_of_keys_is_told_in_words(history: History) -> None:
    await history.commit({"a": 1, "b": 1})
    await history.commit({"b": 1, "a": 1})

    assert [str(difference) for difference in await history.diff("main~1", "main")] == ["~ . (order of keys)"]


@pytest.mark.parametrize("state", [[1], {1: 2}, None])
async def test_a_state_is_a_dict_with_text_for_keys(history: History, state: Any) -> None:
    with pytest.raises(InvalidError):
        await history.commit(state)


async def test_a_diff_tells_values_and_places(history: History) -> None:
    await history.commit({"messages": [message(number) for number in range(300)], "n": 1})
    draft = await history.begin()
    draft["messages"][7]["meta"]["n"] = "other"
    draft["messages"].append("new")
    del draft["n"]
    await draft.commit()

    changes = await history.diff("main~1", "main")

    assert {(change.path, change.kind, change.old, change.new) for change in changes} == {
        (("messages", 7, "meta", "n"), "changed", 7, "other"),
        (("messages", 300), "added", None, "new"),
        (("n",), "removed", 1, None),
    }
    assert {str(change) for change in changes} == {"~ messages[7].meta.n", "+ messages[300]", "- n"}


async def test_a_commit_joins_a_transaction(turned: Turned) -> None:
    space = turned.space
    async with space.transaction() as tx:
        history = History(tx.executor)
        await history.append("messages", *[message(number) for number in range(50)])
        await history.append("messages", message(50))
        await tx.documents.put("a", 1)
        assert len((await history.checkout())["messages"]) == 51
    before = await space.revision()
    with pytest.raises(ZeroDivisionError):
        async with space.transaction() as tx:
            await History(tx.executor).append("messages", 1 / 0)

    outer = history_of(space)
    assert (before, await space.revision()) == (1, 1)
    assert len((await outer.checkout())["messages"]) == 51


async def test_a_state_larger_than_a_batch_comes_back(history: History) -> None:
    state = {"blob": bytes(range(256)) * 8_000, "many": [f"{n} " * 400 for n in range(12_000)]}

    await history.commit(state)
    await history.append("many", "last")

    checkout = await history.checkout()
    assert checkout["blob"] == state["blob"]
    assert checkout["many"] == [*state["many"], "last"]


@pytest.mark.parametrize(
    "part", [["x" * 20] * 1_000, {f"k{n}": n for n in reversed(range(1_000))}], ids=["list", "dict"]
)
async def test_a_part_that_is_in_a_state_twice_is_kept_when_it_changes_once(
    everywhere: History, tmp_path: Path, part: Any
) -> None:
    """A commit carries the root of the list of a key, and had stored it nowhere else."""
    first = {"part": part, "log": [{"of": part, "text": "x" * 5_000}]}
    await everywhere.commit(first)
    await everywhere.branch("before")
    draft = await everywhere.begin()
    draft["part"] = "other"
    await draft.commit()
    draft["log"].append({"again": part, "text": "y" * 5_000})
    await draft.commit()

    last = {"part": "other", "log": [*first["log"], {"again": part, "text": "y" * 5_000}]}
    assert (await everywhere.verify()).problems == ()
    assert [dict(await everywhere.checkout(ref)) for ref in ("before", "main")] == [first, last]
    await everywhere.export_bundle(tmp_path / "all.bundle")
    async with keepstate.open("memory://") as ks:
        copy = ks.space("copy").history
        await copy.import_bundle(tmp_path / "all.bundle")
        assert (await copy.verify()).problems == ()
        assert [dict(await copy.checkout(ref)) for ref in ("before", "main")] == [first, last]
    await everywhere.delete_branch("before")
    await everywhere.prune(keep_last=1)
    assert dict(await everywhere.checkout()) == last
