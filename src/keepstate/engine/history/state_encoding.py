"""States made ready to be committed: their encoding, and what objects are to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.engine.history.paths import CODEC, Steps, find, shown
from keepstate.engine.history.session import HistorySession
from keepstate.errors import InvalidError, NotFoundError
from keepstate.values.contents import closed, closed_tree, fields, is_container, open_contents
from keepstate.values.merkle import TREE_BYTES, MerkleValue, compose, shared
from keepstate.values.nodes import item, ref_of, refs_in
from keepstate.values.patch import Edits, edited
from keepstate.values.refs import Fetching
from keepstate.values.tree import Editing, Tree

_KEPT: Final = 16
_KEPT_BYTES: Final = 256 << 10
"""Of the items at a list's end; those of a kept tree stay in memory."""


async def planted(session: HistorySession, root: bytes, state: dict[str, Any]) -> MerkleValue:
    """Return a whole state without the objects that the state of `root` has as well."""
    made = session.states.to_merkle(state)
    there = await session.serve(shared([root], made.objects))
    return MerkleValue(
        made.encoding, {name: data for name, data in made.objects.items() if name not in there}
    )


class Appending:
    """Appends to lists; the ends of those that were appended to last are at hand, and not read again."""

    def __init__(self) -> None:
        self._trees: dict[bytes, Tree] = {}

    def appended(self, root: bytes, steps: Steps, items: Sequence[MerkleValue]) -> Fetching[MerkleValue]:
        """Return a state with items at the end of a list, and the objects that are new.

        Raises:
            InvalidError: There is something else at the path.
            NotFoundError: What should hold the list is not there.
        """
        if len(steps) == 1 and ref_of(root) is None:
            shallow = yield from self._in_small(root, steps, items)
            if shallow is not None:
                return shallow
        *above, last = steps
        way, holder = (yield from find(root, tuple(above))) if above else ((), root)
        edits = Edits()
        try:
            place, encoding = yield from find(holder, (last,))
        except NotFoundError:
            if not is_container(holder) or not (yield from open_contents(holder)).style.has_keys:
                raise
            place, encoding = (CODEC.canonical(last),), b"\x90"
        edits.at(way).puts[place[0]] = yield from self._longer(encoding, items, steps)
        return (yield from edited(root, edits))

    def _in_small(
        self, root: bytes, steps: Steps, items: Sequence[MerkleValue]
    ) -> Fetching[MerkleValue | None]:
        """Return a state that is no tree with a longer list; None if that makes it one."""
        there, key = fields(root), CODEC.canonical(steps[0])
        made = yield from self._longer(there.get(key, b"\x90"), items, steps)
        there[key] = made.encoding
        if sum(map(len, there)) + sum(map(len, there.values())) > TREE_BYTES:
            return None
        return MerkleValue(compose(list(there.values()), list(there)), made.objects)

    def _longer(self, encoding: bytes, items: Sequence[MerkleValue], steps: Steps) -> Fetching[MerkleValue]:
        entries = [item(new.encoding, is_deep=bool(refs_in(new.encoding))) for new in items]
        tree = self._tree(encoding)
        if tree is None:
            contents = (yield from open_contents(encoding)) if is_container(encoding) else None
            if contents is None or contents.style.has_keys:
                raise InvalidError(f"{shown(steps)} is no list; give the path of one")
            tree = contents.tree
            if tree is None:
                made = yield from closed(contents.style, [*contents.entries, *entries])
                return _with(items, made)
        editing = Editing(tree)
        yield from editing.splice(tree.count, tree.count, entries)
        self._keep(editing.tree)
        return _with(items, (yield from closed_tree(editing)))

    def _tree(self, encoding: bytes) -> Tree | None:
        ref = ref_of(encoding)
        return None if ref is None else self._trees.get(ref.name)

    def _keep(self, tree: Tree) -> None:
        if len(self._trees) >= _KEPT:
            self._trees = {}
        if tree.tails and tree.tails[0].size_bytes <= _KEPT_BYTES:
            self._trees[tree.ref.name] = tree


def _with(items: Sequence[MerkleValue], made: MerkleValue) -> MerkleValue:
    objects = {name: data for new in items for name, data in new.objects.items()}
    return MerkleValue(made.encoding, objects | made.objects)
