"""The shared part of all handles of a process on one journal: the spaces, the writer, and the listeners.

A read takes `lock` and sees the published state. A write takes `_writing`, drafts its changes, makes the
draft durable, and publishes it under `lock`, so readers see only the last step. A write that was interrupted
by Ctrl-C leaves memory *unsettled*: the next call reads the journal again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from keepstate._clock import Clock
from keepstate.errors import ClockError, InvalidError, StorageError, StoreUnavailableError
from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.clock_leaps import SecondClock
from keepstate.stores.file.durable_mark import MarkFile
from keepstate.stores.file.frames import Format
from keepstate.stores.file.io import Files, ProcessLock
from keepstate.stores.file.items import Item, SnapshotEnd
from keepstate.stores.file.journal import Journal
from keepstate.stores.file.state import Draft, JournaledState
from keepstate.stores.hints import Handles
from keepstate.stores.key_index import SpaceTable
from keepstate.stores.local_files import is_forbidden
from keepstate.stores.protocol import Batch, Outcome

T = TypeVar("T")

_log = logging.getLogger("keepstate.stores")


class SharedJournal:
    """The spaces of one journal, which the constructor opens and replays.

    Args:
        path: The journal, absolute and without links.
        form: The format of frames; a journal in another format is rewritten. None leaves it as it is.
        files: The operating system.
        clock: The source of randomness.

    Raises:
        StoreUnavailableError: Another process has the journal open.
        CorruptError: The journal is damaged.
    """

    def __init__(self, path: str, form: Format | None, files: Files, clock: Clock) -> None:
        self.path, self.users, self._clock = path, 0, clock
        self.lock, self._writing = threading.Lock(), threading.Lock()
        self.spaces = SpaceTable[JournaledState]()
        self._is_unsettled = False
        self._judged_ms: int | None = None
        self.handles = Handles()
        try:
            self._process_lock = ProcessLock(path)
        except OSError as error:
            kind = StorageError if is_forbidden(error) else StoreUnavailableError
            raise kind(
                f"{path}.lock cannot be opened ({error.strerror}). A journal needs this file next to it. "
                "Use a path in a folder that you may write to."
            ) from error
        try:
            descriptor = self._process_lock.descriptor
            assert descriptor is not None, "it was just acquired"
            self._second_clock = SecondClock(descriptor, f"{path}.lock")
            self._journal = Journal(path, files, clock, MarkFile(self._process_lock, path))
            self._journal.open(partial(_replay, self.spaces), form or "msgpack")
            if form is not None and form != self._journal.format:
                self._journal.rewrite(self._snapshot(), form)
        except BaseException:
            self._process_lock.release()
            raise

    def check_form(self, form: Format | None) -> None:
        """Raise `InvalidError` if a handle asks for another format than the journal's."""
        if form is not None and form != self._journal.format:
            raise InvalidError(
                f"{self.path} is open in this process with format={self._journal.format}. A journal has one "
                "writer. Pass the same format= to all handles, or none."
            )

    def _snapshot(self) -> Iterator[Item]:
        for name, state in self.spaces.items():
            yield from state.snapshot(name)

    def close(self) -> None:
        """Close the journal and release its lock."""
        with self._writing:
            self._journal.close()
            self._process_lock.release()

    def leave_to_parent(self) -> None:
        """Close a forked child's copies of the descriptors; the parent's stay open and locked."""
        self._journal.close()
        self._process_lock.leave()

    # ---- after an interrupt

    def settle(self) -> None:
        """Reload the journal if a write was interrupted; call it before taking `lock` to read."""
        if self._is_unsettled:
            with self._writing:
                self._reread()

    def _reread(self) -> None:
        if not self._is_unsettled:
            return
        spaces = SpaceTable[JournaledState]()
        self._journal.reread(partial(_replay, spaces))
        with self.lock:
            self.spaces, self._is_unsettled = spaces, False
        for space in spaces:
            self.handles.notify(space)

    # ---- reading

    def state_of(self, space: str) -> JournaledState:
        """Return the published space without creating it. The caller holds `lock`."""
        return self.spaces.get(space) or JournaledState()

    def reading_ms(self, space: str, clock: Clock) -> int:
        """Return the time for reading a space. The caller holds `lock`.

        While a write is made durable, it is the time of that write's checks. Otherwise a reader could see an
        entry expired without the write that was still allowed to rely on it.

        Raises:
            ClockError: The clock is a leap ahead of the space's time, and the second clock disagrees.
        """
        now_ms, judged_ms = clock.now_ms(), self._judged_ms
        self._confirm(space, clock, now_ms)
        # An interrupt may leave the time of a past write, but then no writer holds the lock.
        return now_ms if judged_ms is None or not self._writing.locked() else min(now_ms, judged_ms)

    def second_ms(self, clock: Clock) -> int:
        """Return the time of the file system."""
        return self._second_clock.read_ms(clock, clock.now_ms())

    def _confirm(self, space: str, clock: Clock, clock_ms: int) -> None:
        self._second_clock.confirm(clock, space, clock_ms, self.state_of(space).clock_ms)

    # ---- writing

    def flush(self, batches: Sequence[Batch], clock: Clock) -> list[Outcome]:
        """Apply batches as one frame, and return once they are durable and published."""

        def apply_all(drafts: dict[str, Draft], clock_ms: int) -> list[Outcome]:
            outcomes: list[Outcome] = []
            for batch in batches:
                try:
                    self._confirm(batch.space, clock, clock_ms)
                except ClockError as error:
                    outcomes.append(error)
                else:
                    outcomes.append(self._draft(batch.space, drafts).apply(batch, clock_ms)[0])
            for draft in drafts.values():
                if draft.records:
                    draft.sweep(clock_ms, SWEPT_BY_FLUSH)
            return outcomes

        return self._write_drafts(apply_all, clock)

    def sweep(self, prefix: str, limit: int, clock: Clock) -> int:
        """Remove up to `limit` expired entries of spaces with this prefix; return the count."""

        def sweep_due(drafts: dict[str, Draft], clock_ms: int) -> int:
            removed = 0
            due = [name for name, state in self.spaces.items() if state.expires and name.startswith(prefix)]
            for name in due:
                self._confirm(name, clock, clock_ms)
            for name in due:
                if removed < limit and (record := self._draft(name, drafts).sweep(clock_ms, limit - removed)):
                    removed += len(record.deleted)
            return removed

        return self._write_drafts(sweep_due, clock)

    def drop(self, space: str, at: int | None, clock: Clock) -> bool:
        """Empty a space, if it exists, and is at a revision if one is given; return whether it did."""

        def drop_it(drafts: dict[str, Draft], clock_ms: int) -> bool:
            state = self.state_of(space)
            if was_there := state.exists and at in (None, state.revision):
                self._confirm(space, clock, clock_ms)
                self._draft(space, drafts).drop(clock_ms)
            return was_there

        return self._write_drafts(drop_it, clock)

    def trim(self, space: str, keep: int = 1) -> None:
        """Remove the log of a space but the last `keep` revisions, and rewrite the journal.

        Raises:
            StorageError: The rewrite failed. The journal still has the log; a repetition removes it.
        """
        with self._writing:
            self._reread()
            with self.lock:
                self.state_of(space).trim(keep)
            self._journal.rewrite(self._snapshot(), self._journal.format)

    def scrub(self) -> None:
        """Rewrite the journal with the present state.

        Raises:
            StorageError: The rewrite failed. The journal is unchanged.
        """
        with self._writing:
            self._reread()
            self._journal.rewrite(self._snapshot(), self._journal.format)

    def _write_drafts(self, work: Callable[[dict[str, Draft], int], T], clock: Clock) -> T:
        """Run `work`, and return its result once its drafts are durable and published."""
        drafts: dict[str, Draft] = {}
        with self._writing:
            self._reread()
            try:
                with self.lock:
                    clock_ms = self._judged_ms = clock.now_ms()
                answer = work(drafts, clock_ms)
                self._append_drafts(drafts)
            except StorageError:
                raise
            except BaseException:
                # A second interrupt may follow at once, so only this assignment is made. The next call reads
                # the
                # outcome of the write from the journal.
                self._is_unsettled = True
                raise
            finally:
                self._judged_ms = None
        for name, draft in drafts.items():
            if draft.records:
                self.handles.notify(name)
        return answer

    def _draft(self, space: str, drafts: dict[str, Draft]) -> Draft:
        draft = drafts.get(space)
        if draft is None:
            draft = drafts[space] = Draft(self.state_of(space), self._clock)
        return draft

    def _append_drafts(self, drafts: dict[str, Draft]) -> None:
        items = [item for name, draft in drafts.items() for item in draft.items(name)]
        if not items:
            return
        try:
            self._journal.append(items)
        except StorageError:
            for draft in drafts.values():
                draft.restore_expiry()
            raise
        with self.lock:
            for name, draft in drafts.items():
                if not draft.is_empty:
                    self.spaces[name] = draft.publish()
            self._judged_ms = None
        if self._journal.has_grown:
            self._compact()

    def _compact(self) -> None:
        """Rewrite the journal with the present state; writers wait for it, readers do not."""
        try:
            self._journal.rewrite(self._snapshot(), self._journal.format)
        except StorageError as error:
            _log.warning("%s could not be compacted and keeps its size for now: %s", self.path, error)
            self._journal.postpone()


def _replay(spaces: dict[str, JournaledState], item: Item) -> None:
    assert not isinstance(item, SnapshotEnd)
    state = spaces.get(item.space)
    if state is None:
        state = spaces[item.space] = JournaledState()
    state.replay(item)


class _Registry:
    """The open journals of this process: one per file, however many handles use it."""

    def __init__(self) -> None:
        # Re-entrant, because the garbage collector may release a leaked handle in the middle of a call.
        self._lock = threading.RLock()
        self._open: dict[str, SharedJournal] = {}

    def acquire(self, path: str, form: Format | None, files: Files, clock: Clock) -> SharedJournal:
        """Return the journal at a path, opening it if necessary; the caller releases it."""
        path = os.path.realpath(path)
        with self._lock:
            shared = self._open.get(path)
            if shared is not None:
                shared.check_form(form)
                shared.users += 1
            if shared is None or path not in self._open:
                shared = self._open[path] = SharedJournal(path, form, files, clock)
                shared.users = 1
            return shared

    def release(self, shared: SharedJournal) -> None:
        """Release a journal; the last release closes it."""
        with self._lock:
            shared.users -= 1
            if shared.users == 0 and self._open.get(shared.path) is shared:
                del self._open[shared.path]
                shared.close()

    def leave_to_parent(self) -> None:
        """Start empty in a forked child, which has only one thread."""
        for shared in self._open.values():
            shared.leave_to_parent()
        self._lock, self._open = threading.RLock(), {}


_registry = _Registry()
acquire, release = _registry.acquire, _registry.release

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.leave_to_parent)
