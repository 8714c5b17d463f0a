"""Names by content, and references: the encoded form of a value that is stored as its own object.

A large list or dict is a tree of objects, and its encoding is a `Ref` to the root, so the value that contains
it stays small. A large value of another type is one object, a blob.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from hashlib import sha256
from typing import Final, TypeAlias, TypeVar

import msgspec
import ormsgpack

from keepstate.errors import CorruptError, InvalidError

FORMAT: Final = 1
"""The number of the format of nodes; it goes into their names."""
TAG: Final = 48
"""The Ext code of a reference. Codes are given in `types`; this one is never met in a stored value."""

_T = TypeVar("_T")
Fetching: TypeAlias = Generator[Collection["Ref"], Mapping[bytes, bytes], _T]
"""A generator that requests objects: it yields refs, is sent the objects by name, and returns its result.

So the same rules serve every kind of store, async or blocking.
"""

_EXT_8: Final = 0xC7
"""The first byte of a tagged value of 17 to 255 bytes. A reference has 22 to 80."""
_DEEP: Final = 0x80
_ORDERED: Final = 0x40


class Kind(IntEnum):
    """The kind of an object; the same bytes of another kind have another name."""

    BLOB = 0
    """The encoding of one value, which may hold references."""
    LIST = 1
    """The root of a list: its size, and of each level what is not yet a node."""
    LIST_LEAF = 2
    LIST_BRANCH = 3
    MAP = 4
    """The root of a dict."""
    MAP_LEAF = 5
    MAP_BRANCH = 6


_KINDS: Final = tuple(Kind)
_NAMES: Final = tuple(kind.name.lower().replace("_", " ") for kind in Kind)
"""By the number of a kind, because a lookup by the kind itself takes several times as long."""


class Ref(msgspec.Struct, frozen=True, gc=False):
    """The name of an object, and facts about it that need no read.

    Attributes:
        kind: The kind of the object.
        name: The digest of the object.
        count: The number of items in it and below.
        size_bytes: The size of the encodings of these items.
        is_deep: Whether any of these items contains a reference.
        order: Of a dict that is not in the order of its encoded keys: the list of these keys, in order.
        descents: The number of adjacent keys in `order` of which the first is higher.
    """

    kind: Kind
    name: bytes
    count: int
    size_bytes: int
    is_deep: bool
    order: Ref | None = None
    descents: int = 0

    def packed(self) -> bytes:
        """Return the bytes of the reference: kind, name, size and, except for a blob, the count.

        Name, size and descents of another order follow.
        """
        count = b"" if self.kind is Kind.BLOB else write_number(self.count)
        head = bytes((self.kind | self.is_deep * _DEEP | (self.order is not None) * _ORDERED,))
        packed = head + self.name + write_number(self.size_bytes) + count
        if self.order is None:
            return packed
        return packed + self.order.name + write_number(self.order.size_bytes) + write_number(self.descents)

    def encoding(self) -> bytes:
        """Return the encoding of the reference, as `ext` is encoded."""
        packed = self.packed()
        return bytes((_EXT_8, len(packed), TAG)) + packed

    def ext(self) -> ormsgpack.Ext:
        """Return the form that the encoder writes."""
        return ormsgpack.Ext(TAG, self.packed())


def unpack(data: bytes) -> Ref:
    """Return the reference in these bytes.

    Raises:
        CorruptError: The bytes are not a reference.
    """
    try:
        kind = _KINDS[data[0] & ~(_DEEP | _ORDERED)]
        size_bytes, at = read_number(data, 1 + DIGEST_SIZE)
        count, at = (1, at) if kind is Kind.BLOB else read_number(data, at)
        order, descents = None, 0
        if data[0] & _ORDERED:
            name = data[at : at + DIGEST_SIZE]
            order_bytes, at = read_number(data, at + DIGEST_SIZE)
            descents, at = read_number(data, at)
            order = Ref(Kind.LIST, name, count, order_bytes, is_deep=False)
    except (LookupError, ValueError) as error:
        raise CorruptError(f"a reference to an object is damaged: {error}") from error
    if at != len(data):
        raise CorruptError("a reference to an object is damaged: bytes follow it")
    if order is not None and (kind is not Kind.MAP or not 0 < descents < count):
        raise CorruptError(f"a reference to an object is damaged: {count} keys have {descents} descents")
    return Ref(kind, data[1 : 1 + DIGEST_SIZE], count, size_bytes, data[0] >= _DEEP, order, descents)


def write_number(number: int) -> bytes:
    """Return a non-negative number in as few bytes as possible, seven bits each, lowest first."""
    if number < 0x80:
        return bytes((number,))
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it.

    Raises:
        IndexError: The bytes are truncated.
        ValueError: The number is longer than any that is written.
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 56:
            raise ValueError("a number has more than eight bytes")


def name_of(kind: Kind, encoding: bytes) -> bytes:
    """Return the name of an object."""
    return digest(_NAMES[kind], FORMAT, encoding)


def together(works: Sequence[Fetching[_T]]) -> Fetching[list[_T]]:
    """Return the results of works that do not need one another, in as many rounds as the longest takes."""
    results: dict[int, _T] = {}
    wants: dict[int, Collection[Ref]] = {}

    def step(at: int, objects: Mapping[bytes, bytes] | None) -> None:
        try:
            wants[at] = next(works[at]) if objects is None else works[at].send(objects)
        except StopIteration as end:
            wants.pop(at, None)
            results[at] = end.value

    for at in range(len(works)):
        step(at, None)
    while wants:
        objects = yield list({ref.name: ref for wanted in wants.values() for ref in wanted}.values())
        for at in list(wants):
            step(at, objects)
    return [results[at] for at in range(len(works))]


DIGEST_SIZE: Final = 20


def digest(kind: str, format_number: int, canonical_bytes: bytes) -> bytes:
    """Return SHA-256, cut to 160 bits, of kind, format number and bytes, unambiguously concatenated.

    Args:
        kind: The kind of the bytes (a node, a commit); the same bytes of another kind have another name.
        format_number: The format of the bytes, below 65,536.
        canonical_bytes: The bytes before compression and encryption.
    """
    return sha256(_head(kind, format_number) + canonical_bytes).digest()[:DIGEST_SIZE]


@cache
def _head(kind: str, format_number: int) -> bytes:
    name = kind.encode()
    if not 0 < len(name) < 256 or not 0 <= format_number < 1 << 16:
        raise InvalidError(f"kind {kind!r} or format {format_number!r} does not fit into a digest")
    return bytes((len(name),)) + name + format_number.to_bytes(2)
