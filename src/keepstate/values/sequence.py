"""A list as a tree: its items by index."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.values.nodes import LIST_STYLE, Entry
from keepstate.values.refs import Fetching
from keepstate.values.tree import Editing, Tree, stretch_at


def find(tree: Tree, place: int) -> Fetching[Entry | None]:
    """Return the item at an index; None after the end."""
    if not 0 <= place < tree.count:
        return None
    stretch = yield from stretch_at(tree, place)
    return stretch.entries[place - stretch.begin]


def build(items: Sequence[Entry]) -> Editing:
    """Return a new tree of items, and its objects."""
    editing = Editing(Tree(LIST_STYLE))
    for _ in editing.splice(0, 0, items):
        raise AssertionError("a new tree asks for no object")
    return editing
