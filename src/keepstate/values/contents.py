"""The items of a list or dict, through one interface for plain encodings and trees, and their conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from keepstate.errors import CorruptError
from keepstate.values import types
from keepstate.values.guards import decoder
from keepstate.values.merkle import (
    STYLES,
    TREE_BYTES,
    MerkleValue,
    build_container,
    compose,
    join_order,
    join_parts,
)
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry, Style, blob, item, ref_of, refs_in, totals
from keepstate.values.refs import Fetching, Ref, together
from keepstate.values.tree import Editing, Tree, all_items, find_key, item_at, items_between, read_tree

_S = TypeVar("_S")
_T = TypeVar("_T")

_TAGGED: Final = 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_ext: Final = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode


class Contents(msgspec.Struct, frozen=True):
    """The items of a list or dict.

    Attributes:
        style: List or dict.
        tree: The tree, or None.
        entries: Without a tree: the items in order.
        order: With a tree: the order of a dict's encoded keys; None if they are sorted.
        descents: The number of adjacent keys in `order` of which the first is higher.
    """

    style: Style
    tree: Tree | None
    entries: Sequence[Entry] = ()
    order: Ref | None = None
    descents: int = 0

    @property
    def count(self) -> int:
        """Return how many items there are."""
        return len(self.entries) if self.tree is None else self.tree.count

    def items(self) -> Fetching[Sequence[Entry]]:
        """Return all items in order."""
        if self.tree is None:
            return self.entries
        if self.order is None:
            return (yield from all_items(self.tree))
        items, keys = yield from both(all_items(self.tree), self.keys())
        by_key = {entry.key: entry for entry in items}
        if by_key.keys() != set(keys):
            name = self.tree.ref.name.hex()
            raise CorruptError(f"dict {name} is damaged: its keys are not those of its order")
        return [by_key[key] for key in keys]

    def between(self, begin: int, end: int) -> Fetching[Sequence[Entry]]:
        """Return the items from an index to before another one, reading little else."""
        if self.tree is None:
            return self.entries[begin:end]
        if self.order is None:
            return (yield from items_between(self.tree, begin, end))
        keys = yield from keys_between((yield from read_order(self.order)), begin, end)
        found = yield from together([find_key(self.tree, key) for key in keys])
        entries = [entry for _, entry in found if entry is not None]
        if len(entries) != len(keys):
            raise CorruptError(f"dict {self.tree.ref.name.hex()} is damaged: its order has other keys")
        return entries

    def keys(self) -> Fetching[list[bytes]]:
        """Return the encoded keys of a dict, in order."""
        if self.order is None:
            return [entry.key for entry in (yield from self.items())]
        return (yield from keys_between((yield from read_order(self.order)), 0, self.count))

    def find(self, step: int | bytes) -> Fetching[Entry | None]:
        """Return the item at an index of a list, or under an encoded key of a dict, or None."""
        if isinstance(step, int):
            if self.tree is not None:
                return (yield from item_at(self.tree, step))
            return self.entries[step] if 0 <= step < len(self.entries) else None
        if self.tree is not None:
            return (yield from find_key(self.tree, step))[1]
        return next((entry for entry in self.entries if entry.key == step), None)


def read_order(ref: Ref) -> Fetching[Tree]:
    """Return the order of a dict's keys, a list."""
    return read_tree(LIST_STYLE, (yield (ref,))[ref.name], is_deep=False)


def keys_between(order: Tree, begin: int, end: int) -> Fetching[list[bytes]]:
    """Return the encoded keys from a place in an order to before another one."""
    return (yield from whole((yield from items_between(order, begin, end))))


def both(one: Fetching[_S], other: Fetching[_T]) -> Fetching[tuple[_S, _T]]:
    """Return the results of two works, in as many rounds as the longer one takes."""
    first, second = yield from together([cast("Fetching[Any]", one), cast("Fetching[Any]", other)])
    return first, second


def is_container(encoding: bytes) -> bool:
    """Return whether an encoding is a list or dict, or a reference to one."""
    first = encoding[0]
    if first in _TAGGED:
        return ref_of(encoding) is not None or _ext(encoding).code == types.MAP
    return 0x80 <= first < 0xA0 or 0xDC <= first <= 0xDF


def is_plain_list(encoding: bytes) -> bool:
    """Return whether an encoding is a list that is not a tree."""
    return 0x90 <= encoding[0] < 0xA0 or encoding[0] in (0xDC, 0xDD)


def open_contents(encoding: bytes) -> Fetching[Contents]:
    """Return the items of an encoded list or dict; of a tree only the root is fetched.

    Raises:
        CorruptError: The encoding is damaged.
    """
    ref = ref_of(encoding)
    if ref is not None:
        style = STYLES.get(ref.kind)
        if style is None:
            raise CorruptError("a reference to a blob stands for a list or dict")
        root = (yield (ref,))[ref.name]
        tree = read_tree(style, root, is_deep=ref.is_deep)
        return Contents(style, tree, order=ref.order, descents=ref.descents)
    if is_plain_list(encoding):
        return Contents(LIST_STYLE, None, [_item(raw) for raw in split(encoding)])
    return Contents(MAP_STYLE, None, [_item(raw, key) for key, raw in fields(encoding).items()])


def split(encoding: bytes) -> list[bytes]:
    """Return the encodings of the items of a plain list.

    Raises:
        CorruptError: The encoding is not a plain list.
    """
    try:
        return [bytes(raw) for raw in _raws(encoding)]
    except msgspec.MsgspecError as error:
        raise CorruptError(f"a list or dict is damaged: {error}") from error


def fields(encoding: bytes) -> dict[bytes, bytes]:
    """Return the encodings of the items of a plain dict, by encoded key, in order.

    Raises:
        CorruptError: The encoding is not a plain dict.
    """
    tagged = encoding[0] in _TAGGED
    raws = split(bytes(_ext(encoding).data) if tagged else _as_array(encoding))
    if len(raws) % 2:
        raise CorruptError("a dict is damaged: a key has no value")
    return dict(zip(raws[::2], raws[1::2], strict=True))


def _as_array(encoding: bytes) -> bytes:
    """Return the encoding of a dict as that of a list of its keys and values."""
    first = encoding[0]
    if first < 0x90:
        return b"".join((b"\xdc", (2 * (first & 0x0F)).to_bytes(2), memoryview(encoding)[1:]))
    head = 3 if first == 0xDE else 5
    count = 2 * int.from_bytes(encoding[1:head])
    return b"".join((b"\xdd", count.to_bytes(4), memoryview(encoding)[head:]))


def _item(raw: bytes, key: bytes = b"") -> Entry:
    return item(raw, is_deep=bool(refs_in(raw)), key=key)


def close_contents(style: Style, entries: Sequence[Entry]) -> Fetching[MerkleValue]:
    """Encode a list or dict of these items, in this order: as a tree if they are large."""
    if totals(entries)[1] <= TREE_BYTES:
        return MerkleValue((yield from _compose(style, entries)), {})
    return build_container(style, (yield from _whole(entries)))


def close_tree(editing: Editing, order: Editing | None = None, descents: int = 0) -> Fetching[MerkleValue]:
    """Encode a changed tree: as a plain list or dict if few bytes are left.

    Args:
        editing: The tree.
        order: The order of a dict's keys; None if they are sorted.
        descents: The descents of the order.
    """
    tree = editing.tree
    if tree.ref.size_bytes > TREE_BYTES:
        return join_order(editing, order, descents)
    entries: Sequence[Entry] = yield from editing.reading(all_items(tree))
    if order is not None:
        by_key = {entry.key: entry for entry in entries}
        keys = yield from order.reading(keys_between(order.tree, 0, tree.count))
        entries = [by_key[key] for key in keys]
    return MerkleValue((yield from editing.reading(_compose(tree.style, entries))), {})


def _compose(style: Style, entries: Sequence[Entry]) -> Fetching[bytes]:
    children = yield from whole(entries)
    return compose(children, [entry.key for entry in entries] if style.has_keys else None)


def whole(entries: Sequence[Entry]) -> Fetching[list[bytes]]:
    """Return the encodings of items; blobs are fetched."""
    return [entry.encoding or b"" for entry in (yield from _whole(entries))]


def _whole(entries: Sequence[Entry]) -> Fetching[Sequence[Entry]]:
    """Return entries with their encodings; blobs are fetched."""
    missing = {entry.name: blob(entry) for entry in entries if entry.encoding is None}
    if not missing:
        return entries
    found = yield tuple(missing.values())
    return [
        entry if entry.encoding is not None else msgspec.structs.replace(entry, encoding=found[entry.name])
        for entry in entries
    ]


def split_objects(encoding: bytes) -> MerkleValue:
    """Return the Merkle form of a full encoding, the same as `to_merkle` makes."""
    objects: dict[bytes, bytes] = {}
    return MerkleValue(_split_objects(encoding, objects)[0], objects)


def _split_objects(encoding: bytes, objects: dict[bytes, bytes]) -> tuple[bytes, bool]:
    if len(encoding) <= TREE_BYTES or not is_container(encoding):
        return encoding, False
    has_keys = not is_plain_list(encoding)
    there = fields(encoding) if has_keys else {}
    keys = list(there)
    parts = [_split_objects(child, objects) for child in (there.values() if has_keys else split(encoding))]
    return join_parts(encoding, keys if has_keys else None, parts, objects)


def inline_objects(encoding: bytes) -> Fetching[bytes]:
    """Return the full encoding of a value, without decoding it, so that its classes need not be registered.

    Raises:
        CorruptError: An object is missing or damaged.
    """
    if not refs_in(encoding):
        return encoding
    contents = yield from open_contents(encoding)
    entries = yield from contents.items()
    children = yield from together([inline_objects(child) for child in (yield from whole(entries))])
    return compose(children, [entry.key for entry in entries] if contents.style.has_keys else None)


def holds_pickle(encoding: bytes) -> bool:
    """Return whether a full encoding contains a pickle."""
    found = False

    def look(tag: int, body: memoryview) -> None:
        nonlocal found
        if tag == types.PICKLE:
            found = True
        elif tag in types.CONTAINERS:
            decode(body)

    decode = decoder(look)
    decode(encoding)
    return found
