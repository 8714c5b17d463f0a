"""Maps of values by key, and snapshots, which are never changed."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

import keepstate
from keepstate import (
    KeyedState,
    KeyScope,
    MutationBatch,
    PersistedState,
    RegisterKey,
    Snapshot,
    StateError,
    StateKeyOptions,
    StateMap,
)
from tests.contracts.typed.keys import Notes, Plan, Visits
from tests.typed.keys import Person, Profile


def filled() -> StateMap:
    values = StateMap()
    values.insert(Visits, 3)
    values.insert(Notes, ["a"])
    values.insert(Person, Profile("Ada", ["x"]))
    return values


def test_a_new_map_is_empty() -> None:
    values = StateMap()

    assert not values.contains(Visits)
    assert values.get(Visits) is None
    assert values.get_mut(Visits) is None
    assert values.remove(Visits) is None


def test_one_map_holds_values_of_different_types() -> None:
    values = filled()

    assert (values.get(Visits), values.get(Notes), values.get(Person)) == (3, ["a"], Profile("Ada", ["x"]))
    assert [values.contains(Visits), values.contains(Notes), values.contains(Plan)] == [True, True, False]


def test_inserting_replaces_and_removing_returns() -> None:
    values = filled()
    values.insert(Visits, 4)

    assert values.remove(Visits) == 4
    assert not values.contains(Visits)


def test_only_what_get_mut_gives_is_the_value_itself() -> None:
    values = filled()
    given = ["mine"]
    values.insert(Notes, given)
    given.append("later")
    read = values.get(Notes)
    assert read is not None
    read.append("copy")
    held = values.get_mut(Notes)
    assert held is not None
    held.append("changed")

    assert values.get(Notes) == ["mine", "changed"]


def test_a_default_is_inserted_where_there_is_none() -> None:
    values = StateMap()
    values.get_or_insert_default(Notes).append("a")
    values.get_or_insert_default(Notes).append("b")

    assert values.get(Notes) == ["a", "b"]
    assert values.get_or_insert_default(Visits) == 0
    assert values.contains(Visits)


def test_what_is_no_value_of_the_key_is_refused_with_its_path() -> None:
    wrong: Any = Profile("Ada", [1])  # type: ignore[list-item]

    with pytest.raises(StateError) as refused:
        StateMap().insert(Person, wrong)

    assert (refused.value.state_key, refused.value.path) == ("person", "tags[0]")


@pytest.mark.parametrize(
    "copied", [StateMap.copy, copy.copy, copy.deepcopy], ids=["copy", "copy.copy", "deepcopy"]
)
def test_a_copy_is_a_deep_one(copied: Any) -> None:
    values = filled()
    other = copied(values)
    other.get_mut(Person).tags.append("y")
    other.insert(Visits, 9)

    assert values.get(Person) == Profile("Ada", ["x"])
    assert values.get(Visits) == 3


def test_a_snapshot_is_what_the_map_held_when_it_was_made() -> None:
    values = filled()
    snapshot = Snapshot.new(7, values)
    values.insert(Visits, 4)
    held = values.get_mut(Notes)
    assert held is not None
    held.append("b")

    assert (snapshot.revision, snapshot.get(Visits), snapshot.ext.get(Notes)) == (7, 3, ["a"])
    assert Snapshot(7, filled()).get(Visits) == 3


def test_an_untouched_key_of_a_snapshot_has_no_value() -> None:
    assert Snapshot.new(0, StateMap()).get(Visits) is None


def test_a_snapshot_is_never_changed() -> None:
    snapshot = Snapshot.new(1, filled())
    changing: Any = snapshot

    for change in (
        lambda: snapshot.ext.insert(Visits, 4),
        lambda: snapshot.ext.remove(Visits),
        lambda: snapshot.ext.get_mut(Notes),
        lambda: snapshot.ext.get_or_insert_default(Plan),
    ):
        with pytest.raises(StateError, match="copy"):
            change()
    with pytest.raises(FrozenInstanceError):
        changing.revision = 2
    read = snapshot.get(Person)
    assert read is not None
    read.tags.append("y")
    assert snapshot.get(Person) == Profile("Ada", ["x"])


def test_a_copy_of_what_a_snapshot_holds_can_be_changed() -> None:
    snapshot = Snapshot.new(1, filled())
    values = snapshot.ext.copy()
    values.insert(Visits, 4)

    assert (values.get(Visits), snapshot.get(Visits)) == (4, 3)
    assert snapshot.ext.contains(Visits)


def test_a_class_that_is_defined_again_is_the_same_key() -> None:
    def defined() -> Any:
        @dataclass
        class Trip:
            to: str = ""

        class Trips(RegisterKey[Trip]):
            KEY = "trips"

        return Trip, Trips

    (trip, first), (again, second) = defined(), defined()
    values = StateMap()
    values.insert(first, trip("Rome"))

    assert Snapshot.new(1, values).get(second) == again("Rome")
    assert values.get(second) == again("Rome")
    values.insert(second, again("Oslo"))
    assert values.get(first) == trip("Oslo")
    assert values.remove(first) == trip("Oslo")
    assert not values.contains(second)


def test_a_value_that_cannot_be_read_leaves_the_others_of_a_copy() -> None:
    class Number(RegisterKey[int]):
        KEY = Plan.KEY
        SCOPE = KeyScope.THREAD

    async def copied() -> StateMap:
        async with keepstate.open("memory://") as ks:
            written = KeyedState(persistence=ks, keys=[Visits, Plan])
            await written.commit(MutationBatch().update(Visits, 3).update(Plan, "text"))
            async with KeyedState(persistence=ks, keys=[Visits, Number]) as state:
                return state.snapshot().ext.copy()

    values = asyncio.run(copied())

    assert values.copy().get(Visits) == 3
    with pytest.raises(StateError, match="version 1"):
        values.get(Number)
    values.insert(Number, 4)
    assert values.get(Number) == 4


def test_sharing_a_snapshot_encodes_nothing_again() -> None:
    snapshot = Snapshot.new(1, filled())

    assert Snapshot.new(2, snapshot.ext).ext is snapshot.ext
    assert copy.deepcopy(snapshot).get(Visits) == 3


def test_options_say_nothing_unless_they_are_given() -> None:
    options = StateKeyOptions()

    assert (options.persistent, options.retain_on_uninstall, options.scope) == (None, None, None)


def test_a_persisted_state_is_a_revision_and_values_by_name() -> None:
    state = PersistedState(revision=3, extensions={"a": 1})

    assert (state.revision, state.extensions, state.versions) == (3, {"a": 1}, {})
