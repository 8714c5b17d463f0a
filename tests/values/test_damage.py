from __future__ import annotations

import resource
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, InvalidError, MissingExtraError, UnsupportedError
from keepstate.values import arrays, limits, types
from keepstate.values.codec import COMPRESSED, PLAIN, Codec, canonical, decode, encode, to_builtin
from keepstate.values.compression import compress, decompress
from keepstate.values.encode_ext import array_head
from keepstate.values.schema import Registry
from tests.values.strategies import values

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def ext(tag: int, body: bytes) -> bytes:
    return b"\xc9" + len(body).to_bytes(4) + bytes([tag]) + body


def read_either_way(data: bytes) -> None:
    """Decode, and let through only what these bytes may raise; the size of the answer stays in bounds."""
    for read in (decode, to_builtin, Codec(Registry()).decode):
        try:
            read(data)
        except (CorruptError, UnsupportedError, MissingExtraError):
            continue
        except InvalidError as error:
            if not any(told in str(error) for told in ("no class is registered", "call stack", "a pickle")):
                raise


@given(st.binary(max_size=200))
def test_foreign_bytes_are_a_value_or_corrupt(data: bytes) -> None:
    read_either_way(PLAIN + data)
    read_either_way(COMPRESSED + data)
    read_either_way(data)


@given(st.integers(0, 127), st.binary(max_size=60))
def test_foreign_bytes_under_every_tag_are_a_value_or_corrupt(tag: int, body: bytes) -> None:
    read_either_way(PLAIN + ext(tag, body))


@given(st.sampled_from(sorted(types.CONTAINERS)), st.binary(max_size=60))
def test_foreign_bytes_in_every_container_are_a_value_or_corrupt(tag: int, body: bytes) -> None:
    read_either_way(PLAIN + ext(tag, array_head(2) + body))
    read_either_way(PLAIN + ext(tag, b"\x93\xa1n\x01" + body))


@given(values, st.data())
def test_a_damaged_value_is_a_value_or_corrupt(value: Any, data: st.DataObject) -> None:
    stored = bytearray(encode(value))
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))

    read_either_way(bytes(stored))


@given(values, st.data())
def test_a_value_cut_off_is_corrupt(value: Any, data: st.DataObject) -> None:
    stored = encode(value)
    cut = data.draw(st.integers(0, len(stored) - 1))

    with pytest.raises(CorruptError):
        decode(stored[:cut])


@given(values, st.binary(min_size=1, max_size=5))
def test_a_value_with_bytes_after_it_is_corrupt(value: Any, rest: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(encode(value) + rest)


BOMBS = {
    "arrays in arrays": b"\x91" * 100_000,
    "maps in maps": b"\x81\x01" * 100_000,
    "an array of four thousand million": b"\xdd\xff\xff\xff\xff",
    "arrays of millions in arrays": b"\xdd\x00\xff\xff\xff" * 300,
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff\x01\x01",
    "bytes of four thousand million": b"\xc6\xff\xff\xff\xff",
    "text of four thousand million": b"\xdb\xff\xff\xff\xff",
    "a tag of four thousand million": b"\xc9\xff\xff\xff\xff\x20",
    "no UTF-8": b"\xa1\xff",
    "surrogates": b"\xa3\xed\xa0\x80",
    "a byte that msgpack never writes": b"\xc1",
    "nothing": b"",
    "a dict as key": b"\x81\x80\x01",
    "an unhashable member": ext(types.SET, b"\x91\x90"),
    "an odd map": ext(types.MAP, b"\x91\x01"),
    "an unhashable key": ext(types.MAP, b"\x92\x90\x01"),
    "a tuple that is no array": ext(types.TUPLE, b"\x01"),
    "a tuple of nothing": ext(types.TUPLE, b""),
    "a tuple and a half": ext(types.TUPLE, b"\x90\x90"),
    "an object of nothing": ext(types.OBJECT, b"\x90"),
    "an object whose name is a number": ext(types.OBJECT, b"\x93\x01\x01\x80"),
    "an object of version text": ext(types.OBJECT, b"\x93\xa1a\xa1a\x80"),
    "an ellipsis with bytes": ext(types.ELLIPSIS, b"x"),
    "half a complex": ext(types.COMPLEX, bytes(8)),
    "a decimal of words": ext(types.DECIMAL, b"one"),
    "a decimal beyond exponents": ext(types.DECIMAL, b"1E" + b"9" * 30),
    "half a uuid": ext(types.UNIQUE_ID, bytes(8)),
    "a path of no system": ext(types.PATH, b"xabc"),
    "the thirteenth month": ext(types.DATETIME, bytes.fromhex("07e80d010000000000000000")),
    "a second fold": ext(types.DATETIME, bytes.fromhex("07e801010000000000000002")),
    "a zone of no kind": ext(types.ZONE, b"\x09"),
    "a zone by half an offset": ext(types.ZONE, b"\x01\x00"),
    "a zone of a hundred days": ext(types.ZONE, b"\x01" + (10**13).to_bytes(8)),
    "a zone outside of the zones": ext(types.ZONE, b"\x02../../etc/passwd"),
    "a zone that is text": ext(types.ZONE, b"\x02\xff"),
    "a span beyond spans": ext(types.TIMEDELTA, b"\x7f\xff\xff\xff" + bytes(8)),
    "an array of objects": ext(types.ARRAY, b"\x01\x02|O" + (1).to_bytes(8) + bytes(8)),
    "an array larger than its bytes": ext(types.ARRAY, b"\x01\x03<f8" + (1 << 60).to_bytes(8) + bytes(8)),
    "an array of absurd size": ext(types.ARRAY, b"\x02\x03<f8" + (1 << 63).to_bytes(8) * 2),
    "an array of no bytes and absurd size": ext(
        types.ARRAY, b"\x02\x03<f8" + (1 << 62).to_bytes(8) + bytes(8)
    ),
    "an array of characters beyond Unicode": ext(types.ARRAY, b"\x01\x03<U1" + (1).to_bytes(8) + b"\xff" * 4),
    "an array of bools beyond true": ext(types.ARRAY, b"\x01\x03|b1" + (1).to_bytes(8) + b"\x02"),
    "a scalar of two": ext(types.SCALAR, b"\x00\x03<f8" + bytes(16)),
    "a deque of more than its length": ext(types.DEQUE, b"\x93\x01\x01\x01"),
    "a deque of half a length": ext(types.DEQUE, b"\x91\xcb" + bytes(8)),
    "a deque of nothing": ext(types.DEQUE, b"\x90"),
    "an odd counter": ext(types.COUNTER, b"\x91\x01"),
    "an ordered dict with an unhashable key": ext(types.ORDERED, b"\x92\x90\x01"),
    "a factory that nobody listed": ext(types.DEFAULT, b"\x91\xa4eval"),
    "a factory that is a number": ext(types.DEFAULT, b"\x91\x01"),
    "a range without a step": ext(types.RANGE, b"\x92\x01\x02"),
    "a range of step 0": ext(types.RANGE, b"\x93\x01\x02\x00"),
    "a range of text": ext(types.RANGE, b"\x93\xa11\x02\x01"),
    "a fraction of nothing": ext(types.FRACTION, b"\x92\x01\x00"),
    "a fraction not in lowest terms": ext(types.FRACTION, b"\x92\x02\x04"),
    "a fraction of text": ext(types.FRACTION, b"\x92\xa11\x04"),
    "a fraction beyond the limit": ext(types.FRACTION, b"\x92\x01" + canonical(1 << 40_000)),
    "a pattern that does not compile": ext(types.PATTERN, b"\x92\xa1(\x20"),
    "a pattern that prints": ext(types.PATTERN, b"\x92\xa1a\xcc\xa0"),
    "a pattern with a flag of none": ext(types.PATTERN, b"\x92\xa1a\xcd\x10\x00"),
    "a pattern that is a number": ext(types.PATTERN, b"\x92\x01\x20"),
    "a pattern nested too deep": ext(
        types.PATTERN, b"\x92\xda\x08\x00" + b"(" * 1024 + b")" * 1024 + b"\x20"
    ),
    "a pattern beyond the limit": ext(types.PATTERN, b"\x92\xda\x10\x01" + b"a" * 4097 + b"\x20"),
    "a pattern of ranges upon ranges": ext(
        types.PATTERN, b"\x92\xda\x0b\xb8" + "[\x01-\uffff]".encode() * 428 + b"aaaa" + b"\x22"
    ),
    "an exception that is none": ext(types.EXCEPTION, b"\x93\xa4eval\x90\x80"),
    "an exception that is a class": ext(types.EXCEPTION, b"\x93\xa3int\x90\x80"),
    "an exception of another number": ext(types.EXCEPTION, b"\x93\xa7OSError\x92\x02\xa1x\x80"),
    "an exception of wrong arguments": ext(types.EXCEPTION, b"\x93\xb2UnicodeDecodeError\x90\x80"),
    "an exception with a hidden attribute": ext(
        types.EXCEPTION, b"\x93\xaaValueError\x90\x81\xa9__class__\x01"
    ),
    "an exception with a method": ext(types.EXCEPTION, b"\x93\xaaValueError\x90\x81\xa8add_note\x01"),
    "an exception without attributes": ext(types.EXCEPTION, b"\x93\xaaValueError\x90\x90"),
    "a tag that nobody gave": ext(99, b""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_nobody_wrote_is_corrupt(name: str) -> None:
    with pytest.raises(CorruptError):
        decode(PLAIN + BOMBS[name])


@pytest.mark.parametrize("name", BOMBS)
def test_what_nobody_wrote_takes_no_memory(name: str) -> None:
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with pytest.raises(CorruptError):
            decode(PLAIN + BOMBS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("tag", sorted(types.CONTAINERS))
def test_tagged_values_nested_beyond_the_limit_are_corrupt(tag: int) -> None:
    body = b"\x01"
    for _ in range(5_000):
        body = ext(tag, b"\x91" + body)

    with pytest.raises(CorruptError):
        decode(PLAIN + body)


@pytest.mark.parametrize("first", [b"\x00", b"\x02", b"\x31", b"\xff"])
def test_an_unknown_first_byte_is_named(first: bytes) -> None:
    with pytest.raises(CorruptError, match=f"starts with {first.hex()}"):
        decode(first + b"\xc0")


def frames() -> Iterator[tuple[str, bytes]]:
    whole = zstd.compress(bytes(100_000))
    unsized = zstd.ZstdCompressor()
    yield "cut off", whole[:-1]
    yield "followed by something", whole + b"x"
    yield "two frames", whole + whole
    yield "nothing", b""
    yield "no frame", b"not zstd"
    yield "of unknown size, cut off", unsized.compress(bytes(100_000), unsized.FLUSH_BLOCK)


@pytest.mark.parametrize(
    ("name", "frame"), list(frames()), ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_compressed_value_is_one_whole_frame(name: str, frame: bytes) -> None:
    with pytest.raises(CorruptError):
        decompress(frame)


def test_a_frame_that_claims_too_much_is_not_inflated() -> None:
    bomb = zstd.compress(bytes(10_000))

    with pytest.raises(CorruptError, match="claims 10000 bytes; at most 9999"):
        decompress(bomb, at_most=9_999)


def test_a_frame_of_unknown_size_is_inflated_no_further_than_the_limit() -> None:
    stream = zstd.ZstdCompressor()
    bomb = stream.compress(bytes(64 << 20), stream.FLUSH_BLOCK) + stream.flush(stream.FLUSH_FRAME)
    assert zstd.get_frame_info(bomb).decompressed_size is None

    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            decompress(bomb, at_most=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20


def test_a_frame_of_unknown_size_within_the_limit_is_inflated() -> None:
    stream = zstd.ZstdCompressor()
    frame = stream.compress(b"x" * 5_000, stream.FLUSH_BLOCK) + stream.flush(stream.FLUSH_FRAME)

    assert decompress(frame, at_most=5_000) == b"x" * 5_000


def test_more_than_can_be_inflated_is_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECODED_BYTES", 5_000)

    with pytest.raises(InvalidError, match="at most 5000"):
        compress(bytes(5_001))


@given(st.integers(0, 3), st.text(max_size=6), st.binary(max_size=40))
@example(1, "<f8", (1).to_bytes(8) + bytes(8))
def test_foreign_arrays_are_arrays_or_corrupt(dimensions: int, dtype: str, rest: bytes) -> None:
    name = dtype.encode("utf-8", "surrogatepass")[:255]
    body = bytes((dimensions, len(name))) + name + rest

    read_either_way(PLAIN + ext(types.ARRAY, body))
    read_either_way(PLAIN + ext(types.SCALAR, body))


def test_bytes_that_are_cut_off_have_no_array() -> None:
    with pytest.raises(Exception, match="requires a buffer"):
        arrays.split(b"\x01")
