"""Batches merged and extended, and what any order of them comes to."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstate import (
    ConflictError,
    CounterKey,
    KeyedState,
    ListKey,
    MapKey,
    MaximumKey,
    MutationBatch,
    RegisterKey,
    SetKey,
    StateConflictError,
    StateError,
)
from tests.contracts.typed.keys import Draft, Notes, Plan, Steps, Visits


class Total(CounterKey):
    KEY = "total"


class Items(ListKey[int]):
    KEY = "items"


class Members(SetKey[int]):
    KEY = "members"


class Table(MapKey[int]):
    KEY = "table"


class Peak(MaximumKey[int]):
    KEY = "peak"


class One(RegisterKey[int]):
    KEY = "one"


COMMUTATIVE: list[Any] = [Total, Items, Members, Table, Peak]


def test_a_batch_names_what_it_touches() -> None:
    batch = MutationBatch(3).update(Visits, 1).update(Plan, "a").update(Visits, 2)

    assert (batch.base_revision, batch.op_len()) == (3, 3)
    assert batch.touched_keys == frozenset({"visits", "plan"})
    assert not batch.is_empty()
    assert MutationBatch().is_empty()
    assert MutationBatch.with_base_revision(4).base_revision == 4


def test_what_is_no_key_is_refused() -> None:
    wrong: Any = int

    with pytest.raises(StateError):
        MutationBatch().update(wrong, 1)


def test_merging_puts_the_updates_behind_one_another() -> None:
    left, right = MutationBatch().update(Notes, ["a"]), MutationBatch(2).update(Notes, ["b"])

    merged = left.merge_parallel(right)

    assert merged is left
    assert [operation.update for operation in merged] == [["a"], ["b"]]
    assert merged.base_revision == 2
    assert right.op_len() == 1


def test_an_exclusive_key_in_both_is_refused_and_named() -> None:
    left = MutationBatch(1).update(Plan, "a").update(Visits, 1)
    right = MutationBatch(1).update(Visits, 1).update(Plan, "b")

    with pytest.raises(StateConflictError, match="'plan'") as refused:
        left.merge_parallel(right)

    assert isinstance(refused.value, ConflictError)
    assert refused.value.state_key == "plan"
    assert (left.op_len(), right.op_len()) == (2, 2)


def test_batches_of_different_bases_are_refused() -> None:
    left, right = MutationBatch(1).update(Visits, 1), MutationBatch(2).update(Visits, 1)

    for combine in (left.merge_parallel, left.extend):
        with pytest.raises(StateError, match="revision 1"):
            combine(right)

    assert left.op_len() == 1


def test_extending_allows_an_exclusive_key_in_both() -> None:
    batch = MutationBatch(1).update(Plan, "a").extend(MutationBatch(1).update(Plan, "b"))

    assert [operation.update for operation in batch] == ["a", "b"]


def test_a_state_merges_many_and_changes_none_of_them() -> None:
    async def main() -> None:
        async with KeyedState(keys=[Visits, Plan, Draft, Steps]) as state:
            batches = [state.begin_mutation().update(Visits, 1) for _ in range(4)]
            with pytest.raises(StateError, match="'plan'"):
                state.merge_parallel(MutationBatch().update(Plan, "a"), MutationBatch().update(Plan, "b"))

            revision = await state.commit(state.merge_all(batches))

            assert (revision, state.read(Visits)) == (1, 4)
            assert [batch.op_len() for batch in batches] == [1] * 4
            assert state.merge_all([]).is_empty()

    asyncio.run(main())


def test_ready_made_keys_refuse_updates_of_another_kind() -> None:
    wrong: list[tuple[Any, Any]] = [(Items, "text"), (Members, [1]), (Table, [("a", 1)])]

    for key, update in wrong:
        with pytest.raises(StateError):
            key.apply(key.default(), update)


def test_a_maximum_begins_with_nothing() -> None:
    assert Peak.default() is None
    assert [Peak.apply(None, -3), Peak.apply(-3, -5), Peak.apply(-3, 2)] == [-3, -3, 2]


# ---- any order

numbers = st.integers(-5, 5)
updates: dict[Any, st.SearchStrategy[Any]] = {
    Total: numbers,
    Items: st.lists(numbers, max_size=3),
    Members: st.sets(numbers, max_size=3),
    Table: st.dictionaries(st.sampled_from("abc"), numbers, max_size=2),
    Peak: numbers,
    One: numbers,
}


def batches_of(keys: list[Any]) -> st.SearchStrategy[MutationBatch]:
    operations = st.sampled_from(keys).flatmap(lambda key: st.tuples(st.just(key), updates[key]))

    def batch(given: list[tuple[Any, Any]]) -> MutationBatch:
        made = MutationBatch()
        for key, update in given:
            made.update(key, update)
        return made

    return st.lists(operations, min_size=1, max_size=4).map(batch)


def applied(batches: list[MutationBatch], *, merged: bool = False) -> dict[str, Any]:
    """Return what batches make of an empty state, one after the other or merged into one."""

    async def main() -> dict[str, Any]:
        async with KeyedState(keys=list(updates)) as state:
            for batch in [state.merge_all(batches)] if merged else batches:
                await state.commit(batch)
            return state.export_persisted().extensions

    return asyncio.run(main())


quickly = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quickly
@given(st.lists(batches_of([Total, Members, Peak]), max_size=5), st.randoms(use_true_random=False))
def test_any_order_of_commutative_batches_gives_one_value(batches: list[MutationBatch], dice: Any) -> None:
    shuffled = list(batches)
    dice.shuffle(shuffled)

    assert applied(shuffled) == applied(batches)


@quickly
@given(st.lists(batches_of([Items, Table]), max_size=5), st.randoms(use_true_random=False))
def test_where_the_order_shows_all_is_kept_and_the_last_stands(
    batches: list[MutationBatch], dice: Any
) -> None:
    shuffled = list(batches)
    dice.shuffle(shuffled)
    one, other = applied(batches), applied(shuffled)

    assert Tally(one.get("items", [])) == Tally(other.get("items", []))
    last: dict[str, int] = {}
    for batch in shuffled:
        for key, update in batch:
            last |= update if key is Table else {}
    assert other.get("table", {}) == last


@quickly
@given(st.lists(batches_of([*COMMUTATIVE, One]), max_size=5))
def test_a_parallel_merge_equals_the_serial_order_of_its_batches(batches: list[MutationBatch]) -> None:
    clash = any(
        left.exclusive_overlap(right) is not None
        for i, left in enumerate(batches)
        for right in batches[i + 1 :]
    )
    if clash:
        with pytest.raises(StateError):
            applied(batches, merged=True)
        return

    assert applied(batches, merged=True) == applied(batches)
