"""Watching documents: every change, in order, from a revision on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from keepstate.engine.documents.record import decoded, name_and_value
from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.glob import Glob
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.positions import Positions
from keepstate.errors import (
    CompactedError,
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.stores.protocol import Change, Listener, Mark, Store

_LONGEST_WAIT_S = 5.0
"""How long to trust that no hint was lost."""
_UNREADABLE = CompactedError, CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""What a change raises again however often it is read: its class is of newer code, or nobody knows it."""


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """One document changed.

    Attributes:
        key: The document's name.
        kind: What became of it.
        old: Its value before, None if it was created.
        new: Its value after, None if it was deleted or expired.
        revision: The revision that changed it; documents changed together have the same.
        position: An opaque text. `after=` it, a watch in any process goes on behind this change; of documents
            that were changed together, only behind the last one, and before it with all of them again.
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
        revision: How far the changes given are complete, within this handle.
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
    ) -> None:
        self._store, self._executor, self._glob, self._hints = store, executor, glob, hints
        self._timeout_s, self._losses = timeout_s, LossDetector(store, executor.stored_name, executor.name)
        self._positions = Positions(store, executor.stored_name, executor.name)
        self._ready: deque[Change] = deque()
        self._complete = after if isinstance(after, Mark) else None
        self._nonces: Mapping[int, bytes] = {} if self._complete is None else dict([self._complete])
        self._asked_to = self.revision = after.revision if isinstance(after, Mark) else after
        self.passed = 0
        """How many changes it has passed that it could not read."""

    @property
    def position(self) -> str:
        """An opaque text: `after=` it, a watch in any process goes on where this one stands."""
        assert self._complete is not None, "_begin() has asked"
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
                if (told := await self._next()) is not None:
                    return told
            self._reached(self._asked_to)
            moved = await self._ask()
            left_s = _LONGEST_WAIT_S if deadline_s is None else deadline_s - clock.monotonic_s()
            if left_s > 0:
                if not moved:
                    await self._hints.wait(min(left_s, _LONGEST_WAIT_S))
                continue
            # Others may write without end what this watch does not tell of: it looks as far as they are now.
            if moved and goal is None:
                goal = (await self._store.read(self._executor.stored_name, [])).revision
            if not self._ready and (goal is None or self._asked_to >= goal):
                self._reached(self._asked_to)
                raise StopAsyncIteration

    async def take(self, timeout_s: float) -> list[DocumentChange]:
        """Return what comes next, as much as there is; nothing if nothing comes in time, or it is woken.

        Then `revision` says how far that is complete, also where no document has changed. A change that
        cannot be read raises once those before it are told, and is passed over: the next call goes on.

        Raises:
            CompactedError: Its large value is collected; or the log no longer reaches back to where this is.
            CorruptError: It is damaged.
            InvalidError: It holds an object of a class, or of a version of one, that is not registered.
            UnsupportedError: It was written in a format that this release does not know.
        """
        if not self._ready and not await self._ask():
            await self._hints.wait(min(timeout_s, _LONGEST_WAIT_S))
            await self._ask()
        taken: list[DocumentChange] = []
        while self._ready:
            try:
                if (told := await self._next(passes=not taken)) is not None:
                    taken.append(told)
            except KeepstateError:
                if not taken:
                    raise
                return taken  # those before it are told first
        self._reached(self._asked_to)
        return taken

    def wake(self) -> None:
        """Let who waits in `take` look again, from any thread."""
        hear = getattr(self._hints, "hear", None)
        if hear is not None:  # else it waits for a moment only
            hear()

    async def _next(self, *, passes: bool = True) -> DocumentChange | None:
        """Take the first change that is ready; it stays if the caller is cancelled, or the store away.

        Args:
            passes: Takes what cannot be read too; else nothing behind it would ever be told.
        """
        change = self._ready[0]
        try:
            told = await self._told(change)
        except _UNREADABLE:
            if passes:
                self._take()
                self.passed += 1
            raise
        self._take()
        return told

    def _take(self) -> None:
        # A revision is complete once its last change has been given.
        revision = self._ready.popleft().revision
        if self._ready and self._ready[0].revision == revision:
            self.revision = revision - 1
        else:
            self._reached(revision)

    def _reached(self, revision: int) -> None:
        self.revision = revision
        self._complete = Mark(revision, self._nonces.get(revision, b""))

    async def _begin(self) -> None:
        """Fetch the first changes, in the read that verifies the position that it goes on behind.

        Raises:
            CompactedError: The log no longer reaches back to it.
            HistoryLostError: The store no longer has what it stands behind.
        """
        start = self._asked_to
        await self._ask()
        self._complete = Mark(start, self._nonces.get(start, b""))

    async def _ask(self) -> bool:
        """Fetch the next whole revisions, and return whether there were any.

        Raises:
            HistoryLostError: The revision that it goes on behind is another one now.
        """
        start = self._asked_to
        changes = await self._store.changes(self._executor.stored_name, start)
        self._losses.verify()
        if start in self._nonces and changes.nonces.get(start, b"") != self._nonces[start]:
            raise self._positions.lost(start, f"revision {start}")
        moved = changes.upto > start
        self._asked_to, self._nonces = changes.upto, changes.nonces
        for change in changes.items:
            if change.key.startswith(layout.DOCUMENTS):
                self._ready.extend(_parted(change))
        return moved

    async def _told(self, change: Change) -> DocumentChange | None:
        """Return the change in the caller's terms, or None if its document does not fit the pattern."""
        if not layout.is_cut(layout.DOCUMENTS, change.key):
            name = layout.name_of(layout.DOCUMENTS, change.key)
            if not self._glob.matches(name):
                return None
        old, new = await self._whole(change, change.old), await self._whole(change, change.new)
        stored = new if new is not None else old
        if stored is None:  # it had expired before it was replaced by a deletion
            return None
        name, _ = name_and_value(change.key, stored)
        if not self._glob.matches(name):
            return None
        kind: Literal["created", "updated", "deleted"] = (
            "deleted" if change.deleted else "created" if old is None else "updated"
        )
        values = self._value(change, old), self._value(change, new)
        return DocumentChange(name, kind, *values, change.revision, self._position_behind(change))

    def _position_behind(self, change: Change) -> str:
        """Return the position once this change, which is the next to be given, has been given."""
        follows = len(self._ready) > 1 and self._ready[1].revision == change.revision
        if follows:
            return self.position
        return self._positions.of_mark(Mark(change.revision, self._nonces.get(change.revision, b"")))

    async def _whole(self, change: Change, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        place = f"{describe(change.key)} of {self._executor.name!r}"
        manifest = large_values.parse_manifest(stored, place)
        if manifest is None:
            return stored
        whole = await large_values.fetch(self._store, self._executor.stored_name, manifest, place)
        if whole is None:
            raise CompactedError(
                f"{place} was replaced at revision {change.revision} and the parts of its large value are "
                "collected; read it as it is now, and go on after that revision",
                space=self._executor.name,
                floor=change.revision,
            )
        return whole

    def _value(self, change: Change, stored: bytes | None) -> Any:
        return (
            None
            if stored is None
            else decoded(self._executor, change.key, name_and_value(change.key, stored)[1])
        )


def _parted(change: Change) -> tuple[Change, ...]:
    """Return a write over an expired entry as the removal and the creation that it is."""
    if not change.expired:
        return (change,)
    removed = Change(change.revision, change.key, True, change.old, None)
    return removed, Change(change.revision, change.key, False, None, change.new)
