"""Restoration of a damaged space: its intact records are written into a new space, at their old revisions.

The new space goes through the same revisions. At each revision, one batch writes the records that were last
written at it. So versions, fencing tokens and the positions of events stay the same, and tasks keep their
order. A revision without intact records changes nothing. Records that expire come after all others, at new
revisions, with their remaining time. Leases are left out, because their holders are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import group_puts
from keepstate.engine.queue import tasks, ticks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.engine.queue.ticks import ScheduleRecord
from keepstate.engine.repair.verifier import Problem, Verifier, head_for
from keepstate.errors import ConflictError
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Conflict,
    Delete,
    Entry,
    Leap,
    Outcome,
    Put,
    Store,
    Write,
)
from keepstate.values import limits
from keepstate.values.key import BY_KEY, Stamp, stored_key, unpack

_NOTHING: Final = Delete(stored_key(BY_KEY, "restored"))
"""A write that takes a revision and changes nothing, because no part of a space uses this key."""
_BATCH_BYTES: Final = limits.BATCH_BYTES + limits.BATCH_WRITES * 64
"""Size of a stored batch. Stamps and encryption may put it above the limit for callers."""
_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 4 << 20


Apply: TypeAlias = Callable[[Sequence[Batch]], Awaitable[Sequence[Outcome]]]
"""Applies batches as they were stored, some of which are larger than a caller may pass."""


class Rewrite(msgspec.Struct, frozen=True):
    """A record to write: at its `version`, and also at `created` if that is an earlier revision."""

    key: bytes
    version: int
    created: int
    expires_at_ms: int | None


class Records(Protocol):
    """The intact records of one damaged space. They can be read repeatedly."""

    def entries(self) -> Iterator[Entry]:
        """Yield all intact entries, in key order."""
        ...

    def read(self, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries in the order of the keys."""
        ...


class Restoring:
    """The restoration of one space.

    Args:
        records: The intact records.
        verifier: The verifier of the space.
        now_ms: The last time of the space, or the present if that is later.
        shift_ms: The time that the space is ahead of the clock, if the new space follows the clock again.
        leap: The last leap of the space's time; None if it is lost.
        right_until: The last revision known to be written by a right clock; 0 if none is.
        wrong_since: The first revision known to be written ahead of the clock; None if none is.

    Attributes:
        problems: Records that are left out or incomplete.
        kept: The number of records to write.
        expired: The number of records that are left out because they have expired.
    """

    def __init__(
        self,
        records: Records,
        verifier: Verifier,
        *,
        now_ms: int,
        shift_ms: int = 0,
        leap: Leap | None = None,
        right_until: int = 0,
        wrong_since: int | None = None,
    ) -> None:
        self._records, self._verifier = records, verifier
        self._now_ms, self._shift_ms, self._leap = now_ms, shift_ms, leap
        self._clock_ms = now_ms - shift_ms
        self._right_until, self._wrong_since = right_until, wrong_since
        self.problems: list[Problem] = []
        self.kept = self.expired = 0
        self._kept: dict[bytes, Rewrite] = {}
        self._values: dict[bytes, bytes] = {}
        """Changed values: rebuilt heads and indexes, and tasks whose result is lost."""

    async def choose(self, progressed: Callable[[], None]) -> None:
        """Verify every record, and decide whether to keep it."""
        doubted: list[tuple[Entry, Problem]] = []
        for entry in self._records.entries():
            progressed()
            if entry.key.startswith(layout.LEASES):
                continue
            if entry.expires_at_ms is not None and self._left_ms(entry.expires_at_ms, entry.version) <= 0:
                self.expired += 1
                continue
            found = await self._verifier.problems(entry)
            self.problems += found
            if not any(problem.is_alone for problem in found):
                self._kept[entry.key] = Rewrite(entry.key, entry.version, entry.created, entry.expires_at_ms)
                doubted += [(entry, problem) for problem in found]
        for entry, problem in doubted:
            if problem.key == entry.key:  # a problem of another record leaves this one unchanged
                self._mend(entry)
        if not self._verifier.is_encrypted:
            self._complete_tasks()
            self._complete_schedules()
        self.kept = len(self._kept)

    def _present_ms(self, at_ms: int, version: int) -> int | None:
        """Return the present by the clock that wrote a version and a time in it; None if it is not known.

        If the space is ahead of the clock, it is the clock for what was written before the space went ahead,
        and the space's time for what was written since. What was written between two leaps ends relative to
        the time before the second.
        """
        leap, since = self._leap, self._wrong_since
        if not self._shift_ms or version <= self._right_until:
            return self._clock_ms
        if leap is not None and version < leap.revision:
            return leap.from_ms if leap.from_ms < at_ms else self._clock_ms
        return self._now_ms if since is not None and version >= since else None

    def _left_ms(self, at_ms: int, version: int) -> int:
        """Return the remaining time until a time that was stored with a version.

        Where it is not known which clock wrote the version, nothing is shortened. If the last leap is lost as
        well, the time itself decides: only one that was stored after it can be later than the space's time.
        """
        present_ms = self._present_ms(at_ms, version)
        if present_ms is None:
            present_ms = self._now_ms if self._leap is None and at_ms > self._now_ms else self._clock_ms
        return at_ms - present_ms

    def _mend(self, entry: Entry) -> None:
        """Rebuild what follows from an intact record, and drop a record that is useless without another."""
        key = entry.key
        if key.startswith(layout.EVENTS):
            self._make_head(entry)
        elif not key.startswith((layout.HEADS, layout.TASKS, layout.SCHEDULES)):
            self._kept.pop(key, None)

    def _make_head(self, event: Entry) -> None:
        key, value = head_for(event)
        stamp = unpack(event.key[1:])[-1]
        assert isinstance(stamp, Stamp)
        known = self._kept.get(key)
        if known is None or known.version < stamp.revision or key in self._values:
            self._kept[key] = Rewrite(key, stamp.revision, stamp.revision, None)
            self._values[key] = value

    def _complete_tasks(self) -> None:
        """Drop tasks without a payload, rebuild index entries, and clear results that are lost."""
        for key in [key for key in self._kept if key.startswith(layout.TASKS)]:
            (entry,) = self._records.read([key])
            assert entry is not None
            record = tasks.decode_record(entry.value, "the record")
            index = tasks.index_key(record, entry.version)
            has_payload = tasks.payload_key(record.id) in self._kept
            if not has_payload:
                self._forget_task(record, entry.key, index)
                continue
            moved = self._moved(record, entry.version)
            if moved is not record:
                self._kept.pop(index, None)
                record, index = moved, tasks.index_key(moved, entry.version)
                self._values[key] = tasks.encode_record(record)
            if record.has_result and tasks.result_key(record.id) not in self._kept:
                self._values[key] = tasks.encode_record(msgspec.structs.replace(record, has_result=False))
            if index not in self._kept:
                self._kept[index] = Rewrite(index, entry.version, entry.version, entry.expires_at_ms)
                self._values[index] = tasks.index_value(record)

    def _moved(self, record: TaskRecord, version: int) -> TaskRecord:
        """Return a task with its due time by the clock, if the space is ahead of the clock.

        Where it is not known which clock wrote it, a delay is not shortened. A claim is, because its worker
        is gone. Without the last leap, a time up to the space's own was most likely stored after it: the task
        is due now.
        """
        clock_ms = self._clock_ms
        if not self._shift_ms or record.due_at_ms <= clock_ms or record.due_at_ms == tasks.FOREVER_MS:
            return record
        present_ms = self._present_ms(record.due_at_ms, version)
        if present_ms is None:
            present_ms = self._now_ms if self._leap is None or record.state == "claimed" else clock_ms
        due_at_ms = clock_ms + max(record.due_at_ms - present_ms, 0)
        if due_at_ms == record.due_at_ms:
            return record
        moved = msgspec.structs.replace(record, due_at_ms=due_at_ms)
        if record.state == "ready":
            return moved
        return msgspec.structs.replace(moved, place=tasks.timed_place(moved))

    def _forget_task(self, record: TaskRecord, key: bytes, index: bytes) -> None:
        self._kept.pop(key, None)
        self._kept.pop(index, None)
        if key not in {problem.key for problem in self.problems}:
            self.problems.append(Problem(key, "its payload is damaged", is_alone=False))
        self._kept.pop(tasks.result_key(record.id), None)

    def _complete_schedules(self) -> None:
        """Drop schedules without a payload, and rebuild index entries."""
        for key in [key for key in self._kept if key.startswith(layout.SCHEDULES)]:
            (entry,) = self._records.read([key])
            assert entry is not None
            former = ticks.decode_schedule(entry.value, "the record")
            has_payload = ticks.planned_key(former.name) in self._kept
            record = self._planned_again(former)
            if former.due_ms is not None and (record is not former or not has_payload):
                self._kept.pop(ticks.tick_key(former.due_ms, former.name), None)
            if not has_payload:
                self._kept.pop(key)
                if key not in {problem.key for problem in self.problems}:
                    self.problems.append(Problem(key, "its payload is damaged", is_alone=False))
                continue
            if record is not former:
                self._values[key] = ticks.encode_schedule(record)
            if record.due_ms is None:
                continue
            index = ticks.tick_key(record.due_ms, record.name)
            if index not in self._kept:
                self._kept[index] = Rewrite(index, entry.version, entry.version, None)
                self._values[index] = b""

    def _planned_again(self, record: ScheduleRecord) -> ScheduleRecord:
        """Return a schedule that a worker looks at now, if the space is ahead of the clock."""
        clock_ms = self._now_ms - self._shift_ms
        if not self._shift_ms or record.due_ms is None or record.due_ms <= clock_ms:
            return record
        return msgspec.structs.replace(record, last_ms=min(record.last_ms, clock_ms), due_ms=clock_ms)

    # ---- writing

    async def write(self, apply: Apply, space: str, revision: int, progressed: Callable[[int], None]) -> int:
        """Write the kept records into an empty space, and return its last revision."""
        timed = [rewrite for rewrite in self._kept.values() if rewrite.expires_at_ms is not None]
        by_revision: defaultdict[int, list[bytes]] = defaultdict(list)
        for rewrite in self._kept.values():
            if rewrite.expires_at_ms is None:
                by_revision[rewrite.version].append(rewrite.key)
                revision = max(revision, rewrite.version)
        for rewrite in self._kept.values():
            if rewrite.expires_at_ms is None and rewrite.created < rewrite.version:
                by_revision[rewrite.created].append(rewrite.key)
        late: list[Put] = []
        await _apply(apply, self._batches(space, by_revision, revision, late), progressed)
        puts = [*late, *(self._timed(rewrite) for rewrite in timed)]
        groups = enumerate(group_puts(puts, _BATCH_BYTES), revision)
        batches = [Batch(space, writes, at=at) for at, writes in groups]
        await _apply(apply, batches, progressed)
        return revision + len(batches)

    def _batches(
        self, space: str, by_revision: dict[int, list[bytes]], last: int, late: list[Put]
    ) -> Iterator[Batch]:
        for revision in range(1, last + 1):
            writes: list[Write] = []
            puts = map(self._put, by_revision.pop(revision, ()))
            for group in group_puts(puts, _BATCH_BYTES):
                if writes:  # the batch was smaller originally: some values have grown since
                    late += [put for put in group if self._kept[put.key].version == revision]
                else:
                    writes += group
            yield Batch(space, writes or [_NOTHING], at=revision - 1)

    def _put(self, key: bytes) -> Put:
        value = self._values.get(key)
        if value is None:
            (entry,) = self._records.read([key])
            assert entry is not None
            value = entry.value
        return Put(key, value)

    def _timed(self, rewrite: Rewrite) -> Put:
        assert rewrite.expires_at_ms is not None
        put = self._put(rewrite.key)
        return msgspec.structs.replace(
            put, ttl_ms=max(self._left_ms(rewrite.expires_at_ms, rewrite.version), 1)
        )


async def skip(store: Store, space: str, revision: int, progressed: Callable[[int], None]) -> None:
    """Bring an empty space to the revision at which it was dropped."""
    batches = (Batch(space, [_NOTHING], at=number) for number in range(revision - 1))
    await _apply(store.apply, batches, progressed)
    if revision > 1:
        await store.drop(space)


async def _apply(apply: Apply, batches: Iterable[Batch], progressed: Callable[[int], None]) -> None:
    """Apply batches in order, many at once."""
    ahead: list[Batch] = []
    size = 0
    for batch in batches:
        ahead.append(batch)
        size += sum(len(write.value) for write in batch.writes if isinstance(write, Put))
        if len(ahead) == _AT_ONCE or size >= _AT_ONCE_BYTES:
            await _flush(apply, ahead)
            progressed(len(ahead))
            ahead, size = [], 0
    await _flush(apply, ahead)
    progressed(len(ahead))


async def _flush(apply: Apply, batches: Sequence[Batch]) -> None:
    if not batches:
        return
    for outcome in await apply(batches):
        if isinstance(outcome, Conflict):
            raise ConflictError(
                f"another process writes to {batches[0].space!r} while it is restored; "
                "start again with a new store",
                space=batches[0].space,
                actual=outcome.actual,
            )
        if not isinstance(outcome, Applied):
            raise outcome
