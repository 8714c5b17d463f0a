"""Drafts: plain lists and dicts changed in place, and committed by what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import keepstate
from keepstate.engine.history.history import History
from keepstate.errors import ConflictError, InvalidError, MergeConflictError, NotFoundError, NotLoadedError


async def test_changes_in_place_are_committed(history: History) -> None:
    draft = await history.begin()
    draft["plan"] = {"steps": []}
    draft["plan"]["steps"].append("one")
    first = await draft.commit("first", author="ada")
    steps = draft["plan"]["steps"]
    steps.append("two")
    second = await draft.commit()

    assert (first.number, first.author, first.message, second.number) == (1, "ada", "first", 2)
    assert draft.base == second
    assert (await history.checkout("main~1"))["plan"] == {"steps": ["one"]}
    assert (await history.checkout())["plan"] == {"steps": ["one", "two"]}


async def test_a_reference_from_an_earlier_turn_still_counts(history: History) -> None:
    draft = await history.begin()
    draft["l"] = kept = [[] for _ in range(3)]
    for turn in range(5):
        kept[turn % 3].append(turn)
        await draft.commit()

    assert (await history.checkout())["l"] == [[0, 3], [1, 4], [2]]
    assert draft["l"] is kept


async def test_a_branch_that_is_gone_is_not_merged_with(history: History) -> None:
    await history.commit({"n": 1})
    await history.branch("trial")
    draft = await history.begin("trial")
    await history.delete_branch("trial")
    draft["n"] = 2

    with pytest.raises(NotFoundError, match="is gone"):
        await draft.commit(on_conflict="merge")


async def test_none_is_a_value_and_a_removal_is_a_commit(history: History) -> None:
    draft = await history.begin()
    draft["a"] = draft["b"] = None
    await draft.commit()
    del draft["a"]
    await draft.commit()

    assert dict(await history.checkout()) == {"b": None}
    assert dict(await history.checkout("main~1")) == {"a": None, "b": None}


async def test_set_then_removed_is_a_removal(history: History) -> None:
    await history.commit({"a": 1, "b": 1})
    draft = await history.begin(load=False)
    draft["a"] = 2
    del draft["a"]
    await draft.commit()

    assert "a" not in draft
    with pytest.raises(NotFoundError):
        draft["a"]
    assert dict(await history.checkout()) == {"b": 1}


async def test_removed_then_set_is_the_new_value_at_the_end(history: History) -> None:
    await history.commit({"a": [1], "b": 1})
    draft = await history.begin()
    del draft["a"]
    draft["a"] = [2]
    await draft.commit()

    assert list((await history.checkout()).items()) == [("b", 1), ("a", [2])]


async def test_a_draft_that_loaded_little_changes_only_that(history: History) -> None:
    await history.commit({"a": 1, "b": [1], "c": 3})
    draft = await history.begin(load=["b"])
    draft["b"].append(2)
    draft["d"] = 4
    with pytest.raises(NotLoadedError):
        draft["a"]
    await draft.commit()

    assert dict(await history.checkout()) == {"a": 1, "b": [1, 2], "c": 3, "d": 4}
    await draft.load()
    assert dict(draft) == {"a": 1, "b": [1, 2], "c": 3, "d": 4}


async def test_what_cannot_be_stored_names_its_path_and_poisons_nothing_else(history: History) -> None:
    draft = await history.begin()
    draft["good"], draft["messages"] = 1, [{}, {"client": object()}]
    with pytest.raises(InvalidError) as caught:
        await draft.commit()
    draft["messages"][1] = {}
    await draft.commit()

    assert caught.value.path == "messages[1].client"
    assert dict(await history.checkout()) == {"good": 1, "messages": [{}, {}]}


async def test_a_draft_on_an_older_head_raises_or_merges(history: History) -> None:
    await history.commit({"messages": [1], "n": 0})
    one, other = await history.begin(), await history.begin()
    one["n"] = 1
    await one.commit()
    messages = other["messages"]
    messages.append(2)
    with pytest.raises(ConflictError):
        await other.commit()
    merged = await other.commit("mine", on_conflict="merge")

    assert dict(await history.checkout()) == dict(other) == {"messages": [1, 2], "n": 1}
    assert (len(merged.parents), merged.number) == (2, 3)
    messages.append(3)
    await other.commit()
    assert (await history.checkout())["messages"] == [1, 2, 3]


async def test_after_a_merge_what_was_handed_out_has_the_merged_value(history: History) -> None:
    await history.commit({"l": [{"n": 0}, {"n": 1}], "gone": 1})
    one, other = await history.begin(), await history.begin()
    first, last = other["l"]
    items = other["l"]
    one["l"].insert(0, "new")
    one["l"][1]["n"] = "theirs"
    del one["gone"]
    one["come"] = 1
    await one.commit()
    last["n"] = "mine"
    await other.commit(on_conflict="merge")

    assert dict(other) == {"l": ["new", {"n": "theirs"}, {"n": "mine"}], "come": 1}
    assert other["l"] is items
    assert other["l"][2] is last
    last["n"] = "again"
    await other.commit()
    assert (await history.checkout())["l"] == ["new", {"n": "theirs"}, {"n": "again"}]
    assert first["n"] in (0, "theirs")


async def test_a_merge_never_undoes_the_other_side(history: History) -> None:
    await history.commit({"a": {"x": 1, "y": 1}})
    one, other = await history.begin(), await history.begin()
    one["a"]["x"] = 2
    await one.commit()
    other["a"]["y"] = 2
    await other.commit(on_conflict="merge")
    other["a"]["z"] = 3
    await other.commit()

    assert (await history.checkout())["a"] == {"x": 2, "y": 2, "z": 3}


async def test_a_draft_that_cannot_merge_stays_as_it_was(history: History) -> None:
    await history.commit({"a": 1})
    one, other = await history.begin(), await history.begin()
    one["a"], other["a"] = 2, 3
    await one.commit()
    with pytest.raises(MergeConflictError) as caught:
        await other.commit(on_conflict="merge")

    (conflict,) = caught.value.conflicts
    assert (conflict.path, conflict.base, conflict.ours, conflict.theirs) == (("a",), 1, 2, 3)
    await other.commit(on_conflict="merge", rules={"a": "theirs"})
    assert (await history.checkout())["a"] == 3


async def test_two_first_commits_of_one_branch_merge(history: History) -> None:
    one, other = await history.begin(), await history.begin()
    one["a"], other["b"] = 1, 2
    await one.commit()
    await other.commit(on_conflict="merge")

    assert dict(await history.checkout()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("key", [1, None, ("a",)])
async def test_a_key_is_text(history: History, key: Any) -> None:
    draft = await history.begin()

    with pytest.raises(InvalidError):
        draft[key] = 1


async def test_a_change_in_a_long_state_writes_little(history: History) -> None:
    draft = await history.begin()
    draft["messages"] = [{"content": f"{n} " * 99, "n": n} for n in range(2_000)]
    await draft.commit()
    for change in (
        lambda m: m.pop(0),
        lambda m: m.insert(700, 1),
        lambda m: m.append(2),
        lambda m: m.clear(),
    ):
        change(draft["messages"])
        await draft.commit()
        assert (await history.checkout())["messages"] == draft["messages"]


async def test_what_is_changed_while_a_commit_is_under_way_belongs_to_the_next(history: History) -> None:
    draft = await history.begin()
    draft["l"] = [f"{n} " * 20 for n in range(300)]
    await draft.commit()
    draft["l"].append("first")
    committing = asyncio.create_task(draft.commit())
    while not committing.done():
        await asyncio.sleep(0)
        if len(draft["l"]) == 301:
            draft["l"].append("second")
            draft["n"] = 1
    await committing
    assert (await history.checkout())["l"][-1] in ("first", "second")
    await draft.commit()

    assert dict(await history.checkout()) == dict(draft)
    assert len((await history.checkout("main#2"))["l"]) == 301


class Counted:
    """How often the text of a message was asked for: once for each time that it was encoded."""

    encoded = 0


@keepstate.register("tests.drafts.Message")
@dataclass
class Message:
    text: str

    def __getattribute__(self, name: str) -> Any:
        Counted.encoded += name == "text"
        return object.__getattribute__(self, name)


IN_PLACE: dict[str, Callable[[list[Any]], object]] = {
    "pop": lambda messages: messages.pop(0),
    "append": lambda messages: messages.append(Message("new")),
    "summary": lambda messages: messages.__setitem__(slice(0, 100), [Message("summary")]),
    "nothing": lambda messages: None,
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=list(IN_PLACE))
async def test_a_commit_encodes_each_item_of_a_long_list_once(
    history: History, change: Callable[[list[Any]], object]
) -> None:
    await history.commit({"messages": [Message(f"{n} " * 50) for n in range(1_000)]})
    draft = await history.begin()
    for _ in range(2):
        change(draft["messages"])
        Counted.encoded = 0
        await draft.commit()

        assert Counted.encoded <= len(draft["messages"]) + 3


async def test_one_draft_committed_by_two_at_once_makes_two_commits(everywhere: History) -> None:
    draft = await everywhere.begin()
    draft["list"] = [1]
    first = asyncio.create_task(draft.commit("one"))
    await asyncio.sleep(0)
    draft["list"].append(2)
    await asyncio.gather(first, draft.commit("two"))

    assert [commit.message async for commit in everywhere.log()] == ["two", "one"]
    assert dict(await everywhere.checkout()) == dict(draft) == {"list": [1, 2]}


async def test_a_commit_that_changes_nothing_is_a_moment_too(history: History) -> None:
    await history.commit({"a": 1})
    draft = await history.begin()
    made = await draft.commit("looked around")

    assert (made.number, made.message) == (2, "looked around")
    assert dict(await history.checkout()) == {"a": 1}
