"""A long-lived draft: it follows its branch, can be reset, and stores events next to its commits.

The events of a branch are a list on a branch of its own. The batch that commits a change also writes the
events about it. So events are as durable as commits, a rollback does not undo them, and they are not part of
the states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from keepstate.engine.history.checkout import State
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    commit_onto,
    commit_turn,
    make_request,
)
from keepstate.engine.history.commits import Commit, commit_of
from keepstate.engine.history.draft import NO_CHANGES, Draft, OtherChanges, encode_value, update_in_place
from keepstate.engine.history.paths import CODEC, find
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord, Head
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.history.state_encoding import ListAppender, edit_state
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError
from keepstate.values.merkle import MerkleValue, gather

EVENT_BRANCHES: Final = ".events/"
"""Prefix of the names of branches that store events."""
EVENTS: Final = "events"
"""The only key of their states."""

MakeEvents: TypeAlias = Callable[[str | None, str | None], Sequence[object]]
"""Returns the events to store, given the id of the state's commit and that of the commit before."""


def no_events(_now: str | None, _before: str | None) -> Sequence[object]:
    """Return no events."""
    return ()


class BranchEventLog:
    """The events of one branch.

    Args:
        executor: The executor of the space.
        branch: The branch.
    """

    def __init__(self, executor: Executor, branch: str) -> None:
        self._executor, self.branch = executor, EVENT_BRANCHES + branch
        self._appender = ListAppender()
        self._cached: tuple[bytes, list[Any]] | None = None
        """The events that were read last, and their commit."""
        self._written: tuple[bytes | None, bytes, list[MerkleValue]] | None = None

    async def append(self, session: HistorySession, events: Sequence[object], author: str | None) -> None:
        """Write events. Call `applied` after the batch was applied."""
        request = make_request(self._executor, self.branch, "", author)
        head = await session.branch(self.branch)
        base = head.commit if head else None
        root = (await session.record(base)).root if base else EMPTY_STATE
        encoded = [self._executor.home.states.to_merkle(event) for event in events]
        state, touched = await session.serve(self._appender.append(root, (EVENTS,), encoded))
        result = await commit_onto(session, request, base, state, touched)
        self._written = base, result.id, encoded

    def applied(self) -> None:
        """Note that the last batch was applied."""
        if self._written is None:
            return
        before, now, encoded = self._written
        self._written = None
        if self._cached is not None and self._cached[0] == before:
            codec = self._executor.home.states
            fresh = [codec.assemble(event.encoding, event.objects) for event in encoded]
            self._cached = now, [*self._cached[1], *fresh]

    async def read(self, session: HistorySession) -> list[Any]:
        """Return all events, in order."""
        head = await session.branch(self.branch)
        if head is None:
            return []
        if self._cached is None or self._cached[0] != head.commit:
            record = await session.record(head.commit)
            _, encoding = await session.serve(find(record.root, (EVENTS,)))
            objects = await session.serve(gather([encoding]))
            self._cached = head.commit, self._executor.home.states.assemble(encoding, objects)
        return list(self._cached[1])


class WorkingCopy(Draft):
    """A long-lived draft of a branch. Call `follow` first."""

    def __init__(self, executor: Executor, branch: str) -> None:
        self._records = Records()
        super().__init__(executor, State(executor, self._records, None, EMPTY_STATE), branch, None)
        self._events = BranchEventLog(executor, branch)

    # ---- committing

    async def keep(
        self, request: CommitRequest, make_events: MakeEvents = no_events, *, always: bool = False
    ) -> Commit | None:
        """Commit changes and store events in one batch.

        Args:
            request: The author, the message, and what to do if the branch has moved on.
            make_events: Returns the events to store; it may be called again.
            always: Whether to commit even without changes.

        Returns:
            The commit that the draft is based on now; None if there is none.

        Raises:
            ConflictError: The branch has moved on. Nothing was written.
            NotFoundError: The request merges, and the branch was deleted.
            MergeConflictError: Both sides changed the same value, and no rule decides.
            InvalidError: A value would not come back equal. The error names its path; nothing was written.
        """
        encodings = self._encodings()
        edits, gone = self._edits(encodings), self._gone()
        base, before = self._state.id, self.base.id if self.base else None

        async def work(unit: Unit) -> tuple[CommitResult | None, OtherChanges] | ConflictError:
            session = await self._state.session(unit)
            state = await session.serve(edit_state(self._state.root, edits, gone))
            result: CommitResult | None = None
            if always or state.encoding != self._state.root:
                head = await session.branch(self.branch)
                if request.on_conflict == "raise" and (head.commit if head else None) != base:
                    return self._moved_error(head)  # returned, because a retry would not help
                result = await commit_onto(session, request, base, state)
            if events := make_events(result.id.hex() if result else before, before):
                await self._events.append(session, events, request.author)
            return result, await self._changed_by_others(session, result) if result else NO_CHANGES

        done, _ = await self._executor.serialized(commit_turn(self.branch), work)
        if isinstance(done, ConflictError):
            raise done
        self._events.applied()
        result, others = done
        if result is not None:
            self._continue_from(result, encodings, others)
        self._state.gone.clear()
        return self.base

    def _moved_error(self, head: Head | None) -> ConflictError:
        now = f"is at {head.commit.hex()[:10]}" if head else "is gone"
        return ConflictError(
            f"branch {self.branch!r} of {self._executor.name!r} {now}, not at "
            f"{self.base.id[:10] if self.base else 'its beginning'}: another caller has committed; "
            "commit with on_conflict='merge', or discard your changes",
            space=self._executor.name,
            key=layout.named_key(layout.BRANCHES, self.branch),
        )

    # ---- changes, and undoing them

    async def is_changed(self) -> bool:
        """Return whether there are uncommitted changes."""
        if any(self._bases.get(key) != self._encoding(key) for key in self._state.values):
            return True
        gone, edits = self._gone(), self._edits({key: self._bases[key] for key in self._state.values})

        async def work(unit: Unit) -> bool:
            session = await self._state.session(unit)
            state = await session.serve(edit_state(self._state.root, edits, gone))
            return state.encoding != self._state.root

        return (await self._executor.run(work))[0]

    def _encoding(self, key: str) -> bytes | None:
        try:
            return encode_value(key, self._state.values[key], self._codec)
        except InvalidError:
            return None

    def refused(self) -> dict[str, InvalidError]:
        """Return the errors of values that cannot be stored, by key."""
        found: dict[str, InvalidError] = {}
        for key, value in self._state.values.items():
            try:
                encode_value(key, value, self._codec)
            except InvalidError as error:
                found[key] = error
        return found

    def restore(self, keys: Iterable[str]) -> None:
        """Reset keys to their loaded or last committed values, and remove those without one."""
        values = self._state.values
        restored = list(keys)
        is_back = any(key in self._bases and key not in values for key in restored)
        for key in restored:
            if key in self._bases:
                values[key] = self._codec.assemble(self._bases[key], {})
            else:
                values.pop(key, None)
        if is_back and self._state.is_whole:  # a key that was removed goes back to its place
            order = [CODEC.assemble(key, {}) for key in self._state.order]
            self._state.values = {key: values[key] for key in order if key in values} | values

    def bring(self, values: Mapping[str, Any]) -> None:
        """Make the state equal to another one, with lists and dicts updated in place."""
        mine = self._state.values
        self._state.gone |= mine.keys() - values.keys()
        self._state.gone -= values.keys()
        self._state.values = {
            key: update_in_place(mine[key], value, self._codec) if key in mine else value
            for key, value in values.items()
        }

    async def follow(self) -> None:
        """Load the newest state of the branch, in place. Uncommitted changes are dropped."""

        async def work(unit: Unit) -> tuple[State, Commit | None]:
            session = HistorySession(unit, self._records, states=self._codec)
            head = await session.branch(self.branch)
            record = await session.record(head.commit) if head else None
            fresh, base = self._at(head, record)
            keys = await fresh.present(session, [*self._state.values])
            await fresh.load(session, True if self._state.is_whole else keys)
            return fresh, base

        (fresh, self.base), _ = await self._executor.run(work)
        mine = self._state.values
        bases = {key: encode_value(key, value, self._codec) for key, value in fresh.values.items()}
        fresh.values = {
            key: self._update(mine[key], value) if key in mine else value
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

    def _update(self, live: Any, value: Any) -> Any:
        try:
            return update_in_place(live, value, self._codec)
        except InvalidError:  # the dropped value could not be stored, so it cannot be compared
            return value

    # ---- events

    async def events(self) -> list[Any]:
        """Return all events of the branch, in order."""

        async def work(unit: Unit) -> list[Any]:
            return await self._events.read(HistorySession(unit, self._records))

        return (await self._executor.run(work))[0]
