"""Blame, squash, verification, sizes, and letting go of what is old."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from keepstate.engine.history.history import History
from keepstate.engine.history.record import decode_grafts, encode_grafts
from keepstate.engine.kernel import layout
from keepstate.errors import CorruptError, InvalidError, NotFoundError, PrunedError
from keepstate.stores.protocol import Batch, Entry, Put
from tests.engine.conftest import Turned
from tests.engine.history.conftest import history_of

LONG = [f"message {n} " * 30 for n in range(400)]


async def entries(history: History, prefix: bytes) -> list[Entry]:
    store = await history._executor.store()
    found: list[Entry] = []
    after: bytes | None = None
    while True:
        page = await store.scan(history._executor.stored_name, prefix, after=after)
        found += page.entries
        after = page.next
        if after is None:
            return found


async def rewrite(history: History, key: bytes, value: bytes) -> None:
    store = await history._executor.store()
    await store.apply([Batch(history._executor.stored_name, [Put(key, value)])])


# ---- blame


async def test_blame_names_who_gave_the_value(history: History) -> None:
    await history.commit({"messages": LONG, "plan": {"a": 1, "b": 1}}, author="ada")
    await history.commit({"messages": LONG[1:], "plan": {"a": 2, "b": 1}}, author="bob")
    await history.append("messages", "new", author="cleo")
    await history.commit({"messages": [*LONG[50:], "new"], "plan": {"a": 2, "b": 1}, "n": 1}, author="dan")

    for path, author, number in [
        (("messages", -1), "cleo", 3), (("messages", 7), "ada", 1), (("plan", "a"), "bob", 2),
        (("plan", "b"), "ada", 1), ("plan", "bob", 2), ("n", "dan", 4), ("messages", "dan", 4),
    ]:  # fmt: skip
        blame = await history.blame(path)
        assert (blame.commit.author, blame.commit.number, blame.is_exact) == (author, number, True), path
    with pytest.raises(NotFoundError):
        await history.blame("other")


async def test_blame_follows_what_came_by_a_merge(history: History) -> None:
    await history.commit({"a": 0, "b": 0})
    await history.branch("side")
    await history.commit({"a": 0, "b": 1}, branch="side", author="cleo")
    await history.commit({"a": 1, "b": 0}, author="bob")
    await history.merge("side", author="dan")

    assert (await history.blame("a")).commit.author == "bob"
    by = (await history.blame("b")).commit
    assert (by.author, by.number) == ("cleo", None)


# ---- squash


async def test_a_squash_keeps_the_state_and_what_came_before(history: History) -> None:
    for number in range(6):
        await history.commit({"messages": LONG[: 60 * number], "n": number})

    commit = await history.squash(since="main#2")
    await history.append("messages", "new")

    assert (commit.number, commit.message) == (3, "squash 4 commits")
    assert [c.number async for c in history.log()] == [4, 3, 2, 1]
    assert dict(await history.checkout("main#3")) == {"messages": LONG[:300], "n": 5}
    assert (await history.squash(since="main")).number == 4
    await history.branch("side", "main#1")
    await history.commit({}, branch="side")
    with pytest.raises(NotFoundError):
        await history.squash(since="side")


# ---- verification and sizes


async def test_a_sound_history_has_no_problems_and_a_size(history: History) -> None:
    await history.commit({"messages": LONG})
    await history.tag("v1")
    await history.append("messages", "new")

    verified, stats = await history.verify(), await history.stats()

    assert (verified.commits, verified.problems) == (2, ())
    assert (stats.branches, stats.tags, stats.commits) == (1, 1, 2)
    assert stats.objects >= 20
    assert stats.size_bytes > 10_000


@pytest.mark.slow
async def test_the_size_counts_what_is_too_large_for_one_entry(history: History) -> None:
    await history.commit({"image": random.Random(0).randbytes(3 << 20)})

    assert 3 << 20 < (await history.stats()).size_bytes < 4 << 20


async def test_any_flipped_bit_is_found(history: History) -> None:
    await history.commit({"messages": LONG, "big": "x" * 5_000, "keys": {str(n): n for n in range(900)}})
    await history.append("messages", "new")
    await history.tag("v1", "main~1")
    parts = (layout.COMMITS, layout.STATES, layout.BRANCHES, layout.TAGS)
    stored = [entry for part in parts for entry in await entries(history, part)]
    assert len(stored) > 40
    for number, entry in enumerate(stored):
        place = number * 37 % len(entry.value)
        flipped = bytearray(entry.value)
        flipped[place] ^= 1 << number % 8
        await rewrite(history, entry.key, bytes(flipped))

        assert (await History(history._executor).verify()).problems, entry.key
        await rewrite(history, entry.key, entry.value)

    assert (await history.verify()).problems == ()


async def test_a_missing_object_is_told_when_it_is_read(history: History) -> None:
    await history.commit({"messages": LONG})
    store = await history._executor.store()
    for entry in await entries(history, layout.STATES):
        await rewrite(history, entry.key, b"\x01\xc0")
    del store

    with pytest.raises(CorruptError):
        await history.checkout()


# ---- retention


async def test_pruning_keeps_the_last_and_what_is_tagged(history: History) -> None:
    for number in range(1, 21):
        await history.commit({"messages": LONG[number * 10 :], "n": number})
    await history.tag("five", "main#5")
    before = await history.stats()

    pruned = await history.prune(keep_last=3)

    after = await history.stats()
    assert (pruned.commits, after.commits) == (16, 4)
    assert after.objects < before.objects
    assert [c.number async for c in history.log()] == [20, 19, 18, 5]
    for number in (20, 19, 18, 5):
        assert dict(await history.checkout(f"main#{number}")) == {
            "messages": LONG[number * 10 :],
            "n": number,
        }
    for gone in ("main#17", "main#6", "main#1"):
        with pytest.raises(PrunedError):
            await history.checkout(gone)
    assert (await history.find("main~3")).number == 5
    with pytest.raises(PrunedError):
        await history.checkout("main~4")
    with pytest.raises(NotFoundError):
        await history.checkout("main~20")
    assert (await history.verify()).problems == ()


async def test_after_pruning_life_goes_on(history: History) -> None:
    for number in range(1, 11):
        await history.commit({"n": number, "old": 1})
    await history.branch("side")
    await history.prune(keep_last=2)
    await history.commit({"n": "side", "old": 1}, branch="side")
    await history.append("list", 1)
    await history.merge("side", rules={"n": "theirs"})
    await history.prune(keep_last=2)
    await history.rollback(steps=1)

    assert dict(await history.checkout("main~1")) == {"n": "side", "old": 1, "list": [1]}
    assert [c.number async for c in history.log(limit=2)] == [13, 12]
    blame = await history.blame("old")
    assert blame.is_exact is False
    assert (await history.verify()).problems == ()
    assert (await history.stats()).commits == len([c async for c in history.log()])


async def test_fields_that_a_later_version_has_added_to_a_graft_survive_another_pruning(
    history: History,
) -> None:
    for number in range(9):
        await history.commit({"n": number})
    await history.prune(keep_last=4)
    [before] = await entries(history, layout.GRAFTS)
    grafted = {id: replace(graft, later=("a wish", 7)) for id, graft in decode_grafts(before.value).items()}
    await rewrite(history, layout.GRAFTS, encode_grafts(grafted))
    await history.branch("side")
    for number in range(9, 18):
        await history.commit({"n": number})

    await history.prune(keep_last=4)

    [after] = await entries(history, layout.GRAFTS)
    left = decode_grafts(after.value)
    assert len(left) == 2
    assert {id: graft.later for id, graft in left.items() if id in grafted} == dict.fromkeys(
        grafted, ("a wish", 7)
    )
    assert [commit.number async for commit in history.log("side")] == [9, 8, 7, 6]


async def test_what_was_pruned_is_said_to_be(history: History) -> None:
    for number in range(5):
        await history.commit({"n": number})
    draft = await history.begin("main")
    draft["mine"] = 1
    await history.commit({"n": 5})
    await history.commit({"n": 6})
    await history.prune(keep_last=2)

    for gone in ("main~2", "main~6", "main#1"):
        with pytest.raises(PrunedError, match="was pruned"):
            await history.find(gone)
    with pytest.raises(NotFoundError, match="line of 7 commits"):
        await history.find("main~7")
    with pytest.raises(PrunedError, match="begin again"):
        await draft.commit(on_conflict="merge")


async def test_pruning_by_age_and_without_tags(turned: Turned) -> None:
    history = history_of(turned.space)
    for number in range(1, 7):
        await history.commit({"n": number})
        await history.tag(f"t{number}")
        turned.clock.advance(3_600_000)

    by_age = await history.prune(older_than=timedelta(hours=2, minutes=30), keep_tagged=True)
    assert by_age.commits == 0
    pruned = await history.prune(older_than=timedelta(hours=2, minutes=30), keep_tagged=False)

    assert pruned.commits == 4
    assert [t.name async for t in history.tags()] == ["t5", "t6"]
    assert [c.number async for c in history.log()] == [6, 5]


async def test_a_commit_of_exactly_the_age_is_kept(turned: Turned) -> None:
    history = history_of(turned.space)
    for number in range(1, 5):
        await history.commit({"n": number})
        turned.clock.advance(3_600_000)

    await history.prune(older_than=timedelta(hours=2))

    assert [commit.number async for commit in history.log()] == [4, 3]


@pytest.mark.parametrize(
    "arguments", [{}, {"keep_last": 0}, {"older_than": 3}, {"older_than": timedelta(-1)}]
)
async def test_pruning_says_what_is_kept(history: History, arguments: Any) -> None:
    await history.commit({})

    with pytest.raises(InvalidError):
        await history.prune(**arguments)


async def test_what_no_branch_leads_to_is_collected(history: History) -> None:
    await history.commit({"n": 1})
    await history.branch("side")
    lost = await history.commit({"messages": LONG}, branch="side")
    await history.delete_branch("side")
    checkout = await history.checkout(lost, load=False)

    assert await history.collect() > 20
    assert await history.collect() == 0
    with pytest.raises(PrunedError):
        await checkout.fetch("messages")
    with pytest.raises(NotFoundError):
        await history.checkout(lost)
    assert dict(await history.checkout()) == {"n": 1}


async def test_a_line_ends_where_only_what_was_merged_into_it_is_kept(history: History) -> None:
    await history.commit({"n": 0})
    await history.branch("side")
    await history.commit({"n": 0, "side": 1}, branch="side", message="beside")
    await history.commit({"n": 1})
    await history.merge("side")

    assert (await history.prune(keep_last=1)).commits == 2

    assert (await history.find()).number == 3
    assert [(c.message, c.number) async for c in history.log()] == [("merge side", 3), ("beside", None)]
    assert (await history.blame("side")).commit.message == "beside"
    assert (await history.verify()).problems == ()
    assert (await history.append("messages", "new")).number == 4
    with pytest.raises(PrunedError):
        await history.checkout("main#2")
    with pytest.raises(PrunedError):
        await history.checkout("main~2")


async def test_what_a_commit_changed_is_not_undone_when_it_cannot_be_told(history: History) -> None:
    for number in range(4):
        await history.commit({"n": number})
    await history.prune(keep_last=2)

    with pytest.raises(PrunedError, match="was pruned"):
        await history.revert("main~1")
    await history.revert("main")
    assert dict(await history.checkout()) == {"n": 2}
