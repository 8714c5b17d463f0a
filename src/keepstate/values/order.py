"""Edits of the order of a dict that is a tree: the list of its encoded keys, and the number of its descents.

A caller that has loaded the dict knows the places of its keys (`KeyOrder`). Otherwise new keys go to the end,
and a removed key is searched for, page by page from the end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.contents import Contents, keys_between, read_order
from keepstate.values.merkle import build_order, count_descents
from keepstate.values.nodes import item
from keepstate.values.refs import Fetching, Kind, name_of
from keepstate.values.tree import Editing, Tree, all_items, items_between

_PAGE: Final = 512
"""Number of keys that a search reads at a time, in as many rounds as the order has levels."""


class KeyOrder(msgspec.Struct, frozen=True):
    """The new order of a dict's keys.

    Attributes:
        keys: All encoded keys, in order.
        splices: The places of the old order that change, first to last: begin, end and the new keys there.
    """

    keys: Sequence[bytes]
    splices: Sequence[tuple[int, int, Sequence[bytes]]]


def edit_order(
    before: Contents,
    after: Editing,
    added: Sequence[bytes],
    removed: Collection[bytes],
    order: KeyOrder | None,
) -> Fetching[tuple[Editing | None, int]]:
    """Return the order of an edited dict, None if its keys are sorted, and the number of its descents.

    Args:
        before: The dict before the edit, a tree.
        after: Its tree after the edit.
        added: The new keys, in the order in which they follow.
        removed: The removed keys.
        order: The new order, if the caller knows it.

    Raises:
        InvalidError: The new order is not one of the keys of the dict.
    """
    if before.order is None:
        keys = yield from _keys_of_sorted(before, after, added, removed, order)
        return (None, 0) if keys is None else build_order(keys)
    tree = yield from read_order(before.order)
    if order is not None:
        splices = order.splices
    else:
        places = yield from find_places(tree, removed)
        splices = [*cut_places(places.values()), (tree.count, tree.count, added)]
    editing = OrderEditing(tree, before.descents)
    yield from editing.apply(splices)
    _check_keys(editing.added, editing.removed, added, removed)
    if not 0 <= editing.descents < max(after.tree.count, 1):
        raise CorruptError(f"the order of a dict counts {before.descents} descents, and has others")
    return (editing.editing, editing.descents) if editing.descents else (None, 0)


def _keys_of_sorted(
    before: Contents,
    after: Editing,
    added: Sequence[bytes],
    removed: Collection[bytes],
    order: KeyOrder | None,
) -> Fetching[Sequence[bytes] | None]:
    """Return all keys of an edited dict whose keys were sorted, in order; None if they still are."""
    if order is None:
        if not added:
            return None
        count = after.tree.count
        last = yield from after.reading(items_between(after.tree, count - len(added), count))
        if [entry.key for entry in last] == [*added]:
            return None
        new = set(added)
        items = yield from after.reading(all_items(after.tree))
        return [*(entry.key for entry in items if entry.key not in new), *added]
    assert before.tree is not None
    fresh, gone = set[bytes](), set[bytes]()
    for begin, end, keys in order.splices:
        gone.update(entry.key for entry in (yield from items_between(before.tree, begin, end)))
        fresh.update(keys)
    _check_keys(fresh, gone, added, removed)
    return order.keys


def _check_keys(
    fresh: set[bytes], gone: set[bytes], added: Collection[bytes], removed: Collection[bytes]
) -> None:
    if fresh - gone != {*added} or gone - fresh != {*removed}:
        raise InvalidError("the order of a dict's keys has other keys than the dict")


class OrderEditing:
    """The order of a dict's keys that is being edited, and the number of its descents."""

    def __init__(self, order: Tree, descents: int) -> None:
        self.editing, self.descents = Editing(order), descents
        self.added = set[bytes]()
        self.removed = set[bytes]()

    def apply(self, splices: Sequence[tuple[int, int, Sequence[bytes]]]) -> Fetching[None]:
        """Replace keys; the places are those before all splices, first to last."""
        for begin, end, keys in reversed(splices):
            yield from self._splice(begin, end, keys)

    def _splice(self, begin: int, end: int, keys: Sequence[bytes]) -> Fetching[None]:
        low = max(begin - 1, 0)  # the descents at both ends of the range may change
        window = yield from self.editing.reading(keys_between(self.editing.tree, low, end + 1))
        fresh = [*window[: begin - low], *keys, *window[end - low :]]
        self.descents += count_descents(fresh) - count_descents(window)
        self.removed.update(window[begin - low : end - low])
        self.added.update(keys)
        yield from self.editing.splice(begin, end, [item(key) for key in keys])


def cut_places(places: Collection[int]) -> list[tuple[int, int, Sequence[bytes]]]:
    """Return the splices that remove the keys at some places; adjacent ones are joined."""
    splices: list[tuple[int, int, Sequence[bytes]]] = []
    for place in sorted(places):
        if splices and splices[-1][1] == place:
            splices[-1] = splices[-1][0], place + 1, ()
        else:
            splices.append((place, place + 1, ()))
    return splices


def find_places(order: Tree, keys: Collection[bytes]) -> Fetching[dict[bytes, int]]:
    """Return the places of keys in an order, searched page by page from the end.

    Raises:
        CorruptError: The order does not have a key.
    """
    wanted = {name_of(Kind.BLOB, key): key for key in keys}
    places: dict[bytes, int] = {}
    end, page = order.count, _PAGE
    while wanted:
        if not end:
            raise CorruptError(f"order {order.ref.name.hex()} of a dict lacks {len(wanted)} of its keys")
        begin = max(end - page, 0)
        entries = yield from items_between(order, begin, end)
        for place, entry in enumerate(entries, begin):
            if entry.name in wanted:
                places[wanted.pop(entry.name)] = place
        end, page = begin, 2 * page
    return places
