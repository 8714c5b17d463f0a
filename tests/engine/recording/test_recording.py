"""Recorded spaces: every moment of the documents can be read again, and says who made it."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import keepstate
from keepstate import ConflictError, InvalidError, Keepstate, NotFoundError, Space
from keepstate.engine.kernel.layout import STATES
from keepstate.stores.protocol import Batch
from tests.engine.conftest import Turned


@pytest.fixture
def recorded(ks: Keepstate) -> Space:
    return ks.space("run/1", author="ann", record=True)


async def log(space: Space) -> list[tuple[int | None, str | None, str]]:
    """Return number, author and message of each commit, the last first."""
    return [(commit.number, commit.author, commit.message) async for commit in space.history.log()]


async def now(space: Space) -> dict[str, Any]:
    return {name: value async for name, value in space.documents.items()}


async def test_each_change_of_documents_is_a_commit_in_the_same_batch(recorded: Space) -> None:
    await recorded.documents.put("plan", ["look"])
    await recorded.documents.update("plan", lambda plan: [*plan, "act"])
    await recorded.documents.put("n", 1)
    await recorded.documents.delete("plan")

    assert await recorded.revision() == 4
    assert await log(recorded) == [
        (4, "ann", "delete plan"),
        (3, "ann", "put n"),
        (2, "ann", "put plan"),
        (1, "ann", "put plan"),
    ]
    assert dict(await recorded.at("main#2")) == {"plan": ["look", "act"]}
    assert dict(await recorded.at("main~1")) == {"n": 1, "plan": ["look", "act"]}
    assert dict(await recorded.at()) == {"n": 1}


async def test_what_changes_no_document_is_no_commit(recorded: Space) -> None:
    await recorded.documents.put("n", 1)
    await recorded.events.append("log", "something")
    await recorded.documents.delete("absent")
    await recorded.documents.get("n")
    with pytest.raises(ConflictError):
        await recorded.documents.put("n", 2, expected_version=99)

    assert len(await log(recorded)) == 1


async def test_a_transaction_is_one_commit_with_its_message(recorded: Space) -> None:
    async with recorded.transaction(message="step 3") as tx:
        await tx.documents.put("a", 1)
        await tx.documents.put("b", 2)
        await tx.events.append("log", "done")

    assert await recorded.revision() == 1
    assert await log(recorded) == [(1, "ann", "step 3")]
    assert dict(await recorded.at()) == {"a": 1, "b": 2}


async def test_a_transaction_that_fails_records_nothing(recorded: Space) -> None:
    await recorded.documents.put("a", 1)
    with pytest.raises(ZeroDivisionError):
        async with recorded.transaction() as tx:
            await tx.documents.put("a", 2)
            raise ZeroDivisionError

    assert dict(await recorded.at()) == {"a": 1}


async def test_who_writes_by_another_name_is_recorded_so(recorded: Space) -> None:
    agent = recorded.by("agent/7", message="think")
    await agent.documents.put("a", 1)
    await agent.by(message="act").documents.put("a", 2)
    await recorded.by("bob").documents.put("b", 3)

    assert await log(recorded) == [(3, "bob", "put b"), (2, "agent/7", "act"), (1, "agent/7", "think")]
    assert (await recorded.history.blame("a")).commit.author == "agent/7"


async def test_all_who_change_documents_in_a_transaction_are_named(recorded: Space) -> None:
    async with recorded.transaction() as tx:
        critic = tx.by("critic", message="judge")
        await critic.documents.put("verdict", True)
        await tx.by("writer", message="write").documents.put("text", "…")
        await tx.by("reader", message="read").documents.get("text")
        await tx.by("critic", message="judge").documents.put("again", 1)

    assert critic.revision == tx.revision == 1
    assert await log(recorded) == [(1, "critic, writer", "judge; write")]


async def test_every_handle_obeys_once_a_space_is_recorded(ks: Keepstate) -> None:
    before, plain = ks.space("run/1"), keepstate.open(ks.url)
    async with plain:
        await before.documents.put("a", 1)
        await plain.space("run/1").documents.put("b", 1)
        await ks.space("run/1", record=True).documents.put("c", 1)

        version = await plain.space("run/1").documents.put("b", 2)
        await plain.space("run/1").documents.put("b", 3, expected_version=version)
        async with plain.space("run/1").transaction() as tx:
            await tx.documents.put("d", 4)
        await before.documents.put("a", 2)

    assert [number for number, _, _ in await log(before)] == [5, 4, 3, 2, 1]
    assert dict(await before.at("main#1")) == {"a": 1, "b": 1, "c": 1}
    assert dict(await before.at()) == {"a": 2, "b": 3, "c": 1, "d": 4}


async def test_a_handle_that_does_not_know_yet_writes_only_once_in_its_own_name(ks: Keepstate) -> None:
    async with keepstate.open(ks.url) as other:
        await other.space("run/1").documents.put("a", 1)
        await ks.space("run/1", record=True).documents.put("b", 1)
        called = 0

        def change(value: int) -> int:
            nonlocal called
            called += 1
            return value + 1

        assert await other.space("run/1").documents.update("a", change) == 2
        assert called == 1


async def test_documents_that_are_there_are_taken_in(ks: Keepstate) -> None:
    plain = ks.space("run/1")
    for begin in range(0, 1500, 500):
        async with plain.transaction() as tx:
            for number in range(begin, begin + 500):
                await tx.documents.put(f"doc {number}", {"n": number, "text": "word " * 9})
    await plain.documents.put("name " * 100, "cut")
    recorded = ks.space("run/1", record=True)
    await recorded.documents.delete("doc 3")

    assert dict(await recorded.at()) == await now(recorded)
    assert len(await recorded.at()) == 1500
    assert await log(recorded) == [(1, None, "delete doc 3")]


async def test_what_was_committed_to_main_by_hand_is_not_replaced(ks: Keepstate, recorded: Space) -> None:
    await ks.space("run/1", author="ann").history.commit({"other": 1}, message="before")

    with pytest.raises(InvalidError, match="commits of 'main' made by hand"):
        await recorded.documents.put("a", 1)

    assert await log(recorded) == [(1, "ann", "before")]
    assert await recorded.documents.get("a") is None
    await recorded.history.branch("by-hand", at="main")
    await ks.space("run/1").history.delete_branch("main")
    await recorded.documents.put("a", 1)
    assert dict(await recorded.at()) == {"a": 1}
    assert dict(await recorded.history.checkout("by-hand")) == {"other": 1}


async def test_nothing_is_recorded_of_a_space_that_is_not(space: Space) -> None:
    await space.documents.put("a", 1)

    with pytest.raises(NotFoundError):
        await space.at()


async def test_main_of_a_recorded_space_moves_with_its_documents_only(recorded: Space) -> None:
    await recorded.documents.put("a", 1)
    await recorded.documents.put("a", 2)
    history = recorded.history
    draft = await history.begin()
    draft["a"] = 3
    await history.branch("side", at="main~1")
    side = await history.begin("side")
    side["b"] = 1
    await side.commit("what if")

    uses: tuple[Callable[[], Any], ...] = (
        lambda: history.commit({"a": 3}),
        lambda: history.append("list", 1),
        draft.commit,
        lambda: draft.commit(on_conflict="merge"),
        lambda: history.delete_branch("main"),
    )
    for use in uses:
        with pytest.raises(InvalidError, match="follows its documents"):
            await use()
    await history.merge("main", into="side")
    await history.tag("v1")

    assert dict(await history.checkout("side")) == {"a": 2, "b": 1}
    assert dict(await recorded.at("v1")) == {"a": 2}


async def test_a_transaction_does_not_commit_to_main_beside_its_record(ks: Keepstate) -> None:
    recorded = ks.space("run/1", record=True)
    with pytest.raises(InvalidError, match="another branch"):
        async with recorded.transaction() as tx:
            await tx.history.commit({"a": 1})
            await tx.documents.put("a", 1)
    async with recorded.transaction() as tx:
        await tx.history.commit({"idea": 1}, branch="ideas")
        await tx.documents.put("a", 1)

    assert dict(await recorded.at()) == {"a": 1}
    assert dict(await recorded.at("ideas")) == {"idea": 1}


async def test_transactions_on_different_documents_do_not_meet(recorded: Space) -> None:
    await recorded.documents.put("a", 0)
    await recorded.documents.put("b", 0)

    async with recorded.transaction() as one, recorded.transaction() as other:
        await one.documents.update("a", lambda n: n + 1)
        await other.documents.update("b", lambda n: n + 1)

    assert dict(await recorded.at()) == {"a": 1, "b": 1}
    assert (await recorded.history.find()).number == 4


async def test_a_transaction_still_conflicts_with_what_it_has_read(recorded: Space) -> None:
    await recorded.documents.put("a", 0)

    with pytest.raises(ConflictError, match="document 'a'"):
        async with recorded.transaction() as tx:
            await tx.documents.put("b", await tx.documents.get("a"))
            await recorded.documents.put("a", 1)
    with pytest.raises(ConflictError):
        async with recorded.transaction() as tx:
            await tx.documents.put("count", len([key async for key in tx.documents.keys("*")]))
            await recorded.documents.put("c", 1)

    assert dict(await recorded.at()) == await now(recorded) == {"a": 1, "c": 1}


async def test_who_writes_at_once_loses_nothing_and_each_gets_a_commit(ks: Keepstate) -> None:
    recorded = ks.space("run/1", record=True)
    await recorded.documents.put("shared", 0)
    await asyncio.gather(
        *(recorded.documents.update(f"own {n}", lambda v: v + 1, default=0) for n in range(20)),
        *(ks.space("run/1").documents.update("shared", lambda v: v + 1) for _ in range(20)),
    )

    assert (await recorded.history.find()).number == 41
    assert dict(await recorded.at()) == {f"own {n}": 1 for n in range(20)} | {"shared": 20}


async def test_large_values_and_long_names_are_recorded(recorded: Space) -> None:
    state: dict[str, Any] = {
        "text": "a word and another " * 150_000,
        "messages": [{"role": "user", "content": f"{n} " * 50} for n in range(2000)],
        "n" * 500: {"deep": {"list": list(range(3000))}},
    }
    for name, value in state.items():
        await recorded.documents.put(name, value)
    await recorded.documents.update("messages", lambda messages: messages[1:])
    await recorded.documents.delete("n" * 500)

    assert dict(await recorded.at("main#3")) == state
    assert dict(await recorded.at()) == {"text": state["text"], "messages": state["messages"][1:]}
    assert (await recorded.history.verify()).problems == ()


async def test_a_small_change_of_a_large_document_is_recorded_at_the_cost_of_the_change(
    recorded: Space,
) -> None:
    messages = [{"role": "user", "content": random.Random(n).randbytes(200)} for n in range(3000)]
    await recorded.documents.put("messages", messages)
    before = await recorded.history.stats()
    await recorded.documents.update("messages", lambda all: [*all[:1500], "new", *all[1500:]])

    after = await recorded.history.stats()
    assert after.size_bytes - before.size_bytes < 20_000


async def test_what_has_expired_leaves_the_record_with_the_next_change(turned: Turned) -> None:
    recorded = turned.ks.space("run/1", author="ann", record=True)
    await recorded.documents.put("kept", 1)
    await recorded.documents.put("brief", 1, ttl_s=10)
    await recorded.documents.put("put off", 1, ttl_s=10)
    turned.clock.advance(5_000)
    await recorded.documents.put("put off", 2, ttl_s=100)
    turned.clock.advance(10_000)
    await recorded.documents.put("kept", 2)

    assert await log(recorded) == [
        (6, "ann", "put kept"),
        (5, None, "expired: brief"),
        (4, "ann", "put put off"),
        (3, "ann", "put put off"),
        (2, "ann", "put brief"),
        (1, "ann", "put kept"),
    ]
    assert dict(await recorded.at()) == {"kept": 2, "put off": 2}
    turned.clock.advance(200_000)
    await recorded.documents.put("kept", 3)
    assert dict(await recorded.at()) == await now(recorded) == {"kept": 3}


async def test_two_names_and_one_that_joins_them_leave_the_record_all(turned: Turned) -> None:
    recorded = turned.ks.space("run/1", record=True)
    async with recorded.transaction() as tx:
        await tx.documents.put("a", 1, ttl_s=10)
        await tx.documents.put("b", 1, ttl_s=10)
    await recorded.documents.put("a\0b", 1, ttl_s=10)
    turned.clock.advance(20_000)
    await recorded.documents.put("kept", 1)

    assert dict(await recorded.at()) == {"kept": 1}


async def test_documents_that_are_taken_in_leave_the_record_when_they_expire(turned: Turned) -> None:
    async with turned.ks.space("run/1").transaction() as tx:
        for number in range(300):
            await tx.documents.put(f"brief {number}", number, ttl_s=10 + number / 100)
    recorded = turned.ks.space("run/1", record=True)
    await recorded.documents.put("brief 7", "renewed")
    turned.clock.advance(20_000)
    for number in range(3):
        await recorded.documents.put("n", number)

    assert dict(await recorded.at()) == {"brief 7": "renewed", "n": 2}


async def test_a_space_that_was_dropped_is_recorded_no_more(ks: Keepstate) -> None:
    recorded = ks.space("run/1", record=True)
    await recorded.documents.put("a", 1)
    await ks.drop("run/1")
    plain = ks.space("run/1")
    await plain.documents.put("b", 1)

    with pytest.raises(NotFoundError):
        await plain.at()
    await recorded.documents.put("c", 1)
    assert dict(await plain.at()) == {"b": 1, "c": 1}


async def test_a_refused_try_leaves_no_object_of_a_dropped_space_behind(ks: Keepstate) -> None:
    recorded, store = ks.space("run/1", record=True), await ks.opened()
    async with recorded.transaction() as tx:
        for number in range(400):
            await tx.documents.put(f"brief {number:03d}", f"said by ann {number}")
    apply = store.apply

    async def dropped_before(batches: Sequence[Batch]) -> Any:
        store.apply = apply  # type: ignore[method-assign]
        await ks.drop("run/1")
        return await apply(batches)

    store.apply = dropped_before  # type: ignore[method-assign]
    await recorded.documents.put("n", 1)

    page = await store.scan(recorded.name, STATES)
    assert [entry.key for entry in page.entries] == []
    assert dict(await recorded.at()) == {"n": 1}


async def test_nothing_comes_into_main_before_the_first_change(ks: Keepstate, tmp_path: Path) -> None:
    recorded, other = ks.space("run/1", record=True), ks.space("run/2")
    await other.history.commit({"x": 1})
    await other.history.export_bundle(tmp_path / "other.history")

    for use in (
        lambda: recorded.history.commit({"x": 1}),
        lambda: other.history.fork(recorded.history),
        lambda: recorded.history.import_bundle(tmp_path / "other.history"),
    ):
        with pytest.raises(InvalidError, match="follows its documents"):
            await use()
    await recorded.documents.put("a", 1)

    assert await log(recorded) == [(1, None, "put a")]


async def test_pruning_and_collecting_leave_the_record_whole(recorded: Space) -> None:
    for number in range(30):
        await recorded.documents.put(f"doc {number % 7}", "word " * number)
    pruned = await recorded.history.prune(keep_last=3)
    await recorded.documents.put("after", 1)

    assert pruned.commits == 27
    assert dict(await recorded.at()) == await now(recorded)
    assert (await recorded.history.find()).number == 31
    assert (await recorded.history.verify()).problems == ()


async def test_what_was_read_of_a_moment_is_read_only(recorded: Space) -> None:
    await recorded.documents.put("a", {"n": 1})
    checkout = await recorded.at(load=["a"])

    assert checkout["a", "n"] == 1
    with pytest.raises(InvalidError, match="read-only"):
        checkout["a"] = 2


async def test_the_record_is_that_of_the_documents_after_any_changes(turned: Turned) -> None:
    chance = random.Random(7)
    recorded = turned.ks.space("run/1", record=True)
    names = [f"doc {n}" for n in range(40)]
    for _ in range(300):
        async with recorded.transaction() as tx:
            for _ in range(chance.randint(1, 4)):
                name = chance.choice(names)
                match chance.randrange(4):
                    case 0:
                        await tx.documents.delete(name)
                    case 1:
                        await tx.documents.put(
                            name, "x" * chance.randrange(6000), ttl_s=chance.randint(1, 50)
                        )
                    case 2:
                        await tx.documents.put(name, list(range(chance.randrange(3000))))
                    case _:
                        await tx.documents.update(name, lambda v: {"v": v}, default=chance.random())
        turned.clock.advance(chance.randrange(5_000))

    turned.clock.advance(100_000)
    for _ in range(3):
        await recorded.documents.put("last", 1)
    assert dict(await recorded.at()) == await now(recorded)
    assert (await recorded.history.verify()).problems == ()


def test_a_recorded_space_is_used_without_await(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/keepstate.db") as ks:
        space = ks.space("run/1", author="ann", record=True)
        space.documents.put("a", 1)
        with space.transaction() as tx:
            tx.by("bob").documents.put("b", 2)

        assert [commit.author for commit in space.history.log()] == ["bob", "ann"]
        assert dict(space.at("main~1")) == {"a": 1}


async def test_a_recorded_space_comes_back_from_a_pickle(tmp_path: Path, opened: list[Keepstate]) -> None:
    ks = keepstate.open(f"sqlite:///{tmp_path}/keepstate.db")
    again: Space = pickle.loads(pickle.dumps(ks.space("run/1", record=True).by("ann", message="first")))
    opened += [ks, cast(Keepstate, again.executor.home)]
    await again.documents.put("a", 1)

    assert await log(again) == [(1, "ann", "first")]


async def test_what_cannot_be_said_of_a_change_is_refused(ks: Keepstate, space: Space) -> None:
    with pytest.raises(InvalidError, match="`record`"):
        ks.space("run/1", record="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`author`"):
        space.by("")
    with pytest.raises(InvalidError, match="`message`"):
        space.by("ann", message="x" * 70_000)


async def test_a_space_that_recorded_nothing_says_what_does(ks: Keepstate) -> None:
    plain, session = ks.space("plain"), keepstate.Session("s", space=ks.space("shared"))
    await plain.documents.put("a", 1)
    await session.update({"a": 1})

    for asking in (plain.at("main"), plain.at("main~1"), session.at()):
        with pytest.raises(NotFoundError, match=r"nothing is committed or recorded there yet; .*record=True"):
            await asking
    with pytest.raises(NotFoundError, match=r"no branch, tag or commit 'other' in 'plain'$"):
        await plain.at("other")
