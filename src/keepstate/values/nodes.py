"""The nodes of a tree and their encoding.

An *entry* is an element of a node: in a leaf an item, above it a node of the level below. The bytes of a leaf
are the encoding of a list of its items, so leaves can be joined and decoded without looking at any item. A
large item is stored in a leaf as a reference to its blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from keepstate.errors import CorruptError
from keepstate.values import types
from keepstate.values.encode_ext import array_head
from keepstate.values.guards import decoder
from keepstate.values.refs import DIGEST_SIZE, TAG, Kind, Ref, name_of, read_number, unpack, write_number

INLINE_BYTES: Final = 64
"""An item up to this size is never a blob, because a reference is hardly shorter."""
PACKED_BYTES: Final = 2_048
"""An item of a list up to this size is part of its leaf, once the leaf is complete."""

_EXT_8: Final = 0xC7
_BRANCHES: Final = 1_024
"""Number of decoded branches in the cache."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An item of a leaf, or a node in the node above it.

    Attributes:
        name: The digest of the item's encoding, or of the node.
        count: The number of items.
        size_bytes: The size of the encodings of those items and, in a dict, of their keys.
        is_deep: Whether any of them contains a reference.
        key: In a dict, the encoded key of the item, or the last key below.
        form: The bytes of the entry in a branch or, for an item, in a tail.
        encoding: The encoding of an item, if it is loaded; None for an unfetched blob, and for a node.
    """

    name: bytes
    count: int
    size_bytes: int
    is_deep: bool
    key: bytes
    form: bytes
    encoding: bytes | None = None

    @property
    def value_bytes(self) -> int:
        """The size of an item's encoding without its key."""
        return self.size_bytes - len(self.key)


class Style(NamedTuple):
    """The rules by which a kind of tree is cut into nodes, by the content of entries alone.

    Attributes:
        leaf_average: Average number of items in a leaf.
        branch_average: Average number of nodes in a branch.
        most: Maximum number of entries of a node, as a multiple of the average.
        root: The kind of the root.
        leaf: The kind of a leaf.
        branch: The kind of a node above.
        has_keys: Whether items are found by key.
    """

    leaf_average: int
    branch_average: int
    most: int
    root: Kind
    leaf: Kind
    branch: Kind
    has_keys: bool

    def ends(self, entry: Entry, size: int, level: int) -> bool:
        """Return whether a node ends with this entry, its `size`-th; never with its first entry."""
        average = self.branch_average if level else self.leaf_average
        # An item of a dict is cut by its key, so that a new value does not move the cuts.
        mark = sha256(entry.key).digest() if self.has_keys and not level else entry.name
        return size > 1 and ((mark[0] << 8 | mark[1]) % average == 0 or size >= self.most * average)


LIST_STYLE: Final = Style(16, 8, 4, Kind.LIST, Kind.LIST_LEAF, Kind.LIST_BRANCH, False)
MAP_STYLE: Final = Style(4, 4, 4, Kind.MAP, Kind.MAP_LEAF, Kind.MAP_BRANCH, True)


def item(encoding: bytes, *, is_deep: bool = False, key: bytes = b"") -> Entry:
    """Return the entry of an item."""
    name, value_bytes = name_of(Kind.BLOB, encoding), len(encoding)
    short = encoding
    if value_bytes > INLINE_BYTES:
        short = Ref(Kind.BLOB, name, 1, value_bytes, is_deep).encoding()
    return Entry(name, 1, len(key) + value_bytes, is_deep, key, key + short, encoding)


def node(style: Style, level: int, name: bytes, entries: Sequence[Entry]) -> Entry:
    """Return the entry of a node whose own entries are of `level`."""
    count, size_bytes, is_deep = totals(entries)
    key = entries[-1].key
    form = name + write_number(count) + write_number(size_bytes << 1 | is_deep)
    if style.has_keys:
        form += write_number(len(key)) + key
    return Entry(name, count, size_bytes, is_deep, key, form)


def blob(entry: Entry) -> Ref:
    """Return the reference to an item that is stored as its own object."""
    return Ref(Kind.BLOB, entry.name, 1, entry.value_bytes, entry.is_deep)


def totals(entries: Iterable[Entry]) -> tuple[int, int, bool]:
    """Return the count, the size and whether any is deep, of entries together."""
    count = size_bytes = 0
    is_deep = False
    for entry in entries:
        count, size_bytes = count + entry.count, size_bytes + entry.size_bytes
        is_deep = is_deep or entry.is_deep
    return count, size_bytes, is_deep


def packed_bytes(style: Style) -> int:
    """Return the maximum size of an item that is stored directly in a complete leaf.

    The items of a list are read together and rarely change. In a dict, one value changes and the others do
    not.
    """
    return INLINE_BYTES if style.has_keys else PACKED_BYTES


def write_node(style: Style, entries: Sequence[Entry], level: int) -> bytes:
    """Return the bytes of a complete node whose entries are of `level`; level 0 makes a leaf."""
    if level:
        return b"".join([entry.form for entry in entries])
    return array_head(len(entries) * (1 + style.has_keys)) + b"".join(
        [
            entry.form
            if entry.encoding is None or entry.value_bytes > packed_bytes(style)
            else entry.key + entry.encoding
            for entry in entries
        ]
    )


def read_node(style: Style, data: bytes, level: int, *, is_deep: bool) -> Sequence[Entry]:
    """Return the entries of a node.

    Raises:
        CorruptError: The bytes are not such a node.
    """
    return read_children(style, data) if level else read_items(style, data, is_deep=is_deep)


def node_kind(style: Style, level: int) -> Kind:
    """Return the kind of a node whose entries are of `level`."""
    return style.branch if level else style.leaf


# ---- items

_split: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def read_items(style: Style, data: bytes, *, is_deep: bool) -> list[Entry]:
    """Return the items of a leaf, or of a root's lowest tail.

    Raises:
        CorruptError: The bytes are not a list of items.
    """
    try:
        raws = [bytes(raw) for raw in _split(data)]
    except msgspec.MsgspecError as error:
        raise CorruptError(f"a leaf is damaged: {error}") from error
    if not style.has_keys:
        return [_read_item(raw, b"", is_deep=is_deep) for raw in raws]
    if len(raws) % 2:
        raise CorruptError("a leaf is damaged: a key has no value")
    return [_read_item(raw, key, is_deep=is_deep) for key, raw in zip(raws[::2], raws[1::2], strict=True)]


def _read_item(raw: bytes, key: bytes, *, is_deep: bool) -> Entry:
    ref = ref_of(raw)
    if ref is not None and ref.kind is Kind.BLOB:
        return Entry(ref.name, 1, len(key) + ref.size_bytes, ref.is_deep, key, key + raw)
    # Looked up only if any item of the leaf is deep.
    return item(raw, is_deep=is_deep and bool(refs_in(raw)), key=key)


def ref_of(encoding: bytes) -> Ref | None:
    """Return the reference that an encoding consists of, or None."""
    if len(encoding) > 3 and encoding[0] == _EXT_8 and encoding[2] == TAG:
        return unpack(encoding[3:])
    return None


def is_ref(encoding: bytes) -> bool:
    """Return whether an encoding consists of a reference."""
    return len(encoding) > 3 and encoding[0] == _EXT_8 and encoding[2] == TAG


def refs_in(encoding: bytes) -> list[Ref]:
    """Return all references in an encoding, in order, at any depth of lists and dicts.

    Raises:
        CorruptError: The bytes are not an encoding.
    """
    found: list[Ref] = []

    def look(tag: int, data: memoryview) -> None:
        if tag == TAG:
            ref = unpack(bytes(data))
            found.append(ref)
            if ref.order is not None:
                found.append(ref.order)
        elif tag == types.MAP:  # a dict with other keys than text
            decode(data)

    decode = decoder(look)
    try:
        decode(encoding)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"an object is damaged: {error}") from error
    return found


_WITH_PARTS: Final = b"\x24\x93"
_WITH_MORE_PARTS: Final = b"\x24\x94"
"""The tag of an object and the head of its parts; no UTF-8 has them."""


def classes_in(data: bytes) -> set[str]:
    """Return name and version, `profile@2`, of the registered classes of the objects in some bytes.

    Args:
        data: An encoding, or a node; a branch has none.
    """
    found: set[str] = set()
    if _WITH_PARTS not in data and _WITH_MORE_PARTS not in data:
        return found

    def look(tag: int, body: memoryview) -> None:
        if tag == types.OBJECT:
            name, version, *_ = decode(body)
            found.add(f"{name}@{version}")
        elif tag in types.CONTAINERS:
            decode(body)

    decode = decoder(look)
    try:
        decode(data)
    except (CorruptError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return found  # a branch, whose digests may look like anything
    return found


# ---- nodes


@lru_cache(maxsize=_BRANCHES)
def read_children(style: Style, data: bytes) -> Sequence[Entry]:
    """Return the nodes of a branch, or of one of a root's upper tails.

    Results are cached, because a change reads the same few branches once for each level, and the next change
    most of them again: without the cache, decoding took half of the time of a change of one in 10,000 items.

    Raises:
        CorruptError: The bytes are not a branch.
    """
    entries: list[Entry] = []
    at, end = 0, len(data)
    try:
        while at < end:
            begin = at
            count, at = data[begin + DIGEST_SIZE], begin + DIGEST_SIZE + 1
            if count > 0x7F:
                count, at = read_number(data, at - 1)
            size, at = read_number(data, at)
            name, key = data[begin : begin + DIGEST_SIZE], b""
            if style.has_keys:
                length, at = read_number(data, at)
                key, at = data[at : at + length], at + length
            entries.append(Entry(name, count, size >> 1, bool(size & 1), key, data[begin:at]))
    except (IndexError, ValueError) as error:
        raise CorruptError(f"a branch is damaged: {error}") from error
    if at != end or any(entry.count == 0 for entry in entries):
        raise CorruptError("a branch is damaged: it is truncated, or empty")
    return tuple(entries)
