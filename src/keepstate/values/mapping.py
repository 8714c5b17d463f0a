"""A dict as a tree: items ordered by their encoded keys, found by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keepstate.errors import CorruptError
from keepstate.values.nodes import MAP_STYLE, Entry, read_node
from keepstate.values.refs import Fetching
from keepstate.values.tree import Editing, Tree, child_ref


def find(tree: Tree, key: bytes) -> Fetching[tuple[int, Entry | None]]:
    """Return the index of the first item whose key is not below `key`, and that item if it has this key."""
    for height in range(len(tree.tails) - 1, -1, -1):
        place, entry = _first(tree.tails[height].entries, tree.begins[height], key)
        if entry is None:
            continue
        for level in range(height, 0, -1):
            ref = child_ref(MAP_STYLE, entry, level)
            data = (yield (ref,))[ref.name]
            place, entry = _first(read_node(MAP_STYLE, data, level - 1, is_deep=ref.is_deep), place, key)
            if entry is None:
                raise CorruptError(f"object {ref.name.hex()} lacks its last key")
        return place, entry if entry.key == key else None
    return tree.count, None


def _first(entries: Sequence[Entry], place: int, key: bytes) -> tuple[int, Entry | None]:
    for entry in entries:
        if entry.key >= key:
            return place, entry
        place += entry.count
    return place, None


def change(editing: Editing, changes: Mapping[bytes, Entry | None]) -> Fetching[None]:
    """Set the item of each key, or remove it if it is None."""
    # From the last to the first: what changes behind a place does not move it.
    for key in sorted(changes, reverse=True):
        entry = changes[key]
        place, there = yield from editing.reading(find(editing.tree, key))
        if entry is None and there is None:
            continue
        yield from editing.splice(place, place + (there is not None), () if entry is None else (entry,))


def build(entries: Sequence[Entry]) -> Editing:
    """Return a new tree of items in any order, with distinct keys, and its objects."""
    editing = Editing(Tree(MAP_STYLE))
    for _ in editing.splice(0, 0, sorted(entries, key=lambda entry: entry.key)):
        raise AssertionError("a new tree asks for no object")
    return editing
