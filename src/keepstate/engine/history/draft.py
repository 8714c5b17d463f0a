"""A branch's state that is being changed for the next commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.checkout import Loaded, State, missing_error
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    OnConflict,
    commit_onto,
    commit_turn,
    make_request,
)
from keepstate.engine.history.commits import Commit, commit_of
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.paths import CODEC
from keepstate.engine.history.session import HistorySession
from keepstate.engine.history.state_encoding import edit_state
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.values.codec import STATES, Codec, canonical
from keepstate.values.contents import open_contents, split_objects, whole
from keepstate.values.diff import align, unlike_keys
from keepstate.values.merkle import TREE_BYTES, gather
from keepstate.values.patch import Edits, compare_orders, find_edits
from keepstate.values.refs import together
from keepstate.values.touched import Touched, touched_by_plain
from keepstate.values.types import kind_of

_LONG_BYTES: Final = 64 << 10
"""A value whose last encoding was larger is encoded part by part."""


class OtherChanges(msgspec.Struct, frozen=True):
    """The changes of others that a merge added to a draft.

    Attributes:
        values: The changed keys with their values, `MISSING` for a removed one, or one that is not loaded.
        order: The encoded keys of the merged state, in order; None if nothing was merged, or the draft is not
            loaded whole.
    """

    values: dict[str, Any]
    order: Sequence[bytes] | None = None


NO_CHANGES: Final = OtherChanges({})


class Draft(Loaded, MutableMapping[str, Any]):
    """The next state of a branch: a mapping of plain values.

    Lists and dicts in it may be changed in place, also through a reference from before an earlier commit. A
    commit contains the differences of each value from its loaded or last committed form.

    Attributes:
        branch: The branch that `commit` moves.
        base: The commit that the draft is based on; None if the branch does not exist yet.
    """

    base: Commit | None

    def __init__(self, executor: Executor, state: State, branch: str, base: Commit | None) -> None:
        super().__init__(executor, state)
        self.branch: str = branch
        self.base = base
        # The encoding of each value when it was loaded or last committed.
        self._bases: dict[str, bytes] = {}
        self._steps: dict[str, bytes] = {}
        """The encoding of each key at the last commit, because most keys stay."""
        self._codec = executor.home.states
        self._turns = FifoLock(executor.runner)
        self._on_load(state.values)

    def __repr__(self) -> str:
        at = self.base.id[:10] if self.base else "nothing"
        return f"<Draft of {self.branch!r} on {at} in {self._executor.name!r}>"

    # ---- a mapping

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, the same object each time.

        Raises:
            NotFoundError: The key does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
        """
        value = self._value(key)
        if value is MISSING:
            raise missing_error(key)
        return value

    def __setitem__(self, key: str, value: object) -> None:
        """Set a key. Its old value need not be loaded."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"{key!r} is not a key of a state; use a str")
        self._state.gone.discard(key)
        self._state.values[key] = value

    def __delitem__(self, key: str) -> None:
        """Remove a key.

        Raises:
            NotFoundError: The key does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
        """
        if self._value(key) is MISSING:
            raise missing_error(key)
        del self._state.values[key]
        self._state.gone.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    # ---- committing

    async def commit(
        self,
        message: str = "",
        *,
        author: str | None = None,
        meta: Mapping[str, str] | None = None,
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit the state, and return the new head of the branch. The draft continues from there.

        Each call makes a commit, even without changes. Concurrent calls are serialized.

        Args:
            message: The commit message; at most 64 KiB of UTF-8.
            author: The author of the commit. The default is the author of the space.
            meta: Notes on the commit; see `History.commit`.
            on_conflict: What to do if the branch has moved on: raise, or merge. After a merge, the lists and
                dicts of the draft are updated in place to the merged state.
            rules: Merge rules by path; see `History.merge`.

        Raises:
            ConflictError: The branch has moved on. Nothing was committed.
            NotFoundError: `on_conflict` is `merge`, and the branch was deleted.
            MergeConflictError: Both sides changed the same value, and no rule decides.
            InvalidError: A value would not come back equal. The error names its path; nothing was committed.
        """
        request = make_request(self._executor, self.branch, message, author, on_conflict, rules, meta)
        return await self._turns.run(lambda: self._commit(request))

    async def _commit(self, request: CommitRequest) -> Commit:
        encodings = self._encodings()
        # Computed before the first await, because later changes belong to the next commit.
        edits, gone = self._edits(encodings), self._gone()
        touched = self._touched(encodings, gone)

        async def work(unit: Unit) -> tuple[CommitResult, OtherChanges]:
            session = await self._state.session(unit, request.branch)
            state = await session.serve(edit_state(self._state.root, edits, gone))
            result = await commit_onto(session, request, self._state.id, state, touched)
            return result, await self._changed_by_others(session, result)

        if request.on_conflict == "merge":
            (result, others), _ = await self._executor.serialized(commit_turn(request.branch), work)
        else:
            (result, others), _ = await self._executor.run(work, attempts=1, supposes=True)
        self._executor.on_rollback(self._rollback())
        return self._continue_from(result, encodings, others)

    def _encodings(self) -> dict[str, bytes]:
        codec, long = self._codec, {key for key, base in self._bases.items() if len(base) > _LONG_BYTES}
        return {
            key: encode_value(key, value, codec, is_long=key in long)
            for key, value in self._state.values.items()
        }

    def _gone(self) -> list[bytes]:
        return [canonical(key) for key in self._state.gone]

    def _edits(self, encodings: dict[str, bytes]) -> Edits:
        """Return all changes except removed keys."""
        edits, known, bases = Edits(), self._steps, self._bases
        self._steps = steps = {key: known.get(key) or canonical(key) for key in encodings}
        for key, encoding in encodings.items():
            before = bases.get(key)
            if before == encoding:
                continue
            step = steps[key]
            change = split_objects(encoding) if before is None else find_edits(before, encoding)
            if isinstance(change, Edits):
                edits.inside[step] = change
            elif change is not None:
                edits.puts[step] = change
        if self._state.is_whole:
            edits.order = compare_orders(self._state.order, list(steps.values()))
        return edits

    def _touched(self, encodings: dict[str, bytes], gone: Sequence[bytes]) -> Touched | None:
        """Return the places that the draft has changed; None if comparing the nodes of both states is faster.

        The encodings tell them without the nodes of the states, unless a value has many.
        """
        bases, steps = self._bases, self._steps
        if gone or not self._state.is_whole or self._state.id is None:
            return None
        replaced: list[tuple[bytes, bytes | None, bytes | None]] = []
        for key, encoding in encodings.items():
            before = bases.get(key)
            if before == encoding:
                continue
            if before is not None and len(before) > TREE_BYTES and len(encoding) > TREE_BYTES:
                return None
            replaced.append((steps[key], before, encoding))
        return touched_by_plain(replaced)

    async def _changed_by_others(self, session: HistorySession, result: CommitResult) -> OtherChanges:
        """Return the loaded keys that others changed."""
        if result.own_root == result.record.root:
            return NO_CHANGES
        mine, now = await session.serve(
            together([open_contents(result.own_root), open_contents(result.record.root)])
        )
        others: dict[str, Any] = {}
        for was, entry in await session.serve(unlike_keys(mine, now)):
            step = was.key if was is not None else entry.key if entry is not None else b""
            key = CODEC.assemble(step, {})
            others[key] = MISSING
            if entry is not None and (key in self._state.values or self._state.is_whole):
                encodings = await session.serve(whole([entry]))
                others[key] = self._codec.assemble(encodings[0], await session.serve(gather(encodings)))
        return OtherChanges(others, await session.serve(now.keys()) if self._state.is_whole else None)

    def _rollback(self) -> Callable[[], None]:
        """Return a function that undoes the next commit of the draft; its values stay as they are."""
        id, root, order = self._state.id, self._state.root, self._state.order
        base, bases = self.base, self._bases

        def roll_back() -> None:
            self._state.id, self._state.root, self._state.order = id, root, order
            self.base, self._bases = base, bases

        return roll_back

    def _continue_from(
        self, result: CommitResult, encodings: dict[str, bytes], others: OtherChanges
    ) -> Commit:
        """Continue from the new commit, and return it."""
        state = self._state
        state.id, state.root = result.id, result.record.root
        steps = self._steps
        state.order = [steps[key] for key in encodings] if others.order is None else others.order
        self._bases = encodings
        for key, value in others.values.items():
            state.gone.discard(key)
            if value is MISSING:  # removed by others, or not loaded
                state.values.pop(key, None)
                self._bases.pop(key, None)
                continue
            state.values[key] = (
                update_in_place(state.values[key], value, self._codec) if key in state.values else value
            )
            self._bases[key] = self._codec.canonical(state.values[key])
        if others.order is not None:
            order = [CODEC.assemble(key, {}) for key in others.order]
            state.values = {key: state.values[key] for key in order if key in state.values} | state.values
        self.base = commit_of(result.id, result.record, result.number, self.branch)
        return self.base

    def _on_load(self, loaded: dict[str, Any]) -> None:
        self._bases |= {key: self._codec.canonical_long(value) for key, value in loaded.items()}


def encode_value(key: str, value: Any, codec: Codec = STATES, *, is_long: bool = False) -> bytes:
    """Encode the value of a key.

    Args:
        key: The key.
        value: The value.
        codec: The codec.
        is_long: Whether the value is likely to be long.

    Raises:
        InvalidError: The value cannot be stored. The error has the path from the state down.
    """
    try:
        return codec.canonical_long(value) if is_long else codec.canonical(value)
    except InvalidError:
        codec.canonical({key: value})  # raises with the whole path
        raise


# ---- updates in place


def update_in_place(live: Any, value: Any, codec: Codec = STATES) -> Any:
    """Make a list or dict equal to `value`, so that existing references see the change.

    Returns:
        `live`, or `value` itself if the type differs or cannot be changed in place.
    """
    kind = kind_of(live)
    if kind is not kind_of(value):
        return value
    if kind is dict:
        items = {
            key: update_in_place(live[key], item, codec) if key in live else item
            for key, item in value.items()
        }
        live.clear()
        live.update(items)
        return live
    if kind is list:
        live[:] = _updated_items(live, value, codec)
        return live
    return live if codec.canonical(live) == codec.canonical(value) else value


def _updated_items(live: list[Any], value: list[Any], codec: Codec) -> list[Any]:
    """Return the new items of a list. Items that are in it already stay the same objects."""
    items: list[Any] = []
    at = 0
    old, new = [codec.canonical(item) for item in live], [codec.canonical(item) for item in value]
    for begin, end, new_begin, new_end in align(old, new):
        items += live[at:begin]
        if end - begin == new_end - new_begin:
            pairs = zip(live[begin:end], value[new_begin:new_end], strict=True)
            items += [update_in_place(item, now, codec) for item, now in pairs]
        else:
            items += value[new_begin:new_end]
        at = end
    return items + live[at:]
