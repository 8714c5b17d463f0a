"""A state being changed toward its next commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final

from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    OnConflict,
    admit_order,
    commit_onto,
    commit_turn,
)
from keepstate.engine.history.commits import Commit, commit_of
from keepstate.engine.history.in_place import brought
from keepstate.engine.history.loaded_state import Loaded, State, missing
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.paths import CODEC
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.values.codec import STATES, Codec, canonical
from keepstate.values.comparison import compared
from keepstate.values.contents import open_contents, replanted, whole
from keepstate.values.diff import unlike_keys
from keepstate.values.merkle import MerkleValue, gather
from keepstate.values.patch import Edits, edited
from keepstate.values.refs import Fetching, together

_LONG_BYTES: Final = 64 << 10
"""What was so large before is encoded as what is long."""


class Draft(Loaded, MutableMapping[str, Any]):
    """The state of a branch as it is being changed: a mapping of plain values.

    Lists and dicts in it may be changed in place, also through a reference taken before an earlier commit:
    what is committed is how each value differs from what the draft loaded or committed last.

    Attributes:
        branch: The branch that `commit` moves.
        base: The commit that it stands on, or None if the branch has none yet.
    """

    base: Commit | None

    def __init__(self, executor: Executor, state: State, branch: str, base: Commit | None) -> None:
        super().__init__(executor, state)
        self.branch: str = branch
        self.base = base
        # What each loaded value was encoded as when it was loaded or committed.
        self._bases: dict[str, bytes] = {}
        self._codec = executor.home.states
        self._turns = FifoLock(executor.runner)
        self._keep(state.values)

    def __repr__(self) -> str:
        at = self.base.id[:10] if self.base else "nothing"
        return f"<Draft of {self.branch!r} on {at} in {self._executor.name!r}>"

    # ---- a mapping

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, the same object each time.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        value = self._loaded(key)
        if value is MISSING:
            raise missing(key)
        return value

    def __setitem__(self, key: str, value: object) -> None:
        """Set a key; what it had before need not be loaded."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"{key!r} is no key of a state; give a str")
        self._state.gone.discard(key)
        self._state.values[key] = value

    def __delitem__(self, key: str) -> None:
        """Remove a key.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        if self._loaded(key) is MISSING:
            raise missing(key)
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
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit the state, and return the commit that the branch is on now; the draft goes on from there.

        Each call makes a commit, also if nothing was changed: the moment was asked for. Calls at once take
        turns.

        Args:
            message: What for; at most 64 KiB of UTF-8.
            author: Who commits, if not the author of the space.
            on_conflict: What to do if others have committed to the branch since: raise, or merge. After a
                merge, the draft's lists and dicts are brought to the merged state in place.
            rules: How to merge, by path; see `History.merge`.

        Raises:
            ConflictError: The branch has moved on; nothing was committed.
            NotFoundError: Others are to be merged with, and the branch is gone.
            MergeConflictError: Both sides changed the same, and no rule decides.
            InvalidError: A value would not come back equal; its path is named. Nothing was committed.
        """
        request = admit_order(self._executor, self.branch, message, author, on_conflict, rules)
        return await self._turns.run(lambda: self._commit(request))

    async def _commit(self, request: CommitRequest) -> Commit:
        encodings = self._encodings()
        # Told before anything is waited for: what is changed meanwhile belongs to the next commit.
        edits, gone = self._edits(encodings), [canonical(key) for key in self._state.gone]

        async def work(unit: Unit) -> tuple[CommitResult, dict[str, Any]]:
            session = await self._state.session(unit)
            state = await session.serve(edited_state(self._state.root, edits, gone))
            outcome = await commit_onto(session, request, self._state.id, state)
            return outcome, await self._merged(session, outcome)

        if request.on_conflict == "merge":
            (outcome, others), _ = await self._executor.serialized(commit_turn(request.branch), work)
        else:
            (outcome, others), _ = await self._executor.run(work, attempts=1)
        self._executor.on_rollback(self._standing())
        self._go_on(outcome, encodings, others)
        self.base = commit_of(outcome.id, outcome.record, outcome.number, self.branch)
        return self.base

    def _encodings(self) -> dict[str, bytes]:
        codec, long = self._codec, {key for key, base in self._bases.items() if len(base) > _LONG_BYTES}
        return {
            key: encoded(key, value, codec, is_long=key in long) for key, value in self._state.values.items()
        }

    def _edits(self, encodings: dict[str, bytes]) -> Edits:
        """Return what was changed, but for what was removed."""
        edits = Edits()
        for key, encoding in encodings.items():
            step, before = canonical(key), self._bases.get(key)
            verdict = replanted(encoding) if before is None else compared(before, encoding)
            if isinstance(verdict, Edits):
                edits.inside[step] = verdict
            elif verdict is not None:
                edits.puts[step] = verdict
        if self._state.is_whole:
            edits.order = [canonical(key) for key in self._state.values]
        return edits

    async def _merged(self, session: HistorySession, outcome: CommitResult) -> dict[str, Any]:
        """Return what others changed of the keys that are loaded, `MISSING` for what they removed."""
        if outcome.own_root == outcome.record.root:
            return {}
        mine, now = await session.serve(
            together([open_contents(outcome.own_root), open_contents(outcome.record.root)])
        )
        others: dict[str, Any] = {}
        for was, entry in await session.serve(unlike_keys(mine, now)):
            step = was.key if was is not None else entry.key if entry is not None else b""
            key = CODEC.assemble(step, {})
            others[key] = MISSING
            if entry is not None and (key in self._state.values or self._state.is_whole):
                encodings = await session.serve(whole([entry]))
                others[key] = self._codec.assemble(encodings[0], await session.serve(gather(encodings)))
        return others

    def _standing(self) -> Callable[[], None]:
        """Return what lets the draft stand again where it stands now; its values are left as they are."""
        id, root, base, bases = self._state.id, self._state.root, self.base, self._bases

        def stand() -> None:
            self._state.id, self._state.root, self.base, self._bases = id, root, base, bases

        return stand

    def _go_on(self, outcome: CommitResult, encodings: dict[str, bytes], others: dict[str, Any]) -> None:
        """Stand on the new commit from now on."""
        state = self._state
        state.id, state.root = outcome.id, outcome.record.root
        self._bases = encodings
        for key, value in others.items():
            state.gone.discard(key)
            if value is MISSING:  # removed by others, or not loaded
                state.values.pop(key, None)
                self._bases.pop(key, None)
                continue
            state.values[key] = (
                brought(state.values[key], value, self._codec) if key in state.values else value
            )
            self._bases[key] = self._codec.canonical(state.values[key])

    def _keep(self, loaded: dict[str, Any]) -> None:
        self._bases |= {key: self._codec.canonical_long(value) for key, value in loaded.items()}


def edited_state(root: bytes, edits: Edits, gone: Sequence[bytes]) -> Fetching[MerkleValue]:
    """Return a state as changed, without those of some keys that it has."""
    contents = yield from open_contents(root)
    there = yield from together([contents.find(step) for step in gone])
    edits.removed = {step for step, entry in zip(gone, there, strict=True) if entry is not None}
    return (yield from edited(root, edits))


def encoded(key: str, value: Any, codec: Codec = STATES, *, is_long: bool = False) -> bytes:
    """Return the encoding of a key's value; what cannot be stored is named by its whole path.

    Args:
        key: The key.
        value: The value.
        codec: What encodes it.
        is_long: Whether it is likely to be long.
    """
    try:
        return codec.canonical_long(value) if is_long else codec.canonical(value)
    except InvalidError:
        codec.canonical({key: value})  # names the whole path
        raise
