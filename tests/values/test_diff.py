"""A diff tells what differs and nothing else, reads only that, and as a patch gives the other side."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.codec import Codec, canonical
from keepstate.values.diff import Path, align, diff
from keepstate.values.order import KeyOrder
from keepstate.values.patch import Edits, apply_edits
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
def test_each_path_of_a_diff_leads_to_what_it_tells(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    value = a_value(dice, 3)
    after = changed(dice, value, 3)
    one, other = planted(value, objects), planted(after, objects)

    for (old, before), (new, now) in (((one, value), (other, after)), ((other, after), (one, value))):
        changes = objects.serve(diff(old, new))

        assert bool(changes) == (old != new)
        for change in changes:
            if change.kind != "added":
                assert_at(before, change.old_path, change.old, objects, is_order=change.kind == "reordered")
            if change.kind != "removed":
                assert_at(now, change.path, change.new, objects, is_order=change.kind == "reordered")


def assert_at(value: Any, path: Path, expected: bytes | None, objects: Objects, *, is_order: bool) -> None:
    for step in path:
        value = value[CODEC.assemble(step, {}) if isinstance(step, bytes) else step]
    assert (CODEC.to_merkle([*value] if is_order else value)).encoding == expected


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_a_limited_diff_is_the_beginning_of_the_whole(seed: int, limit: int) -> None:
    dice, objects = random.Random(seed), Objects()
    value = a_value(dice, 3)
    old, new = planted(value, objects), planted(changed(dice, value, 3), objects)

    assert objects.serve(diff(old, new, limit=limit)) == objects.serve(diff(old, new))[:limit]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([*MESSAGES, {"role": "tool"}], [(("messages", 2_000), "added")]),
        (MESSAGES[1:], [(("messages", 0), "removed")]),
        (
            [{"role": "system"}, *MESSAGES[3:]],
            [(("messages", 0), "removed"), (("messages", 0), "removed"), (("messages", 0), "removed"),
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


def test_the_order_of_a_dict_is_part_of_it() -> None:
    assert told({"a": 1, "b": 2}, {"b": 2, "a": 1}) == [((), "reordered")]
    assert told({"b": 2}, {"b": 2, "a": 1}) == [(("a",), "added")]
    assert told({str(n): n for n in range(2_000)}, {str(n): n for n in reversed(range(2_000))}) == [
        ((), "reordered")
    ]


@pytest.mark.parametrize("count", [3, 2_000])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_only_the_relative_order_of_common_keys_is_told(count: int, is_sorted: bool) -> None:
    before = {f"k{n:05}": n for n in (range(count) if is_sorted else reversed(range(count)))}
    keys = list(before)

    added = {"new": 0} | before
    removed = {key: before[key] for key in keys[1:]}
    moved = removed | {keys[0]: before[keys[0]]}

    assert told(before, added) == [(("new",), "added")]
    assert told(added, before) == [(("new",), "removed")]
    assert told(before, removed) == [((keys[0],), "removed")]
    assert told(before, moved) == told(moved, before) == [((), "reordered")]
    assert told(before, moved | {"new": 0}) == [(("new",), "added"), ((), "reordered")]


def test_a_key_at_the_end_of_a_large_dict_is_found_by_reading_little() -> None:
    objects = Objects()
    before = {f"k{n}": n for n in range(20_000)}
    old, new = planted(before, objects), planted(before | {"a": 1}, objects)

    changes = objects.serve(diff(old, new))

    assert [change.kind for change in changes] == ["added"]
    assert objects.asked < 60


def test_a_removed_item_has_one_path_in_each_state() -> None:
    objects = Objects()
    before = {"runs": [{"steps": [f"{n} " * 300 for n in range(20)]} for _ in range(3)]}
    after = {"runs": [{"steps": []}, *(copy.deepcopy(run) for run in before["runs"])]}
    del after["runs"][2]["steps"][5]

    changes = objects.serve(diff(planted(before, objects), planted(after, objects)))

    runs, steps = canonical("runs"), canonical("steps")
    assert [
        (change.kind, change.path, change.old_path) for change in changes if change.kind == "removed"
    ] == [("removed", (runs, 2, steps, 5), (runs, 1, steps, 5))]


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


ABC = [canonical(key) for key in "abc"]


@pytest.mark.parametrize(
    "edits",
    [
        Edits(order=KeyOrder([ABC[0]], [(0, 1, ABC[2:])])),
        Edits(order=KeyOrder([ABC[1], ABC[0], ABC[2]], [(0, 0, ABC[2:])])),
        Edits(removed={ABC[2]}),
    ],
)
@pytest.mark.parametrize("count", [0, 2_000])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_an_order_of_other_keys_is_refused(edits: Edits, count: int, is_sorted: bool) -> None:
    objects = Objects()
    keys = [f"k{n:04}" for n in range(count)] + ["b", "a"]
    encoding = planted(dict.fromkeys(sorted(keys, key=canonical) if is_sorted else keys, 0), objects)

    with pytest.raises((InvalidError, CorruptError)):
        objects.serve(apply_edits(encoding, edits))
