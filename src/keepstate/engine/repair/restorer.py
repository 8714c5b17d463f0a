"""Writes what is whole of a space into a new one, so that each record comes to stand where it stood.

The new space goes through the same revisions: at each, one batch writes the records that were written last
at that revision. So versions, fencing tokens, and the positions of events are what they were, and tasks keep
their order. A revision of which nothing is left changes nothing. Records that expire come after all
others, at new revisions, for the time that they have left; leases are left out: their holders are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
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
"""Takes a revision and changes nothing: no part of a space has such a key."""
_BATCH_BYTES: Final = limits.BATCH_BYTES + limits.BATCH_WRITES * 64
"""What a batch may have come to in the store: its stamps, and what encryption adds, are over the limit."""
_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 4 << 20


Apply: TypeAlias = Callable[[Sequence[Batch]], Awaitable[Sequence[Outcome]]]
"""What applies batches as they once stood in a store, where some came to more than a caller may give."""


class Place(msgspec.Struct, frozen=True):
    """When a record is written again: at its `version`, and before that at `created`, if that was earlier."""

    key: bytes
    version: int
    created: int
    expires_at_ms: int | None


class Records(Protocol):
    """The records of one damaged space, read one after the other as often as need be."""

    def entries(self) -> Iterator[Entry]:
        """Yield all that is whole, in key order."""
        ...

    def read(self, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries in the order of the keys asked."""
        ...


class Restoring:
    """What is to be written of one space, chosen from what is left of it.

    Args:
        records: What is left.
        verifier: Says what is wrong with a record.
        now_ms: The time that the space had come to, or the present if that is later.
        shift_ms: How far the space is ahead of the clock, if it is to come back to it.
        leap: The last leap of the space's time; None where that is lost.

    Attributes:
        problems: What is left out, or is incomplete.
        kept: How many records are written.
        expired: How many are left out because their time is over.
    """

    def __init__(
        self,
        records: Records,
        verifier: Verifier,
        *,
        now_ms: int,
        shift_ms: int = 0,
        leap: Leap | None = None,
    ) -> None:
        self._records, self._verifier = records, verifier
        self._now_ms, self._shift_ms, self._leap = now_ms, shift_ms, leap
        self.problems: list[Problem] = []
        self.kept = self.expired = 0
        self._places: dict[bytes, Place] = {}
        self._values: dict[bytes, bytes] = {}
        """What differs from what was read: heads and indexes made anew, tasks whose result is lost."""

    async def choose(self, progressed: Callable[[], None]) -> None:
        """Look at every record, and decides what becomes of it."""
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
                self._places[entry.key] = Place(entry.key, entry.version, entry.created, entry.expires_at_ms)
                doubted += [(entry, problem) for problem in found]
        for entry, problem in doubted:
            if problem.key == entry.key:  # else it tells of another record, which stays as it is
                self._mend(entry)
        if not self._verifier.is_encrypted:
            self._tie_tasks()
        self.kept = len(self._places)

    def _left_ms(self, at_ms: int, version: int) -> int:
        """Return how far ahead a time is that was stored with a version.

        Where the space is ahead of the clock, a time that was stored since the leap counts from the space's
        time, and an older one from the clock. Where the leap is lost, the time itself must tell: only one
        that was stored since is ahead of the space's time.
        """
        leap, clock_ms = self._leap, self._now_ms - self._shift_ms
        if at_ms > self._now_ms if leap is None else version >= leap.revision:
            return at_ms - self._now_ms
        if leap is not None and clock_ms < leap.from_ms < at_ms:  # a leap before the last one led astray too
            return at_ms - leap.from_ms
        return at_ms - clock_ms

    def _mend(self, entry: Entry) -> None:
        """Make anew what can be told from a record that is whole, and leave out what is of no use."""
        key = entry.key
        if key.startswith(layout.EVENTS):
            self._make_head(entry)
        elif not key.startswith((layout.HEADS, layout.TASKS)):
            self._places.pop(key, None)

    def _make_head(self, event: Entry) -> None:
        key, value = head_for(event)
        stamp = unpack(event.key[1:])[-1]
        assert isinstance(stamp, Stamp)
        known = self._places.get(key)
        if known is None or known.version < stamp.revision or key in self._values:
            self._places[key] = Place(key, stamp.revision, stamp.revision, None)
            self._values[key] = value

    def _tie_tasks(self) -> None:
        """Keep a task only with its payload, gives it its place, and take from it a result that is lost."""
        for key in [key for key in self._places if key.startswith(layout.TASKS)]:
            (entry,) = self._records.read([key])
            assert entry is not None
            record = tasks.decode_record(entry.value, "the record")
            index = tasks.index_key(record, entry.version)
            has_payload = tasks.payload_key(record.id) in self._places
            if record.state != "done" and not has_payload:
                self._forget_task(record, entry.key, index)
                continue
            moved = self._moved(record, entry.version)
            if moved is not record:
                self._places.pop(index, None)
                record, index = moved, tasks.index_key(moved, entry.version)
                self._values[key] = tasks.encode_record(record)
            if record.has_result and tasks.result_key(record.id) not in self._places:
                self._values[key] = tasks.encode_record(msgspec.structs.replace(record, has_result=False))
            if index not in self._places:
                self._places[index] = Place(index, entry.version, entry.version, entry.expires_at_ms)
                self._values[index] = record.id.encode("utf-8", "surrogatepass")

    def _moved(self, record: TaskRecord, version: int) -> TaskRecord:
        """Return a task as it is due by the clock, where the space is a leap ahead of it.

        A task that was written since the leap is due, or claimed, by the space's time; an older one keeps its
        time.
        """
        clock_ms = self._now_ms - self._shift_ms
        if not self._shift_ms or record.due_at_ms <= clock_ms:
            return record
        # Without the leap, a time up to the space's own was most likely stored since: the task is due now.
        left_ms = record.due_at_ms - self._now_ms
        if self._leap is not None:
            left_ms = self._left_ms(record.due_at_ms, version)
        due_at_ms = clock_ms + max(left_ms, 0)
        if due_at_ms == record.due_at_ms:
            return record
        return msgspec.structs.replace(record, due_at_ms=due_at_ms)

    def _forget_task(self, record: TaskRecord, key: bytes, index: bytes) -> None:
        self._places.pop(key, None)
        self._places.pop(index, None)
        told = {problem.key for problem in self.problems}
        if key not in told:
            self.problems.append(Problem(key, "its payload is not whole", is_alone=False))
        self._places.pop(tasks.result_key(record.id), None)

    # ---- writing

    async def write(self, apply: Apply, space: str, revision: int, progressed: Callable[[int], None]) -> int:
        """Write what was chosen into a space that has nothing yet, and return the revision reached."""
        timed = [place for place in self._places.values() if place.expires_at_ms is not None]
        by_revision: defaultdict[int, list[bytes]] = defaultdict(list)
        for place in self._places.values():
            if place.expires_at_ms is None:
                by_revision[place.version].append(place.key)
                revision = max(revision, place.version)
        for place in self._places.values():
            if place.expires_at_ms is None and place.created < place.version:
                by_revision[place.created].append(place.key)
        late: list[Put] = []
        await _apply(apply, self._batches(space, by_revision, revision, late), progressed)
        puts = [*late, *(self._timed(place) for place in timed)]
        batches = [Batch(space, writes, at=revision + number) for number, writes in enumerate(_grouped(puts))]
        await _apply(apply, batches, progressed)
        return revision + len(batches)

    def _batches(
        self, space: str, by_revision: dict[int, list[bytes]], last: int, late: list[Put]
    ) -> Iterator[Batch]:
        for revision in range(1, last + 1):
            writes: list[Write] = []
            for group in _grouped(self._put(key) for key in by_revision.pop(revision, ())):
                if writes:  # more than there was at first: some values have grown since
                    late += [put for put in group if self._places[put.key].version == revision]
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

    def _timed(self, place: Place) -> Put:
        assert place.expires_at_ms is not None
        put = self._put(place.key)
        return msgspec.structs.replace(put, ttl_ms=max(self._left_ms(place.expires_at_ms, place.version), 1))


async def skip(store: Store, space: str, revision: int, progressed: Callable[[int], None]) -> None:
    """Bring a space that holds nothing to the revision at which it was dropped."""
    batches = (Batch(space, [_NOTHING], at=number) for number in range(revision - 1))
    await _apply(store.apply, batches, progressed)
    if revision > 1:
        await store.drop(space)


async def _apply(apply: Apply, batches: Iterable[Batch], progressed: Callable[[int], None]) -> None:
    """Apply batches in their order, many at once."""
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
                f"somebody else writes to {batches[0].space!r} while it is restored; "
                "begin again with a new store",
                space=batches[0].space,
                actual=outcome.actual,
            )
        if not isinstance(outcome, Applied):
            raise outcome


def _grouped(puts: Iterable[Put]) -> Iterator[list[Put]]:
    """Yield puts by so many as fit into a batch."""
    group: list[Put] = []
    size = 0
    for put in puts:
        weight = len(put.key) + len(put.value)
        if group and (len(group) == limits.BATCH_WRITES or size + weight > _BATCH_BYTES):
            yield group
            group, size = [], 0
        group.append(put)
        size += weight
    if group:
        yield group
