"""Bugs that storage code has had, planted into ours from outside: the proof must find every one, for ever.

Each is a context manager that replaces one function while it lasts. The product has no switch for any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import apsw
import msgspec

from keepstate.engine.documents.watch import Watch
from keepstate.engine.kernel import large_values, layout, store_abilities
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.glob import Glob
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.unit import NotWrittenError, Unit
from keepstate.errors import ConflictError
from keepstate.stores.base import StoreBase
from keepstate.stores.combiner import Combiner
from keepstate.stores.file.journal import Journal
from keepstate.stores.file.shared import SharedJournal
from keepstate.stores.hints import HintListener
from keepstate.stores.marks import HighWaterMarks
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Check, Durability, Outcome, Reading
from keepstate.stores.records import Record
from keepstate.stores.space_state import SpaceState
from keepstate.stores.sqlite import connection, writer
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.sqlite.revision import Revision
from keepstate.stores.wrappers.sealing import Opened, Sealer

Planted = Generator[None]
Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def check_dropped() -> Planted:
    """Apply a batch whatever stands at the keys that it checks."""
    with patch.object(SpaceState, "_conflict", lambda self, check, now_ms: None):
        yield


@contextmanager
def check_after_write() -> Planted:
    """Write first and judges then: what is refused has been applied."""
    right = SpaceState.apply

    def apply(self: SpaceState, batch: Batch, clock_ms: int) -> tuple[Outcome, Record | None]:
        refusal = self._judge(batch, self.now_ms(clock_ms))
        outcome, record = right(self, msgspec.structs.replace(batch, checks=(), at=None), clock_ms)
        return refusal or outcome, record

    with patch.object(SpaceState, "apply", apply):
        yield


@contextmanager
def scan_unguarded() -> Planted:
    """Let a transaction that has scanned apply although the range has changed."""
    right = Unit.batch

    def batch(self: Unit, beside: Unit | None = None) -> Batch:
        self._has_scanned = False
        return right(self, beside)

    with patch.object(Unit, "batch", batch):
        yield


@contextmanager
def expiry_unguarded() -> Planted:
    """Guard a scan by the revision alone, which expiry does not change."""
    right = Unit.batch

    def batch(self: Unit, beside: Unit | None = None) -> Batch:
        return msgspec.structs.replace(right(self, beside), alive_until_ms=None)

    with patch.object(Unit, "batch", batch):
        yield


@contextmanager
def expiry_of_scanned_entries_forgotten() -> Planted:
    """Guard a scan by the revision alone: remember no expiry of the entries that it found."""
    with patch.object(Unit, "_note_expiry", lambda self, entries: None):
        yield


@contextmanager
def expiry_judged_at_each_reading() -> Planted:
    """Judge expiry at the time of each reading, so that one transaction sees several times."""
    right = SpaceState.read

    def read(
        self: SpaceState, space: str, keys: Sequence[bytes], clock_ms: int, at_ms: int | None
    ) -> Reading:
        return right(self, space, keys, clock_ms)

    with patch.object(SpaceState, "read", read):
        yield


@contextmanager
def end_of_life_not_judged() -> Planted:
    """Judge the revision of a batch, and not the time until which its entries live."""
    right = SpaceState._judge

    def refuse(self: SpaceState, batch: Batch, now_ms: int) -> Outcome | None:
        return right(self, msgspec.structs.replace(batch, alive_until_ms=None), now_ms)

    with patch.object(SpaceState, "_judge", refuse):
        yield


@contextmanager
def token_ignored() -> Planted:
    """Apply a retry again."""
    with patch.object(SpaceState, "_known_outcome", lambda self, token, now_ms: None):
        yield


@contextmanager
def token_too_late() -> Planted:
    """Keep a batch's token only once the next one has come, after its answer."""
    right, pending = SpaceState._append_to_log, dict[int, tuple[bytes, Applied]]()

    def keep_in_log(self: SpaceState, record: Record, olds: Sequence[bytes | None]) -> None:
        right(self, record, olds)
        if id(self) in pending:
            token, outcome = pending.pop(id(self))
            self._tokens[token] = outcome
        if record.token is not None:
            pending[id(self)] = record.token, self._tokens.pop(record.token)

    with patch.object(SpaceState, "_append_to_log", keep_in_log):
        yield


@contextmanager
def refusal_forgotten() -> Planted:
    """Keep no outcome of a retry, so that a late original applies after it was refused."""
    with patch.object(SpaceState, "_keep_outcome", lambda self, batch, outcome, now_ms: None):
        yield


@contextmanager
def revision_skipped() -> Planted:
    """Leave out a revision now and then, as a counter does that is taken before the batch is judged."""
    right = SpaceState._make_record

    def record(self: SpaceState, batch: Batch, now_ms: int) -> Record:
        if self.revision % 20 == 10:
            self.revision += 1
        return right(self, batch, now_ms)

    with patch.object(SpaceState, "_make_record", record):
        yield


@contextmanager
def change_not_logged() -> Planted:
    """Tell only of the first write of a batch, as triggers do that fire once a statement."""
    right = SpaceState._append_to_log

    def keep_in_log(self: SpaceState, record: Record, olds: Sequence[bytes | None]) -> None:
        told = msgspec.structs.replace(record, entries=record.entries[:1])
        right(self, told, [*olds[: len(told.entries)], *olds[len(record.entries) :]])

    with patch.object(SpaceState, "_append_to_log", keep_in_log):
        yield


@contextmanager
def star_stops_at_slash() -> Planted:
    """Let `*` of a pattern match no `/`, as the patterns of a shell do."""
    right = Glob.matches

    def matches(self: Glob, name: str) -> bool:
        parts, names = self.text.split("/"), name.split("/")
        return right(self, name) and ("*" not in self.text or len(names) == len(parts))

    with patch.object(Glob, "matches", matches):
        yield


@contextmanager
def lost_wake_up() -> Planted:
    """Begin to listen only when it waits: a hint that comes before is lost."""
    right = HintListener.wait

    async def wait(self: HintListener, timeout_s: float) -> None:
        self._signal = self._board._runner.signal()
        await right(self, timeout_s)

    with patch.object(HintListener, "wait", wait):
        yield


@contextmanager
def flush_dies_with_its_caller() -> Planted:
    """Never ends a flush whose caller was cancelled, so that all that come later wait for it."""

    async def apply_alone(self: Combiner, batches: Sequence[Batch]) -> list[Outcome]:
        self._flushing = True
        outcomes = await self._flush(batches)
        self._flushing = False
        if self._queue:
            self._is_busy = True
            self._ensure_flusher()
        return outcomes

    with patch.object(Combiner, "_apply_alone", apply_alone):
        yield


@contextmanager
def read_from_a_cache() -> Planted:
    """Answer every fourth read with what it read before under the same keys."""
    right, known, count = StoreBase.read, dict[tuple[object, ...], Reading](), [0]

    async def read(
        self: StoreBase, space: str, keys: Sequence[bytes], *, at_ms: int | None = None
    ) -> Reading:
        place = (id(self), space, at_ms, *keys)
        count[0] += 1
        if place not in known or count[0] % 4:
            known[place] = await right(self, space, keys, at_ms=at_ms)
        return known[place]

    with patch.object(StoreBase, "read", read):
        yield


@contextmanager
def old_values_under_a_new_revision() -> Planted:
    """Answer every third read with old entries, and say that they are of the present revision."""
    right, known, count = StoreBase.read, dict[tuple[object, ...], Reading](), [0]

    async def read(
        self: StoreBase, space: str, keys: Sequence[bytes], *, at_ms: int | None = None
    ) -> Reading:
        place, reading = (id(self), space, at_ms, *keys), await right(self, space, keys, at_ms=at_ms)
        count[0] += 1
        if place in known and count[0] % 3 == 0:
            return msgspec.structs.replace(reading, entries=known[place].entries)
        known[place] = reading
        return reading

    with patch.object(StoreBase, "read", read):
        yield


@contextmanager
def expiry_by_the_clients_clock() -> Planted:
    """Tell a client's own time where the space's was asked for."""
    right = StoreBase.read

    async def read(
        self: StoreBase, space: str, keys: Sequence[bytes], *, at_ms: int | None = None
    ) -> Reading:
        return msgspec.structs.replace(
            await right(self, space, keys, at_ms=at_ms), now_ms=self._clock.now_ms()
        )

    with patch.object(StoreBase, "read", read):
        yield


@contextmanager
def time_that_goes_back() -> Planted:
    """Take the store's clock as it is, so that what had expired comes back when the clock is set back."""

    def now_ms(self: SpaceState, clock_ms: int) -> int:
        self.clock_ms = clock_ms
        return clock_ms

    with patch.object(SpaceState, "now_ms", now_ms):
        yield


@contextmanager
def sweep_without_check() -> Planted:
    """Remove what was to expire by now, and do not look whether it was renewed."""

    def sweep(self: SpaceState, clock_ms: int, limit: int) -> Record | None:
        now_ms = self.now_ms(clock_ms)
        due = {key: None for at_ms, key in self._expiry if at_ms <= now_ms and key in self.entries}
        self._expiry = [(at_ms, key) for at_ms, key in self._expiry if at_ms > now_ms]
        if not due:
            return None
        record = Record(self.revision + 1, now_ms, [], list(due))
        self.install(record)
        return record

    with patch.object(SpaceState, "sweep", sweep):
        yield


@contextmanager
def lease_not_fenced() -> Planted:
    """Forget that a holder's write must find its own lease."""
    right = Unit.check

    def check(self: Unit, key: bytes, *, created: int | None = None, **others: Any) -> None:
        if created is None:
            right(self, key, **others)

    with patch.object(Unit, "check", check):
        yield


@contextmanager
def drop_restarts_revisions() -> Planted:
    """Begin a space that was dropped at revision 0 again."""

    async def drop(self: MemoryStore, space: str, at: int | None) -> bool:
        return self._heap.spaces.pop(space, None) is not None

    with patch.object(MemoryStore, "_drop", drop):
        yield


@contextmanager
def collection_ignores_the_epoch() -> Planted:
    """Let a large value be written although its parts were collected before it named them."""

    def check(key: bytes, version: int) -> Check:
        if key == layout.EPOCH:
            return Check(key + b"another", version=0)
        return Check(key, version=version)

    with patch.object(large_values, "Check", check):
        yield


@contextmanager
def revision_complete_after_its_first_change() -> Planted:
    """Let a watch count a revision as told when the first of its changes is."""

    def take(self: Watch) -> None:
        self._advance(self._ready.popleft().revision)

    with patch.object(Watch, "_pop", take):
        yield


@contextmanager
def position_of_any_history() -> Planted:
    """Go on behind a revision or an event whatever stood there once."""
    right = Positions.mark_in

    def mark_in(self: Positions, what: str, text: str) -> int:
        return right(self, what, text).revision

    with patch.object(Positions, "mark_in", mark_in):
        yield


@contextmanager
def event_of_any_history() -> Planted:
    """Go on behind an event whatever it held."""
    with patch.object(Positions, "digest", lambda self, content: bytes(8)):
        yield


# ---- on the disk


@contextmanager
def file_not_synced() -> Planted:
    """Acknowledge what the system has only in its cache."""
    with patch.object(Journal, "_sync", lambda self: None):
        yield


@contextmanager
def folder_not_synced() -> Planted:
    """Make a new journal durable, and not its name."""
    with patch.object(Journal, "_sync_folder", lambda self: None):
        yield


@contextmanager
def database_not_synced() -> Planted:
    """Open a database of durability `full` as `normal`."""
    right = connection.connect

    def connect(path: str, durability: Durability, wait_s: float, **options: Any) -> Any:
        return right(path, Durability.PROCESS, wait_s, **options)

    with patch.object(writer, "connect", connect):
        yield


@contextmanager
def half_a_batch_committed() -> Planted:
    """Commit a batch's entries before its log and removals."""
    right = Revision.remove

    def remove(self: Revision) -> None:
        self._execute("COMMIT")
        self._execute("BEGIN IMMEDIATE")
        right(self)

    with patch.object(Revision, "remove", remove):
        yield


@contextmanager
def read_before_durable() -> Planted:
    """Show readers what is not on the disk yet."""

    def write(self: SharedJournal, drafts: dict[str, Any]) -> None:
        items = [item for name, draft in drafts.items() for item in draft.items(name)]
        with self.lock:
            for name, draft in drafts.items():
                if not draft.is_empty:
                    self.spaces[name] = draft.publish()
        if items:
            self._journal.append(items)

    with patch.object(SharedJournal, "_append_drafts", write):
        yield


@contextmanager
def pages_not_checked() -> Planted:
    """Make a database without checksums, as SQLite does."""
    plain = apsw.vfs_names()[0]
    with (
        patch.object(connections, "file_system", lambda: plain),
        patch.object(connections, "reserve", lambda connection: None),
        patch.object(connections, "require_checksums", lambda execute, path: None),
    ):
        yield


@contextmanager
def sealed_for_any_place() -> Planted:
    """Seal a value so that it opens wherever it is moved to."""
    with patch.object(Sealer, "_bound", lambda self, head, space, key, index: head):
        yield


@contextmanager
def altered_rows_believed() -> Planted:
    """Believe expiry and creation as they stand in the row of a sealed value."""
    with patch.object(Opened, "require_unaltered", lambda self, space, entry, now_ms: None):
        yield


@contextmanager
def content_named_by_digests() -> Planted:
    """Name content by its digest in an encrypted store too."""
    with patch.object(store_abilities, "keyed_name", lambda store, space, content: None):
        yield


# ---- on a server


@contextmanager
def mark_not_verified() -> Planted:
    """Show a server no mark, so that a history which it lost looks like the one that it has."""
    with patch.object(HighWaterMarks, "of", lambda self, space: None):
        yield


# ---- what is supposed


@contextmanager
def supposed_key_unchecked() -> Planted:
    """Commit what stands on supposed entries without a check of them, as if they had been read."""
    right = Unit._all_checks

    def all_checks(self: Unit) -> list[Check]:
        return [check for check in right(self) if check.key not in self._supposed]

    with patch.object(Unit, "_all_checks", all_checks):
        yield


@contextmanager
def supposed_error_raised() -> Planted:
    """Raise what work raises over supposed entries, and run it again only after a conflict."""
    right = SpaceExecutor.try_supposing

    async def try_supposing(self: SpaceExecutor, attempt: Any, purpose: str | None = None) -> Any:
        raised: list[Exception] = []

        async def noting(unit: Unit) -> Any:
            try:
                return await attempt(unit)
            except Exception as error:
                raised.append(error)
                raise

        answer = await right(self, noting, purpose)
        if answer is None and raised and not isinstance(raised[0], ConflictError | NotWrittenError):
            raise raised[0]
        return answer

    with patch.object(SpaceExecutor, "try_supposing", try_supposing):
        yield


@contextmanager
def supposed_refusal_believed() -> Planted:
    """Let work that wrote nothing over supposed entries be done."""
    right = Unit.commit

    async def commit(self: Unit, companion: Unit | None = None) -> Applied | None:
        if not self.writes:
            self._supposed = set()
        return await right(self, companion)

    with patch.object(Unit, "commit", commit):
        yield


@contextmanager
def supposed_before_a_scan() -> Planted:
    """Take supposed entries for read ones where the unit scans, whose batch checks the revision alone."""

    async def confirm(self: Unit) -> None:
        self._supposable, self._supposed = None, set()

    with patch.object(Unit, "_confirm", confirm):
        yield


@contextmanager
def supposed_beside_a_read() -> Planted:
    """Leave out of the first read what was supposed before it, so that two revisions are mixed."""
    right = Unit._fetch_now

    async def fetch_now(self: Unit, keys: Sequence[bytes]) -> None:
        supposed, self._supposed = self._supposed, set()
        await right(self, [key for key in keys if key not in supposed])

    with patch.object(Unit, "_fetch_now", fetch_now):
        yield
