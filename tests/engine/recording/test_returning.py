"""Going back in a recorded space: its documents are put back as they were, and that is recorded too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import InvalidError, Keepstate, MergeConflictError, SignedPickle, Space
from tests.engine.conftest import Turned


@dataclass
class Cursor:
    place: int


async def now(space: Space) -> dict[str, Any]:
    return {name: value async for name, value in space.documents.items()}


async def test_a_rollback_puts_the_documents_of_then_back_in_one_batch(ks: Keepstate) -> None:
    space = ks.space("run/1", author="ann", record=True)
    then = {
        "kept": 1,
        "changed": {"list": [1, (2, 3)]},
        "removed" * 60: "x" * 3_000_000,
        "long": [{"n": n} for n in range(999)],
    }
    for name, value in then.items():
        await space.documents.put(name, value)
    async with space.transaction() as tx:
        await tx.documents.put("changed", None)
        await tx.documents.put("added", 1)
        await tx.documents.put("added" * 90, 1)
        await tx.documents.update("long", lambda items: items[:-3])
        await tx.documents.delete("removed" * 60)
    before = await space.revision()
    made = await space.history.rollback(steps=1, message="too far", author="bob")

    assert await now(space) == then == dict(await space.at())
    assert await space.revision() == before + 1
    assert (made.number, made.author, made.message) == (6, "bob", "too far")
    assert made == await space.history.find()
    assert type((await now(space))["changed"]["list"][1]) is tuple
    assert (await space.history.verify()).problems == ()


async def test_a_rollback_to_what_is_there_commits_nothing(ks: Keepstate) -> None:
    space = ks.space("run/1", record=True)
    await space.documents.put("a", 1)
    made = await space.history.rollback(to="main")

    assert made == await space.history.find("main#1") == await space.history.find()


async def test_a_rollback_is_undone_by_another(ks: Keepstate) -> None:
    space = ks.space("run/1", record=True)
    await space.documents.put("a", 1)
    await space.documents.delete("a")
    await space.history.rollback(to="main#1")
    undone = await space.history.rollback(steps=1)

    assert await now(space) == {}
    assert (undone.number, undone.message[:12]) == (4, "roll back to")


async def test_a_revert_undoes_one_change_and_keeps_the_rest(ks: Keepstate) -> None:
    space = ks.space("run/1", record=True)
    await space.documents.put("plan", {"a": 1, "b": 1})
    await space.documents.put("plan", {"a": 2, "b": 1})
    await space.documents.put("plan", {"a": 2, "b": 2})
    await space.history.revert("main#2")
    with pytest.raises(MergeConflictError):
        await space.history.revert("main#1")

    assert await now(space) == {"plan": {"a": 1, "b": 2}} == dict(await space.at())


async def test_a_merge_into_main_changes_the_documents_once_and_names_both_parents(ks: Keepstate) -> None:
    space = ks.space("run/1", author="ann", record=True)
    history = space.history
    await space.documents.put("plan", {"a": 1, "b": 1})
    await space.documents.put("old", 1)
    await history.branch("side")
    draft = await history.begin("side")
    draft["plan"], draft["new"] = {"a": 1, "b": 2}, [1]
    del draft["old"]
    side = await draft.commit("what if")
    await space.documents.put("plan", {"a": 2, "b": 1})
    before = await history.find()

    merged = await history.merge("side", message="better")
    again = await history.merge("side")

    assert await now(space) == {"plan": {"a": 2, "b": 2}, "new": [1]} == dict(await space.at())
    assert merged.parents == (before.id, side.id) and (merged.author, merged.message) == ("ann", "better")
    assert again == merged and (await history.verify()).problems == ()
    assert await history.merge_base("side", "main") == await history.find(side.id)


async def test_a_merge_into_main_that_conflicts_changes_no_document(ks: Keepstate) -> None:
    space = ks.space("run/1", record=True)
    await space.documents.put("n", 1)
    await space.history.branch("side")
    await space.history.commit({"n": 2}, branch="side")
    await space.documents.put("n", 3)

    with pytest.raises(MergeConflictError):
        await space.history.merge("side")
    await space.history.merge("side", rules={("n",): "theirs"})

    assert await now(space) == {"n": 2} and (await space.history.find()).number == 3


async def test_what_has_expired_since_is_put_back_to_stay(turned: Turned) -> None:
    space = turned.ks.space("run/1", record=True)
    await space.documents.put("a", 1, ttl_s=10)
    turned.clock.advance(60_000)
    await space.history.rollback(to="main#1")
    turned.clock.advance(60_000)

    assert await now(space) == {"a": 1} == dict(await space.at())


async def test_going_back_is_no_part_of_a_transaction(ks: Keepstate) -> None:
    space = ks.space("run/1", record=True)
    await space.documents.put("a", 1)
    await space.documents.put("a", 2)

    async with space.transaction() as tx:
        with pytest.raises(InvalidError, match="takes effect immediately"):
            await tx.history.rollback(steps=1)


async def test_pickles_are_signed_anew_when_they_come_back(tmp_path: Path) -> None:
    url, pickles = f"sqlite:///{tmp_path}/app.db", SignedPickle(b"k" * 32, allow=[Cursor])
    async with keepstate.open(url, pickle=pickles) as ks:
        space = ks.space("run/1", record=True)
        await space.documents.put("cursor", Cursor(1))
        await space.documents.put("cursor", Cursor(2))
        async with keepstate.open(url) as other:
            with pytest.raises(InvalidError, match="held a pickle"):
                await other.space("run/1").history.rollback(steps=1)
        await space.history.rollback(steps=1)

        assert await space.documents.get("cursor") == Cursor(1)
