from __future__ import annotations

from typing import Any

import pytest

from keepstate.values import types
from keepstate.values.codec import COMPRESSED, FORMAT, PLAIN, Codec
from keepstate.values.key import pack, stamp_suffix, stored_key, unpack
from keepstate.values.refs import digest
from tests.formats.format_1 import DIGESTS, KEYS, REGISTRY, STORED, VALUES
from tests.values.sameness import same

CODEC = Codec(REGISTRY)


def shown(part: Any) -> str:
    """Name a vector alike in every process; the text of a set is not."""
    return part[:40] if isinstance(part, str) else type(part).__name__


@pytest.mark.parametrize(("value", "written"), VALUES, ids=shown)
def test_a_value_has_the_bytes_that_it_always_had(value: Any, written: str) -> None:
    assert CODEC.canonical(value).hex() == written


@pytest.mark.parametrize(("value", "written"), VALUES, ids=shown)
def test_what_was_written_is_read(value: Any, written: str) -> None:
    assert same(CODEC.decode(PLAIN + bytes.fromhex(written)), value)


@pytest.mark.parametrize(("value", "written"), STORED, ids=shown)
def test_what_was_stored_is_read(value: Any, written: str) -> None:
    assert same(CODEC.decode(bytes.fromhex(written)), value)


@pytest.mark.parametrize(("path", "written"), KEYS, ids=shown)
def test_a_key_has_the_bytes_that_it_always_had(path: Any, written: str) -> None:
    assert pack(*path).hex() == written
    assert unpack(bytes.fromhex(written)) == path


@pytest.mark.parametrize(("kind", "number", "content", "name"), DIGESTS)
def test_a_digest_is_what_it_always_was(kind: str, number: int, content: bytes, name: str) -> None:
    assert digest(kind, number, content).hex() == name


def test_sections_and_stamps_have_their_bytes() -> None:
    assert [stored_key(section, "a").hex() for section in (0, 1, 2)] == ["00026100", "01026100", "02026100"]
    assert stamp_suffix(1, 2).hex() == "3100000000000000010002"


def test_the_first_bytes_are_frozen() -> None:
    assert (FORMAT, PLAIN, COMPRESSED) == (1, b"\x01", b"\x11")


def test_every_tag_has_a_vector() -> None:
    shown = {(data[1] if 0xD4 <= data[0] <= 0xD8 else data[2]) for data in tagged_vectors()}

    # A pickle stands in no plain value; its vector is in tests/values/test_pickles.py.
    assert shown >= set(types.LEAF_READERS) - {types.PICKLE} | types.CONTAINERS


def tagged_vectors() -> list[bytes]:
    vectors = [bytes.fromhex(written) for _, written in VALUES]
    return [data for data in vectors if data[0] in {0xC7, *range(0xD4, 0xD9)}]
