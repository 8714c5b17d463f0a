"""Claiming of tasks, the best ready one first.

Claims of one process are served together by its `Claimer`, unless they look at payloads. With `match`, one
read fetches the payloads of a whole page, and the claim of each task is conditional on that read. The batch
of each claim checks its task by key: if another worker was first, the next task is picked at random.

A worker skips tasks that it cannot read, because a worker with newer code may know their class. If a claim is
interrupted, its tasks are released. A batch that was sent is applied although its caller is cancelled, so
claims run detached from the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, cast

from keepstate.engine.documents.record import decode_value, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor, call_function
from keepstate.engine.kernel.log_cursor import listen_about
from keepstate.engine.kernel.shield import acquire_shielded, run_shielded
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.attempts import note_attempt
from keepstate.engine.queue.capacity import Capacity, write_slots
from keepstate.engine.queue.claim_requests import (
    UNREADABLE,
    Claimed,
    ClaimRequest,
    PendingClaim,
    Won,
    ready_record,
)
from keepstate.engine.queue.claimer import ClaimExecutor, claimer_of
from keepstate.engine.queue.due_tasks import DueTasks, attempts_exhausted, put_ready_or_dead
from keepstate.engine.queue.rules import QueueRules
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    ConflictError,
    InvalidError,
    KeepstateError,
    NotFoundError,
    StoreUnavailableError,
    TransitionError,
)
from keepstate.stores.protocol import ABSENT, Entry, Store

T = TypeVar("T")

_PAGE = 32
_MATCHED_FIRST, _MATCHED_PAGE = 8, 100
"""Sizes of the first page and of later ones with `match`. Early tasks often match, so the first is small."""
_LONGEST_WAIT_S = 1.0
_GIVEN_BACK_AT_ONCE = 100
_MOST_WARNED = 10_000
_log = logging.getLogger("keepstate.engine")

CLAIMING: Final = (
    *(layout.READY, layout.WAITING, layout.CLAIMED, layout.TICKS, layout.ENDING, layout.QUEUE_RULES),
    *(layout.LINES, layout.TURNS, layout.BLOCKED, layout.HELD, layout.SLOTS, layout.FREED, layout.BUCKETS),
)
"""The beginnings of all keys by which a claim finds a task."""


@dataclass(slots=True)
class _ClaimState:
    """The progress of one claim.

    Attributes:
        request: The worker's request.
        found: The tasks claimed so far.
        unmatched: The keys of tasks that do not match.
        unreadable: The errors of tasks that this worker cannot read, by key.
        first_error: The first such error in the latest scan; None without any.
    """

    request: ClaimRequest
    found: list[Claimed] = field(default_factory=list[Claimed])
    unmatched: set[bytes] = field(default_factory=set[bytes])
    unreadable: dict[bytes, KeepstateError] = field(default_factory=dict[bytes, KeepstateError])
    first_error: KeepstateError | None = None

    def remaining_in(self, page: Sequence[Entry]) -> list[Entry]:
        """Return the entries of a page that may still be claimed."""
        left: list[Entry] = []
        for entry in page:
            if (error := self.unreadable.get(entry.key)) is not None:
                self.first_error = self.first_error or error
            elif entry.key not in self.unmatched:
                left.append(entry)
        return left


class Claims:
    """Claims tasks of one space."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._due_tasks = DueTasks(executor)
        self._warned: set[str] = set()
        """The ids of unreadable tasks that were already logged."""

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Claim tasks, waiting for the first if necessary. Return them with their payloads."""
        search = _ClaimState(request)
        try:
            await self._search(search)
        except StoreUnavailableError as error:
            if not search.found:
                raise
            # The claimed tasks can be worked on, and cannot be released now.
            _log.warning(
                "claim by worker %r returns early with %d tasks: %s", request.worker, len(search.found), error
            )
        except BaseException:  # also a cancellation; raised again
            if search.found:
                await run_shielded(
                    self._executor.runner, partial(self._give_back, search.found, request.losses)
                )
            raise
        # With `match`, other workers may take the unreadable task. Without it, the worker would wait forever
        # and never learn why.
        if not search.found and search.first_error is not None and request.match is None:
            raise search.first_error
        return search.found

    async def _search(self, search: _ClaimState) -> None:
        request, store = search.request, await self._executor.store()
        documents = request.documents
        clock = self._executor.clock
        deadline_s = clock.monotonic_s() + request.wait_s
        versions: list[int] = []
        # Try before listening: a subscription costs more than a claim (on a server, a thread or task).
        await self._attempt(store, search)
        if search.found or request.wait_s <= 0:
            return
        # Of a change of other entries, a claim learns nothing, and it would look at a dozen places.
        about = (*CLAIMING, layout.DOCUMENTS) if documents else CLAIMING
        async with listen_about(store, self._executor.stored_name, about, clock) as hints:
            while True:
                if documents and (now := await self._versions(store, documents)) != versions:
                    versions = now
                    search.unmatched.clear()  # tasks may match the changed documents
                await self._attempt(store, search)
                left_s = deadline_s - clock.monotonic_s()
                if search.found or left_s <= 0:
                    return
                known = claimer_of(self._executor).known
                start_s = known.next_start_s(clock.awake_or_asleep_s())
                await hints.wait(min(left_s, start_s, await self._due_tasks.next_due_s(store)))

    async def next_look_s(self) -> float:
        """Return the seconds until a task may become claimable by itself, after a claim that found none.

        Endings that a killed process has left are completed; 0 if there were any.
        """
        store, clock = await self._executor.store(), self._executor.clock
        if await followers.resume_all(self._executor, store):
            return 0.0
        known, next_s = claimer_of(self._executor).known, await self._due_tasks.next_due_s(store)
        return next_s if known.next_ms is None else min(next_s, known.next_start_s(clock.awake_or_asleep_s()))

    async def _attempt(self, store: Store, search: _ClaimState) -> None:
        """Claim tasks that are ready now."""
        self._due_tasks.begin()
        if claimer_of(self._executor).known.is_look_due(self._executor.clock.monotonic_s()):
            await followers.resume_all(self._executor, store)
        if not search.request.is_shared:
            await self._scan_ready(store, search)
            return
        runner = self._executor.runner
        if not runner.is_home():  # a forked child must not wait in the line of its parent
            runner.check(self._executor.home)
        promise = runner.promise() if runner.mode == "async" else None
        ticket = PendingClaim(search.request, promise, runner.signal())
        rounds = ClaimExecutor(self._executor, self._due_tasks, _write_claim, self._warn, self._give_back)
        try:
            await claimer_of(self._executor, search.request.kinds).serve(ticket, rounds)
        finally:
            if ticket.is_over:
                search.found += ticket.found
            search.first_error = ticket.first_error

    async def _versions(self, store: Store, documents: Sequence[str]) -> list[int]:
        reading = await store.read(self._executor.stored_name, _keys(documents))
        return [ABSENT if entry is None else entry.version for entry in reading.entries]

    async def _scan_ready(self, store: Store, search: _ClaimState) -> None:
        """Claim tasks that are ready now, one by one, each on the read that `match` was given."""
        request = search.request
        given_up: set[bytes] = set()
        lost_once: set[bytes] = set()
        limit = _PAGE if request.match is None else _MATCHED_FIRST
        is_contended = False
        search.first_error = None
        await self._due_tasks.promote(store, force=False)
        known = claimer_of(self._executor).known
        after: bytes | None = None
        while len(search.found) < request.count:
            page = await store.scan(self._executor.stored_name, layout.READY, after=after, limit=limit)
            now = known.rules
            candidates = [
                entry
                for entry in search.remaining_in(page.entries)
                if entry.key not in given_up and _is_wanted(request, now.rules, tasks.index_in(entry).kind)
            ]
            seen: dict[bytes, Unit] = {}
            if candidates and (request.match is not None or search.unreadable):
                seen = await self._prefetch(store, candidates, request.documents)
                await self._filter(candidates, seen, search)
                candidates = search.remaining_in(candidates)
            if not candidates:
                if page.next is not None:
                    after, limit = page.next, max(limit, _MATCHED_PAGE)
                elif await self._due_tasks.promote(store, force=True):
                    after = None
                elif await known.confirm_rules(store, self._executor.stored_name, now.version, page.revision):
                    return
                else:
                    after = None
                continue
            pick = int(self._executor.clock.spread() * len(candidates)) if is_contended else 0
            entry = candidates[pick]
            capacity = await self._capacity(store, now.rules, entry, page.now_ms)
            if capacity is not None and capacity.block_of(*_kind_and_key(entry)) is not None:
                given_up.add(entry.key)  # it may not start now
                continue
            claimed = await self._take(entry, request, seen.get(entry.key), capacity, now.version)
            is_contended = claimed is None
            if isinstance(claimed, KeepstateError):
                self._skip(entry, claimed, search)
            elif claimed is not None:
                search.found.append(claimed)
            elif entry.key in lost_once:
                given_up.add(entry.key)  # lost twice, or an index entry without its task
            else:
                lost_once.add(entry.key)

    def _skip(self, index: Entry, error: KeepstateError, search: _ClaimState) -> None:
        search.unreadable[index.key] = error
        self._warn(tasks.id_in(index), error)

    def _warn(self, task_id: str, error: KeepstateError) -> None:
        """Log, once for each task, that this process cannot read it."""
        if task_id not in self._warned:
            if len(self._warned) >= _MOST_WARNED:
                self._warned.clear()
            self._warned.add(task_id)
            _log.warning(  # without the error's text, which may contain data of the payload
                "skipping task %r of %r: its payload cannot be read by this process (%s). Call get() with "
                "payload=True to see the error",
                task_id,
                self._executor.name,
                type(error).__name__,
            )

    async def _prefetch(
        self, store: Store, candidates: Sequence[Entry], documents: Sequence[str]
    ) -> dict[bytes, Unit]:
        """Read all candidates, in as few reads as the byte limit allows. Return the unit of each, by key."""
        unit = Unit(store, self._executor.stored_name, self._executor.name)
        ids = [tasks.id_in(entry) for entry in candidates]
        try:
            await unit.read(
                *_keys(documents),
                *map(tasks.task_key, ids),
                *map(tasks.payload_key, ids),
                layout.QUEUE_RULES,
            )
        except InvalidError:
            if len(candidates) == 1:
                raise
            half = len(candidates) // 2
            first = await self._prefetch(store, candidates[:half], documents)
            return first | await self._prefetch(store, candidates[half:], documents)
        return {entry.key: unit for entry in candidates}

    async def _filter(
        self, candidates: Sequence[Entry], seen: Mapping[bytes, Unit], search: _ClaimState
    ) -> None:
        """Record the candidates that do not match and those that cannot be read."""
        given: dict[Unit, dict[str, Any]] = {}
        match = search.request.match
        for index in candidates:
            unit, task_id = seen[index.key], tasks.id_in(index)
            if unit not in given:
                given[unit] = await self._documents(unit, search.request.documents)
            payload_entry = unit.as_read(tasks.payload_key(task_id))
            if (
                payload_entry is None
                or ready_record(self._executor, unit.as_read(tasks.task_key(task_id)), index) is None
            ):
                continue  # its state changed; the claim will detect that
            try:
                payload = decode_value(self._executor, payload_entry.key, await unit.value(payload_entry))
            except ConflictError:
                continue  # its state changed during the read
            except UNREADABLE as error:
                self._skip(index, error, search)
                continue
            if match is not None and not await call_function(match, task_id, payload, given[unit]):
                search.unmatched.add(index.key)

    async def _documents(self, unit: Unit, names: Sequence[str]) -> dict[str, Any]:
        entries = await unit.read(*_keys(names))
        return {
            name: (await read_record(self._executor, unit, entry)).value
            for name, entry in zip(names, entries, strict=True)
            if entry is not None
        }

    async def _capacity(self, store: Store, rules: QueueRules, index: Entry, now_ms: int) -> Capacity | None:
        """Return what the limits of a task allow now; None if it has no limits."""
        if not rules.limits_of(*_kind_and_key(index)):
            return None
        capacity = Capacity(self._executor, store, rules, now_ms)
        await capacity.load([_kind_and_key(index)])
        return capacity

    async def _take(
        self,
        index: Entry,
        request: ClaimRequest,
        seen: Unit | None,
        capacity: Capacity | None,
        rules_version: int,
    ) -> Claimed | KeepstateError | None:
        """Claim one task. Return it, the error of its payload, or None if another worker was first.

        Args:
            index: The task's index entry.
            request: The worker's request.
            seen: The unit that read the task for `match`, if any. The claim is then conditional on that read.
            capacity: What the limits of the task allow, if it has limits.
            rules_version: The version of the rules by which the task may be claimed.
        """
        task_id = tasks.id_in(index)
        keys = (tasks.task_key(task_id), tasks.payload_key(task_id), layout.QUEUE_RULES)
        cache = claimer_of(self._executor).known

        ended: list[str] = []

        async def work(unit: Unit) -> Won | KeepstateError | None:
            if seen is not None and seen.revision is not None:
                known = {key: seen.as_read(key) for key in (*keys, *_keys(request.documents))}
                unit.require_no_loss(seen.losses)
                unit.assume_cached(known, seen.revision, await seen.now_ms())
            stored, payload_entry, rules = await unit.read(*keys)
            record = ready_record(self._executor, stored, index)
            if not cache.learn_rules(rules, unit, rules_version):
                return None
            if stored is None or record is None or payload_entry is None:
                return None
            if tasks.is_expired(record, now_ms := await unit.now_ms()):
                ended.append(followers.die(unit, record, now_ms, tasks.EXPIRED, version=stored.version).id)
                return None
            try:
                payload = decode_value(self._executor, payload_entry.key, await unit.value(payload_entry))
            except UNREADABLE as error:
                return error
            slots = () if capacity is None else capacity.take(record.kind, record.key)
            write_slots(unit, slots)
            if capacity is not None:
                capacity.write(unit)
            claimed = await _write_claim(unit, record, stored.version, request, slots)
            return claimed, payload, payload_entry.value

        try:
            won, revision = await self._take_shielded(lambda: self._executor.run(work, attempts=1), request)
        except ConflictError:
            return None
        await followers.resume(self._executor, ended)
        return (*won, revision) if isinstance(won, tuple) else won

    async def _take_shielded(
        self, take: Callable[[], Awaitable[tuple[T, int]]], request: ClaimRequest
    ) -> tuple[T, int]:
        """Run the batch of a claim, and return its result and revision.

        If the caller is cancelled, release the task.
        """

        async def give_back(answer: tuple[T, int]) -> None:
            if isinstance(answer[0], tuple):
                await self._give_back([(*cast("Won", answer[0]), 0)], request.losses)

        if self._executor.gathers:  # the claim is part of the transaction's batch
            return await take()
        return await acquire_shielded(self._executor.runner, take, give_back)

    async def _give_back(self, claimed: Sequence[Claimed], losses: LossDetector) -> None:
        """Make tasks that are still held ready again, as if they had not been claimed."""

        async def work(unit: Unit, records: Sequence[TaskRecord]) -> None:
            unit.require_no_loss(losses)
            stored = await unit.read(*(tasks.task_key(record.id) for record in records))
            now_ms = await unit.now_ms()
            for entry, record in zip(stored, records, strict=True):
                if entry is None:
                    continue
                now = tasks.decode_record(entry.value, f"task {record.id!r} of {self._executor.name!r}")
                if now.state == "claimed" and now.token == record.token:
                    tasks.move(unit, now, "ready", attempt=now.attempt - 1, due_at_ms=now_ms)

        records = [record for record, *_ in claimed]
        try:
            for begin in range(0, len(records), _GIVEN_BACK_AT_ONCE):
                await self._executor.run(partial(work, records=records[begin : begin + _GIVEN_BACK_AT_ONCE]))
        except KeepstateError as error:
            _log.warning(
                "up to %d tasks of %r could not be released and stay claimed until their leases expire: %s",
                len(records),
                self._executor.name,
                error,
            )

    async def take(self, task_id: str, request: ClaimRequest) -> Claimed:
        """Claim one task by its id, regardless of order and delay.

        Raises:
            ConflictError: A worker holds the task.
            NotFoundError: No task has this id.
            TransitionError: The task is done or dead, or became dead because its last attempt's lease
                expired.
        """
        ended: list[str] = []

        async def work(unit: Unit) -> Won | ConflictError | TransitionError:
            ended.clear()
            stored, payload_entry = await unit.read(tasks.task_key(task_id), tasks.payload_key(task_id))
            if stored is None:
                raise NotFoundError(f"no task of {self._executor.name!r} has the id {task_id!r}")
            record = tasks.decode_record(stored.value, f"task {task_id!r} of {self._executor.name!r}")
            if payload_entry is None or record.state in tasks.ENDED:
                raise self._over_error(record)
            if record.waits_for and not record.is_suspended:
                return self._early_error(record)
            now_ms = await unit.now_ms()
            if record.state == "claimed" and now_ms < record.due_at_ms:
                return ConflictError(
                    f"task {task_id!r} of {self._executor.name!r} is held by "
                    f"worker {shorten(record.worker or '')!r}. Try again later",
                    space=self._executor.name,
                    key=stored.key,
                    actual=stored.version,
                )
            if record.state == "ready" and stored.version == UNWRITTEN:
                raise InvalidError(
                    f"task {task_id!r} was put by this transaction; claim it after the transaction"
                )
            if attempts_exhausted(record) or tasks.is_expired(record, now_ms):
                ended.append(task_id)
                if record.state == "ready":
                    dead = followers.die(unit, record, now_ms, tasks.EXPIRED, version=stored.version)
                else:
                    dead = await put_ready_or_dead(unit, record, now_ms)
                return self._over_error(dead)
            payload = decode_value(self._executor, payload_entry.key, await unit.value(payload_entry))
            if record.state == "claimed":  # its lease expired
                error = f"the lease of worker {shorten(record.worker or '')!r} expired"
                record = await note_attempt(unit, record, now_ms, error)
            claimed = await _write_claim(unit, record, stored.version, request, ())
            return claimed, payload, payload_entry.value

        taken, revision = await self._take_shielded(lambda: self._executor.run(work), request)
        if not self._executor.gathers:
            await followers.resume(self._executor, ended)
        # Returned instead of raised in `work`: a conflict would be retried, and the dead state not written.
        if isinstance(taken, ConflictError | TransitionError):
            raise taken
        return (*taken, revision)

    def _early_error(self, record: TaskRecord) -> TransitionError:
        return TransitionError(
            f"task {record.id!r} of {self._executor.name!r} waits for {shorten(record.waits_for[0])!r} and "
            "cannot be claimed before that is done",
            current=record.state,
            wanted="claimed",
        )

    def _over_error(self, record: TaskRecord) -> TransitionError:
        return TransitionError(
            f"task {record.id!r} of {self._executor.name!r} is {record.state} and cannot be claimed",
            current=record.state,
            wanted="claimed",
        )


def _is_wanted(request: ClaimRequest, rules: QueueRules, kind: str) -> bool:
    return (request.kinds is None or kind in request.kinds) and rules.permits(kind)


def _kind_and_key(index: Entry) -> tuple[str, str | None]:
    record = tasks.index_in(index)
    return record.kind, record.key


def _keys(documents: Sequence[str]) -> list[bytes]:
    return [layout.named_key(layout.DOCUMENTS, name) for name in documents]


async def _write_claim(
    unit: Unit, record: TaskRecord, version: int, request: ClaimRequest, slots: Sequence[bytes]
) -> TaskRecord:
    """Move a task to claimed, and return its record. A claim that expired leaves its slots to the next."""
    assert unit.revision is not None  # the record was read
    now_ms = await unit.now_ms()
    claimed = tasks.move(
        unit,
        record,
        "claimed",
        version=version,
        attempt=record.attempt + 1,
        token=tasks.next_token(record, unit.revision),
        due_at_ms=now_ms + request.lease_ms,
        began_at_ms=now_ms,
        worker=request.worker,
        waits_for=(),
        waits_on=(),
        is_suspended=False,
        slots=(*record.slots, *slots),
    )
    if request.on_claim is not None:
        await request.on_claim(unit, record.id, record.worker)
    return claimed
