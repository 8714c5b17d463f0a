"""A diff tells what differs and nothing else, reads only that, and as a patch gives the other side."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec, canonical
from keepstate.values.diff import Change, align, diff
from keepstate.values.patch import Edits, apply_changes, apply_edits
from tests.values.edits import a_value, changed
from tests.values.fetching import Objects

pytestmark = pytest.mark.searched

CODEC = Codec()
MESSAGES = [{"role": "user", "content": f"{n} " * 100, "meta": {"tokens": n}} for n in range(2_000)]


def planted(value: object, objects: Objects) -> bytes:
    made = CODEC.to_merkle(value)
    objects.update(made.objects)
    return made.encoding


def told(before: object, after: object) -> list[tuple[tuple[Any, ...], str]]:
    """Return the changes' paths, keys decoded, and kinds."""
    objects = Objects()
    changes = objects.serve(diff(planted(before, objects), planted(after, objects)))
    return [
        (tuple(CODEC.assemble(s, {}) if isinstance(s, bytes) else s for s in change.path), change.kind)
        for change in changes
    ]


@given(st.integers(0, 2**32))
def test_a_diff_as_a_patch_gives_the_other_side_both_ways(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    value = a_value(dice, 3)
    old = planted(value, objects)
    new = planted(changed(dice, value, 3), objects)

    for one, other in ((old, new), (new, old)):
        changes = objects.serve(diff(one, other))
        made = objects.serve(apply_changes(one, changes))
        assert made.encoding == other
        assert objects.items() >= made.objects.items()
        assert bool(changes) == (one != other)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([*MESSAGES, {"role": "tool"}], [(("messages", 2_000), "added")]),
        (MESSAGES[1:], [(("messages", 0), "removed")]),
        (
            [{"role": "system"}, *MESSAGES[3:]],
            [(("messages", 0), "removed"), (("messages", 1), "removed"), (("messages", 2), "removed"),
             (("messages", 0), "added")],
        ),
        (
            [*MESSAGES[:1_000], {**MESSAGES[1_000], "meta": {"tokens": -1}}, *MESSAGES[1_001:]],
            [(("messages", 1_000, "meta", "tokens"), "changed")],
        ),
    ],
    ids=["append", "pop(0)", "first three summarised", "deep inside"],
)  # fmt: skip
def test_what_differs_is_told_where_it_is(after: list[object], expected: list[object]) -> None:
    assert told({"messages": MESSAGES, "n": 1}, {"messages": after, "n": 1}) == expected


def test_only_what_differs_is_read() -> None:
    objects = Objects()
    before = planted({"messages": MESSAGES}, objects)
    after = planted({"messages": [*MESSAGES[:1_000], 1, *MESSAGES[1_000:]]}, objects)

    objects.serve(diff(before, after))

    assert objects.asked < 20
    assert objects.rounds < 6
    assert len(objects) > 100


def test_another_type_is_a_change_of_the_whole() -> None:
    assert told({"a": [1]}, {"a": {"b": 1}}) == [(("a",), "changed")]
    assert told([1], (1,)) == [((), "changed")]
    assert told({"a": 1}, {"a": True}) == [(("a",), "changed")]


def test_the_order_of_a_small_dict_is_part_of_it() -> None:
    assert told({"a": 1, "b": 2}, {"b": 2, "a": 1}) == [((), "reordered")]
    assert told({"b": 2}, {"b": 2, "a": 1}) == [(("a",), "added")]
    assert told({str(n): n for n in range(2_000)}, {str(n): n for n in reversed(range(2_000))}) == []


def test_lists_with_nothing_in_common_are_not_aligned_for_ever() -> None:
    old, new = [n % 7 for n in range(5_000)], [n % 5 for n in range(5_000)]

    assert [*align(old, new)] == [(5, 5_000, 5, 5_000)]


def test_a_window_that_has_moved_over_a_long_list_differs_at_its_ends() -> None:
    old = [f"message {n}" for n in range(10_000)]
    new = [*old[2:], "one more"]

    assert [*align(old, new)] == [(0, 2, 0, 0), (10_000, 10_000, 9_998, 9_999)]


@pytest.mark.parametrize("seed", range(5))
def test_long_lists_are_aligned_so_that_the_parts_lead_from_one_to_the_other(seed: int) -> None:
    dice = random.Random(seed)
    old = [dice.randrange(4_000) for _ in range(3_000)]
    new = dice.sample(old, 3_000) if seed % 2 else old.copy()
    for _ in range(40):
        place = dice.randrange(len(new))
        new[place : place + dice.randrange(3)] = [dice.randrange(4_000) for _ in range(dice.randrange(3))]

    parts = [*align(old, new)]

    put_together = old.copy()
    for a, b, c, d in reversed(parts):
        put_together[a:b] = new[c:d]
    assert put_together == new
    if not seed % 2:
        assert sum(d - c for _, _, c, d in parts) < 200


def test_an_edit_deep_in_a_large_state_makes_a_path_and_no_more() -> None:
    objects = Objects()
    encoding = planted({"runs": [{"messages": MESSAGES} for _ in range(3)]}, objects)
    runs, messages = canonical("runs"), canonical("messages")
    edits = Edits()
    edits.at((runs, 1, messages)).puts[7] = CODEC.to_merkle("other")

    objects.asked = 0
    made = objects.serve(apply_edits(encoding, edits))

    assert objects.asked < 12
    assert len(made.objects) < 8
    objects.update(made.objects)
    expected = [*MESSAGES[:7], "other", *MESSAGES[8:]]
    wanted = {"runs": [{"messages": MESSAGES}, {"messages": expected}, {"messages": MESSAGES}]}
    assert made.encoding == CODEC.to_merkle(wanted).encoding


@pytest.mark.parametrize(
    "edits",
    [
        Edits(puts={3: CODEC.to_merkle(0)}),
        Edits(inside={0: Edits(removed={0})}),
        Edits(inside={9: Edits()}),
        Edits(removed={2}),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(edits: Edits) -> None:
    with pytest.raises(InvalidError):
        Objects().serve(apply_edits(canonical([1, 2]), edits))


@pytest.mark.parametrize(
    "change",
    [
        Change((canonical("a"), canonical("b")), "changed", canonical(1), canonical(2)),
        Change((canonical("b"),), "removed", canonical(1), None),
        Change((), "reordered", canonical(["a", "b"]), canonical(["b", "a"])),
    ],
)
def test_the_changes_of_another_value_are_refused(change: Change) -> None:
    changes = [change]

    with pytest.raises(InvalidError):
        Objects().serve(apply_changes(canonical({"a": 1}), changes))
