"""A merge keeps what both sides did; where it cannot, a rule decides or the conflict is told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import Decimal
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec, canonical
from keepstate.values.merge import Merged, Pattern, Rule, Rules, merge
from keepstate.values.merkle import gather
from keepstate.values.types import MISSING
from tests.values.edits import a_value, changed
from tests.values.fetching import Objects

pytestmark = pytest.mark.searched

CODEC = Codec()
LONG = [f"message {n} " * 30 for n in range(400)]


class Sides:
    """Three values and their objects."""

    def __init__(self, base: object, ours: object, theirs: object) -> None:
        self.objects = Objects()
        self.base, self.ours, self.theirs = map(self.planted, (base, ours, theirs))

    def planted(self, value: object) -> bytes:
        made = CODEC.to_merkle(value)
        self.objects.update(made.objects)
        return made.encoding

    def merged(self, rules: Mapping[Pattern, Rule] | None = None, *, ours_is_later: bool = True) -> Merged:
        made = self.objects.serve(
            merge(
                self.base,
                self.ours,
                self.theirs,
                Rules(rules or {}, ours_is_later=ours_is_later),
                CODEC,
            )
        )
        self.objects.update(made.objects)
        return made

    def value(self, merged: Merged) -> Any:
        return CODEC.assemble(merged.encoding, self.objects.serve(gather([merged.encoding])))


def both(base: object, ours: object, theirs: object, rules: Mapping[Pattern, Rule] | None = None) -> Any:
    """Return the merged value, or the paths of the conflicts."""
    sides = Sides(base, ours, theirs)
    merged = sides.merged(rules)
    if merged.conflicts:
        return {conflict.path for conflict in merged.conflicts}
    return sides.value(merged)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "y": 1}}, {"a": {"x": 1, "y": 2}}, {"a": {"x": 2, "y": 2}}),
        ({}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": 1}, {"a": 2}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {}, {}, {}),
        ([1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4]),
        ([1, 2, 3, 4], [1, 9, 3, 4], [1, 2, 3, 8], [1, 9, 3, 8]),
        ([1, 2, 3, 4], [1, 4], [1, 2, 3, 4, 5], [1, 4, 5]),
        ([1, 2, 3], [1, 8, 8, 3], [1, 2, 3, 3], [1, 8, 8, 3, 3]),
        ([1, 2, 3, 4], [9, 3, 4], [1, 2, 8, 8, 8], [9, 8, 8, 8]),  # changes that touch
        ([{"a": 1, "b": 1}], [{"a": 2, "b": 1}], [{"a": 1, "b": 2}], [{"a": 2, "b": 2}]),
        (LONG, ["summary", *LONG[100:]], [*LONG, "new"], ["summary", *LONG[100:], "new"]),
    ],
)
def test_what_both_sides_did_is_kept(base: object, ours: object, theirs: object, expected: object) -> None:
    assert both(base, ours, theirs) == expected
    assert both(base, theirs, ours) == expected


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "path"),
    [
        ({"a": 1}, {"a": 2}, {"a": 3}, ("a",)),
        ({"a": 1}, {"a": 2}, {}, ("a",)),
        ({"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"x": 3}}, ("a", "x")),
        ({"a": [1]}, {"a": {"x": 2}}, {"a": [1, 2]}, ("a",)),
        ([1], [1, 2], [1, 3], (1,)),
        ([1, 2, 3], [1, 3], [1, 9, 9, 3], (1,)),
        ([], [1], [2], (0,)),
    ],
)
def test_what_only_one_can_have_is_a_conflict_and_ours_stands(
    base: object, ours: object, theirs: object, path: tuple[object, ...]
) -> None:
    sides = Sides(base, ours, theirs)
    merged = sides.merged()

    steps = tuple(canonical(step) if isinstance(step, str) else step for step in path)
    assert [conflict.path for conflict in merged.conflicts] == [steps]
    assert sides.value(merged) == ours


@pytest.mark.parametrize(
    ("rule", "base", "ours", "theirs", "expected"),
    [
        ("ours", 1, 2, 3, 2),
        ("theirs", 1, 2, 3, 3),
        ("last_writer", 1, 2, 3, 2),
        ("counter", 5, 6, 6, 7),
        ("counter", 5, 6, 8, 9),
        ("counter", Decimal("1.5"), Decimal("2.5"), Decimal(1), Decimal(2)),
        ("maximum", 1, 2, 3, 3),
        ("minimum", 1, 2, 3, 2),
        ("union", {1, 2}, {1, 2, 3}, {2, 4}, {2, 3, 4}),
        ("append", [1], [1, 2], [1, 3], [1, 2, 3]),
        ("union", [1], [1, 2, 3], [1, 3, 4], [1, 2, 3, 4]),
        ("theirs", [1], [1, 2], [1, 3], [1, 3]),
        ("ours", [1, 2], [9, 9, 9], [8], [9, 9, 9]),
        (lambda base, ours, theirs: (base, ours, theirs), 1, 2, 3, (1, 2, 3)),
    ],
)
def test_a_rule_decides(rule: Rule, base: object, ours: object, theirs: object, expected: object) -> None:
    rules: dict[Pattern, Rule] = {(canonical("deep"), None): rule}

    merged = both({"deep": {"n": base}}, {"deep": {"n": ours}}, {"deep": {"n": theirs}}, rules)

    assert merged == {"deep": {"n": expected}}
    assert type(merged["deep"]["n"]) is type(expected)


def test_a_union_of_long_lists_takes_time_by_their_length() -> None:
    """Each of 20,000 items was compared with each of 20,000 others: 11 s of the processor's time."""
    ours, theirs = [f"ours {n}" for n in range(20_000)], [f"theirs {n}" for n in range(20_000)]

    began_s = process_time()
    merged = both({"l": []}, {"l": ours}, {"l": [*ours[:5], *theirs]}, {(): "union"})

    assert merged == {"l": [*ours, *theirs]}
    assert process_time() - began_s < 5


def test_two_new_counters_are_added() -> None:
    assert both({}, {"n": 1}, {"n": 1}, {(canonical("n"),): "counter"}) == {"n": 2}


def test_a_counter_that_both_removed_is_gone() -> None:
    assert both({"n": 1, "m": 1}, {"m": 2}, {"m": 2}, {(): "counter"}) == {"m": 3}


def test_a_counter_deep_in_equal_changes_still_counts_both() -> None:
    rules: dict[Pattern, Rule] = {(canonical("a"), None, canonical("n")): "counter"}
    one, two = {"a": [{"n": 0, "x": 0}]}, {"a": [{"n": 1, "x": 5}]}

    assert both(one, two, two, rules) == {"a": [{"n": 2, "x": 5}]}


def test_the_longest_pattern_wins() -> None:
    rules: dict[Pattern, Rule] = {
        (): "ours",
        (canonical("a"),): "theirs",
        (canonical("a"), canonical("x")): "ours",
    }

    assert both(
        {"a": {"x": 0, "y": 0}, "b": 0},
        {"a": {"x": 1, "y": 1}, "b": 1},
        {"a": {"x": 2, "y": 2}, "b": 2},
        rules,
    ) == {"a": {"x": 1, "y": 2}, "b": 1}


def test_a_function_sees_what_is_absent_and_may_leave_nothing() -> None:
    seen = list[object]()

    def drop(*sides: object) -> object:
        seen.extend(sides)
        return MISSING

    assert both({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"b": 1}, {(): drop}) == {"b": 1}
    assert seen == [1, 2, MISSING]


@pytest.mark.parametrize(
    ("rule", "ours", "theirs"),
    [
        ("counter", "a", "b"),
        ("counter", True, False),
        ("maximum", 1, "b"),
        ("union", [1], {1}),
        ("append", 2, 3),
    ],
)
def test_a_rule_that_cannot_be_kept_is_a_conflict(rule: Rule, ours: object, theirs: object) -> None:
    assert both({"a": None}, {"a": ours}, {"a": theirs}, {(): rule}) == {(canonical("a"),)}


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidError, match=r"newest.*refuse, ours, theirs"):
        Rules({(): "newest"})  # type: ignore[dict-item]


@given(st.integers(0, 2**32))
def test_the_laws_of_merging_hold(seed: int) -> None:
    dice = random.Random(seed)
    base = a_value(dice, 3)
    ours, theirs = changed(dice, base, 3), changed(dice, base, 3)
    sides = Sides(base, ours, theirs)

    def merged(one: bytes, other: bytes, third: bytes, rules: Mapping[Pattern, Rule] | None = None) -> bytes:
        made = sides.objects.serve(merge(one, other, third, Rules(rules or {}), CODEC))
        assert not made.conflicts
        return made.encoding

    assert merged(sides.base, sides.ours, sides.base) == sides.ours
    assert merged(sides.base, sides.base, sides.theirs) == sides.theirs
    assert merged(sides.base, sides.ours, sides.ours) == sides.ours
    assert merged(sides.base, sides.ours, sides.ours, {(canonical("no"),): "counter"}) == sides.ours
    one, other = sides.merged(), Sides(base, theirs, ours)
    mirrored = other.merged()
    assert bool(one.conflicts) == bool(mirrored.conflicts)
    if not one.conflicts:
        assert sides.value(one) == other.value(mirrored)


@given(st.integers(0, 2**32))
def test_disjoint_changes_of_a_dict_never_conflict(seed: int) -> None:
    dice = random.Random(seed)
    base = {f"{side}{n}": a_value(dice, 2) for side in "ab" for n in range(8)}
    ours = {key: changed(dice, value, 2) if key[0] == "a" else value for key, value in base.items()}
    theirs = {key: changed(dice, value, 2) if key[0] == "b" else value for key, value in base.items()}

    expected = {key: ours[key] if key[0] == "a" else theirs[key] for key in base}
    assert both(base, ours, theirs) == expected
