"""Merkle form of a state: objects named by their content, so that equal values have equal roots.

A list or dict is a tree if and only if its items together have more than `TREE_BYTES`, where items that are
trees count as their references. Otherwise it is part of its parent's encoding. So a small state is one
encoding, and an edit of a large one creates only the objects between the edit and the root.

The items of a dict's tree are in the order of their encoded keys. If the dict is in another order, its
reference names a second tree: the list of its encoded keys in order. The reference also counts the descents,
the adjacent keys of which the first is higher. An edit keeps that count by looking at the keys next to it.
Without a descent there is no second tree, so equal values have equal references, and sorted keys cost
nothing more.

Tuples, sets and objects of classes are never split, like a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import gt
from typing import Any, Final

import msgspec
import ormsgpack

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import types
from keepstate.values.compression import Expansion, is_repeated
from keepstate.values.encode_ext import array_head, map_head
from keepstate.values.guards import is_crowded
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry, Style, item, read_children, ref_of, refs_in
from keepstate.values.refs import TAG, Fetching, Kind, Ref, name_of, unpack
from keepstate.values.tree import Editing, build, child_ref, split_root
from keepstate.values.types import kind_of

TREE_BYTES: Final = 4_096

STYLES: Final = {Kind.LIST: LIST_STYLE, Kind.MAP: MAP_STYLE}
_MAY_HOLD_REF: Final = re.compile(rb"\xc7.%c" % TAG, re.DOTALL)
_EXT_8: Final = 0xC7
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_TEXT: Final = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
"""First bytes of the encodings of text."""

Write = Callable[[object], bytes]
Read = Callable[[bytes], Any]
ReadLeaves = Callable[[Read, Sequence[bytes]], list[Any]]
"""Returns the items of a list, given a decoder and the encodings of the leaves."""


class MerkleValue(msgspec.Struct, frozen=True):
    """The encoding of a value, and the objects that it refers to, by name."""

    encoding: bytes
    objects: dict[bytes, bytes]


# ---- a value as objects


def to_merkle(value: object, write: Write) -> MerkleValue:
    """Return the Merkle form of a value; `write` makes canonical encodings.

    Raises:
        InvalidError: The value would not come back equal and with the same type; the error names the path.
    """
    objects: dict[bytes, bytes] = {}
    whole = write(value)
    encoding, _ = _plant(value, whole, write, objects)
    if is_repeated(whole, len(encoding) + sum(map(len, objects.values()))):
        raise InvalidError(f"the value repeats its parts until it has {len(whole):,} bytes; store them once")
    return MerkleValue(encoding, objects)


def _plant(value: Any, encoding: bytes, write: Write, objects: dict[bytes, bytes]) -> tuple[bytes, bool]:
    """Return the encoding with references to large parts, and whether there are any."""
    kind = kind_of(value)
    if len(encoding) <= TREE_BYTES or (kind is not list and kind is not dict):
        return encoding, False
    keys = None if kind is list else [write(key) for key in value]
    parts = [
        _plant(child, write(child), write, objects) for child in (value if keys is None else value.values())
    ]
    return join_parts(encoding, keys, parts, objects)


def join_parts(
    encoding: bytes,
    keys: Sequence[bytes] | None,
    parts: Sequence[tuple[bytes, bool]],
    objects: dict[bytes, bytes],
) -> tuple[bytes, bool]:
    """Return the Merkle form of a list, or with keys a dict, and whether it contains references.

    Args:
        encoding: The encoding with all parts in full, which is used if no part became a reference.
        keys: The encoded keys of a dict.
        parts: The Merkle form of each item, and whether it contains references.
        objects: The new objects are added to these.
    """
    children = [child for child, _ in parts]
    is_deep = any(deep for _, deep in parts)
    if sum(map(len, keys or ())) + sum(map(len, children)) <= TREE_BYTES:
        return (compose(children, keys) if is_deep else encoding), is_deep
    items = [
        item(child, is_deep=deep, key=key)
        for key, (child, deep) in zip(repeat(b"") if keys is None else keys, parts, strict=False)
    ]
    made = build_container(LIST_STYLE if keys is None else MAP_STYLE, items)
    objects.update(made.objects)
    return made.encoding, True


def build_container(style: Style, items: Sequence[Entry]) -> MerkleValue:
    """Return a list or dict of items as a tree; the items of a dict keep their order."""
    made = build(style, items)
    if not style.has_keys:
        return MerkleValue(made.tree.ref.encoding(), made.objects())
    order, descents = build_order([entry.key for entry in items])
    return join_order(made, order, descents)


def build_order(keys: Sequence[bytes]) -> tuple[Editing | None, int]:
    """Return the tree of an order of encoded keys, None if they are sorted, and the number of descents."""
    descents = count_descents(keys)
    return (build(LIST_STYLE, [item(key) for key in keys]) if descents else None), descents


def count_descents(keys: Sequence[bytes]) -> int:
    """Return the number of adjacent keys of which the first is higher."""
    return sum(map(gt, keys, keys[1:]))


def join_order(made: Editing, order: Editing | None, descents: int) -> MerkleValue:
    """Return a dict from its tree and its order, with their new objects.

    Args:
        made: The tree.
        order: The tree of its order; None if the keys are sorted.
        descents: The descents of the order.
    """
    ref = made.tree.ref
    if order is None:
        return MerkleValue(ref.encoding(), made.objects())
    ref = msgspec.structs.replace(ref, order=order.tree.ref, descents=descents)
    return MerkleValue(ref.encoding(), made.objects() | order.objects())


def compose(children: Sequence[bytes], keys: Sequence[bytes] | None = None) -> bytes:
    """Encode a list of items, or with keys a dict, in the given order."""
    if keys is None:
        return array_head(len(children)) + b"".join(children)
    body = b"".join([part for pair in zip(keys, children, strict=True) for part in pair])
    if all(key[0] in _TEXT for key in keys):
        return map_head(len(keys)) + body
    return ormsgpack.packb(ormsgpack.Ext(types.MAP, array_head(2 * len(keys)) + body))


# ---- objects as a value


def gather(encodings: Iterable[bytes]) -> Fetching[dict[bytes, bytes]]:
    """Return all objects that encodings refer to, at any depth, in one round of fetching for each level.

    Raises:
        CorruptError: An object is damaged.
    """
    gathered: dict[bytes, bytes] = {}

    def take(ref: Ref, data: bytes) -> None:
        gathered[ref.name] = data

    yield from reach(encodings, set(), take)
    return gathered


def reach(
    encodings: Iterable[bytes], known: set[bytes], look: Callable[[Ref, bytes], None] | None = None
) -> Fetching[None]:
    """Add the names of all objects that encodings refer to, at any depth, to the known names.

    Known objects, and everything below them, are skipped.

    Args:
        encodings: The encodings.
        known: The known names.
        look: Takes each new object. Without it, only objects that may contain references are fetched.

    Raises:
        CorruptError: An object is damaged.
    """
    wanted = {
        ref.name: (ref, 0) for encoding in encodings for ref in _refs(encoding) if ref.name not in known
    }
    while wanted:
        known.update(wanted)
        refs = [ref for ref, _ in wanted.values() if look is not None or _has_below(ref)]
        fetched: Mapping[bytes, bytes] = (yield refs) if refs else {}
        found: list[tuple[Ref, int]] = []
        for ref in refs:
            if look is not None:
                look(ref, fetched[ref.name])
            found += _below(ref, wanted[ref.name][1], fetched[ref.name])
        wanted = {ref.name: (ref, level) for ref, level in found if ref.name not in known}


def check_object(ref: Ref, data: bytes) -> None:
    """Raise `CorruptError` if an object does not match its name."""
    if name_of(ref.kind, data) != ref.name:
        raise CorruptError(f"object {ref.name.hex()} is damaged: its bytes have another name")


def find_shared(encodings: Iterable[bytes], objects: Mapping[bytes, bytes]) -> Fetching[set[bytes]]:
    """Return the given objects that the encodings also refer to, at any depth.

    Shared objects, and everything below them, are not fetched.

    Args:
        encodings: The encodings to search.
        objects: All objects of a value, as `to_merkle` made them.
    """
    found: set[bytes] = set()
    seen: set[bytes] = set()
    wanted = {ref.name: (ref, 0) for encoding in encodings for ref in _refs(encoding)}
    while wanted:
        seen.update(wanted)
        here = {name for name in wanted if name in objects}
        found |= here
        missing = [ref for name, (ref, _) in wanted.items() if name not in here and _has_below(ref)]
        fetched: Mapping[bytes, bytes] = (yield missing) if missing else {}
        below = [
            child
            for name, (ref, level) in wanted.items()
            if _has_below(ref)
            for child in _below(ref, level, objects[name] if name in here else fetched[name])
        ]
        wanted = {ref.name: (ref, level) for ref, level in below if ref.name not in seen}
    return found


def _has_below(ref: Ref) -> bool:
    # A leaf that is not deep may still refer to items that are too large for a leaf.
    return ref.is_deep or ref.kind is not Kind.BLOB


def _below(ref: Ref, level: int, data: bytes) -> Iterable[tuple[Ref, int]]:
    """Return the references in an object, each with the level of its entries."""
    if ref.kind is Kind.BLOB:
        return [(below, 0) for below in _refs(data)] if ref.is_deep else ()
    if ref.kind is Kind.LIST_LEAF or ref.kind is Kind.MAP_LEAF:
        return [(below, 0) for below in _refs(data)]
    if ref.kind is Kind.LIST_BRANCH or ref.kind is Kind.MAP_BRANCH:
        style = LIST_STYLE if ref.kind is Kind.LIST_BRANCH else MAP_STYLE
        return _children(style, data, level)
    style = STYLES[ref.kind]
    items, tails = split_root(data)
    found = [(below, 0) for below in _refs(items)]
    for height, tail in enumerate(tails, 1):
        found += _children(style, tail, height)
    return found


def _children(style: Style, data: bytes, level: int) -> list[tuple[Ref, int]]:
    return [(child_ref(style, entry, level), level - 1) for entry in read_children(style, data)]


def _refs(encoding: bytes) -> Sequence[Ref]:
    return refs_in(encoding) if _MAY_HOLD_REF.search(encoding) else ()


def assemble(
    encoding: bytes,
    objects: Mapping[bytes, bytes],
    reader: Callable[[Read], Read],
    read_leaves: ReadLeaves | None = None,
    expansion: Expansion | None = None,
) -> Any:
    """Return the value of an encoding, a new one each time.

    Args:
        encoding: The encoding of a `MerkleValue`.
        objects: At least the objects that `gather` returns.
        reader: Returns a decoder, given a function that resolves the bytes of a reference.
        read_leaves: Decodes the leaves of a list. Without it, all leaves are decoded together.
        expansion: Counts the decoded objects of several values together.

    Raises:
        CorruptError: An object is missing or damaged, or objects are repeated too often.
    """
    counted = Expansion(objects) if expansion is None else expansion

    def resolve(data: bytes) -> Any:
        ref = unpack(data)
        try:
            if ref.kind is Kind.BLOB:
                return read(counted.spend(objects[ref.name]))
            pairs, leaves = STYLES[ref.kind].has_keys, _leaves(ref, objects, counted)
            if pairs or read_leaves is None:
                whole = array_head(ref.count * (1 + pairs)) + b"".join(map(_body, leaves))
                items = read(whole if ref.order is None else _in_order(ref, whole, objects, counted))
            else:
                items = read_leaves(read, leaves)
                _check_count(ref, items)
        except KeyError as error:
            raise CorruptError(f"object {error.args[0].hex()} is missing") from error
        return _pair(items) if pairs else items

    read = reader(resolve)
    return read(encoding)


def _in_order(ref: Ref, pairs: bytes, objects: Mapping[bytes, bytes], counted: Expansion) -> bytes:
    """Return the keys and values of a dict in its own order, given them as sorted by key."""
    assert ref.order is not None
    leaves = _leaves(ref.order, objects, counted)
    try:
        raws = _raws(pairs)
        keys = [bytes(key) for key in _raws(array_head(ref.count) + b"".join(map(_body, leaves)))]
    except msgspec.MsgspecError as error:
        raise CorruptError(f"dict {ref.name.hex()} is damaged: {error}") from error
    keys = [_whole_key(key, objects, counted) if key[0] == _EXT_8 else key for key in keys]
    values = dict(zip(map(bytes, raws[::2]), raws[1::2], strict=True))
    if values.keys() != set(keys) or count_descents(keys) != ref.descents:
        raise CorruptError(f"dict {ref.name.hex()} is damaged: its keys are not those of its order")
    return array_head(2 * ref.count) + b"".join([part for key in keys for part in (key, values[key])])


def _whole_key(key: bytes, objects: Mapping[bytes, bytes], counted: Expansion) -> bytes:
    """Return a key of an order, which is an object of its own if it is long."""
    ref = ref_of(key)
    return key if ref is None else counted.spend(objects[ref.name])


def _pair(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    if is_crowded(keys):
        raise CorruptError("a stored dict is damaged: the hashes of its keys were chosen to collide")
    return dict(zip(keys, items[1::2], strict=True))


def _check_count(ref: Ref, items: Sequence[Any]) -> None:
    if len(items) != ref.count:
        raise CorruptError(f"list {ref.name.hex()} is damaged: it has {len(items)} items, not {ref.count}")


def _leaves(ref: Ref, objects: Mapping[bytes, bytes], counted: Expansion) -> list[bytes]:
    """Return the encodings of a tree's leaves, with the unfinished tail last; each is an array."""
    style = STYLES[ref.kind]
    items, tails = split_root(counted.spend(objects[ref.name]))
    names: list[bytes] = []
    for height in range(len(tails), 0, -1):
        level = [entry.name for entry in read_children(style, tails[height - 1])]
        for _ in range(height - 1):
            level = [
                entry.name for name in level for entry in read_children(style, counted.spend(objects[name]))
            ]
        names += level
    return [*(counted.spend(objects[name]) for name in names), items]


def _body(items: bytes) -> bytes:
    """Return the bytes of an array without its header."""
    return items[1 if items[0] < 0xC0 else 3 if items[0] == 0xDC else 5 :]
