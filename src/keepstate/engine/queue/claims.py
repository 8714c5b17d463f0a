"""How tasks are claimed: the best ready one first.

A claim looks at a page of ready tasks without guarding it: two workers may look at the same page. What each
takes, its batch checks by key; whoever is second gets a conflict and picks another at random, so that a crowd
spreads over the page instead of running after one task.

Where a worker is choosy, or has met a task that it cannot read, one read shows all that a page of tasks is
about, and the claim stands on that read: it costs a scan, a read and a batch.

A worker passes over tasks that it cannot read: another one, of newer code, may know their class. And whatever
ends a claim, what was taken until then is given back: a batch that is on its way applies although its caller
is cancelled, so it goes beside the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from keepstate.engine.documents.record import decode_value, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor, call_function
from keepstate.engine.kernel.key_text import shorten
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.notifications import listen
from keepstate.engine.kernel.shield import acquire_shielded, run_shielded
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.due_tasks import DueTasks, attempts_exhausted, put_ready, put_ready_or_dead
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    NotFoundError,
    StoreUnavailableError,
    TransitionError,
    UnsupportedError,
)
from keepstate.stores.protocol import ABSENT, Entry, Store

T = TypeVar("T")

_PAGE = 32
_MATCHED_FIRST, _MATCHED_PAGE = 8, 100
"""How many tasks to ask for at once whether they match: few while the first ones may."""
_LONGEST_WAIT_S = 1.0
_BACK_AT_ONCE = 100
_MOST_TOLD = 10_000
_UNREADABLE = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""What a payload raises again however often it is read: its class is of newer code, or nobody knows it."""
_log = logging.getLogger("keepstate.engine")

Claimed = tuple[TaskRecord, Any]
Match = Callable[[str, Any], bool]
"""Says of a task's id and payload whether a worker can do it."""
TaskFilter = Callable[[str, Any, Mapping[str, Any]], bool]
"""Says the same, given those documents, by name, that the wish names and that are there."""
OnClaim = Callable[[Unit, str, str | None], Awaitable[None]]
"""Does more in the batch that claims: gets its unit, the task's id, and the worker that held it before."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker asks for.

    Attributes:
        worker: Who claims.
        lease_ms: For how long.
        match: Takes only tasks for which it answers true.
        documents: The names of documents that `match` is given, and that `on_claim` can read at no cost.
        on_claim: Does more in the batch that claims.
    """

    worker: str
    lease_ms: int
    match: TaskFilter | None = None
    documents: Sequence[str] = ()
    on_claim: OnClaim | None = None


@dataclass(slots=True)
class _ClaimState:
    """How far one claim has come.

    Attributes:
        request: What is asked for.
        count: How many at the most.
        found: What is held already.
        unfit: The keys of what does not match.
        unreadable: By key, what this worker cannot read, and why.
        standing: Why the first of those cannot be read that the last look has met; None without any.
    """

    request: ClaimRequest
    count: int
    found: list[Claimed] = field(default_factory=list[Claimed])
    unfit: set[bytes] = field(default_factory=set[bytes])
    unreadable: dict[bytes, KeepstateError] = field(default_factory=dict[bytes, KeepstateError])
    standing: KeepstateError | None = None

    def left_of(self, page: Sequence[Entry]) -> list[Entry]:
        """Return those of a page that may still be taken."""
        left: list[Entry] = []
        for entry in page:
            if (error := self.unreadable.get(entry.key)) is not None:
                self.standing = self.standing or error
            elif entry.key not in self.unfit:
                left.append(entry)
        return left


class Claims:
    """Claims tasks of one space."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waking = DueTasks(executor)
        self._told: set[str] = set()
        """The tasks of which a warning has said that they cannot be read here."""

    async def claim(
        self, request: ClaimRequest, count: int, wait_s: float, losses: LossDetector
    ) -> list[Claimed]:
        """Return up to `count` tasks with their payloads, after waiting for the first if need be."""
        search = _ClaimState(request, count)
        try:
            await self._search(search, wait_s, losses)
        except StoreUnavailableError as error:
            if not search.found:
                raise
            # What is held can be worked on; given back it cannot be now.
            _log.warning(
                "a claim of %r has ended with %d tasks: %s", request.worker, len(search.found), error
            )
        except BaseException:
            if search.found:
                await run_shielded(self._executor.runner, partial(self._give_back, search.found, losses))
            raise
        # Who is choosy may leave it to others; who takes anything would wait for ever and not know for what.
        if not search.found and search.standing is not None and request.match is None:
            raise search.standing
        return search.found

    async def _search(self, search: _ClaimState, wait_s: float, losses: LossDetector) -> None:
        store, documents = await self._executor.store(), search.request.documents
        clock = self._executor.clock
        deadline_s = clock.monotonic_s() + wait_s
        versions: list[int] = []
        # To hear of changes costs more than a claim: on a server, a thread or task that subscribes.
        await self._look(store, search, losses)
        if search.found or wait_s <= 0:
            return
        async with listen(store, self._executor.stored_name) as hints:
            while True:
                if documents and (now := await self._versions(store, documents)) != versions:
                    versions = now
                    search.unfit.clear()  # what did not fit may fit what the documents say now
                await self._look(store, search, losses)
                left_s = deadline_s - clock.monotonic_s()
                if search.found or left_s <= 0:
                    return
                await hints.wait(min(left_s, _LONGEST_WAIT_S, await self._waking.next_due_s(store)))

    async def _versions(self, store: Store, documents: Sequence[str]) -> list[int]:
        reading = await store.read(self._executor.stored_name, _keys(documents))
        return [ABSENT if entry is None else entry.version for entry in reading.entries]

    async def _look(self, store: Store, search: _ClaimState, losses: LossDetector) -> None:
        """Take what is ready now."""
        request = search.request
        refused: set[bytes] = set()
        missed: set[bytes] = set()
        limit = _PAGE if request.match is None else _MATCHED_FIRST
        crowded = False
        search.standing = None
        await self._waking.wake(store, force=False)
        after: bytes | None = None
        while len(search.found) < search.count:
            page = await store.scan(self._executor.stored_name, layout.READY, after=after, limit=limit)
            candidates = [entry for entry in search.left_of(page.entries) if entry.key not in refused]
            seen: dict[bytes, Unit] = {}
            if candidates and (request.match is not None or search.unreadable):
                seen = await self._look_at(store, candidates, request.documents)
                await self._sort_out(candidates, seen, search)
                candidates = search.left_of(candidates)
            if not candidates:
                if page.next is not None:
                    after, limit = page.next, max(limit, _MATCHED_PAGE)
                elif await self._waking.wake(store, force=True):
                    after = None
                else:
                    return
                continue
            pick = int(self._executor.clock.spread() * len(candidates)) if crowded else 0
            entry = candidates[pick]
            claimed = await self._take(entry, request, seen.get(entry.key), losses)
            crowded = claimed is None
            if isinstance(claimed, KeepstateError):
                self._pass_over(entry, claimed, search)
            elif claimed is not None:
                search.found.append(claimed)
            elif entry.key in missed:
                refused.add(entry.key)  # twice somebody else's, or an index entry whose task is gone
            else:
                missed.add(entry.key)

    def _pass_over(self, index: Entry, error: KeepstateError, search: _ClaimState) -> None:
        search.unreadable[index.key] = error
        task_id = tasks.id_in(index)
        if task_id not in self._told:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told.add(task_id)
            _log.warning(  # without the error's text, which may show what the payload holds
                "task %r of %r is passed over: its payload cannot be read here (%s); get it to see why",
                task_id,
                self._executor.name,
                type(error).__name__,
            )

    async def _look_at(
        self, store: Store, candidates: Sequence[Entry], documents: Sequence[str]
    ) -> dict[bytes, Unit]:
        """Return by key what has read each candidate; as many in one read as its limit of bytes allows."""
        unit = Unit(store, self._executor.stored_name, self._executor.name)
        ids = [tasks.id_in(entry) for entry in candidates]
        try:
            await unit.read(*_keys(documents), *map(tasks.task_key, ids), *map(tasks.payload_key, ids))
        except InvalidError:
            if len(candidates) == 1:
                raise
            half = len(candidates) // 2
            first = await self._look_at(store, candidates[:half], documents)
            return first | await self._look_at(store, candidates[half:], documents)
        return {entry.key: unit for entry in candidates}

    async def _sort_out(
        self, candidates: Sequence[Entry], seen: Mapping[bytes, Unit], search: _ClaimState
    ) -> None:
        """Note which of them do not match, and which cannot be read."""
        given: dict[Unit, dict[str, Any]] = {}
        match = search.request.match
        for index in candidates:
            unit, task_id = seen[index.key], tasks.id_in(index)
            if unit not in given:
                given[unit] = await self._documents(unit, search.request.documents)
            about = unit.as_read(tasks.payload_key(task_id))
            if about is None or self._record(unit.as_read(tasks.task_key(task_id)), index) is None:
                continue  # it has moved on, as taking it will find
            try:
                payload = decode_value(self._executor, about.key, await unit.value(about))
            except ConflictError:
                continue  # so it has, since it was seen
            except _UNREADABLE as error:
                self._pass_over(index, error, search)
                continue
            if match is not None and not await call_function(match, task_id, payload, given[unit]):
                search.unfit.add(index.key)

    async def _documents(self, unit: Unit, names: Sequence[str]) -> dict[str, Any]:
        entries = await unit.read(*_keys(names))
        return {
            name: (await read_record(self._executor, unit, entry)).value
            for name, entry in zip(names, entries, strict=True)
            if entry is not None
        }

    def _record(self, stored: Entry | None, index: Entry) -> TaskRecord | None:
        """Return the record of a task if it still stands where the index entry says."""
        if stored is None:
            return None
        record = tasks.opened(stored.value, f"task {tasks.id_in(index)!r} of {self._executor.name!r}")
        stands = record.state == "ready" and tasks.place_of(record, stored.version) == index.key
        return record if stands else None

    async def _take(
        self, index: Entry, request: ClaimRequest, seen: Unit | None, losses: LossDetector
    ) -> Claimed | KeepstateError | None:
        """Return the claimed task, why it cannot be read, or None if somebody else was first.

        Args:
            index: Its index entry.
            request: What is asked for.
            seen: What has read the task, if that was done to choose it; its batch then stands on that read.
            losses: What tells whether the claim is void.
        """
        task_id = tasks.id_in(index)
        keys = (tasks.task_key(task_id), tasks.payload_key(task_id))

        async def work(unit: Unit) -> Claimed | KeepstateError | None:
            if seen is not None and seen.revision is not None:
                known = {key: seen.as_read(key) for key in (*keys, *_keys(request.documents))}
                unit.require_no_loss(seen.losses)
                unit.assume_cached(known, seen.revision, await seen.now_ms())
            stored, about = await unit.read(*keys)
            record = self._record(stored, index)
            if record is None or about is None:
                return None
            try:
                payload = decode_value(self._executor, about.key, await unit.value(about))
            except _UNREADABLE as error:
                return error
            unit.delete(index.key)
            record = await _held(unit, record, request)
            return record, payload

        try:
            return await self._taken(lambda: self._executor.run(work, attempts=1), losses)
        except ConflictError:
            return None

    async def _taken(self, take: Callable[[], Awaitable[tuple[T, int]]], losses: LossDetector) -> T:
        """Return what the batch of a claim returned; who is cancelled meanwhile gives back the task."""

        async def give_back(answer: tuple[T, int]) -> None:
            if isinstance(answer[0], tuple):
                await self._give_back([cast("Claimed", answer[0])], losses)

        if self._executor.gathers:  # then it is part of a batch that its caller applies
            return (await take())[0]
        return (await acquire_shielded(self._executor.runner, take, give_back))[0]

    async def _give_back(self, claimed: Sequence[Claimed], losses: LossDetector) -> None:
        """Make tasks that are still held ready again, as if nobody had claimed them."""

        async def work(unit: Unit, records: Sequence[TaskRecord]) -> None:
            unit.require_no_loss(losses)
            stored = await unit.read(*(tasks.task_key(record.id) for record in records))
            now_ms = await unit.now_ms()
            for entry, record in zip(stored, records, strict=True):
                if entry is None:
                    continue
                now = tasks.opened(entry.value, f"task {record.id!r} of {self._executor.name!r}")
                if now.state == "claimed" and now.token == record.token:
                    unit.delete(now.place)
                    put_ready(unit, entry.key, now, attempt=now.attempt - 1, due_at_ms=now_ms)

        records = [record for record, _ in claimed]
        try:
            for begin in range(0, len(records), _BACK_AT_ONCE):
                await self._executor.run(partial(work, records=records[begin : begin + _BACK_AT_ONCE]))
        except KeepstateError as error:
            _log.warning(
                "up to %d tasks of %r stay claimed until their leases end, for nobody: %s",
                len(records),
                self._executor.name,
                error,
            )

    async def take(self, task_id: str, request: ClaimRequest, losses: LossDetector) -> Claimed:
        """Return one task by its id, claimed although it may not be its turn.

        Raises:
            ConflictError: Somebody holds it.
            NotFoundError: There is none.
            TransitionError: It is done or dead, or dead now: the lease of its last attempt has run out.
        """

        async def work(unit: Unit) -> Claimed | ConflictError | TransitionError:
            stored, about = await unit.read(tasks.task_key(task_id), tasks.payload_key(task_id))
            if stored is None:
                raise NotFoundError(f"no task of {self._executor.name!r} has the id {task_id!r}")
            record = tasks.opened(stored.value, f"task {task_id!r} of {self._executor.name!r}")
            if about is None or record.state in ("done", "dead"):
                raise self._over(record)
            now_ms = await unit.now_ms()
            if record.state == "claimed" and now_ms < record.due_at_ms:
                return ConflictError(
                    f"task {task_id!r} of {self._executor.name!r} is held by "
                    f"{shorten(record.worker or '')!r}; try later",
                    space=self._executor.name,
                    key=stored.key,
                    actual=stored.version,
                )
            if record.state == "ready" and stored.version == UNWRITTEN:
                raise InvalidError(f"task {task_id!r} is put by this transaction; claim it after its end")
            if attempts_exhausted(record):
                return self._over(put_ready_or_dead(unit, stored.key, record, now_ms))
            unit.delete(tasks.place_of(record, stored.version))
            payload = decode_value(self._executor, about.key, await unit.value(about))
            return await _held(unit, record, request), payload

        taken = await self._taken(lambda: self._executor.run(work), losses)
        # Raised by the work, a conflict would be tried again and again, and a death would not be written.
        if isinstance(taken, ConflictError | TransitionError):
            raise taken
        return taken

    def _over(self, record: TaskRecord) -> TransitionError:
        return TransitionError(
            f"task {record.id!r} of {self._executor.name!r} is {record.state} and cannot be claimed",
            current=record.state,
            wanted="claimed",
        )


def _keys(documents: Sequence[str]) -> list[bytes]:
    return [layout.named_key(layout.DOCUMENTS, name) for name in documents]


async def _held(unit: Unit, record: TaskRecord, request: ClaimRequest) -> TaskRecord:
    """Return a task's record as that of who claims it now; its old index entry is the caller's to remove."""
    until_ms, former = await unit.now_ms() + request.lease_ms, record.worker
    place = tasks.timed_key(layout.CLAIMED, until_ms, record.id)
    assert unit.revision is not None  # the record was read
    record = msgspec.structs.replace(
        record,
        state="claimed",
        attempt=record.attempt + 1,
        token=tasks.next_token(record, unit.revision),
        due_at_ms=until_ms,
        worker=request.worker,
        place=place,
    )
    unit.put(place, tasks.name_of(record))
    unit.put(tasks.task_key(record.id), tasks.encoded(record))
    if request.on_claim is not None:
        await request.on_claim(unit, record.id, former)
    return record


def without_documents(match: Match) -> TaskFilter:
    """Return a choice that looks at no documents."""
    return lambda task_id, payload, _: match(task_id, payload)
