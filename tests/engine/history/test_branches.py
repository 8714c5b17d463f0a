"""Branches and tags: names for commits, and what keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepstate.engine.history.history import History
from keepstate.engine.kernel import layout
from keepstate.errors import AlreadyExistsError, CorruptError, InvalidError, NotFoundError
from keepstate.stores.protocol import Batch, Put
from tests.engine.conftest import Turned


async def test_a_branch_goes_its_own_way(history: History) -> None:
    await history.commit({"n": 1})
    branch = await history.branch("try/1")
    await history.commit({"n": 2}, branch="try/1")

    assert branch.number == 1
    assert (await history.checkout("main"))["n"] == 1
    assert (await history.checkout("try/1"))["n"] == 2
    assert [(b.name, b.number) async for b in history.branches()] == [("main", 1), ("try/1", 2)]


async def test_a_branch_from_an_earlier_commit_counts_from_there(history: History) -> None:
    for number in range(5):
        await history.commit({"n": number})

    branch = await history.branch("old", (await history.find("main#2")).id)
    commit = await history.commit({"n": "other"}, branch="old")

    assert (branch.number, commit.number) == (2, 3)


async def test_a_name_never_hides_a_commit(history: History) -> None:
    first = await history.commit({"n": 1})
    await history.commit({"n": 2})
    for name in (history.tag, history.branch):
        with pytest.raises(InvalidError, match="looks like the id of a commit"):
            await name(first.id, "main")

    assert (await history.checkout(first.id))["n"] == 1


async def test_a_branch_keeps_the_fields_that_a_later_version_stored(everywhere: History) -> None:
    await everywhere.append("log", 0)
    await everywhere.tag("v1")
    store, key = await everywhere._executor.store(), layout.named_key(layout.BRANCHES, "main")

    async def stored() -> list[Any]:
        (entry,) = (await store.read("run/1", [key])).entries
        return list(msgspec.msgpack.decode(entry.value)) if entry is not None else []

    await store.apply([Batch("run/1", [Put(key, msgspec.msgpack.encode([*await stored(), b"", "new", 7]))])])
    for number in range(1, 6):
        await everywhere.append("log", number)
        assert (await stored())[3:] == ["new", 7]
    draft = await everywhere.begin()
    draft["plan"] = "on"
    await draft.commit()
    await everywhere.squash(since="v1")

    assert (await stored())[3:] == ["new", 7]
    assert (await everywhere.verify()).problems == ()
    await everywhere.branch("side", "v1")
    await everywhere.delete_branch("main")
    await everywhere.branch("main", "side")
    assert len(await stored()) <= 3


@pytest.mark.parametrize("jumped", [b"x" * 21, b"x" * 1_000])
async def test_a_head_whose_names_are_too_long_is_damaged(history: History, jumped: bytes) -> None:
    commit = await history.append("log", 0)
    store, key = await history._executor.store(), layout.named_key(layout.BRANCHES, "main")
    head = msgspec.msgpack.encode([bytes.fromhex(commit.id), 1, jumped])
    await store.apply([Batch("run/1", [Put(key, head)])])

    with pytest.raises(CorruptError, match="branch 'main' is damaged"):
        await history.find()


async def test_a_tag_stays(history: History) -> None:
    first = await history.commit({"n": 1})
    await history.tag("v1")
    await history.commit({"n": 2})

    assert (await history.find("v1")).id == first.id
    assert [(t.name, t.commit) async for t in history.tags()] == [("v1", first.id)]
    assert (await history.delete_tag("v1"), await history.delete_tag("v1")) == (True, False)


async def test_a_name_is_given_once(history: History) -> None:
    await history.commit({})
    await history.tag("a")

    with pytest.raises(AlreadyExistsError, match="branch 'main'"):
        await history.branch("main")
    with pytest.raises(AlreadyExistsError, match="tag 'a'"):
        await history.tag("a")


@pytest.mark.parametrize("name", ["", "a~1", "a#1", "a@b", "a\nb", "x" * 201, "\ud800", 1])
async def test_a_name_that_reads_as_something_else_is_refused(history: History, name: Any) -> None:
    await history.commit({})

    with pytest.raises(InvalidError):
        await history.branch(name)


async def test_a_deleted_branch_is_gone_and_its_commits_are_told_to_be_held_by_none(history: History) -> None:
    await history.commit({"n": 1})
    await history.branch("side")
    lost = await history.commit({"n": 2}, branch="side")

    assert await history.delete_branch("side") is True
    assert await history.delete_branch("side") is False
    assert (await history.checkout(lost.id))["n"] == 2
    for use in (
        lambda: history.branch("again", lost.id),
        lambda: history.tag("again", lost.id),
        lambda: history.rollback(to=lost.id),
        lambda: history.merge(lost.id),
    ):
        with pytest.raises(NotFoundError, match="leads to"):
            await use()


async def test_what_reuses_objects_stands_on_the_branch_that_leads_to_them(history: History) -> None:
    await history.commit({"n": 1})
    await history.branch("side")
    await history.commit({"big": ["x" * 3_000, "y" * 3_000]}, branch="side")
    store, space = await history._executor.store(), history._executor.stored_name
    revision = (await store.read(space, [])).revision

    await history.merge("side")

    changed = (await store.changes(space, revision)).items
    assert [change.key for change in changed] == [layout.named_key(layout.BRANCHES, "main")]


async def test_the_latest_commits_of_all_branches_come_before_their_parents(history: History) -> None:
    assert await history.latest() == []
    for n in range(5):
        await history.commit({"n": n})
    await history.branch("try", "main#2")
    await history.commit({"n": 1, "tried": True}, branch="try")
    await history.tag("v1", "main#3")
    head = await history.merge("try", into="main")

    found = await history.latest()

    places = {commit.id: place for place, commit in enumerate(found)}
    assert len(found) == 7 and found[0] == head
    assert all(places[commit.id] < places[parent] for commit in found for parent in commit.parents)
    assert [commit.number for commit in found if commit.branch == "try"] == [3]
    assert [commit.id for commit in await history.latest(3)] == [commit.id for commit in found[:3]]


async def test_a_new_branch_from_an_old_moment_is_the_latest(turned: Turned) -> None:
    history = turned.space.history
    for n in range(5):
        await history.commit({"n": n})
        turned.clock.advance(1_000)
    await history.branch("late", "main#1")
    late = await history.commit({"n": 9}, branch="late")

    assert [commit.id for commit in await history.latest(2)] == [late.id, (await history.find()).id]


async def test_the_latest_commits_are_in_order_even_if_a_clock_went_back(turned: Turned) -> None:
    history = turned.space.history
    await history.commit({"n": 0})
    await history.branch("other")
    turned.clock.advance(5_000)
    await history.commit({"n": 1})
    turned.clock.advance(-4_000)
    await history.commit({"n": 2})
    await history.commit({"n": 3}, branch="other")
    turned.clock.advance(-1_000)
    await history.merge("other", rules={(): "ours"})

    found = await history.latest()

    places = {commit.id: place for place, commit in enumerate(found)}
    assert all(places[commit.id] < places[parent] for commit in found for parent in commit.parents)
    assert [commit.number for commit in found] == [4, 3, 2, 2, 1]
