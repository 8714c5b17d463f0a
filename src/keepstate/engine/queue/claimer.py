"""One claimer for all claims of a process in one space: one scan, one read and one batch for all that wait.

Only claims of given kinds have another one, for each choice of kinds.

A claim that arrives while others are served is served with the next ones. Tasks are handed out in the order
of the ready index, to claims in the order of their arrival. The batch checks every task by key, so a task
that another process takes at the same moment makes the batch fail: then the page is scanned again, and half
as many tasks are taken from a random place in it. No task is passed over for good.

A `ReadyView` saves the scan and the read as long as nothing but this process writes to the space: it holds
the ready index at one revision, with what this process itself has put. A claim from it requires that the
space is at exactly that revision, so a stale view costs a call and is never believed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from keepstate._runner import Promise, Signal, reentrant_lock
from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.stores.protocol import Entry
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor, Home
    from keepstate.engine.queue.due_tasks import DueTasks

T = TypeVar("T")

_PAGE: Final = 32
_MOST_TAKEN: Final = 64
"""Tasks in one batch, each with three writes."""
_MOST_SPACES: Final = 256
_MOST_VIEWED: Final = 64
_VIEWED_BYTES: Final = 4 << 10
"""Size of the largest payload that a view keeps."""
_MOST_LATE_MS: Final = 1000
"""Milliseconds by which the supposed time of a claim may be late, if its lease is four times as long."""
_LONGEST_PAUSE: Final = 256
"""Number of claims that do not look at a view after many refusals in a row."""
_LONGEST_WAIT_S: Final = 1.0
_TIME_VALID_S: Final = 60.0

UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""Permanent errors of a payload: for example, its class is not registered, or has a newer version."""


Claimed = tuple[TaskRecord, Any, int]
"""The record of a claimed task, its payload, and the revision of the claim, 0 inside a transaction."""
Match = Callable[[str, Any], bool]
"""Returns whether a worker can do a task, given its id and payload."""
TaskFilter = Callable[[str, Any, Mapping[str, Any]], bool]
"""As `Match`, but also takes the requested documents that exist, by name."""
OnClaim = Callable[[Unit, str, str | None], Awaitable[None]]
"""Adds writes to the claiming batch. Takes its unit, the task's id, and the task's previous worker."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request for tasks.

    Attributes:
        worker: The name of the worker.
        lease_ms: The duration of the lease.
        losses: The detector of losses that make the claims invalid.
        count: The largest number of tasks to claim.
        wait_s: Seconds to wait for the first task.
        match: Returns whether to claim a task.
        documents: The names of the documents that `match` takes, and that `on_claim` reads without cost.
        on_claim: Adds writes to the claiming batch.
        kinds: The kinds of tasks to claim; None for all.
    """

    worker: str
    lease_ms: int
    losses: LossDetector
    count: int = 1
    wait_s: float = 0
    match: TaskFilter | None = None
    documents: Sequence[str] = ()
    on_claim: OnClaim | None = None
    kinds: frozenset[str] | None = None

    @property
    def is_shared(self) -> bool:
        """True if one batch may claim for this request and for others."""
        return self.match is None and self.on_claim is None


WriteClaim: TypeAlias = Callable[[Unit, TaskRecord, int, ClaimRequest], Awaitable[TaskRecord]]


class PendingClaim:
    """One claim that waits for tasks.

    Attributes:
        request: The worker's request.
        found: The tasks claimed so far.
        first_error: The error of the first ready task that this process cannot read; None without any.
    """

    def __init__(self, request: ClaimRequest, promise: Promise[None] | None, ended: Signal) -> None:
        self.request, self.promise, self.ended = request, promise, ended
        self.found: list[Claimed] = []
        self.first_error: KeepstateError | None = None
        self.error: BaseException | None = None
        self.is_over = self.is_abandoned = False

    @property
    def left(self) -> int:
        """The number of tasks that it still wants."""
        return self.request.count - len(self.found)

    def finish(self, error: BaseException | None = None) -> None:
        """End the claim; a later call does nothing."""
        if self.is_over:
            return
        self.error, self.is_over = error, True
        if self.promise is not None:
            self.promise.give(None)


_Offer: TypeAlias = tuple[PendingClaim, Entry]


class ReadyView:
    """The ready index of a space at one revision.

    Attributes:
        revision: The revision.
        entries: The record and the payload of each ready task by index key, in the order of claiming; None
            for a task of which this process knows only that it is there.
        losses: Detects that the store lost the revision.
    """

    def __init__(self, revision: int, losses: LossDetector) -> None:
        self.revision, self.losses = revision, losses
        self.entries: dict[bytes, tuple[Entry, Entry] | None] = {}

    def first(self, most: int) -> list[tuple[bytes, Entry, Entry]]:
        """Return the first tasks, as many as are known completely without a gap."""
        found: list[tuple[bytes, Entry, Entry]] = []
        for key in sorted(self.entries)[:most]:
            known = self.entries[key]
            if known is None:
                break
            found.append((key, *known))
        return found


class QueueCache:
    """Cache of the time and the ready tasks of one space, shared by all objects of one handle."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._view: ReadyView | None = None
        self._pause = 0
        self._longest_pause = 1
        self._time: tuple[int, float] | None = None

    # ---- time

    def learn_time(self, now_ms: int, awake_s: float) -> None:
        """Remember the space's time at a moment of this process."""
        self._time = now_ms, awake_s

    def now_ms(self, awake_s: float) -> int | None:
        """Return the space's time as this process expects it, late by a call at most; None if unknown."""
        if self._time is None or awake_s - self._time[1] > _TIME_VALID_S:
            return None
        now_ms, then_s = self._time
        return now_ms + max(int((awake_s - then_s) * 1000), 0)

    # ---- batches of one task

    async def change(
        self,
        executor: Executor,
        work: Callable[[Unit], Awaitable[T]],
        task_id: str,
        supposed: Mapping[bytes, Entry | None],
    ) -> tuple[T, Entry | None]:
        """Run work on one task, and return its result and the written record; None if nothing was written.

        The work first runs on entries that are only supposed. If its batch, which checks them, is refused, or
        if it writes nothing, it runs again on what is read.

        Args:
            executor: The executor of the space.
            work: The work.
            task_id: The id of the task.
            supposed: Entries by key; empty to read at once.
        """
        clock = executor.clock
        now_ms = self.now_ms(clock.awake_or_asleep_s()) if supposed else None
        units: list[Unit] = []

        async def on_supposed(unit: Unit) -> T:
            assert now_ms is not None
            unit.assume_cached(supposed, 0, now_ms)
            units.append(unit)
            return await work(unit)

        async def on_read(unit: Unit) -> T:
            units.append(unit)
            answer = await work(unit)
            self.learn_time(await unit.now_ms(), clock.awake_or_asleep_s())
            return answer

        if now_ms is not None:
            with suppress(ConflictError):
                answer, revision = await executor.run(on_supposed, attempts=1)
                if revision:
                    return answer, self._note_task(task_id, units[-1], revision)
        answer, revision = await executor.run(on_read)
        return answer, self._note_task(task_id, units[-1], revision) if revision else None

    def _note_task(self, task_id: str, unit: Unit, revision: int) -> Entry | None:
        """Note what a batch made of a task, and return the task's record."""
        stored = unit.as_applied(tasks.task_key(task_id), revision)
        if stored is None or stored.version != revision:
            return None
        if self._view is None:
            return stored
        record = tasks.decode_record(stored.value, f"task {task_id!r}")
        former, payload = (
            unit.as_read(stored.key),
            unit.as_applied(tasks.payload_key(task_id), revision),
        )
        left = None
        if former is not None:
            left = tasks.index_key(tasks.decode_record(former.value, f"task {task_id!r}"), former.version)
        if record.state != "ready":
            self.note(revision, left=left)
        else:
            known = None if payload is None else (stored, payload)
            self.note(revision, left=left, key=tasks.index_key(record, revision), task=known)
        return stored

    # ---- the view

    def take_view(self) -> ReadyView | None:
        """Return the view for one claim, and forget it; None without one, and for a time after a refusal."""
        with self._lock:
            view, self._view = self._view, None
            if self._pause:
                self._pause -= 1
                return None
            return None if view is None or view.losses.has_lost_history else view

    def keep_view(self, view: ReadyView) -> None:
        """Remember a view, unless a newer one is known."""
        with self._lock:
            if len(view.entries) <= _MOST_VIEWED and (
                self._view is None or self._view.revision < view.revision
            ):
                self._view = view

    def refuse(self) -> None:
        """Note that a view was stale: another process writes to the space."""
        with self._lock:
            self._view, self._pause = None, self._longest_pause
            self._longest_pause = min(2 * self._longest_pause, _LONGEST_PAUSE)

    def confirm(self) -> None:
        """Note that a view was right."""
        self._longest_pause = 1

    def note(
        self,
        revision: int,
        *,
        left: bytes | None = None,
        key: bytes | None = None,
        task: tuple[Entry, Entry] | None = None,
    ) -> None:
        """Note a batch of this process on one task.

        Args:
            revision: The revision of the batch.
            left: The former index key of the task.
            key: The task's key in the index of ready tasks, if it is there now.
            task: The task's record and payload, if both are known.
        """
        with self._lock:
            view = self._view
            if view is None:
                return
            if revision != view.revision + 1 or len(view.entries) >= _MOST_VIEWED:
                self._view = None
                return
            view.revision = revision
            if left is not None:
                view.entries.pop(left, None)
            if key is not None:
                view.entries[key] = None if task and len(task[1].value) > _VIEWED_BYTES else task


def _no_claimers() -> WeakKeyDictionary[Home, dict[tuple[str, frozenset[str] | None], Claimer]]:
    return WeakKeyDictionary()


_known = _no_claimers()
_known_lock = reentrant_lock()


def _reset_after_fork() -> None:
    """Clear the claimers in a forked child, because no claim of the parent is served there."""
    global _known, _known_lock
    _known, _known_lock = _no_claimers(), reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def claimer_of(executor: Executor, kinds: frozenset[str] | None = None) -> Claimer:
    """Return the claimer of a space; all objects of one handle that stand for the space share it.

    Claims of given kinds have one of their own, because a rare kind is searched for in the whole queue, and
    no other claim should wait for that.
    """
    with _known_lock:
        claimers = _known.setdefault(executor.home, {})
        name = executor.stored_name, kinds
        claimers[name] = claimer = claimers.pop(name) if name in claimers else Claimer()
        if len(claimers) > _MOST_SPACES:
            del claimers[next(iter(claimers))]  # the least recently used
        return claimer


class Claimer:
    """Serves the claims of a process in one space, one round at a time."""

    def __init__(self) -> None:
        self.known = QueueCache()
        self._waiting: deque[PendingClaim] = deque()
        self._lead = reentrant_lock()
        self._is_serving = False

    async def serve(self, ticket: PendingClaim, rounds: ClaimExecutor) -> None:
        """Serve a claim, together with others that wait, and raise the error of its round."""
        if ticket.promise is None:
            await self._serve_in_thread(ticket, rounds)
        else:
            await self._serve_in_task(ticket, ticket.promise, rounds)
        if ticket.error is not None:
            raise ticket.error

    async def _serve_in_thread(self, ticket: PendingClaim, rounds: ClaimExecutor) -> None:
        self._waiting.append(ticket)
        try:
            # The lock is held across an await, which is safe because no coroutine suspends in blocking mode.
            with self._lead:
                while not ticket.is_over:
                    if ticket not in self._waiting:  # an interrupt hit another thread as it took claims out
                        self._waiting.append(ticket)
                    await self._serve_abandoned(await self._serve_next(rounds), rounds)
        except BaseException:
            ticket.is_abandoned = True  # first: who ends the claim after this gives its tasks back
            self._withdraw(ticket)
            raise

    async def _serve_in_task(
        self, ticket: PendingClaim, promise: Promise[None], rounds: ClaimExecutor
    ) -> None:
        self._waiting.append(ticket)
        self._ensure_server(rounds)
        try:
            await promise.wait()
        except BaseException:
            self._withdraw(ticket)
            if not ticket.is_over:
                ticket.is_abandoned = True
                await ticket.ended.wait(_LONGEST_WAIT_S)
            raise

    def _ensure_server(self, rounds: ClaimExecutor) -> None:
        if not self._is_serving:
            self._is_serving = True
            rounds.executor.runner.detach(lambda: self._serve_all(rounds))

    async def _serve_all(self, rounds: ClaimExecutor) -> None:
        try:
            while self._waiting:
                await self._serve_abandoned(await self._serve_next(rounds), rounds)
        finally:
            self._is_serving = False
            if self._waiting:  # the server was cancelled, as all tasks are when a loop ends
                self._ensure_server(rounds)

    async def _serve_abandoned(self, tickets: Sequence[PendingClaim], rounds: ClaimExecutor) -> None:
        """Release the tasks of claims whose callers were interrupted meanwhile."""
        for ticket in tickets:
            if ticket.is_abandoned:
                await rounds.give_back(ticket)
                ticket.ended.set()

    async def _serve_next(self, rounds: ClaimExecutor) -> list[PendingClaim]:
        """Serve the claims that wait longest. If that is interrupted, the others of them wait again."""
        tickets: list[PendingClaim] = []
        while self._waiting and len(tickets) < _MOST_TAKEN:
            tickets.append(self._waiting.popleft())
        try:
            await rounds.serve(tickets)
        except BaseException:
            self._waiting.extendleft(ticket for ticket in reversed(tickets) if not ticket.is_over)
            raise
        return tickets

    def _withdraw(self, ticket: PendingClaim) -> None:
        try:
            self._waiting.remove(ticket)
        except ValueError:
            return
        ticket.is_over = True


class ClaimExecutor:
    """The claiming of one space by one executor.

    Args:
        executor: The executor of the space.
        due_tasks: Promotes due tasks.
        write_claim: Moves a task to claimed.
        warn: Logs that a task cannot be read.
        give_back: Makes the tasks of an abandoned claim ready again.
    """

    def __init__(
        self,
        executor: Executor,
        due_tasks: DueTasks,
        write_claim: WriteClaim,
        warn: Callable[[str, KeepstateError], None],
        give_back: Callable[[Sequence[Claimed], LossDetector], Awaitable[None]],
    ) -> None:
        self.executor, self._due_tasks = executor, due_tasks
        self._write_claim, self._warn, self._give_back = write_claim, warn, give_back

    async def give_back(self, ticket: PendingClaim) -> None:
        """Release the tasks of a claim whose caller is gone."""
        if ticket.found:
            await self._give_back(ticket.found, ticket.request.losses)

    async def serve(self, tickets: Sequence[PendingClaim]) -> None:
        """Claim tasks for all these claims, and end them."""
        try:
            await self._serve(tickets)
        except Exception as error:  # noqa: BLE001 - each claim raises it
            for ticket in tickets:
                # Claimed tasks can be worked on, and cannot be released now.
                is_enough = ticket.found and isinstance(error, StoreUnavailableError)
                ticket.finish(None if is_enough else _copy_of(error))
        else:
            for ticket in tickets:
                ticket.finish()

    async def _serve(self, tickets: Sequence[PendingClaim]) -> None:
        store = await self.executor.store()
        known = claimer_of(self.executor).known
        if await self._due_tasks.promote(store, force=False):
            known.take_view()
        await self._take_viewed(tickets, known)
        search = _Search()
        while tickets := [ticket for ticket in tickets if not _is_served(ticket)]:
            losses = LossDetector(store, self.executor.stored_name, self.executor.name)
            wanted = sum(ticket.left for ticket in tickets)
            # Claims of a rare kind read on in large pages, so that others wait for fewer of them.
            limit = min(max(_PAGE, wanted), limits.PAGE_ROWS) if search.after is None else limits.PAGE_ROWS
            page = await store.scan(self.executor.stored_name, layout.READY, after=search.after, limit=limit)
            known.learn_time(page.now_ms, self.executor.clock.awake_or_asleep_s())
            offers = search.offers(page.entries, tickets)
            if not offers:
                if page.next is not None:
                    search.after = page.next
                elif await self._due_tasks.promote(store, force=True):
                    search.after = None
                else:
                    if search.after is None and not page.entries:
                        known.keep_view(ReadyView(page.revision, losses))
                    for ticket in tickets:
                        ticket.first_error = search.first_error_of(ticket)
                    return
                continue
            revision = await self._take(search, offers)
            if revision == page.revision + 1 and page.next is None and search.after is None:
                view = ReadyView(revision, losses)
                view.entries = {entry.key: None for entry in page.entries if entry.key not in search.taken}
                known.keep_view(view)

    async def _take_viewed(self, tickets: Sequence[PendingClaim], known: QueueCache) -> None:
        """Claim tasks that this process has put itself, without reading them again."""
        now_ms = known.now_ms(self.executor.clock.awake_or_asleep_s())
        view = known.take_view()
        if view is None or now_ms is None:
            return
        plain = [ticket for ticket in tickets for _ in range(ticket.left)]
        ours = view.first(len(plain))
        if not ours or any(ticket.request.kinds is not None for ticket in tickets):
            known.keep_view(view)
            return

        async def work(unit: Unit) -> list[tuple[PendingClaim, tuple[tasks.TaskRecord, Any]]]:
            entries = {entry.key: entry for _, *both in ours for entry in both}
            late_ms = min(_MOST_LATE_MS, *(ticket.request.lease_ms // 4 for ticket in tickets))
            unit.require_no_loss(view.losses)
            unit.assume_scanned(entries, view.revision, now_ms, until_ms=now_ms + late_ms)
            claims: list[tuple[PendingClaim, tuple[tasks.TaskRecord, Any]]] = []
            for ticket, (_, stored, payload_entry) in zip(plain, ours, strict=False):
                unit.check(stored.key, version=stored.version)
                record = tasks.decode_record(stored.value, f"task of {self.executor.name!r}")
                payload = decode_value(self.executor, payload_entry.key, await unit.value(payload_entry))
                claimed = await self._write_claim(unit, record, stored.version, ticket.request)
                claims.append((ticket, (claimed, payload)))
            return claims

        try:
            claims, revision = await self.executor.run(work, attempts=1)
        except (ConflictError, *UNREADABLE):
            known.refuse()
            return
        known.confirm()
        for ticket, claimed in claims:
            ticket.found.append((*claimed, revision))
        for key, *_ in ours:
            del view.entries[key]
        view.revision = revision
        known.keep_view(view)

    async def _take(self, search: _Search, offers: Sequence[_Offer]) -> int:
        """Claim offered tasks in one batch, and return its revision; 0 if none was claimed."""
        chosen = search.choose(offers, self.executor.clock.spread())
        while True:
            try:
                claims, revision = await self.executor.run(
                    partial(self._claim_all, search=search, chosen=chosen), attempts=1
                )
            except ConflictError:
                search.contend(chosen)
                return 0
            except InvalidError:  # too large for one read or one batch
                if len(chosen) == 1:
                    raise
                chosen = chosen[: len(chosen) // 2]
                continue
            search.settle()
            for ticket, index, claimed in claims:
                ticket.found.append((*claimed, revision))
                search.taken.add(index.key)
            return revision

    async def _claim_all(
        self, unit: Unit, search: _Search, chosen: Sequence[_Offer]
    ) -> list[tuple[PendingClaim, Entry, tuple[tasks.TaskRecord, Any]]]:
        ids = [tasks.id_in(index) for _, index in chosen]
        stored = await unit.read(*map(tasks.task_key, ids), *map(tasks.payload_key, ids))
        claims: list[tuple[PendingClaim, Entry, tuple[tasks.TaskRecord, Any]]] = []
        left = {ticket: ticket.left for ticket, _ in chosen}
        search.lost.clear()
        for (ticket, index), entry, payload_entry in zip(
            chosen, stored[: len(ids)], stored[len(ids) :], strict=True
        ):
            if not left[ticket]:
                continue
            record = ready_record(self.executor, entry, index)
            if entry is None or record is None or payload_entry is None:
                search.lost.append(index.key)
                continue
            try:
                payload = decode_value(self.executor, payload_entry.key, await unit.value(payload_entry))
            except UNREADABLE as error:
                search.unreadable[index.key] = record.kind, error
                self._warn(record.id, error)
                continue
            left[ticket] -= 1
            claimed = await self._write_claim(unit, record, entry.version, ticket.request)
            claims.append((ticket, index, (claimed, payload)))
        return claims


def _is_served(ticket: PendingClaim) -> bool:
    """End a claim that has all its tasks, and return whether it has ended."""
    if not ticket.left:
        ticket.finish()
    return ticket.is_over


class _Search:
    """The progress of one round.

    Attributes:
        after: The key behind which the next page begins.
        unreadable: The kinds and errors of tasks that this process cannot read, by index key.
        taken: The index keys of the tasks that were claimed.
        lost: The index keys whose tasks were not ready any more in the last read.
    """

    def __init__(self) -> None:
        self.after: bytes | None = None
        self.unreadable: dict[bytes, tuple[str, KeepstateError]] = {}
        self.taken: set[bytes] = set()
        self.lost: list[bytes] = []
        self._given_up: set[bytes] = set()
        self._lost_once: set[bytes] = set()
        self._most, self._is_contended = _MOST_TAKEN, False

    def offers(self, page: Sequence[Entry], tickets: Sequence[PendingClaim]) -> list[_Offer]:
        """Return the tasks of a page for claims that want them, in order; a task is offered once."""
        offers: list[_Offer] = []
        left = {ticket: ticket.left for ticket in tickets}
        # What may turn out to be unreadable, or another's, is offered beyond what is wanted.
        spare = _PAGE if self.unreadable or self._is_contended else 0
        for entry in page:
            if entry.key in self.unreadable or entry.key in self._given_up:
                continue
            kind = tasks.index_in(entry).kind
            fitting = [ticket for ticket in left if _accepts(ticket, kind)]
            ticket = next((ticket for ticket in fitting if left[ticket]), None)
            if ticket is not None:
                left[ticket] -= 1
            elif fitting and spare:
                ticket, spare = fitting[0], spare - 1
            if ticket is not None:
                offers.append((ticket, entry))
            elif not spare and not any(left.values()):
                break
        return offers

    def first_error_of(self, ticket: PendingClaim) -> KeepstateError | None:
        """Return the error of the first unreadable task that a claim wants; None without one."""
        return next((error for kind, error in self.unreadable.values() if _accepts(ticket, kind)), None)

    def choose(self, offers: Sequence[_Offer], spread: float) -> list[_Offer]:
        """Return the offers to try now: the first ones, after a conflict some from a random place."""
        if not self._is_contended:
            return list(offers[: self._most])
        begin = int(spread * len(offers))
        return list(offers[begin : begin + self._most])

    def contend(self, chosen: Sequence[_Offer]) -> None:
        """Note that another process took one of these tasks, or wrote to it."""
        self._is_contended, self._most = True, max(1, min(len(chosen), self._most) // 2)

    def settle(self) -> None:
        """Note that a batch was applied; a task that was lost twice, or has no record, is given up."""
        self._is_contended, self._most = False, _MOST_TAKEN
        self._given_up.update(self._lost_once.intersection(self.lost))
        self._lost_once.update(self.lost)


def _copy_of(error: Exception) -> Exception:
    """Return an error of its own for one of several callers; the same one if it cannot be copied."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001 - the class of a store's error may have any constructor
        return error


def _accepts(ticket: PendingClaim, kind: str) -> bool:
    return ticket.request.kinds is None or kind in ticket.request.kinds


def ready_record(executor: Executor, stored: Entry | None, index: Entry) -> tasks.TaskRecord | None:
    """Return the record of a task if it still belongs to this entry of the ready index."""
    if stored is None:
        return None
    record = tasks.decode_record(stored.value, f"task {tasks.id_in(index)!r} of {executor.name!r}")
    stands = record.state == "ready" and tasks.index_key(record, stored.version) == index.key
    return record if stands else None
