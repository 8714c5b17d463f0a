"""Merges of branches, and what rules do."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.history import History
from keepstate.engine.history.merge import MergeConflict
from keepstate.errors import InvalidError, MergeConflictError, NotFoundError
from tests.engine.conftest import Turned

LONG = [f"message {n} " * 30 for n in range(400)]


async def sides(history: History, base: Any, ours: Any, theirs: Any) -> None:
    """Let `main` have ours, and `side` theirs."""
    await history.commit(base, author="ada")
    await history.branch("side")
    await history.commit(ours, author="bob")
    await history.commit(theirs, branch="side", author="cleo")


async def test_both_sides_additions_are_kept(history: History) -> None:
    await sides(
        history,
        {"messages": LONG, "n": 1},
        {"messages": ["summary", *LONG[100:]], "n": 1},
        {"messages": [*LONG, "new"], "n": 2},
    )

    commit = await history.merge("side", message="both", author="dan")

    assert dict(await history.checkout()) == {"messages": ["summary", *LONG[100:], "new"], "n": 2}
    assert (len(commit.parents), commit.number, commit.message, commit.author) == (2, 3, "both", "dan")
    assert {c.author: c.number async for c in history.log()} == {"dan": 3, "bob": 2, "cleo": None, "ada": 1}
    assert (await history.find("main~1")).author == "bob"


async def test_two_who_count_the_same_at_the_same_moment_are_both_counted(turned: Turned) -> None:
    history = turned.space.history
    await history.commit({"n": 0})
    one, other = await history.begin(), await history.begin()
    for draft in (one, other):
        draft["n"] += 1
        await draft.commit("count", on_conflict="merge", rules={"n": "counter"})

    assert (await history.checkout())["n"] == 2
    assert len((await history.find()).parents) == 2


async def test_merging_what_is_there_already_does_nothing(history: History) -> None:
    await sides(history, {"a": 1}, {"a": 1, "b": 1}, {"a": 2})
    first = await history.merge("side")
    again = await history.merge("side")
    older = await history.merge("main~2")

    assert first.id == again.id == older.id


async def test_conflicts_name_path_sides_and_authors(history: History) -> None:
    await sides(history, {"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"x": 3}})

    with pytest.raises(MergeConflictError, match=r"a\.x") as caught:
        await history.merge("side")

    (conflict,) = caught.value.conflicts
    assert (conflict.path, conflict.base, conflict.ours, conflict.theirs) == (("a", "x"), 1, 2, 3)
    assert (conflict.our_author, conflict.their_author) == ("bob", "cleo")
    assert dict(await history.checkout()) == {"a": {"x": 2}}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"a": "ours"}, 2),
        ({"a": "theirs"}, 3),
        ({("a",): "counter"}, 4),
        ({(): "maximum"}, 3),
        ({(None,): lambda base, ours, theirs: [base, ours, theirs]}, [1, 2, 3]),
    ],
)
async def test_a_rule_decides(history: History, rules: Any, expected: Any) -> None:
    await sides(history, {"a": 1}, {"a": 2}, {"a": 3})

    await history.merge("side", rules=rules)

    assert (await history.checkout())["a"] == expected


async def test_a_rule_for_a_place_of_a_list_or_a_number_as_key_holds_for_both(history: History) -> None:
    await sides(history, {"a": [1], "b": {0: 1}}, {"a": [2], "b": {0: 2}}, {"a": [3], "b": {0: 3}})

    await history.merge("side", rules={("a", 0): "theirs", ("b", 0): "theirs"})

    assert dict(await history.checkout()) == {"a": [3], "b": {0: 3}}


async def test_a_side_that_removed_is_told_from_one_that_has_none(history: History) -> None:
    await sides(history, {"k": None, "w": 1}, {"w": None}, {"k": 2, "w": 2})

    with pytest.raises(
        MergeConflictError, match=r"2 places of 'run/1': k: .*None, MISSING, 2\); w: "
    ) as caught:
        await history.merge("side")

    told = [(conflict.base, conflict.ours, conflict.theirs) for conflict in caught.value.conflicts]
    assert told == [(None, MISSING, 2), (1, None, 2)]


async def test_a_rule_is_given_what_is_missing_and_can_leave_nothing(history: History) -> None:
    await sides(history, {"a": None, "b": 1}, {"b": 2}, {"a": 3, "b": 3})
    seen: list[Any] = []

    def rule(*values: Any) -> Any:
        seen.append(values)
        return MISSING

    await history.merge("side", rules={(): rule})

    assert seen == [(None, MISSING, 3), (1, 2, 3)]
    assert dict(await history.checkout()) == {}


async def test_a_rule_that_must_be_awaited_is_refused(history: History) -> None:
    await sides(history, {"a": 1}, {"a": 2}, {"a": 3})

    async def rule(base: Any, ours: Any, theirs: Any) -> Any:
        return base

    with pytest.raises(InvalidError, match="'a' is a coroutine function"):
        await history.merge("side", rules={"a": rule})


async def test_of_several_last_commons_none_is_forgotten(history: History) -> None:
    await sides(history, {"n": 0, "a": 0, "b": 0}, {"n": 0, "a": 1, "b": 0}, {"n": 0, "a": 0, "b": 1})
    await history.branch("old_main")
    await history.branch("old_side", "side")
    await history.merge("side")
    await history.merge("old_main", into="side")
    for branch, key in (("main", "a"), ("side", "b")):
        draft = await history.begin(branch)
        draft[key] = 9
        await draft.commit()

    base = await history.merge_base("main", "side")
    assert base is not None
    assert base.id in {(await history.find("old_main")).id, (await history.find("old_side")).id}
    await history.merge("side")

    assert dict(await history.checkout()) == {"n": 0, "a": 9, "b": 9}


async def test_unrelated_branches_merge_as_from_nothing(history: History) -> None:
    await history.commit({"a": 1})
    await history.commit({"b": 2}, branch="other")

    assert await history.merge_base("main", "other") is None
    await history.merge("other")
    assert dict(await history.checkout()) == {"a": 1, "b": 2}


async def test_a_rollback_is_a_commit_and_erases_nothing(history: History) -> None:
    for number in range(5):
        await history.commit({"messages": LONG[: 100 * number], "n": number})

    first = await history.rollback(steps=2)
    second = await history.rollback(to="main#1")

    assert (first.number, second.number, first.message) == (
        6,
        7,
        f"roll back to {(await history.find('main#3')).id[:10]}",
    )
    assert (await history.checkout("main~1"))["messages"] == LONG[:200]
    assert (await history.checkout())["n"] == 0
    assert (await history.checkout("main#5"))["messages"] == LONG[:400]


@pytest.mark.parametrize("arguments", [{}, {"to": "main", "steps": 1}, {"steps": 0}])
async def test_a_rollback_says_whereto_in_one_way(history: History, arguments: Any) -> None:
    await history.commit({})

    with pytest.raises(InvalidError):
        await history.rollback(**arguments)


async def test_a_revert_undoes_one_commit_and_keeps_the_rest(history: History) -> None:
    await history.commit({"a": 1, "messages": LONG})
    await history.commit({"a": 2, "messages": LONG[50:]})
    await history.commit({"a": 2, "messages": LONG[50:], "b": 3})

    await history.revert("main~1")

    assert dict(await history.checkout()) == {"a": 1, "messages": LONG, "b": 3}
    await history.commit({"a": 7})
    with pytest.raises(MergeConflictError):
        await history.revert("main#2")


async def test_only_a_commit_of_the_branch_can_be_reverted(history: History) -> None:
    await sides(history, {"a": 1}, {"a": 2}, {"a": 3})

    with pytest.raises(NotFoundError):
        await history.revert("side")


def test_a_conflict_over_an_int_that_python_does_not_show_is_told_in_words() -> None:
    conflict = MergeConflict(("n",), 1, 10**5000, [10**5000], None, None, "both changed it")

    assert str(conflict) == "n: both changed it (base, ours, theirs: 1, a large int, a list with a large int)"
