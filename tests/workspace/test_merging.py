"""Several who work on one state, on one branch or on two: nobody loses anything unasked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keepstate import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    MergeConflictError,
    NotFoundError,
    Versioned,
    events,
    sync,
)
from keepstate.values.merge import RuleName
from keepstate.workspace import Agent
from tests.contracts.managers.trouble import TroubledStore
from tests.workspace.conftest import Place


def test_who_comes_second_is_told_or_merges_by_choice(place: Place) -> None:
    one, other = place(), place()
    one["n"] = {"a": 1}
    one.commit()
    other.discard()
    one["n"]["a"], one["mine"] = 2, 1
    other["n"]["b"], other["theirs"] = 3, 2
    other.commit()

    with pytest.raises(ConflictError, match="another caller has committed"):
        one.commit()
    assert dict(place()) == {"n": {"a": 1, "b": 3}, "theirs": 2}
    handed_out = one["n"]
    merged = one.commit(on_conflict="merge")
    assert len(merged.parents) == 2
    assert dict(one) == dict(place()) == {"n": {"a": 2, "b": 3}, "mine": 1, "theirs": 2}
    assert handed_out == {"a": 2, "b": 3} and handed_out is one["n"]
    handed_out["a"] = 5
    one.commit()
    assert place()["n"]["a"] == 5


def test_a_state_may_merge_whenever_it_commits(anywhere: Place) -> None:
    one = anywhere(on_conflict="merge", rules={"n": "counter"})
    other = anywhere(on_conflict="merge", rules={"n": "counter"})
    one["n"] = 0
    one.commit()
    other.discard()
    for _ in range(5):
        one["n"] += 1
        one.commit()
        other["n"] += 1
        other.commit()

    assert anywhere()["n"] == 10


def test_a_merge_is_made_however_often_others_were_faster(place: Place) -> None:
    one, other = place(), place()
    one["n"] = 0
    one.commit()
    other.discard()
    defeats = 0

    def added(base: int, ours: int, theirs: int) -> int:
        nonlocal defeats
        if defeats < 80:
            defeats += 1
            other["others"] = defeats
            other.commit()
        return ours + theirs - base

    one["n"], other["n"] = 1, 10
    other.commit()
    one.commit(on_conflict="merge", rules={"n": added})

    assert dict(place()) == {"n": 11, "others": 80}


@pytest.mark.parametrize(("side", "kept"), [("ours", 3), ("theirs", 2)])
def test_both_sides_of_a_conflict_are_kept_until_somebody_decides(
    anywhere: Place, side: RuleName, kept: int
) -> None:
    one, other = anywhere(), anywhere()
    one["x"] = 1
    one.commit()
    other.discard()
    one["x"], other["x"] = 2, 3
    other.commit()

    with pytest.raises(MergeConflictError, match="x"):
        one.commit(on_conflict="merge")
    assert one["x"] == 2 and anywhere()["x"] == 3
    one.commit(on_conflict="merge", rules={"x": side})  # the branch's, or what is committed onto it
    assert anywhere()["x"] == one["x"] == kept


def test_what_is_discarded_is_gone_and_the_present_is_taken(anywhere: Place) -> None:
    one, other = anywhere(), anywhere()
    one["l"] = [1]
    one.commit()
    other.discard()
    held = other["l"]
    held.append(threading.Lock())
    other["junk"] = 1
    one["l"].append(2)
    one.commit()
    other.discard()

    assert dict(other) == {"l": [1, 2]}
    assert other.commit().id == one.current_commit


# ---- branches


def test_a_branch_goes_its_own_way_and_comes_back(place: Place) -> None:
    state = place()
    state["l"], state["x"] = [1], 1
    state.commit()
    state["uncommitted"] = 1
    trial = state.branch("trial")
    trial["l"].append(2)
    trial["y"] = 2
    trial.commit("try")
    state.commit("go on")

    assert "uncommitted" not in trial and dict(place(branch="trial")) == dict(trial)
    merged = state.merge("trial")
    assert dict(state) == {"l": [1, 2], "x": 1, "uncommitted": 1, "y": 2}
    assert merged.id == state.current_commit and len(merged.parents) == 2
    assert merged.number == 3
    assert state.merge(trial).id == merged.id
    assert trial.branch_name == "trial" and state.branch_name == "main"


def test_branches_refuse_what_would_lose_something(anywhere: Place) -> None:
    state = anywhere()
    with pytest.raises(NotFoundError, match="Commit first"):
        state.branch("trial")
    state["x"] = 1
    state.commit()
    trial = state.branch("trial")
    with pytest.raises(AlreadyExistsError):
        state.branch("trial")
    trial["x"], state["x"] = 2, 3
    trial.commit()

    with pytest.raises(InvalidError, match=r"discard\(\) first"):
        state.merge("trial")
    state.commit()
    with pytest.raises(MergeConflictError):
        state.merge("trial")
    with pytest.raises(NotFoundError):
        state.merge("never")
    assert dict(state) == dict(anywhere()) == {"x": 3}
    assert state.merge("trial", rules={"x": "theirs"}).message == "merge trial"
    assert state["x"] == 2


@pytest.fixture
def troubled() -> Iterator[TroubledStore]:
    with sync.open("memory://") as ks:
        inner: Any = ks.store
        yield TroubledStore(inner)


def test_who_commits_to_other_branches_makes_no_branch_or_merge_fail(troubled: TroubledStore) -> None:
    state, other = Versioned(troubled), Versioned(troubled, branch="elsewhere")
    state["x"] = 0
    state.commit()

    async def commits_elsewhere() -> None:
        other["n"] = other.get("n", 0) + 1
        other.commit()
        troubled.meanwhile = commits_elsewhere

    troubled.meanwhile = commits_elsewhere
    side = state.branch("side")
    troubled.meanwhile = None
    side["y"] = 1
    side.commit()
    troubled.meanwhile = commits_elsewhere
    state.merge("side")

    assert dict(state) == {"x": 0, "y": 1}
    assert other["n"] == 2


def test_a_merge_is_repeated_where_its_branches_move_on_meanwhile(troubled: TroubledStore) -> None:
    @Agent("ana").task
    def note(state: Versioned, name: str) -> None:
        state[name] = True

    state = Versioned(troubled)
    note(name="first", state=state)
    side, here = state.branch("side"), Versioned(troubled)
    note(name="there", state=side)

    async def both_move_on() -> None:
        note(name="here", state=here)
        note(name="there too", state=side)

    troubled.meanwhile = both_move_on
    state.merge("side")

    assert dict(state) == dict.fromkeys(("first", "there", "here", "there too"), True)
    assert len(events(state)) == len(events(here)) == 8
