"""A tree is a function of its items alone; an edit makes only what is near it, and asks for no more."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import CorruptError
from keepstate.values.codec import canonical
from keepstate.values.nodes import INLINE_BYTES, LIST_STYLE, MAP_STYLE, Entry, item
from keepstate.values.tree import Editing, Tree, all_items, build, change_keys, find_key, read_tree
from tests.values.fetching import Objects

pytestmark = pytest.mark.searched

SMALL = LIST_STYLE._replace(leaf_average=4, branch_average=3)
"""Many levels with few items."""
contents = st.one_of(st.integers(0, 9), st.integers(), st.sampled_from([100, 300, 3_000]).map("x".__mul__))
edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 90), st.lists(contents, max_size=60)),
    min_size=1,
    max_size=12,
)


def items(*values: object) -> list[Entry]:
    return [item(canonical(value)) for value in values]


def built(entries: list[Entry], objects: Objects) -> Tree:
    editing = Editing(Tree(SMALL))
    objects.serve(editing.splice(0, 0, entries))
    objects.update(editing.objects())
    return editing.tree


@given(edits)
def test_any_edits_lead_to_the_root_of_a_tree_built_at_once(
    edits: list[tuple[int, int, list[object]]],
) -> None:
    objects, tree, expected = Objects(), Tree(SMALL), list[Entry]()
    for place, length, values in edits:
        begin = min(place, len(expected))
        end = min(begin + length, len(expected))
        editing = Editing(tree)
        objects.serve(editing.splice(begin, end, items(*values)))
        objects.update(editing.objects())
        expected[begin:end] = items(*values)
        tree = read_tree(SMALL, objects[editing.tree.ref.name], is_deep=False)

    assert tree.ref == built(expected, Objects()).ref
    assert [entry.name for entry in objects.serve(all_items(tree))] == [entry.name for entry in expected]
    assert tree.ref.size_bytes == sum(entry.size_bytes for entry in expected)


@given(edits)
def test_several_edits_at_once_need_no_object_in_between(edits: list[tuple[int, int, list[object]]]) -> None:
    objects, expected = Objects(), items(*range(300))
    editing = Editing(built(expected, objects))
    for place, length, values in edits:
        begin = min(place, len(expected))
        end = min(begin + length, len(expected))
        objects.serve(editing.splice(begin, end, items(*values)))
        expected[begin:end] = items(*values)

    made = editing.objects()
    assert editing.tree.ref == built(expected, Objects()).ref
    objects.update(made)
    assert len(objects.serve(all_items(editing.tree))) == len(expected)


@pytest.mark.parametrize("count", [100, 1_000, 10_000])
def test_an_append_asks_for_little_and_makes_little_however_long_the_list(count: int) -> None:
    objects = Objects()
    made = build(LIST_STYLE, items(*({"role": "user", "content": "x" * 400, "n": n} for n in range(count))))
    objects.update(made.objects())
    tree, sizes = made.tree, list[int]()
    for n in range(200):
        tree = read_tree(LIST_STYLE, objects[tree.ref.name], is_deep=False)
        editing = Editing(tree)
        objects.rounds = 0
        objects.serve(editing.splice(tree.count, tree.count, items({"content": "y" * 400, "n": n})))
        sizes.append(sum(map(len, editing.objects().values())))
        objects.update(editing.objects())
        tree = editing.tree
        assert objects.rounds <= 1

    assert sum(sizes) / len(sizes) < 2_500


def test_an_edit_of_the_beginning_makes_only_what_is_near_it() -> None:
    objects = Objects()
    made = build(LIST_STYLE, items(*({"content": "x" * 400, "n": n} for n in range(10_000))))
    objects.update(made.objects())

    editing = Editing(made.tree)
    objects.serve(editing.splice(0, 1, ()))

    assert sum(map(len, editing.objects().values())) < 64 * 450 + 4_000
    assert len(editing.objects()) < 20


def test_items_that_are_all_alike_still_make_small_nodes() -> None:
    for value in range(20):  # some of these end a node, and some do not
        editing = build(LIST_STYLE, items(*[value] * 5_000))

        assert max(map(len, editing.objects().values())) < 4_096
        assert editing.tree.count == 5_000


def test_a_large_item_stands_in_no_node() -> None:
    objects = Objects()
    tree = built(items(*("x" * 5_000 + str(n) for n in range(100))), objects)

    nodes = [data for data in objects.values() if len(data) < 5_000]
    assert len(nodes) == len(objects) - 100
    assert len(tree.encoding) < 100 * INLINE_BYTES


changes = st.lists(
    st.dictionaries(st.integers(0, 120), st.none() | contents, min_size=1, max_size=20), max_size=12
)


@given(changes)
def test_a_dict_s_tree_is_the_same_whatever_the_order_of_its_changes(
    changes: list[dict[int, object]],
) -> None:
    objects, tree, expected = Objects(), Tree(MAP_STYLE), dict[bytes, Entry]()
    for change in changes:
        entries = {
            canonical(key): None if value is None else item(canonical(value), key=canonical(key))
            for key, value in change.items()
        }
        editing = Editing(tree)
        objects.serve(change_keys(editing, entries))
        objects.update(editing.objects())
        tree = read_tree(MAP_STYLE, objects[editing.tree.ref.name], is_deep=False)
        expected = {key: entry for key, entry in {**expected, **entries}.items() if entry is not None}

    assert tree.ref == build(MAP_STYLE, [*expected.values()]).tree.ref
    for key in map(canonical, range(0, 121, 7)):
        _, found = objects.serve(find_key(tree, key))
        assert (found.name if found else None) == (expected[key].name if key in expected else None)


def test_one_of_a_thousand_keys_costs_its_value_and_a_path() -> None:
    objects, sizes = Objects(), list[int]()
    keys = [canonical(f"key{n:04}") for n in range(1_000)]
    made = build(MAP_STYLE, [item(canonical("x" * 500 + str(key)), key=key) for key in keys])
    objects.update(made.objects())
    tree = made.tree

    for n in range(0, 1_000, 10):
        editing = Editing(tree)
        objects.serve(change_keys(editing, {keys[n]: item(canonical("y" * 500 + str(n)), key=keys[n])}))
        objects.update(editing.objects())
        sizes.append(sum(map(len, editing.objects().values())))
        tree = editing.tree

    assert sum(sizes) / len(sizes) < 2_000


@given(st.data())
def test_damage_of_a_root_is_an_error_of_its_own(data: st.DataObject) -> None:
    objects = Objects()
    tree = built(items(*range(200)), objects)
    damaged = bytearray(tree.encoding)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with suppress(CorruptError):
        read_tree(SMALL, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), is_deep=True)
