"""Names and bytes as they stand in the server."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate.errors import CorruptError
from keepstate.stores.protocol import Change, Mark
from keepstate.stores.redis.encoding import (
    REGISTRY_SHARDS,
    SLOTS,
    State,
    decode_changes,
    decode_entry,
    decode_state,
    has_lost,
    keys_of,
    lex_range,
    slot_of_tag,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
A, B = b"A" * 8, b"B" * 8


def tag_of(key: bytes) -> bytes:
    """Return what a cluster hashes of a key: what stands between its first brace and the closing one."""
    _, _, rest = key.partition(b"{")
    tag, closing, _ = rest.partition(b"}")
    return tag if closing and tag else key


@given(NAMES)
@example("}")
@example("{}")
@example("a}b{c")
@example("100%7D")
def test_all_keys_of_a_space_have_its_name_as_their_tag(name: str) -> None:
    where = keys_of("keepstate", name)

    assert {unquote_to_bytes(tag_of(key)) for key in where.keys} == {name.encode()}
    assert {slot_of_tag(tag_of(key)) for key in where.keys} == {where.slot}
    assert len(set(where.keys)) == 5


@given(NAMES, NAMES)
@example("}", "%7D")
@example("A", "a")
def test_two_spaces_never_share_a_key(one: str, other: str) -> None:
    shared = set(keys_of("keepstate", one).keys) & set(keys_of("keepstate", other).keys)

    assert bool(shared) is (one == other)


def test_a_slot_is_the_one_that_the_cluster_specification_gives() -> None:
    assert slot_of_tag(b"123456789") == 0x31C3 % SLOTS


def test_registry_shards_cover_all_slots_evenly() -> None:
    shards = [keys_of("keepstate", str(i)).registry_shard for i in range(4000)]

    assert set(shards) == set(range(REGISTRY_SHARDS))


def test_a_range_begins_after_the_last_key_in_either_direction() -> None:
    assert lex_range(b"\x01a", None) == (b"[\x01a", b"(\x01b")
    assert lex_range(b"\x01a", b"\x01ab") == (b"(\x01ab", b"(\x01b")
    assert lex_range(b"\x01a", None, reverse=True) == (b"(\x01b", b"[\x01a")
    assert lex_range(b"\x01a", b"\x01ab", reverse=True) == (b"(\x01ab", b"[\x01a")
    assert lex_range(b"", None) == (b"[", b"+")


@pytest.mark.parametrize(
    ("revision", "nonce", "floor", "record", "lost"),
    [
        (5, A, 0, None, False),  # where it was
        (5, B, 0, None, True),  # another five
        (4, A, 0, None, True),  # gone back
        (0, b"", 0, None, True),  # all gone
        (9, B, 0, A + b"rest", False),  # gone on
        (9, B, 0, B + b"rest", True),  # gone on from elsewhere
        (9, B, 4, None, True),  # the record should be there
        (9, B, 6, None, False),  # cut, or dropped: nobody can tell
        (9, B, 5, None, True),  # the floor keeps its nonce
    ],
)
def test_a_mark_is_lost_if_the_space_has_no_such_revision_with_its_nonce(
    revision: int, nonce: bytes, floor: int, record: bytes | None, lost: bool
) -> None:
    state = State(revision, nonce, floor, 0, 0, nonce)

    assert has_lost(state, Mark(5, A), record) is lost


def test_a_state_of_another_format_is_refused_by_name() -> None:
    with pytest.raises(CorruptError, match="'s' has format 2"):
        decode_state(b"\x02" + bytes(56), "s")


def test_changes_come_back_from_their_bytes() -> None:
    body = (
        b"\x01\x00\x02\x01a"
        b"\x06\x00\x02\x02b\x00\x00\x00\x01x\x00\x00\x00\x00"
        b"\x04\x00\x01\x02\x00\x00\x00\x01y"
    )

    assert list(decode_changes(7, body)) == [
        Change(7, b"\x01a", deleted=True),
        Change(7, b"\x02b", deleted=False, old=b"x", new=b""),
        Change(7, b"\x02", deleted=False, new=b"y"),
    ]


@pytest.mark.parametrize(("head", "value"), [(bytes(28), None), (None, b"v"), (bytes(27), b"v")])
def test_an_entry_of_which_a_part_is_missing_is_damaged_and_not_absent(
    head: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(CorruptError, match="a part of it is missing"):
        decode_entry(b"\x01k", head, value, 0)
