"""A draft that somebody works in for long: it follows its branch, can be set back, and keeps a diary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from keepstate.engine.history.branch_events import BranchEventLog
from keepstate.engine.history.commit_request import CommitRequest, CommitResult, commit_onto, commit_turn
from keepstate.engine.history.commits import Commit, commit_of
from keepstate.engine.history.draft import Draft, edited_state, encoded
from keepstate.engine.history.heads import Head
from keepstate.engine.history.in_place import brought
from keepstate.engine.history.loaded_state import State
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError
from keepstate.values.contents import open_contents
from keepstate.values.refs import together

Telling: TypeAlias = Callable[[str | None, str | None], Sequence[object]]
"""Returns what the diary is to say, given the commit that the state is on now, and the one before."""


def nothing(_now: str | None, _before: str | None) -> Sequence[object]:
    """Have nothing to say."""
    return ()


class WorkingCopy(Draft):
    """A draft of a branch for as long as somebody works on it; `follow` begins it."""

    def __init__(self, executor: Executor, branch: str) -> None:
        self._records = Records()
        super().__init__(executor, State(executor, self._records, None, EMPTY_STATE), branch, None)
        self._diary = BranchEventLog(executor, branch)

    # ---- committing

    async def keep(
        self, request: CommitRequest, tell: Telling = nothing, *, always: bool = False
    ) -> Commit | None:
        """Commit what was changed and write what there is to tell, in one batch.

        Args:
            request: By whom, what for, and what to do if the branch has moved on.
            tell: What the diary is to say; it may be asked again.
            always: Whether to commit also if nothing was changed.

        Returns:
            The commit that the draft is on now; None if there is none.

        Raises:
            ConflictError: The branch has moved on; nothing was written.
            NotFoundError: Others are to be merged with, and the branch is gone.
            MergeConflictError: Both sides changed the same, and no rule decides.
            InvalidError: A value would not come back equal; its path is named. Nothing was written.
        """
        encodings = self._encodings()
        edits, gone = self._edits(encodings), self._gone()
        base, before = self._state.id, self.base.id if self.base else None

        async def work(unit: Unit) -> tuple[CommitResult | None, dict[str, Any]] | ConflictError:
            session = await self._state.session(unit)
            state = await session.serve(edited_state(self._state.root, edits, gone))
            outcome: CommitResult | None = None
            if always or state.encoding != self._state.root:
                head = await session.branch(self.branch)
                if request.on_conflict == "raise" and (head.commit if head else None) != base:
                    return self._moved(head)  # to try again would not help
                outcome = await commit_onto(session, request, base, state)
            if entries := tell(outcome.id.hex() if outcome else before, before):
                await self._diary.note(session, entries, request.author)
            return outcome, await self._merged(session, outcome) if outcome else {}

        done, _ = await self._executor.serialized(commit_turn(self.branch), work)
        if isinstance(done, ConflictError):
            raise done
        self._diary.applied()
        outcome, others = done
        if outcome is not None:
            self._go_on(outcome, encodings, others)
            self.base = commit_of(outcome.id, outcome.record, outcome.number, self.branch)
        self._state.gone.clear()
        return self.base

    def _moved(self, head: Head | None) -> ConflictError:
        now = f"is at {head.commit.hex()[:10]}" if head else "is gone"
        return ConflictError(
            f"branch {self.branch!r} of {self._executor.name!r} {now}, not at "
            f"{self.base.id[:10] if self.base else 'its beginning'}: somebody else has committed; "
            "commit with on_conflict='merge', or discard what you have changed",
            space=self._executor.name,
            key=layout.named_key(layout.BRANCHES, self.branch),
        )

    # ---- what was changed, and taking it back

    async def is_changed(self) -> bool:
        """Whether there is something to commit."""
        if any(self._bases.get(key) != self._encoding(key) for key in self._state.values):
            return True
        gone, edits = self._gone(), self._edits({key: self._bases[key] for key in self._state.values})

        async def work(unit: Unit) -> bool:
            session = await self._state.session(unit)
            state = await session.serve(edited_state(self._state.root, edits, gone))
            return state.encoding != self._state.root

        return (await self._executor.run(work))[0]

    def _gone(self) -> list[bytes]:
        return [self._codec.canonical(key) for key in self._state.gone]

    def _encoding(self, key: str) -> bytes | None:
        try:
            return encoded(key, self._state.values[key], self._codec)
        except InvalidError:
            return None

    def refused(self) -> dict[str, InvalidError]:
        """Return why a commit would be refused, by the keys whose values cannot be stored."""
        found: dict[str, InvalidError] = {}
        for key, value in self._state.values.items():
            try:
                encoded(key, value, self._codec)
            except InvalidError as error:
                found[key] = error
        return found

    def restore(self, keys: Iterable[str]) -> None:
        """Give keys the value again that they were loaded or committed with, or none."""
        for key in keys:
            self._state.values.pop(key, None)
            if key in self._bases:
                self._state.values[key] = self._codec.assemble(self._bases[key], {})

    def bring(self, values: Mapping[str, Any]) -> None:
        """Make the state equal to another, its lists and dicts in place."""
        mine = self._state.values
        self._state.gone |= mine.keys() - values.keys()
        self._state.gone -= values.keys()
        self._state.values = {
            key: brought(mine[key], value, self._codec) if key in mine else value
            for key, value in values.items()
        }

    async def follow(self) -> None:
        """Take what the branch has now, its lists and dicts in place; what was not committed is dropped."""

        async def work(unit: Unit) -> tuple[State, Commit | None]:
            session = HistorySession(unit, self._records, states=self._codec)
            head = await session.branch(self.branch)
            record = await session.record(head.commit) if head else None
            fresh, base = self._at(head, record)
            keys = await self._shared_keys(session, fresh)
            await fresh.load(session, True if self._state.is_whole else keys)
            return fresh, base

        (fresh, self.base), _ = await self._executor.run(work)
        mine = self._state.values
        bases = {key: encoded(key, value, self._codec) for key, value in fresh.values.items()}
        fresh.values = {
            key: self._brought(mine[key], value) if key in mine else value
            for key, value in fresh.values.items()
        }
        self._state, self._bases = fresh, bases

    def _at(self, head: Head | None, record: CommitRecord | None) -> tuple[State, Commit | None]:
        if head is None or record is None:
            fresh = State(self._executor, self._records, None, EMPTY_STATE)
            fresh.is_whole = True
            return fresh, None
        fresh = State(self._executor, self._records, head.commit, record.root)
        return fresh, commit_of(head.commit, record, head.number, self.branch)

    async def _shared_keys(self, session: HistorySession, fresh: State) -> list[str]:
        """Return the loaded keys that another state has too."""
        keys = [*self._state.values]
        contents = await session.serve(open_contents(fresh.root))
        steps = [self._codec.canonical(key) for key in keys]
        there = await session.serve(together([contents.find(step) for step in steps]))
        return [key for key, entry in zip(keys, there, strict=True) if entry is not None]

    def _brought(self, live: Any, value: Any) -> Any:
        try:
            return brought(live, value, self._codec)
        except InvalidError:  # what was dropped could not be stored, and so cannot be compared
            return value

    # ---- the diary

    async def told(self) -> list[Any]:
        """Return what the diary says."""

        async def work(unit: Unit) -> list[Any]:
            return await self._diary.read(HistorySession(unit, self._records))

        return (await self._executor.run(work))[0]
