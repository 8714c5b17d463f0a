"""Watches: every change of documents, in order, from a revision on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from keepstate.engine.documents.record import decode_value, split_record
from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.glob import Glob
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.stored import describe
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, raise_listed, stand_in
from keepstate.errors import (
    CompactedError,
    CorruptError,
    HistoryLostError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.stores.protocol import Change, Listener, Mark, Store, Wakeable

_LONGEST_WAIT_S = 5.0
"""Longest wait for a hint before the log is read anyway, in case a hint was lost."""
_UNREADABLE = CompactedError, CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""Permanent errors of a change: for example, its class is not registered, or has a newer version."""


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A change of one document.

    Attributes:
        key: The document's name.
        kind: The kind of change. An expired document is `deleted`.
        old: The value before the change; None if the document was created.
        new: The value after the change; None if the document was deleted or expired.
        revision: The revision of the change. Documents changed in one batch have the same revision.
        position: An opaque text. With `after=position`, a watch in any process continues after this change.
            For documents changed in one batch, it does so only after the last one; before that, the watch
            yields all of them again.
    """

    key: str
    kind: Literal["created", "updated", "deleted"]
    old: Any
    new: Any
    revision: int
    position: str = field(default="", compare=False)


class Watch:
    """An iterator over changes.

    Attributes:
        revision: The revision up to which all changes have been yielded, for use within this handle.
    """

    revision: int

    def __init__(
        self,
        store: Store,
        executor: Executor,
        glob: Glob,
        hints: Listener,
        after: int | Mark,
        timeout_s: float | None,
        unreadable: IfUnreadable = "raise",
    ) -> None:
        self._store, self._executor, self._glob, self._hints = store, executor, glob, hints
        self._unreadable = unreadable
        self._timeout_s, self._losses = timeout_s, LossDetector(store, executor.stored_name, executor.name)
        self._positions = Positions(store, executor.stored_name, executor.name)
        self._ready: deque[Change] = deque()
        self._complete = after if isinstance(after, Mark) else None
        self._nonces: Mapping[int, bytes] = {} if self._complete is None else dict([self._complete])
        self._fetched_to = self.revision = after.revision if isinstance(after, Mark) else after
        self.passed = 0
        """The number of unreadable changes that were skipped."""

    @property
    def position(self) -> str:
        """The position of this watch, as an opaque text: `after=position` continues here in any process."""
        assert self._complete is not None, "_begin() sets it"
        return self._positions.of_mark(self._complete)

    def __repr__(self) -> str:
        return f"<Watch {self._glob.text!r} of {self._executor.name!r} after {self.revision}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DocumentChange:
        clock = self._executor.clock
        deadline_s = None if self._timeout_s is None else clock.monotonic_s() + self._timeout_s
        goal: int | None = None
        while True:
            while self._ready:
                if (converted := await self._next()) is not None:
                    return converted
            self._advance(self._fetched_to)
            moved = await self._fetch()
            left_s = _LONGEST_WAIT_S if deadline_s is None else deadline_s - clock.monotonic_s()
            if left_s > 0:
                if not moved:
                    await self._hints.wait(min(left_s, _LONGEST_WAIT_S))
                continue
            # Writers may endlessly change documents that do not match: read up to the present revision only.
            if moved and goal is None:
                goal = (await self._store.read(self._executor.stored_name, [])).revision
            if not self._ready and (goal is None or self._fetched_to >= goal):
                self._advance(self._fetched_to)
                raise StopAsyncIteration

    async def take(self, timeout_s: float) -> list[DocumentChange]:
        """Return all changes that are ready; an empty list after the timeout or a call to `wake`.

        Afterwards `revision` is the revision up to which the changes are complete, even if there were none. A
        change that cannot be read raises after the changes before it were returned. The next call skips it.

        Raises:
            CompactedError: The large value of a change was collected, or the log no longer reaches back to
                the watch's revision.
            CorruptError: A change is damaged.
            InvalidError: A change contains an object of a class, or a version of a class, that is not
                registered.
            UnsupportedError: A change was written in a format that this release does not know.
        """
        if not self._ready and not await self._fetch():
            await self._hints.wait(min(timeout_s, _LONGEST_WAIT_S))
            await self._fetch()
        taken: list[DocumentChange] = []
        while self._ready:
            try:
                if (converted := await self._next(passes=not taken)) is not None:
                    taken.append(converted)
            except KeepstateError:
                if not taken:
                    raise
                return taken  # the next call raises the error
        self._advance(self._fetched_to)
        return taken

    def wake(self) -> None:
        """Wake up a waiting `take`, from any thread."""
        if isinstance(self._hints, Wakeable):  # a listener without it polls every 50 ms
            self._hints.wake()

    async def _next(self, *, passes: bool = True) -> DocumentChange | None:
        """Take the first ready change. It stays ready if the caller is cancelled or the store unavailable.

        Args:
            passes: Whether to remove an unreadable change too, so that the next call continues after it.
        """
        change = self._ready[0]
        try:
            try:
                converted = await self._to_public(change)
            except _UNREADABLE as error:
                if self._unreadable != "raw" or layout.is_cut(layout.DOCUMENTS, change.key):
                    raise
                converted = self._without_values(change, error)
        except _UNREADABLE as error:
            if passes or self._unreadable == "skip":
                self._pop()
                self.passed += 1
            if self._unreadable == "skip":
                return None
            if self._unreadable == "raise" and not isinstance(error, CompactedError):
                raise_listed(error)
            raise
        self._pop()
        return converted

    def _pop(self) -> None:
        # A revision is complete once its last change has been yielded.
        revision = self._ready.popleft().revision
        if self._ready and self._ready[0].revision == revision:
            self.revision = revision - 1
        else:
            self._advance(revision)

    def _advance(self, revision: int) -> None:
        self.revision = revision
        self._complete = Mark(revision, self._nonces.get(revision, b""))

    async def _begin(self) -> None:
        """Fetch the first changes, in the same read that verifies the start position.

        Raises:
            CompactedError: The log no longer reaches back to the start position.
            HistoryLostError: The store has lost the history of the start position.
        """
        start = self._fetched_to
        await self._fetch()
        self._complete = Mark(start, self._nonces.get(start, b""))

    async def _fetch(self) -> bool:
        """Fetch the next whole revisions, and return whether there were any.

        Raises:
            HistoryLostError: The revision that the watch continues after was replaced by a different one.
        """
        start = self._fetched_to
        changes = await self._store.changes(self._executor.stored_name, start)
        self._losses.verify()
        if start in self._nonces and changes.nonces.get(start, b"") != self._nonces[start]:
            raise self._positions.lost(start, f"revision {start}")
        moved = changes.upto > start
        self._fetched_to, self._nonces = changes.upto, changes.nonces
        for change in changes.items:
            if change.key.startswith(layout.DOCUMENTS):
                self._ready.extend(_split_expired(change))
        return moved

    async def _to_public(self, change: Change) -> DocumentChange | None:
        """Convert a change for the caller, or return None if its document does not match the pattern."""
        if not layout.is_cut(layout.DOCUMENTS, change.key):
            name = layout.name_of(layout.DOCUMENTS, change.key)
            if not self._glob.matches(name):
                return None
        old, new = await self._fetch_whole(change, change.old), await self._fetch_whole(change, change.new)
        stored = new if new is not None else old
        if stored is None:  # it had expired before it was replaced by a deletion
            return None
        name, _ = split_record(change.key, stored)
        if not self._glob.matches(name):
            return None
        kind: Literal["created", "updated", "deleted"] = (
            "deleted" if change.deleted else "created" if old is None else "updated"
        )
        values = self._value(change, old), self._value(change, new)
        return DocumentChange(name, kind, *values, change.revision, self._position_after(change))

    def _without_values(self, change: Change, error: KeepstateError) -> DocumentChange | None:
        """Return a change whose values are damaged, or whose large values were collected."""
        name = layout.name_of(layout.DOCUMENTS, change.key)
        if not self._glob.matches(name):
            return None
        old, new = [
            None if stored is None else stand_in("raw", None, error) for stored in (change.old, change.new)
        ]
        kind: Literal["created", "updated", "deleted"] = (
            "deleted" if change.deleted else "created" if old is None else "updated"
        )
        return DocumentChange(name, kind, old, new, change.revision, self._position_after(change))

    def _position_after(self, change: Change) -> str:
        """Return the position after this change, which is the next one to be yielded."""
        follows = len(self._ready) > 1 and self._ready[1].revision == change.revision
        if follows:
            return self.position
        return self._positions.of_mark(Mark(change.revision, self._nonces.get(change.revision, b"")))

    async def _fetch_whole(self, change: Change, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        location = f"{describe(change.key)} of {self._executor.name!r}"
        manifest = large_values.parse_manifest(stored, location)
        if manifest is None:
            return stored
        whole = await large_values.fetch(self._store, self._executor.stored_name, manifest, location)
        if whole is None:
            raise CompactedError(
                f"{location} was replaced at revision {change.revision}, and the parts of its large value "
                "were collected. Read its current value, and watch on after that revision",
                space=self._executor.name,
                floor=change.revision,
            )
        return whole

    def _value(self, change: Change, stored: bytes | None) -> Any:
        if stored is None:
            return None
        name, encoded = split_record(change.key, stored)
        try:
            return decode_value(self._executor, change.key, encoded, name=name)
        except UNREADABLE as error:
            if self._unreadable != "raw":
                raise
            return stand_in("raw", encoded, error)


def _split_expired(change: Change) -> tuple[Change, ...]:
    """Split a write over an expired entry into a removal and a creation."""
    if not change.expired:
        return (change,)
    removed = Change(change.revision, change.key, True, change.old, None)
    return removed, Change(change.revision, change.key, False, None, change.new)


_PAGES: Final = 4
"""Pages of the log after which a full listing is cheaper than reading on."""


async def list_changed_names(
    executor: Executor, prefix: str, after: int
) -> tuple[AbstractSet[str], int] | None:
    """Return the names with a prefix of documents changed after a revision, and the last revision read.

    The last revision read is at least the space's revision at the time of the call. The result is None if the
    log does not reach back to `after`, if it has too many pages, or if a name is too long for its key.
    """
    store, begins = await executor.store(), layout.name_prefix(layout.DOCUMENTS, prefix)
    target, names = (await store.read(executor.stored_name, [])).revision, set[str]()
    for _ in range(_PAGES):
        if after >= target:
            return names, after
        try:
            changes = await store.changes(executor.stored_name, after)
        except (CompactedError, HistoryLostError):
            return None
        for change in changes.items:
            if change.key.startswith(begins):
                if layout.is_cut(layout.DOCUMENTS, change.key):
                    return None
                names.add(layout.name_of(layout.DOCUMENTS, change.key))
        after = changes.upto
    return (names, after) if after >= target else None
