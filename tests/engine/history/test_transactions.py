"""Histories in transactions: commits join the batch, and what does not apply was never committed."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate
from keepstate import ClosedError, ConflictError, InvalidError, Space


async def test_a_commit_applies_with_the_rest_of_its_transaction(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.documents.put("plan", 1)
        await tx.history.commit({"n": 1})
        await tx.history.append("messages", "a", "b")
        await tx.history.tag("v1")
        assert dict(await tx.history.checkout()) == {"n": 1, "messages": ["a", "b"]}
        assert await space.documents.get("plan") is None

    assert await space.revision() == tx.revision == 1
    assert dict(await space.history.checkout("v1")) == {"n": 1, "messages": ["a", "b"]}
    assert [commit.number async for commit in space.history.log()] == [2, 1]


async def test_nothing_was_committed_by_a_transaction_that_fails(space: Space) -> None:
    await space.history.commit({"n": 1})

    with pytest.raises(ZeroDivisionError):
        async with space.transaction() as tx:
            await tx.history.append("messages", "a")
            raise ZeroDivisionError

    assert dict(await space.history.checkout()) == {"n": 1}


async def test_a_draft_of_a_transaction_that_fails_stands_where_it_stood(space: Space) -> None:
    first = await space.history.commit({"n": 1})

    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            draft = await tx.history.begin()
            for n in (2, 3):
                draft["n"] = n
                await draft.commit()
            await space.history.append("messages", "somebody else's")

    assert draft.base == first
    assert draft["n"] == 3
    with pytest.raises(ClosedError, match="ended"):
        await draft.commit()


async def test_a_draft_of_a_transaction_that_applies_stands_on_its_commit(space: Space) -> None:
    async with space.transaction() as tx:
        draft = await tx.history.begin()
        draft["n"] = 1
        commit = await draft.commit("first")

    assert draft.base == commit == await space.history.find()


async def test_branches_and_merges_join_a_transaction(space: Space) -> None:
    await space.history.commit({"a": 1})

    async with space.transaction() as tx:
        await tx.history.branch("side")
        side = await tx.history.begin("side")
        side["b"] = 2
        commit = await side.commit()
        assert (await tx.history.find(commit.id[:12])).id == commit.id
        await tx.history.branch("other", at=commit.id)
        draft = await tx.history.begin()
        draft["a"] = 3
        await draft.commit()
        await tx.history.merge("side")

    assert dict(await space.history.checkout()) == {"a": 3, "b": 2}
    assert [branch.name async for branch in space.history.branches()] == ["main", "other", "side"]


async def test_what_cannot_join_a_transaction_is_refused(space: Space, tmp_path: Path) -> None:
    await space.history.commit({"a": 1})

    async with space.transaction() as tx:
        for use in (
            lambda: tx.history.prune(keep_last=1),
            tx.history.collect,
            tx.history.stats,
            tx.history.verify,
            lambda: tx.history.export_bundle(tmp_path / "a.bundle"),
            lambda: tx.history.fork(space.history),
        ):
            with pytest.raises(InvalidError, match="outside"):
                await use()

    assert not (tmp_path / "a.bundle").exists()


def test_a_history_joins_a_transaction_without_await() -> None:
    with keepstate.sync.open("memory://") as ks:
        space = ks.space("run/1")
        with space.transaction() as tx:
            draft = tx.history.begin()
            draft["n"] = 1
            draft.commit()

        assert dict(space.history.checkout()) == {"n": 1}
