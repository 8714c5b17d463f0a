"""Keys that were chosen to collide in the slots of a dict or set are refused, wherever they are stored."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from keepstate import CorruptError, InvalidError
from keepstate.engine.history.bundle import read_bundle
from keepstate.stores.file.json_form import ReadableBytes
from keepstate.values import codec, encode, encode_ext, limits, types
from keepstate.values.codec import PLAIN
from keepstate.values.contents import holds_pickle
from keepstate.values.guards import is_crowded
from keepstate.values.nodes import classes_in, refs_in

LONGEST_S = 5.0
"""More of the processor's time than any of these inputs may take; other load does not count."""


def same_hash(number: int) -> bytes:
    """Return the encoding of an int whose hash is that of every other one made here."""
    body = ((number + 100) * ((1 << 61) - 1)).to_bytes(10)
    return b"\xc7" + bytes((len(body), 1)) + body


def tagged(tag: int, items: Sequence[bytes]) -> bytes:
    body = b"\xdd" + len(items).to_bytes(4) + b"".join(items)
    return PLAIN + b"\xc9" + len(body).to_bytes(4) + bytes((tag,)) + body


@pytest.mark.parametrize("tag", [33, 34, 35], ids=["set", "frozenset", "map"])
def test_keys_of_one_hash_are_refused_before_they_are_compared(tag: int) -> None:
    """40,000 of them took a set half a minute."""
    crowd = tagged(tag, [same_hash(number) for number in range(40_000)])

    began_s = time.process_time()
    for read in (codec.decode, codec.to_builtin):
        with pytest.raises(CorruptError, match="hashes of its keys were chosen to collide"):
            read(crowd)
    assert time.process_time() - began_s < LONGEST_S


def test_as_many_keys_of_one_hash_as_are_allowed_come_back() -> None:
    crowd = {(number + 1) * ((1 << 61) - 1) for number in range(limits.UNCHECKED_KEYS)}

    assert codec.decode(codec.encode(crowd)) == crowd
    assert codec.decode(codec.encode(dict.fromkeys(crowd, 1))) == dict.fromkeys(crowd, 1)
    crowd |= {(number + 1) * ((1 << 61) - 1) for number in range(3 * limits.UNCHECKED_KEYS)}
    for value in (crowd, frozenset(crowd), dict.fromkeys(crowd), [{"deep": crowd}]):
        with pytest.raises(InvalidError, match="hashes of its keys collide"):
            codec.encode(value)


def in_one_chain(count: int, size: int) -> list[int]:
    """Return ints of different hashes, half of which walk past hundreds of others in a dict of this size."""
    taken, keys, random = bytearray(size), dict[int, None](), Random(0)

    def steps(number: int) -> Iterator[int]:
        slot = number % size
        while True:
            yield slot
            number >>= 5
            slot = (slot * 5 + number + 1) % size

    for slot in islice(steps(0), count // 2):
        keys[slot], taken[slot] = None, 1
    while len(keys) < count:
        number = random.getrandbits(20)
        met, slot = next((met, slot) for met, slot in enumerate(steps(number)) if not taken[slot])
        if met > 400 and number not in keys:
            keys[number], taken[slot] = None, 1
    return [*keys]


def test_keys_of_one_chain_are_refused_before_they_are_looked_up() -> None:
    """46,000 of them in 546 KB took a dict 21 s. The guard stops at its bound, whatever the keys are."""
    keys, seen = in_one_chain(4_000, size=8_192), 0
    chain = tagged(35, [msgspec.msgpack.encode(key) for key in keys for _ in range(2)])

    def count(frame: object, event: str, argument: object) -> Any:
        nonlocal seen
        seen += event == "line"
        return count

    for read in (codec.decode, codec.to_builtin):
        with pytest.raises(CorruptError, match="hashes of its keys were chosen to collide"):
            read(chain)
    with pytest.raises(InvalidError, match="hashes of its keys collide"):
        codec.encode(dict.fromkeys(keys))
    sys.settrace(count)
    try:
        assert is_crowded(keys)
    finally:
        sys.settrace(None)
    assert seen < 5 * limits.STEPS_PER_KEY * len(keys)


def plain_map(keys: Iterable[int]) -> bytes:
    """Return a map as the codec never writes one: with other keys than text and no tag."""
    pairs = [msgspec.msgpack.encode(key) + b"\xc0" for key in keys]
    return b"\xdf" + len(pairs).to_bytes(4) + b"".join(pairs)


@pytest.mark.parametrize(
    "around", [b"", b"\x91", b"\x81\xa1k", b"\x92\x01"], ids=["map", "list", "dict", "last"]
)
def test_no_decoder_makes_a_large_plain_map_with_chosen_keys(around: bytes) -> None:
    """20,000 tuples of one hash in 287 KB took a dict 15 s, because the decoder itself made it."""
    hostile = around + plain_map(range(10_000))
    tag = b"\x91" + hostile
    tuple_of_it = b"\xc9" + len(tag).to_bytes(4) + bytes((types.TUPLE,)) + tag

    for encoding in (hostile, b"\x91" + tuple_of_it):
        for read in (codec.decode, codec.to_builtin):
            with pytest.raises(CorruptError, match="key that is not text"):
                read(PLAIN + encoding)
    with pytest.raises(CorruptError, match="key that is not text"):
        refs_in(hostile)
    with pytest.raises(CorruptError, match="key that is not text"):
        holds_pickle(hostile)
    assert classes_in(hostile + b"\x24\x93") == set()
    assert ReadableBytes.value(PLAIN + hostile).base64 == PLAIN + hostile


def test_no_line_of_a_bundle_makes_a_large_plain_map_with_chosen_keys(tmp_path: Path) -> None:
    line = b"\x93\xa1B\xa4main" + plain_map(range(10_000))
    data = b"keepstate history 2\n" + len(line).to_bytes(4) + line
    (tmp_path / "bundle").write_bytes(data + sha256(data).digest())

    with pytest.raises(CorruptError, match="key that is not text"):
        read_bundle(str(tmp_path / "bundle"))


def test_a_dict_that_is_a_tree_has_no_chosen_keys_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """8,000 of them in 205 KB took 1.5 s, and four times as many 16 times as long."""
    crowd = dict.fromkeys((number + 1) * ((1 << 61) - 1) for number in range(4 * limits.UNCHECKED_KEYS))
    with monkeypatch.context() as written:
        for module in (encode_ext, encode):
            written.setattr(module, "is_crowded", lambda *_, **__: False)
        planted = codec.STATES.to_merkle(crowd)
    assert len(planted.objects) > 100

    with pytest.raises(CorruptError, match="hashes of its keys were chosen to collide"):
        codec.STATES.assemble(planted.encoding, planted.objects)


def test_large_maps_with_text_for_keys_are_read_whatever_else_they_hold() -> None:
    value = {f"key {number}": (number, b"\xde\xdf\xde\xff", {number: "é"}) for number in range(5_000)}

    assert codec.decode(codec.encode(value)) == value
    planted = codec.STATES.to_merkle(value)
    assert codec.STATES.assemble(planted.encoding, planted.objects) == value


@pytest.mark.parametrize(
    "keys",
    [
        range(50_000),
        [number << 37 for number in range(50_000)],
        [number / 1024 for number in range(50_000)],
        [(number % 300, number // 300) for number in range(50_000)],
        [timedelta(seconds=number) for number in range(50_000)],
    ],
    ids=["counted", "shifted", "fractions", "pairs", "spans"],
)
def test_keys_that_nobody_chose_are_taken(keys: Sequence[Any]) -> None:
    assert not is_crowded(keys) and not is_crowded(keys, as_set=True)


def test_objects_in_a_set_have_hashes_of_their_own_in_builtin_form() -> None:
    """All of them had one: ten thousand took seconds, by the square of their number."""
    profile = b"\x93\xa1p\x01\x81\xa1n"
    members = [
        b"\xc7" + bytes((len(profile) + 3, 36)) + profile + b"\xcd" + n.to_bytes(2) for n in range(20_000)
    ]

    began_s = time.process_time()
    read: Any = codec.to_builtin(tagged(33, members))

    assert len(read) == 20_000
    assert time.process_time() - began_s < LONGEST_S
