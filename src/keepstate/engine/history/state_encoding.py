"""States encoded for a commit: whole states, edited ones, and lists with appended items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.engine.history.paths import CODEC, Steps, find, format_path
from keepstate.engine.history.session import HistorySession
from keepstate.errors import InvalidError, NotFoundError
from keepstate.values.contents import (
    close_contents,
    close_tree,
    fields,
    is_container,
    is_plain_list,
    open_contents,
    split,
)
from keepstate.values.merkle import TREE_BYTES, MerkleValue, compose, find_shared
from keepstate.values.nodes import item, ref_of, refs_in
from keepstate.values.patch import Edits, apply_edits
from keepstate.values.refs import Fetching, together
from keepstate.values.touched import Touched, touched_at
from keepstate.values.tree import Editing, Tree

_CACHED: Final = 16
_CACHED_BYTES: Final = 256 << 10
"""Size of the items at the end of a list; those of a cached tree stay in memory."""


async def encode_state(session: HistorySession, root: bytes, state: dict[str, Any]) -> MerkleValue:
    """Encode a whole state, without the objects that the state of `root` has too."""
    made = session.states.to_merkle(state)
    known = await session.serve(find_shared([root], made.objects))
    return MerkleValue(
        made.encoding, {name: data for name, data in made.objects.items() if name not in known}
    )


def edit_state(root: bytes, edits: Edits, removed: Sequence[bytes]) -> Fetching[MerkleValue]:
    """Return an edited state without some keys; keys that it does not have are ignored."""
    if removed:
        contents = yield from open_contents(root)
        found = yield from together([contents.find(key) for key in removed])
        edits.removed = {key for key, entry in zip(removed, found, strict=True) if entry is not None}
    return (yield from apply_edits(root, edits))


class ListAppender:
    """Appends to lists. Caches the ends of the lists that were appended to last."""

    def __init__(self) -> None:
        self._trees: dict[bytes, Tree] = {}

    def append(
        self, root: bytes, steps: Steps, items: Sequence[MerkleValue]
    ) -> Fetching[tuple[MerkleValue, Touched]]:
        """Return a state with items at the end of a list, the new objects, and the marks of the change.

        Raises:
            InvalidError: The value at the path is not a list.
            NotFoundError: The value that should contain the list does not exist.
        """
        if len(steps) == 1 and ref_of(root) is None:
            small = yield from self._append_in_small(root, steps, items)
            if small is not None:
                return small
        *above, last = steps
        path, holder = (yield from find(root, tuple(above))) if above else ((), root)
        edits = Edits()
        encoding: bytes | None = None
        try:
            step, encoding = yield from find(holder, (last,))
        except NotFoundError:
            if not is_container(holder) or not (yield from open_contents(holder)).style.has_keys:
                raise
            step = (CODEC.canonical(last),)
        made, count = yield from self._append_to(encoding or b"\x90", items, steps)
        edits.at(path).puts[step[0]] = made
        place = (*path, *step) if encoding is None else (*path, *step, count)
        return (yield from apply_edits(root, edits)), touched_at(place)

    def _append_in_small(
        self, root: bytes, steps: Steps, items: Sequence[MerkleValue]
    ) -> Fetching[tuple[MerkleValue, Touched] | None]:
        """Return a state that is not a tree with a longer list; None if that makes it a tree."""
        values, key = fields(root), CODEC.canonical(steps[0])
        place = (key,) if key not in values else None
        made, count = yield from self._append_to(values.get(key, b"\x90"), items, steps)
        values[key] = made.encoding
        if sum(map(len, values)) + sum(map(len, values.values())) > TREE_BYTES:
            return None
        state = MerkleValue(compose(list(values.values()), list(values)), made.objects)
        return state, touched_at(place or (key, count))

    def _append_to(
        self, encoding: bytes, items: Sequence[MerkleValue], steps: Steps
    ) -> Fetching[tuple[MerkleValue, int]]:
        """Return a longer list, and its former length."""
        if is_plain_list(encoding):
            parts = split(encoding)
            longer = [*parts, *(new.encoding for new in items)]
            if sum(map(len, longer)) <= TREE_BYTES:
                return _with_objects(items, MerkleValue(compose(longer), {})), len(parts)
        entries = [item(new.encoding, is_deep=bool(refs_in(new.encoding))) for new in items]
        ref = ref_of(encoding)
        tree = None if ref is None else self._trees.get(ref.name)
        if tree is None:
            contents = (yield from open_contents(encoding)) if is_container(encoding) else None
            if contents is None or contents.style.has_keys:
                raise InvalidError(f"{format_path(steps)} is not a list; pass the path of a list")
            tree = contents.tree
            if tree is None:
                made = yield from close_contents(contents.style, [*contents.entries, *entries])
                return _with_objects(items, made), contents.count
        editing = Editing(tree)
        yield from editing.splice(tree.count, tree.count, entries)
        self._cache(editing.tree)
        return _with_objects(items, (yield from close_tree(editing))), tree.count

    def _cache(self, tree: Tree) -> None:
        if len(self._trees) >= _CACHED:
            self._trees = {}
        if tree.tails and tree.tails[0].size_bytes <= _CACHED_BYTES:
            self._trees[tree.ref.name] = tree


def _with_objects(items: Sequence[MerkleValue], made: MerkleValue) -> MerkleValue:
    objects = {name: data for new in items for name, data in new.objects.items()}
    return MerkleValue(made.encoding, objects | made.objects)
