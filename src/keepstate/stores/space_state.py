"""One space as a state machine in memory: the rules of the protocol in their simplest form.

Pure: the caller passes the time, and there is no I/O. The memory store consists of these. The file store
journals the records that `apply` makes, and replays them. The contract suite requires the same answers of the
other backends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import InvalidError
from keepstate.stores.admission import (
    REPLACING_WRITES,
    check_read_size,
    check_stamped_keys,
    cut_log_error,
    log_size_error,
    require_logged,
)
from keepstate.stores.clock_leaps import detect_leap
from keepstate.stores.key_index import KeyIndex
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import (
    NONCE_BYTES,
    Applied,
    Batch,
    Change,
    Changes,
    Check,
    Conflict,
    Entry,
    Leap,
    Mark,
    Outcome,
    Page,
    Put,
    Reading,
    Sizes,
)
from keepstate.stores.records import (
    NO_MARK,
    NOTHING_REPLACED,
    RETRY_KEPT_MS,
    Logged,
    Record,
    changes_of,
    weigh,
)
from keepstate.values import limits
from keepstate.values.key import WITH_VALUES, stamp_suffix


class SpaceState:
    """Entries, log and tokens of one space.

    Attributes:
        nonce: The nonce of revisions made from now on. If it is empty, each revision draws its own. A backend
            that replays batches, not records, has to pass each batch its original nonce.
        written_ms: The time of the last revision. `clock_ms` may be ahead of it, because reads advance it
            too.
        leap: The last revision that advanced `written_ms` by more than an hour.
    """

    __slots__ = (
        "_expiry",
        "_floor_mark",
        "_index",
        "_log",
        "_log_bytes",
        "_sizes",
        "nonce",
        "_retries",
        "_tokens",
        "_unfinished",
        "clock_ms",
        "entries",
        "floor",
        "leap",
        "revision",
        "written_ms",
    )

    def __init__(self, nonce: bytes = b"") -> None:
        self.nonce = nonce
        self._floor_mark = NO_MARK
        self.revision = 0
        self.clock_ms = self.written_ms = 0
        self.leap: Leap | None = None
        self.floor = 0
        self.entries: dict[bytes, Entry] = {}
        self._index = KeyIndex()
        self._log: deque[Logged] = deque()
        self._log_bytes = 0
        self._tokens: dict[bytes, Applied] = {}
        self._retries: dict[bytes, tuple[Outcome, int]] = {}
        self._expiry: list[tuple[int, bytes]] = []
        self._sizes = PartSizes()
        self._unfinished: tuple[Record | None, Sequence[bytes | None]] | None = None

    @property
    def exists(self) -> bool:
        """Return whether a batch was applied since the space was new or last dropped."""
        return self.revision > self.floor

    @property
    def is_new(self) -> bool:
        """Return whether there is nothing to store: no revision, and no answer to a retry."""
        return self.revision == 0 and not self._retries

    @property
    def expires(self) -> bool:
        """Return whether some entry will expire."""
        return bool(self._expiry)

    def now_ms(self, clock_ms: int) -> int:
        """Return the space's time: the clock's, or the space's last time if that is later."""
        if clock_ms > self.clock_ms:
            self.clock_ms = clock_ms
        return self.clock_ms

    # ---- judging and applying

    def apply(self, batch: Batch, clock_ms: int) -> tuple[Outcome, Record | None]:
        """Check the batch and apply it; the record is None if no revision was taken."""
        if self._unfinished is not None:
            self._complete_interrupted()
        if clock_ms > self.clock_ms:
            self.clock_ms = clock_ms
        now_ms = self.clock_ms
        if batch.token is not None and (known := self._known_outcome(batch.token, now_ms)) is not None:
            return known, None
        if batch.checks or batch.at is not None or batch.retry_of is not None or len(batch.writes) > 1:
            outcome = self._judge(batch, now_ms)
            if outcome is not None:
                self._keep_outcome(batch, outcome, now_ms)
                return outcome, None
        if not batch.writes:
            return Applied(self.revision, now_ms), None
        record = self._make_record(batch, now_ms)
        self.install(record)
        outcome = Applied(self.revision, now_ms)
        if batch.retry_of is not None:
            self._keep_outcome(batch, outcome, now_ms)
        return outcome, record

    def _known_outcome(self, token: bytes, now_ms: int) -> Outcome | None:
        if token in self._tokens:
            return self._tokens[token]
        if token in self._retries:
            outcome, until_ms = self._retries[token]
            if until_ms > now_ms:
                return outcome
        return None

    def _keep_outcome(self, batch: Batch, outcome: Outcome, now_ms: int) -> None:
        """Store a retry's outcome apart from the log, so that a late original gets the same answer."""
        if batch.retry_of is None or batch.token is None:
            return
        self._forget_retries(now_ms)
        self._retries[batch.token] = outcome, now_ms + RETRY_KEPT_MS

    def _forget_retries(self, now_ms: int) -> None:
        while self._retries and next(iter(self._retries.values()))[1] <= now_ms:
            del self._retries[next(iter(self._retries))]

    def _judge(self, batch: Batch, now_ms: int) -> Outcome | None:
        if batch.retry_of is not None and batch.retry_of < self.floor:
            return cut_log_error(batch)
        if batch.at is not None and batch.at != self.revision:
            return Conflict(None, self.revision)
        if batch.alive_until_ms is not None and batch.alive_until_ms <= now_ms:
            return Conflict(None, self.revision)
        for check in batch.checks:
            if (conflict := self._conflict(check, now_ms)) is not None:
                return conflict
        refusal = check_stamped_keys(batch, self.revision + 1)
        if refusal is None and len(batch.writes) > REPLACING_WRITES:
            refusal = self._log_size_error(batch)
        return refusal

    def _conflict(self, check: Check, now_ms: int) -> Conflict | None:
        entry = self.live(check.key, now_ms)
        if check.version is not None:
            actual = entry.version if entry else 0
            return None if actual == check.version else Conflict(check.key, actual)
        actual = entry.created if entry else 0
        return None if actual == check.created else Conflict(check.key, actual)

    def _log_size_error(self, batch: Batch) -> InvalidError | None:
        size_bytes = 0
        for index, write in enumerate(batch.writes):
            key = write.key
            if type(write) is Put and write.stamp:
                key += stamp_suffix(self.revision + 1, index)
            old = self.entries.get(key)
            if old is not None and key[0] == WITH_VALUES:
                size_bytes += len(old.value)
        return log_size_error(batch.space) if size_bytes > limits.LOG_BYTES else None

    def _make_record(self, batch: Batch, now_ms: int) -> Record:
        revision, entries = self.revision + 1, self.entries
        written: list[Entry] = []
        deleted: list[bytes] = []
        for index, write in enumerate(batch.writes):
            if type(write) is Put:
                key = write.key if not write.stamp else write.key + stamp_suffix(revision, index)
                old = entries.get(key)
                if old is None or (old.expires_at_ms is not None and old.expires_at_ms <= now_ms):
                    created = revision
                else:
                    created = old.created
                expires_at_ms = None if write.ttl_ms is None else now_ms + write.ttl_ms
                written.append(Entry(key, write.value, revision, created, expires_at_ms))
            elif write.key in entries:
                deleted.append(write.key)
        nonce = self.nonce or self._next_nonce()
        return Record(revision, now_ms, written, deleted, batch.token, False, nonce)

    def _next_nonce(self) -> bytes:
        """Return the nonce for the next revision."""
        return self.nonce or SYSTEM_CLOCK.random_bytes(NONCE_BYTES)

    def sweep(self, clock_ms: int, limit: int) -> Record | None:
        """Remove up to `limit` expired entries, at most as many as fit in a batch, as the next revision."""
        if self._unfinished is not None:
            self._complete_interrupted()
        if not self._expiry or self._expiry[0][0] > max(clock_ms, self.clock_ms):
            return None
        try:
            return self._sweep_expired(self.now_ms(clock_ms), limit)
        except BaseException:
            if self._unfinished is None:
                self._unfinished = None, ()  # the heap may have lost entries that were not removed
            raise

    def _sweep_expired(self, now_ms: int, limit: int) -> Record | None:
        expired: dict[bytes, None] = {}
        size_bytes = 0
        while self._expiry and self._expiry[0][0] <= now_ms:
            at_ms, key = self._expiry[0]
            entry = self.entries.get(key)
            if entry is not None and entry.expires_at_ms == at_ms:
                size_bytes += len(entry.value)
                if len(expired) == min(limit, limits.BATCH_WRITES) or (
                    size_bytes > limits.BATCH_BYTES and expired
                ):
                    break
                expired[key] = None
            heappop(self._expiry)
        if not expired:
            return None
        record = Record(self.revision + 1, now_ms, [], list(expired), nonce=self._next_nonce())
        self.install(record)
        return record

    def drop(self, clock_ms: int) -> Record:
        """Empty the space as its next revision, which becomes the floor of its log."""
        if self._unfinished is not None:
            self._complete_interrupted()
        now_ms, nonce = self.now_ms(clock_ms), self._next_nonce()
        record = Record(self.revision + 1, now_ms, [], [], dropped=True, nonce=nonce)
        self.install(record)
        return record

    # ---- replaying

    def install(self, record: Record) -> None:
        """Apply a record, so that its revision is the present one."""
        if record.dropped:
            self._clear(record)
            return
        old_values = self._replaced_values(record)
        try:
            self._mutate(record)
            self._append_to_log(record, old_values)
        except BaseException:
            # A second interrupt may follow at once, so only this assignment is certain. The next call
            # completes
            # the record, because a batch applies whole.
            self._unfinished = record, old_values
            raise

    def _replaced_values(self, record: Record) -> Sequence[bytes | None]:
        """Return the replaced and deleted values of section `02`, which the log stores with the record."""
        if not record.deleted and len(record.entries) == 1 and record.entries[0].key[0] != WITH_VALUES:
            return NOTHING_REPLACED
        old_values: list[bytes | None] = []
        for entry in record.entries:
            old = self.entries.get(entry.key) if entry.key[0] == WITH_VALUES else None
            # The value of an expired entry is included: this write removes it.
            old_values.append(None if old is None else old.value)
        old_values += [self.entries[key].value if key[0] == WITH_VALUES else None for key in record.deleted]
        return old_values

    def _mutate(self, record: Record) -> None:
        entries, sizes = self.entries, self._sizes
        for entry in record.entries:
            key = entry.key
            old = entries.get(key)
            if old is None:
                self._index.add(key)
                sizes.count(key, 1, len(key) + len(entry.value))
            else:
                sizes.count(key, 0, len(entry.value) - len(old.value))
            entries[key] = entry
            if entry.expires_at_ms is not None:
                self._expire_later(entry.expires_at_ms, key)
        for key in record.deleted:
            sizes.count(key, -1, -len(key) - len(entries[key].value))
            del entries[key]
            self._index.remove(key)

    def _append_to_log(self, record: Record, old_values: Sequence[bytes | None]) -> None:
        logged = weigh(record, old_values)
        self._log.append(logged)
        self._log_bytes += logged[2]
        self.revision = record.revision
        self._advance_time(record)
        if record.token is not None:
            self._tokens[record.token] = Applied(record.revision, record.now_ms)
        if record.revision - self.floor > limits.LOG_REVISIONS or self._log_bytes > limits.LOG_BYTES:
            self._cut_log()

    def _advance_time(self, record: Record) -> None:
        """Advance the time to that of a record; idempotent."""
        if (leap := detect_leap(record.revision, self.written_ms, record.now_ms)) is not None:
            self.leap = leap
        self.written_ms = record.now_ms
        if record.now_ms > self.clock_ms:
            self.clock_ms = record.now_ms

    def _cut_log(self, most: int | None = None) -> None:
        log, most = self._log, limits.LOG_REVISIONS if most is None else most
        while len(log) > most or (self._log_bytes > limits.LOG_BYTES and len(log) > 1):
            oldest, _, weight = log[0]
            self._floor_mark = Mark(
                oldest.revision, oldest.nonce
            )  # first: `_complete_interrupted` cuts the log up to it
            log.popleft()
            self._log_bytes -= weight
            self.floor = oldest.revision
            if oldest.token is not None:
                self._tokens.pop(oldest.token, None)

    def trim(self, keep: int = 1) -> None:
        """Remove the log but the last `keep` revisions."""
        if self._unfinished is not None:
            self._complete_interrupted()
        self._cut_log(keep)

    def _expire_later(self, at_ms: int, key: bytes) -> None:
        heappush(self._expiry, (at_ms, key))
        if len(self._expiry) > 2 * len(self.entries) + 64:  # an entry was renewed many times
            self._expiry = self._build_expiry()

    def _build_expiry(self) -> list[tuple[int, bytes]]:
        expiring = [(e.expires_at_ms, e.key) for e in self.entries.values() if e.expires_at_ms is not None]
        heapify(expiring)
        return expiring

    def _complete_interrupted(self) -> None:
        """Complete an interrupted change, wherever it stopped; safe to interrupt itself."""
        record, old_values = self._unfinished or (None, ())
        if record is not None:
            for entry in record.entries:
                self.entries[entry.key] = entry
            for key in record.deleted:
                self.entries.pop(key, None)
            if not self._log or self._log[-1][0].revision != record.revision:
                self._log.append(weigh(record, old_values))
            self._advance_time(record)
            self.revision = record.revision
        self._index = KeyIndex()
        for key in sorted(self.entries):
            self._index.add(key)
        self._sizes = PartSizes.of(self.entries.values())
        self._expiry = self._build_expiry()
        while self._log and self._log[0][0].revision <= self._floor_mark.revision:
            self._log.popleft()
        self.floor = self._floor_mark.revision
        self._log_bytes = sum(weight for _, _, weight in self._log)
        logged = [each for each, _, _ in self._log]
        self._tokens = {each.token: Applied(each.revision, each.now_ms) for each in logged if each.token}
        self._unfinished = None

    def _clear(self, record: Record) -> None:
        log = deque[Logged]()
        index, sizes = KeyIndex(), PartSizes()
        mark = Mark(record.revision, record.nonce)
        self._advance_time(record)
        # Only assignments follow: an interrupt comes before or after them all.
        self._floor_mark = mark
        self.revision = self.floor = record.revision
        self.entries, self._index, self._expiry, self._sizes = {}, index, [], sizes
        self._log, self._log_bytes, self._tokens = log, 0, {}

    # ---- reading

    def live(self, key: bytes, now_ms: int) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
        entry = self.entries.get(key)
        if entry is None or (entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms):
            return None
        return entry

    def read(self, space: str, keys: Sequence[bytes], clock_ms: int, at_ms: int | None = None) -> Reading:
        """Return the entries of these keys that are live at `at_ms`, or now."""
        if self._unfinished is not None:
            self._complete_interrupted()
        now_ms = self.now_ms(clock_ms)
        if at_ms is None:
            at_ms = now_ms
        if len(keys) == 1:
            return Reading([self.live(keys[0], at_ms)], self.revision, now_ms)
        found = [self.live(key, at_ms) for key in keys]
        if len(found) > limits.READ_BYTES // limits.VALUE_BYTES:
            check_read_size(space, sum(len(entry.value) for entry in found if entry is not None))
        return Reading(found, self.revision, now_ms)

    def scan(
        self,
        prefix: bytes,
        after: bytes | None,
        limit: int,
        reverse: bool,
        clock_ms: int,
        at_ms: int | None = None,
    ) -> Page:
        """Return the next page of entries that are live at `at_ms`, or now."""
        if self._unfinished is not None:
            self._complete_interrupted()
        now_ms = self.now_ms(clock_ms)
        if at_ms is None:
            at_ms = now_ms
        keys = self._index.downwards(prefix, after) if reverse else self._index.upwards(prefix, after)
        found: list[Entry] = []
        size = looked = 0
        last: bytes | None = None
        for key in keys:
            if len(found) == limit or looked == limits.PAGE_ROWS:
                return Page(found, last, self.revision, now_ms, self._nonce_of(self.revision))
            entry = self.live(key, at_ms)
            if entry is not None:
                size += len(entry.value)
                if size > limits.PAGE_BYTES and found:
                    return Page(found, last, self.revision, now_ms, self._nonce_of(self.revision))
                found.append(entry)
            looked, last = looked + 1, key
        return Page(found, None, self.revision, now_ms, self._nonce_of(self.revision))

    def sizes(self, clock_ms: int) -> Sizes:
        """Return the size of each part."""
        if self._unfinished is not None:
            self._complete_interrupted()
        now_ms = self.now_ms(clock_ms)
        expired = {key: len(self.entries[key].value) for key in self._expired_keys(now_ms)}
        return Sizes(self._sizes.without(expired.items()), self.revision, now_ms)

    def _expired_keys(self, now_ms: int) -> Iterator[bytes]:
        """Yield the keys of expired entries, some of them twice, without looking at what expires later."""
        pending = [0]
        while pending:
            place = pending.pop()
            if place < len(self._expiry) and self._expiry[place][0] <= now_ms:
                at_ms, key = self._expiry[place]
                pending += (2 * place + 1, 2 * place + 2)  # the children in the heap
                entry = self.entries.get(key)
                if entry is not None and entry.expires_at_ms == at_ms:
                    yield key

    def changes(self, space: str, after: int, limit: int) -> Changes:
        """Return the logged changes above `after`, in whole revisions."""
        if self._unfinished is not None:
            self._complete_interrupted()
        require_logged(space, after, floor=self.floor, revision=self.revision)
        items: list[Change] = []
        nonces = {after: self._nonce_of(after)}
        size, upto = 0, after
        for record, old_values, weight in self._logged_after(after):
            items += changes_of(record, old_values)
            size, upto = size + weight, record.revision
            nonces[upto] = record.nonce
            if len(items) >= limit or size >= limits.PAGE_BYTES:
                break
        return Changes(items, upto, self.floor, nonces)

    def _nonce_of(self, revision: int) -> bytes:
        """Return the nonce of a revision at or above the floor."""
        if revision == self._floor_mark.revision:
            return self._floor_mark.nonce
        return self._log[revision - self._log[0][0].revision][0].nonce

    def _logged_after(self, after: int) -> Iterator[Logged]:
        if not self._log:
            return
        first = after + 1 - self._log[0][0].revision
        for place in range(max(first, 0), len(self._log)):
            yield self._log[place]
