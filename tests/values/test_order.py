"""The order of a dict's keys is part of its value, at any size, and costs little."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, KeepstateError
from keepstate.values.codec import Codec, canonical
from keepstate.values.contents import open_contents
from keepstate.values.diff import diff
from keepstate.values.merge import Rule, Rules, merge
from keepstate.values.merkle import MerkleValue, count_descents, gather
from keepstate.values.nodes import LIST_STYLE, item, ref_of
from keepstate.values.order import find_places
from keepstate.values.patch import Edits, apply_edits
from keepstate.values.refs import DIGEST_SIZE, Ref
from keepstate.values.tree import build
from tests.values.fetching import Objects

pytestmark = pytest.mark.searched

CODEC = Codec()
BIG = 10_000


def a_key(dice: random.Random) -> Any:
    """Return a key of any type; some are so long that an order holds them as objects of their own."""
    n = dice.randrange(300)
    return dice.choice([f"k{n}", n, (n,), f"long {n} " * 30, f"very long {n} " * 300])


def a_dict(dice: random.Random) -> dict[Any, Any]:
    """Return a dict, a tree in most cases, sorted in some."""
    made = {a_key(dice): "x" * dice.choice((1, 50, 300)) for _ in range(dice.choice((3, 10, 60, 400)))}
    keys = sorted(made, key=canonical) if dice.random() < 0.4 else list(made)
    return {key: made[key] for key in keys}


def edit(dice: random.Random, value: dict[Any, Any]) -> dict[Any, Any]:
    """Return the dict after changes of its items and their order."""
    for _ in range(dice.randrange(1, 4)):
        items, place = list(value.items()), dice.randrange(len(value) + 1)
        key = dice.choice([*value, "last"])
        match dice.randrange(5):
            case 0:
                value = {other: item for other, item in items if other != key}
            case 1:
                value = value | {a_key(dice): "y" * dice.choice((1, 200))}
            case 2:
                value = {other: item for other, item in items if other != key} | {key: "moved"}
            case 3:
                value = dict([*items[:place], (f"new {dice.randrange(9_999)}", 1), *items[place:]])
            case _ if dice.random() < 0.2:
                value = dict(sorted(items, key=lambda pair: canonical(pair[0])))
            case _:
                pass
    return value


def plant(value: object, objects: Objects) -> bytes:
    made = CODEC.to_merkle(value)
    objects.update(made.objects)
    return made.encoding


def assemble(encoding: bytes, objects: Objects) -> Any:
    return CODEC.assemble(encoding, objects.serve(gather([encoding])))


def a_ref(encoding: bytes) -> Ref:
    ref = ref_of(encoding)
    assert ref is not None
    return ref


# ---- edits


@given(st.integers(0, 2**32))
def test_a_caller_that_does_not_know_the_places_makes_the_root_of_the_whole(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    before = a_dict(dice)
    encoding, after, edits = plant(before, objects), dict(before), Edits()
    for key in dice.sample(list(before), dice.randrange(min(3, len(before)))):
        del after[key]
        edits.removed.add(canonical(key))
    fresh = [f"new {n}" for n in range(dice.randrange(4))]
    for key in (*dice.sample(list(after), min(len(after), 1)), *dice.sample(fresh, len(fresh))):
        after[key] = "changed"
        edits.puts[canonical(key)] = CODEC.to_merkle("changed")

    made = objects.serve(apply_edits(encoding, edits))

    assert made.encoding == plant(after, Objects())
    objects.update(made.objects)
    assert list(assemble(made.encoding, objects)) == list(after)


@given(st.integers(0, 2**32))
def test_descents_are_those_of_the_keys_after_any_edits(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    value = a_dict(dice)
    encoding = plant(value, objects)
    for n in range(6):
        edits = Edits()
        if value and dice.random() < 0.6:
            key = dice.choice(list(value))
            del value[key]
            edits.removed.add(canonical(key))
        if dice.random() < 0.6:
            value[f"{dice.choice('az')}{n}"] = n
            edits.puts[canonical([*value][-1])] = CODEC.to_merkle(n)
        made = objects.serve(apply_edits(encoding, edits))
        objects.update(made.objects)
        encoding = made.encoding
        ref = ref_of(encoding)

        keys = [canonical(key) for key in value]
        assert ref is None or ref.descents == count_descents(keys)
        assert ref is None or (ref.order is None) == (keys == sorted(keys))


def test_sorted_keys_have_no_object_for_their_order() -> None:
    keys = sorted((f"k{n}" for n in range(BIG)), key=canonical)
    made = CODEC.to_merkle(dict.fromkeys(keys, 0))

    assert a_ref(made.encoding).order is None
    assert len(a_ref(made.encoding).encoding()) < 32


def test_one_more_key_of_a_large_dict_costs_a_path_of_each_tree() -> None:
    objects, value = Objects(), {f"k{n}": n for n in reversed(range(BIG))}
    encoding = plant(value, objects)
    made_objects, asked = list[int](), list[int]()
    for n in range(100):
        edits, objects.asked = Edits(puts={canonical(f"a{n}"): CODEC.to_merkle(n)}), 0
        made = objects.serve(apply_edits(encoding, edits))
        made_objects.append(len(made.objects))
        asked.append(objects.asked)
        objects.update(made.objects)
        encoding = made.encoding

    assert max(made_objects) < 24
    assert max(asked) < 32
    assert list(assemble(encoding, objects)) == [*value, *(f"a{n}" for n in range(100))]


def test_another_value_of_a_key_does_not_read_the_order() -> None:
    objects = Objects()
    encoding = plant({f"k{n}": n for n in reversed(range(BIG))}, objects)
    order = a_ref(encoding).order
    assert order is not None
    del objects[order.name]

    made = objects.serve(apply_edits(encoding, Edits(puts={canonical("k5"): CODEC.to_merkle("new")})))

    assert a_ref(made.encoding).order == order


@pytest.mark.parametrize(("place", "most"), [(0, 1_500), (BIG - 1, 80)])
def test_a_key_without_a_known_place_is_searched_for_from_the_end(place: int, most: int) -> None:
    objects, keys = Objects(), [canonical(f"k{n}") for n in reversed(range(BIG))]
    order = build(LIST_STYLE, [item(key) for key in keys])
    objects.update(order.objects())

    found = objects.serve(find_places(order.tree, [keys[place]]))

    assert found == {keys[place]: place}
    assert objects.asked < most


# ---- merges


@given(st.integers(0, 2**32))
def test_the_side_that_alone_changed_the_order_leads(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    base = a_dict(dice)
    ours, theirs = edit(dice, base), edit(dice, base)
    sides = [plant(side, objects) for side in (base, ours, theirs)]
    rule: Rule = "theirs" if seed % 2 else "ours"  # theirs brings back keys that ours removed

    made = objects.serve(merge(*sides, Rules({(): rule}), CODEC))
    objects.update(made.objects)
    merged = assemble(made.encoding, objects)

    assert made.encoding == plant(merged, Objects())
    if sides[0] not in sides[1:]:
        assert list(merged) == expected_order(base, ours, theirs, merged)


def expected_order(base: Any, ours: Any, theirs: Any, merged: Any) -> list[Any]:
    common = [key for key in base if key in ours and key in theirs and key in merged]
    by_us, by_them = ([key for key in side if key in set(common)] for side in (ours, theirs))
    lead, other = (theirs, ours) if by_us == common != by_them else (ours, theirs)
    return [*(key for key in lead if key in merged), *(key for key in other if key in merged.keys() - lead)]


@pytest.mark.parametrize("count", [3, 3_000])
@pytest.mark.parametrize("begin", [0, 1], ids=["unsorted", "sorted"])
def test_a_removed_key_that_comes_back_stands_where_their_order_has_it(begin: int, count: int) -> None:
    base = {f"k{n:06d}": n for n in range(begin, count)} | ({} if begin else {"a": 0})
    restored = [*base][1::2]
    ours = {key: value for key, value in base.items() if key not in restored}
    theirs = {key: "changed" if key in restored else value for key, value in base.items()} | {"z": 1}
    objects = Objects()

    sides = [plant(side, objects) for side in (base, ours, theirs)]
    made = objects.serve(merge(*sides, Rules({(): "theirs"}), CODEC))
    objects.update(made.objects)

    assert list(assemble(made.encoding, objects)) == [*ours, *restored, "z"]


@pytest.mark.parametrize("count", [3, 3_000])
def test_an_order_is_never_a_conflict(count: int) -> None:
    base = {f"k{n}": n for n in range(count)}
    ours = dict(reversed(base.items())) | {"mine": 1}
    theirs = {"k1": 1, "k0": 0} | base | {"others": 1}
    objects = Objects()

    made = objects.serve(merge(*(plant(side, objects) for side in (base, ours, theirs)), Rules({}), CODEC))
    objects.update(made.objects)

    assert not made.conflicts
    assert list(assemble(made.encoding, objects)) == [*ours, "others"]


# ---- reading


@given(st.integers(0, 2**32))
def test_a_part_of_a_dict_is_in_its_order(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    value = a_dict(dice)
    contents = objects.serve(open_contents(plant(value, objects)))
    begin = dice.randrange(len(value) + 1)
    end = begin + dice.randrange(20)

    found = objects.serve(contents.between(begin, end))

    assert [entry.key for entry in found] == [canonical(key) for key in list(value)[begin:end]]


@pytest.mark.parametrize("damage", ["descents", "other keys", "a key twice"])
def test_an_order_that_is_not_one_of_the_keys_is_damage(damage: str) -> None:
    objects = Objects()
    ref = a_ref(plant({f"k{n}": "x" * 20 for n in reversed(range(300))}, objects))
    if damage == "descents":
        ref = msgspec.structs.replace(ref, descents=ref.descents - 1)
    else:
        keys = [canonical(f"k{n}") for n in reversed(range(300))]
        keys[0] = keys[1] if damage == "a key twice" else canonical("other")
        order = build(LIST_STYLE, [item(key) for key in keys])
        objects.update(order.objects())
        ref = msgspec.structs.replace(ref, order=order.tree.ref, descents=count_descents(keys))

    with pytest.raises(CorruptError, match=ref.name.hex()):
        assemble(ref.encoding(), objects)


def test_an_order_of_another_number_of_keys_cannot_be_written() -> None:
    objects = Objects()
    made: MerkleValue = CODEC.to_merkle({f"k{n}": "x" * 20 for n in reversed(range(300))})
    objects.update(made.objects)
    ref = a_ref(made.encoding)

    for descents in (0, ref.count):
        with pytest.raises(CorruptError, match="descents"):
            ref_of(msgspec.structs.replace(ref, descents=descents).encoding())


DAMAGED = [
    {f"k{n}": "x" * 30 for n in reversed(range(300))},
    {"b": "x" * 5_000, "a": "very long " * 300, "long " * 50: 1},
    {(n,): n for n in reversed(range(900))},
]


@given(st.integers(0, 2**32))
def test_a_damaged_dict_is_refused_in_words_whatever_is_done_with_it(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    whole, other = plant(dice.choice(DAMAGED), objects), plant(DAMAGED[0], objects)
    encoding = whole
    if dice.random() < 0.5:
        packed = damage(dice, whole[3:])
        encoding = bytes((whole[0], len(packed), whole[2])) + packed
    else:
        name = dice.choice([*objects])
        objects[name] = damage(dice, objects[name])
    edits = Edits(puts={canonical("new"): CODEC.to_merkle(1)}, removed={canonical("k5")})

    absent: list[Any] = []
    for work in (
        lambda: assemble(encoding, objects),
        lambda: objects.serve(objects.serve(open_contents(encoding)).between(2, 9)),
        lambda: objects.serve(objects.serve(open_contents(encoding)).items()),
        lambda: objects.serve(diff(encoding, other)),
        lambda: objects.serve(apply_edits(encoding, edits)),
        lambda: objects.serve(merge(whole, encoding, other, Rules({}), CODEC)),
    ):
        try:
            work()
        except KeepstateError:
            pass
        except KeyError as error:  # of `Objects`: nobody made the object
            absent.append(error.args[0])
    assert all(type(name) is bytes and len(name) == DIGEST_SIZE for name in absent)


def damage(dice: random.Random, data: bytes) -> bytes:
    """Return the bytes with one or a few of them changed or left out."""
    damaged = bytearray(data)
    for _ in range(min(dice.choice((1, 1, 3)), len(damaged))):
        place = dice.randrange(len(damaged))
        if dice.random() < 0.7:
            damaged[place] ^= 1 << dice.randrange(8)
        else:
            del damaged[place]
    return bytes(damaged)


def test_edits_of_an_order_that_counts_wrongly_are_refused() -> None:
    objects = Objects()
    ref = a_ref(plant({f"k{n:04}": "x" * 20 for n in reversed(range(300))}, objects))
    lying = msgspec.structs.replace(ref, descents=1)

    with pytest.raises(CorruptError, match="counts 1 descents"):
        removed: set[int | bytes] = {canonical(f"k{n:04}") for n in range(5, 9)}
        objects.serve(apply_edits(lying.encoding(), Edits(removed=removed)))
