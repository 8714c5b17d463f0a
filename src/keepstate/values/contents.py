"""The items of a list or dict, through one interface for plain encodings and trees, and their conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from keepstate.errors import CorruptError
from keepstate.values import types
from keepstate.values.guards import decoder
from keepstate.values.merkle import STYLES, TREE_BYTES, MerkleValue, compose, join_parts
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry, Style, blob, item, ref_of, refs_in, totals
from keepstate.values.refs import Fetching, together
from keepstate.values.tree import Editing, Tree, all_items, build, find_key, item_at, read_tree

_TAGGED: Final = 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_ext: Final = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode


class Contents(msgspec.Struct, frozen=True):
    """The items of a list or dict.

    Attributes:
        style: List or dict.
        tree: The tree, or None.
        entries: Without a tree: the items in order.
    """

    style: Style
    tree: Tree | None
    entries: Sequence[Entry] = ()

    @property
    def count(self) -> int:
        """Return how many items there are."""
        return len(self.entries) if self.tree is None else self.tree.count

    def items(self) -> Fetching[Sequence[Entry]]:
        """Return all items in order; for a dict that is a tree, in the order of the encoded keys."""
        if self.tree is None:
            return self.entries
        return (yield from all_items(self.tree))

    def find(self, step: int | bytes) -> Fetching[Entry | None]:
        """Return the item at an index of a list, or under an encoded key of a dict, or None."""
        if isinstance(step, int):
            if self.tree is not None:
                return (yield from item_at(self.tree, step))
            return self.entries[step] if 0 <= step < len(self.entries) else None
        if self.tree is not None:
            return (yield from find_key(self.tree, step))[1]
        return next((entry for entry in self.entries if entry.key == step), None)


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
        return Contents(style, read_tree(style, root, is_deep=ref.is_deep))
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
    """Encode a list or dict of these items: as a tree if they are large."""
    if totals(entries)[1] <= TREE_BYTES:
        return MerkleValue((yield from _compose(style, entries)), {})
    made = build(style, (yield from _whole(entries)))
    return MerkleValue(made.tree.ref.encoding(), made.objects())


def close_tree(editing: Editing) -> Fetching[MerkleValue]:
    """Encode a changed tree: as a plain list or dict if few bytes are left."""
    tree = editing.tree
    if tree.ref.size_bytes > TREE_BYTES:
        return MerkleValue(tree.ref.encoding(), editing.objects())
    entries = yield from editing.reading(all_items(tree))
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
