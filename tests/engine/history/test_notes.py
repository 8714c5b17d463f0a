"""Notes on commits: `meta` by call, space, transaction and handle, and logs that are searched by it."""

from __future__ import annotations

from typing import Any

import pytest

import keepstate
from keepstate import InvalidError, NotFoundError
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.history import History
from tests.engine.history.conftest import history_of


async def notes(history: History, **wanted: Any) -> list[dict[str, str]]:
    return [dict(commit.meta) async for commit in history.log(**wanted)]


async def test_every_way_of_committing_takes_notes(everywhere: History) -> None:
    await everywhere.commit({"n": 0}, meta={"step": "1", "model": "large"})
    await everywhere.append("log", "a", meta={"step": "2"})
    draft = await everywhere.begin()
    draft["n"] = 1
    await draft.commit(meta={"step": "3"})
    await everywhere.branch("side")
    await everywhere.commit({"n": 1, "log": ["a"], "m": 1}, branch="side", meta={"step": "side"})
    await everywhere.commit({"n": 2, "log": ["a"]}, meta={"step": "4"})
    await everywhere.merge("side", meta={"step": "5"})
    await everywhere.rollback(steps=1, meta={"step": "6"})
    await everywhere.revert("main", meta={"step": "7"})
    last = await everywhere.squash(since="main#5", meta={"step": "8"})

    assert last.meta == {"step": "8"}
    assert last.to_dict()["meta"] == {"step": "8"}
    steps = [one["step"] for one in await notes(everywhere)]
    assert (steps[:2], sorted(steps[2:4]), steps[4:]) == (["8", "5"], ["4", "side"], ["3", "2", "1"])
    assert (await everywhere.find("main#1")).meta == {"model": "large", "step": "1"}


async def test_notes_of_handle_space_and_call_are_joined() -> None:
    made = 0

    def trace() -> dict[str, str]:
        nonlocal made
        made += 1
        return {"traceparent": f"00-{made}", "from": "handle"}

    async with keepstate.open("memory://", meta=trace) as ks:
        space = ks.space("a").by("ada", meta={"model": "large", "from": "space"})
        await space.history.commit({"n": 1}, meta={"tokens": "9"})
        await space.by(meta={"model": "small"}).history.append("log", 1)

        assert await notes(space.history) == [
            {"from": "space", "model": "small", "traceparent": "00-2"},
            {"from": "space", "model": "large", "tokens": "9", "traceparent": "00-1"},
        ]
        assert [commit.author async for commit in space.history.log()] == ["ada", "ada"]


async def test_the_commit_of_a_recorded_transaction_has_the_notes_of_all_its_writers() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("a", record=True).by(meta={"run": "7"})
        await space.documents.put("plan", 1)
        async with space.transaction() as tx:
            await tx.by("ada", meta={"model": "large"}).documents.put("plan", 2)
            await tx.by("bob", meta={"tokens": "9"}).documents.put("note", 2)

        assert await notes(space.history) == [{"model": "large", "run": "7", "tokens": "9"}, {"run": "7"}]


async def test_a_log_is_searched_by_notes_author_text_and_path(history: History) -> None:
    for n in range(1, 13):
        await history.commit(
            {"n": n, "plan": n // 4},
            author=("ada", "bob")[n % 2],
            message=f"Step {n} of {'planning' if n % 3 == 0 else 'acting'}",
            meta={"model": "large" if n > 6 else "small", "n": str(n)},
        )

    async def numbers(**wanted: Any) -> list[int | None]:
        return [commit.number async for commit in history.log(**wanted)]

    assert await numbers(meta={"model": "large"}, limit=2) == [12, 11]
    assert await numbers(meta={"model": "large", "n": "9"}) == [9]
    assert await numbers(meta={"model": "none"}) == []
    assert await numbers(author="bob", text="PLANNING") == [9, 3]
    assert await numbers(path="plan") == [12, 8, 4, 1]
    assert await numbers(path="plan", author="ada", reverse=True) == [4, 8, 12]
    assert await numbers(first=5, limit=3) == [5, 4, 3]
    assert await numbers(first=5, limit=3, reverse=True) == [5, 6, 7]
    assert [one.commit.number async for one in history.changes_of("plan", "main#9", limit=2)] == [8, 4]


async def test_pages_of_a_log_follow_one_another(everywhere: History) -> None:
    for n in range(9):
        await everywhere.append("log", n)

    down = [commit.number async for commit in everywhere.log(limit=4)]
    down += [commit.number async for commit in everywhere.log(first=5, limit=5)]
    up = [commit.number async for commit in everywhere.log(limit=4, reverse=True)]
    up += [commit.number async for commit in everywhere.log(first=5, limit=9, reverse=True)]

    assert down == list(range(9, 0, -1))
    assert up == list(range(1, 10))


async def test_pages_of_a_log_with_merges_follow_one_another(everywhere: History) -> None:
    await everywhere.commit({"log": []})
    for turn in range(3):
        await everywhere.branch(f"side{turn}")
        for n in range(3):
            await everywhere.append("log", n)
            await everywhere.append("side", n, branch=f"side{turn}", author="side")
        await everywhere.merge(f"side{turn}", rules={(): "ours"})

    every = [commit async for commit in everywhere.log()]
    assert [commit.number for commit in every[:7]] == [13, None, None, None, 12, 11, 10]
    for is_reverse in (False, True):
        for author in (None, "side"):
            pages: list[Commit] = []
            after: Commit | None = None
            while page := [
                one async for one in everywhere.log(after=after, limit=4, reverse=is_reverse, author=author)
            ]:
                pages += page
                after = page[-1]
            wanted = [one for one in every if author is None or one.author == author]
            assert pages == (wanted[::-1] if is_reverse else wanted)


async def test_a_log_starts_after_its_own_commits_only(history: History) -> None:
    await history.commit({"a": 1})
    await history.branch("side")
    ours, theirs = await history.commit({"a": 2}), await history.commit({"a": 3}, branch="side")

    with pytest.raises(NotFoundError, match=r"`after` is .*not an ancestor of"):
        [one async for one in history.log(after=theirs)]
    with pytest.raises(InvalidError, match="`after` and `first` were both given"):
        [one async for one in history.log(after=ours, first=1)]


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"a": 1}, r"meta\['a'\].*give a str"),
        ({"": "a"}, "a key of `meta` is empty"),
        ({"a": "b" * 1_024}, "`meta` has 1,025 bytes; it may have 1,024"),
        ("a", "give a dict of text"),
    ],
)
async def test_wrong_notes_are_refused(history: History, meta: Any, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        await history.commit({}, meta=meta)


async def test_a_wrong_function_for_notes_is_refused() -> None:
    async def later() -> dict[str, str]:
        return {}

    for wrong in (later, {"a": "b"}):
        with pytest.raises(InvalidError, match="give a plain function"):
            keepstate.open("memory://", meta=wrong)  # type: ignore[arg-type]
    async with keepstate.open("memory://", meta=lambda: {"a": 1}) as ks:  # type: ignore[dict-item]
        with pytest.raises(InvalidError, match=r"meta\['a'\]"):
            await history_of(ks.space("a")).commit({})
