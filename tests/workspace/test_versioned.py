"""Variables with versions keep each moment, on every kind of store, and lose no change of anybody."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from keepstate import (
    MISSING,
    ClosedError,
    Disk,
    InvalidError,
    NotFoundError,
    SignedPickle,
    StoreFullError,
    Versioned,
)
from keepstate.stores.memory import _named
from keepstate.workspace import Agent, PastState
from tests.workspace.conftest import Place
from tests.workspace.plain import Plain

# ---- what is remembered


def test_a_state_is_a_mapping_and_opened_again_it_finds_its_head(place: Place) -> None:
    state = place()
    assert state.current_commit is None and len(state) == 0
    state["plan"], state["seen"] = {"goal": "lunch"}, [1]
    commit = state.commit("begin", author="ana")

    again = place()
    assert dict(again) == {"plan": {"goal": "lunch"}, "seen": [1]}
    assert again.current_commit == commit.id == state.current_commit
    assert (commit.message, commit.author, commit.number, commit.branch) == ("begin", "ana", 1, "main")
    assert "plan" in again and again.get("none") is None
    with pytest.raises(NotFoundError, match="no none"):
        again["none"]


def test_every_moment_can_be_looked_at(place: Place) -> None:
    state = place()
    ids: list[str] = []
    for n in range(30):
        state.setdefault("seen", []).append(n)
        state["last"] = n
        ids.append(state.commit(f"turn {n}").id)

    assert state.history() == ids[::-1]
    assert state.history(ids[4]) == ids[4::-1]
    for n, id in enumerate(ids):
        assert state.checkout(id) == {"seen": list(range(n + 1)), "last": n}
    assert state.checkout("main#3")["last"] == 2
    assert state.checkout("main~1").commit_hash == ids[-2]


def test_two_changes_through_two_reads_are_both_kept(anywhere: Place) -> None:
    state = anywhere()
    state["l"] = []
    state.commit()
    state.get("l").append(1)
    state.get("l").append(2)

    assert anywhere()["l"] == []
    state.commit()
    assert anywhere()["l"] == [1, 2]


def test_a_reference_from_an_earlier_turn_still_counts(anywhere: Place) -> None:
    state = anywhere()
    given: dict[str, list[int]] = {"deep": [1]}
    state["given"] = given
    state.commit()
    given["deep"].append(2)
    state.commit()
    read = state["given"]["deep"]
    state["other"] = 1
    state.commit()
    read.append(3)
    state.commit()

    assert anywhere()["given"] == {"deep": [1, 2, 3]}


def test_none_is_a_value(anywhere: Place) -> None:
    state = anywhere()
    state["x"] = 1
    state.commit()
    state["x"] = None
    commit = state.commit()

    again = anywhere()
    assert again["x"] is None and "x" in again and again.get("x", 5) is None
    assert again.diffs() == {"x": None}
    assert again.current_commit == commit.id


def test_a_removal_is_a_commit(anywhere: Place) -> None:
    state = anywhere()
    state["x"], state["y"] = 1, 2
    first = state.commit()
    del state["x"]
    second = state.commit()

    assert second.id != first.id
    assert dict(anywhere()) == {"y": 2}
    assert state.diffs() == {"x": MISSING}
    assert state.checkout(first)["x"] == 1


def test_what_is_set_and_removed_in_one_turn_is_removed(anywhere: Place) -> None:
    state = anywhere()
    state["old"] = 1
    state.commit()
    state["old"], state["new"] = 2, 3
    del state["old"], state["new"]

    state.commit()
    assert dict(anywhere()) == {} and list(state) == []
    with pytest.raises(NotFoundError):
        del state["old"]


def test_reading_never_makes_a_commit(anywhere: Place) -> None:
    state = anywhere()
    state["names"], state["l"] = {"b", "a", "c"}, [{"x": 1}]
    first = state.commit()

    again = anywhere()
    assert dict(again) and again["l"][0]["x"] == 1 and len(again) == 2
    again.history(), again.diffs(), again.checkout(first), again.task_events
    again["l"] = [{"x": 1}]  # equal to what is there
    assert again.commit().id == first.id
    assert again.history() == [first.id]


def test_what_changed_in_a_commit_is_told_by_name(anywhere: Place) -> None:
    state = anywhere()
    assert state.diffs() == {}
    state["a"], state["b"] = [1], 2
    first = state.commit()
    state["a"].append(2)
    del state["b"]
    state["c"] = 3
    state.commit()

    assert state.diffs(first) == {"a": [1], "b": 2}
    assert state.diffs() == {"a": [1, 2], "b": MISSING, "c": 3}


def test_a_variable_of_any_size_comes_back(place: Place) -> None:
    state = place()
    state["large"], state["blob"] = [{"n": n, "text": "x" * 100} for n in range(5_000)], bytes(2 << 20)
    state.commit()
    state["large"][2_500]["n"] = -1
    state.commit()

    again = place()
    assert again["large"][2_500]["n"] == -1 and len(again["large"]) == 5_000
    assert again["blob"] == bytes(2 << 20)
    assert again.checkout("main~1")["large"][2_500]["n"] == 2_500


# ---- the past is read-only


def test_a_checkout_is_read_only_and_says_so(anywhere: Place) -> None:
    state = anywhere()
    state["l"] = [1]
    past = state.checkout(state.commit())

    assert isinstance(past, PastState)
    wrong: Any = past
    with pytest.raises(InvalidError, match=r"read-only.*cannot change"):
        wrong["l"] = []
    with pytest.raises(InvalidError, match="read-only"):
        del wrong["l"]
    for changing in (lambda: wrong.update(l=[]), lambda: wrong.pop("l"), wrong.clear):
        with pytest.raises(InvalidError, match="read-only"):
            changing()
    past["l"].append(2)
    assert past["l"] == [1] and past == {"l": [1]}
    assert "read-only" in repr(past)


def test_a_past_state_is_read_after_the_state_is_gone(tmp_path: Path) -> None:
    state = Versioned(Disk(tmp_path))
    state["x"] = [1]
    past = state.checkout(state.commit())
    del state
    gc.collect()

    assert past["x"] == [1] and past.task_events == []


@pytest.mark.parametrize("unknown", ["0" * 40, "abcdef12", "nothing", "main~7", "main#9"])
def test_an_unknown_commit_raises(anywhere: Place, unknown: str) -> None:
    state = anywhere()
    state["x"] = 1
    state.commit()

    for ask in (state.checkout, state.history, state.diffs, state.rollback):
        with pytest.raises(NotFoundError):
            ask(unknown)
    assert dict(state) == {"x": 1}


def test_rolling_back_is_a_commit_and_reaches_references(anywhere: Place) -> None:
    state = anywhere()
    kept = state["l"] = [1]
    state["gone"] = 1
    first = state.commit()
    kept.append(2)
    del state["gone"]
    state["new"] = 2
    second = state.commit()
    third = state.rollback(first)

    assert dict(state) == {"l": [1], "gone": 1} and kept == [1]
    assert dict(anywhere()) == {"l": [1], "gone": 1}
    assert state.history() == [third.id, second.id, first.id]
    kept.append(9)
    state.commit()
    assert anywhere()["l"] == [1, 9]
    assert state.rollback(steps=2).message.startswith("roll back to")
    assert dict(state) == {"l": [1, 2], "new": 2}


def test_rolling_back_loses_nothing_unasked(anywhere: Place) -> None:
    state = anywhere()
    state["x"] = 1
    first = state.commit()
    state["x"] = 2

    with pytest.raises(InvalidError, match=r"discard\(\) first"):
        state.rollback(first)
    with pytest.raises(InvalidError, match="either a commit or `steps`"):
        state.rollback()
    assert state["x"] == 2
    state.discard()
    assert state["x"] == 1


# ---- what cannot be stored


def test_what_cannot_be_stored_raises_names_its_path_and_poisons_nothing(place: Place) -> None:
    state = place()
    state["good"] = [1]
    state.commit()
    state["good"].append(2)
    state["bad"] = {"deep": [0, threading.Lock()]}

    for _ in range(2):
        with pytest.raises(InvalidError, match=r"bad\.deep\[1\]") as refusal:
            state.commit()
        assert refusal.value.path == "bad.deep[1]"
    assert dict(place()) == {"good": [1]}
    del state["bad"]["deep"][1]
    state["more"] = 3
    state.commit()
    assert dict(place()) == {"good": [1, 2], "bad": {"deep": [0]}, "more": 3}


class Cart:
    """A class that nobody registered."""

    def __init__(self, items: list[str]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cart) and other.items == self.items

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_an_object_of_no_registered_class_is_there_after_tasks_and_discard(
    place: str, tmp_path: Path
) -> None:
    store = Disk(tmp_path) if place == "disk" else None
    agent = Agent("shopper")

    @agent.task
    def fill(item: str) -> int:
        state["cart"].items.append(item)
        return len(state["cart"].items)

    with Versioned(store, pickle=SignedPickle(b"k" * 32, allow=[Cart])) as state:
        state["cart"] = Cart(["tea"])
        state.commit()
        counts = [fill(item, state=state) for item in ("milk", "salt")]
        state["cart"].items.append("never")
        state.discard()

        assert counts == [2, 3]
        assert state["cart"] == Cart(["tea", "milk", "salt"])


def test_a_closed_state_takes_nothing_more(place: Place) -> None:
    state = place()
    state["a"] = 1
    state.commit()
    state.close()

    assert repr(state).endswith(" closed>")
    for call in (lambda: state["a"], lambda: state.update(a=2), state.commit, state.discard, state.history):
        with pytest.raises(ClosedError, match="Open it again"):
            call()
    assert place()["a"] == 1


def test_pickles_are_asked_for_wherever_variables_are_kept(place: Place) -> None:
    state = place()
    state["cart"] = Cart(["tea"])

    with pytest.raises(InvalidError, match=r"cart.*pickle=SignedPickle"):
        state.commit()


def test_signed_pickles_are_kept_on_disk(tmp_path: Path) -> None:
    trust = SignedPickle(b"k" * 32, allow=[Cart])
    with Versioned(Disk(tmp_path), pickle=trust) as state:
        state["cart"] = Cart(["tea"])
        state.commit()
    with Versioned(Disk(tmp_path), pickle=trust) as state:
        assert state["cart"] == Cart(["tea"])
        state["cart"].items.append("milk")
        state.commit()
        assert state.checkout("main~1")["cart"] == Cart(["tea"])
    with Versioned(Disk(tmp_path)) as state, pytest.raises(InvalidError, match="SignedPickle"):
        state["cart"]


# ---- a limit


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    state = Versioned(Disk(tmp_path, size_limit=60_000))
    ids: list[str] = []
    with pytest.raises(StoreFullError, match="larger size_limit"):
        for n in range(200):
            state[f"k{n}"] = bytes([n]) * 1_000 + str(n).encode() * 200
            ids.append(state.commit().id)

    assert len(ids) > 20
    for n, id in enumerate(ids):
        assert len(state.checkout(id)) == n + 1
    assert state.history() == ids[::-1]
    state.discard()
    assert len(state) == len(ids)
    state.close()
    with Versioned(Disk(tmp_path, size_limit=10 << 20)) as roomy:
        roomy["more"] = bytes(100_000)
        roomy.commit()
        roomy.prune(keep_last=1)
        assert len(roomy.history()) == 1 and len(roomy) == len(ids) + 1


# ---- how it is opened


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Versioned(Plain), "Pass an object of it"),  # type: ignore[arg-type]
        (lambda: Versioned(3), "the store is given as"),  # type: ignore[arg-type]
        (lambda: Versioned("nowhere://"), "nowhere"),
        (lambda: Versioned(branch=""), "branch"),
        (lambda: Versioned(branch="a~b"), "branch"),
        (lambda: Versioned(branch=".events/main"), "reserved for events"),
        (lambda: Versioned(on_conflict="lose"), "on_conflict"),  # type: ignore[arg-type]
        (lambda: Versioned().__setitem__(3, 4), "use a str"),  # type: ignore[call-overload]
        (lambda: Versioned().commit(on_conflict="lose"), "on_conflict"),  # type: ignore[arg-type]
        (lambda: Versioned().checkout("a b~~"), "not a revision"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: Any, told: str) -> None:
    with pytest.raises((InvalidError, NotFoundError), match=told):
        wrong()


def test_making_a_state_does_no_io(tmp_path: Path) -> None:
    state = Versioned(Disk(tmp_path / "later"))

    assert repr(state) == "<Versioned kv:Disk on 'main' at nothing yet>"
    assert not (tmp_path / "later").exists()


def test_a_state_stays_in_its_process() -> None:
    with pytest.raises(TypeError, match="Open it where it is used"):
        pickle.dumps(Versioned())


def test_an_opened_store_stays_open(tmp_path: Path) -> None:
    import keepstate

    with keepstate.sync.open(f"sqlite:///{tmp_path}/x.db") as ks:
        ks.space("other").documents.put("a", 1)
        with Versioned(ks.store) as state:
            state["x"] = 1
            state.commit()
        assert ks.space("other").documents.get("a") is not None
        assert dict(ks.space("state").history.checkout("main")) == {"x": 1}


def test_a_path_is_that_of_an_sqlite_file(tmp_path: Path) -> None:
    with Versioned(tmp_path / "x.db") as state:
        state["x"] = 1
        state.commit()

    with Versioned(f"sqlite:///{tmp_path}/x.db") as again:
        assert again["x"] == 1


def test_a_dropped_state_is_closed_with_the_next_call_wherever_it_was_collected(tmp_path: Path) -> None:
    dropped = Versioned(f"memory://{tmp_path.name}")
    dropped["x"] = 1
    dropped.commit()
    handle = dropped._home._handle
    dropped.__dict__["cycle"] = dropped
    del dropped

    with _named[tmp_path.name].lock:  # as in the middle of somebody's batch
        gc.collect()
    assert repr(handle).endswith(" open>")
    assert Versioned().current_commit is None
    assert repr(handle).endswith(" not open>")


def test_spaces_of_one_store_are_apart(anywhere: Place) -> None:
    one, other = anywhere(space="one"), anywhere(space="two")
    one["x"] = 1
    one.commit()

    assert dict(other) == {} and dict(anywhere(space="one")) == {"x": 1}
