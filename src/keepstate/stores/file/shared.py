"""What all handles of a process share of one journal: the spaces, the writer, and who hears of changes.

Reads take `lock` for the length of one read and see what is published. Whoever writes takes `_writing`,
drafts, makes the draft durable, and publishes it under `lock`; only that last step is seen by readers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from keepstate._clock import Clock
from keepstate.errors import InvalidError, StorageError
from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.file.faults import storage_error
from keepstate.stores.file.frames import Format
from keepstate.stores.file.io import Files
from keepstate.stores.file.items import Item, SnapshotEnd
from keepstate.stores.file.journal import Journal
from keepstate.stores.file.lock import ProcessLock
from keepstate.stores.file.state import Draft, JournaledState
from keepstate.stores.protocol import Batch, Outcome

_log = logging.getLogger("keepstate.stores")


class SharedJournal:
    """The spaces of one journal, opened and replayed when made.

    Args:
        path: The journal, absolute and without links.
        form: How frames are written; another journal is written anew. None takes it as it is.
        files: The operating system.
        clock: Where randomness comes from.

    Raises:
        StoreUnavailableError: Another process has it open.
        CorruptError: The journal is damaged.
    """

    def __init__(self, path: str, form: Format | None, files: Files, clock: Clock) -> None:
        self.path, self.users = path, 0
        self.lock, self._writing = threading.Lock(), threading.Lock()
        self.spaces: dict[str, JournaledState] = {}
        self._hearers: tuple[Callable[[str], None], ...] = ()
        try:
            self._process_lock = ProcessLock(path)
        except OSError as error:
            raise storage_error(error, f"{path}.lock") from error
        try:
            self._journal = Journal(path, files, clock)
            self._journal.open(self._replay, form or "msgpack")
            if form is not None and form != self._journal.format:
                self._journal.rewrite(self._snapshot(), form)
        except BaseException:
            self._process_lock.release()
            raise

    def check_form(self, form: Format | None) -> None:
        """Raises `InvalidError` if another handle wants another format."""
        if form is not None and form != self._journal.format:
            raise InvalidError(
                f"{self.path} is open in this process with format={self._journal.format}, and a journal has "
                "one writer: give all handles the same format, or none"
            )

    def _replay(self, item: Item) -> None:
        assert not isinstance(item, SnapshotEnd)
        state = self.spaces.get(item.space)
        if state is None:
            state = self.spaces[item.space] = JournaledState()
        state.replay(item)

    def _snapshot(self) -> Iterator[Item]:
        for name, state in self.spaces.items():
            yield from state.snapshot(name)

    def close(self) -> None:
        """Lets another process in."""
        with self._writing:
            self._journal.close()
            self._process_lock.release()

    def leave_to_parent(self) -> None:
        """Closes a forked child's copies of the descriptors; the parent's stay open and locked."""
        self._journal.close()
        self._process_lock.leave()

    # ---- hints

    def join(self, hear: Callable[[str], None]) -> None:
        """Lets a handle hear of changes."""
        with self.lock:
            self._hearers = (*self._hearers, hear)

    def leave(self, hear: Callable[[str], None]) -> None:
        """Lets it hear no more."""
        with self.lock:
            self._hearers = tuple(hearer for hearer in self._hearers if hearer != hear)

    # ---- reading

    def seen(self, space: str) -> JournaledState:
        """Returns the published space; asking for one does not make it. The caller holds `lock`."""
        return self.spaces.get(space) or JournaledState()

    # ---- writing

    def flush(self, batches: Sequence[Batch], clock_ms: int) -> list[Outcome]:
        """Applies batches as one frame, and returns when they are durable and published."""
        drafts: dict[str, Draft] = {}
        with self._writing:
            outcomes = [self._draft(batch.space, drafts).apply(batch, clock_ms)[0] for batch in batches]
            for draft in drafts.values():
                if draft.records:
                    draft.sweep(clock_ms, SWEPT_BY_FLUSH)
            self._write(drafts)
        self._tell(drafts)
        return outcomes

    def sweep(self, limit: int, clock_ms: int) -> int:
        """Removes up to `limit` expired entries, a revision a space."""
        drafts: dict[str, Draft] = {}
        removed = 0
        with self._writing:
            due = [name for name, state in self.spaces.items() if state.expires]
            for name in due:
                if removed < limit and (record := self._draft(name, drafts).sweep(clock_ms, limit - removed)):
                    removed += len(record.deleted)
            self._write(drafts)
        self._tell(drafts)
        return removed

    def drop(self, space: str, clock_ms: int) -> None:
        """Empties a space, if there is one."""
        drafts: dict[str, Draft] = {}
        with self._writing:
            if self.seen(space).exists:
                self._draft(space, drafts).drop(clock_ms)
                self._write(drafts)
        self._tell(drafts)

    def _draft(self, space: str, drafts: dict[str, Draft]) -> Draft:
        draft = drafts.get(space)
        if draft is None:
            draft = drafts[space] = Draft(self.seen(space))
        return draft

    def _write(self, drafts: dict[str, Draft]) -> None:
        try:
            items = [item for name, draft in drafts.items() for item in draft.items(name)]
            if items:
                self._journal.append(items)
        except BaseException:
            for draft in drafts.values():
                draft.take_back()
            raise
        try:
            self._publish(drafts)
        except BaseException:  # an interrupt: what is in the journal must be in memory too
            self._publish(drafts)
            raise
        if items and self._journal.has_grown:
            self._compact()

    def _publish(self, drafts: dict[str, Draft]) -> None:
        with self.lock:
            for name, draft in drafts.items():
                if not draft.is_empty:
                    self.spaces[name] = draft.publish()

    def _compact(self) -> None:
        """Writes the present state anew; writers wait meanwhile, readers do not."""
        try:
            self._journal.rewrite(self._snapshot(), self._journal.format)
        except StorageError as error:
            _log.warning("%s stays as long as it is for now: %s", self.path, error)
            self._journal.put_off()

    def _tell(self, drafts: dict[str, Draft]) -> None:
        for name, draft in drafts.items():
            if draft.records:
                for hear in self._hearers:
                    hear(name)


class _Registry:
    """The journals that this process has open: one a file, however many handles."""

    def __init__(self) -> None:
        # Entered again when the collector lets go of a forgotten handle in the middle of a call.
        self._lock = threading.RLock()
        self._open: dict[str, SharedJournal] = {}

    def acquire(self, path: str, form: Format | None, files: Files, clock: Clock) -> SharedJournal:
        """Returns the journal at a path, opened if nobody has it open; to be released."""
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
        """Gives a journal back; the last one closes it."""
        with self._lock:
            shared.users -= 1
            if shared.users == 0 and self._open.get(shared.path) is shared:
                del self._open[shared.path]
                shared.close()

    def leave_to_parent(self) -> None:
        """Begins anew in a forked child, where nobody else runs."""
        for shared in self._open.values():
            shared.leave_to_parent()
        self._lock, self._open = threading.RLock(), {}


_registry = _Registry()
acquire, release = _registry.acquire, _registry.release

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.leave_to_parent)
