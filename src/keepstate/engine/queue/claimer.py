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
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from keepstate._runner import Promise, reentrant_lock
from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.claim_requests import (
    UNREADABLE,
    Claimed,
    PendingClaim,
    Won,
    WriteClaim,
    accepts,
    ready_record,
)
from keepstate.engine.queue.ordered_claims import OrderedClaims
from keepstate.engine.queue.queue_cache import QueueCache, ReadyView
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    ConflictError,
    InvalidError,
    KeepstateError,
    StoreUnavailableError,
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
_MOST_LATE_MS: Final = 1000
"""Milliseconds by which the supposed time of a claim may be late, if its lease is four times as long."""
_LONGEST_WAIT_S: Final = 1.0

_Offer: TypeAlias = tuple[PendingClaim, Entry]


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
        is_ordered = False
        while tickets := [ticket for ticket in tickets if not _is_served(ticket)]:
            if is_ordered or known.rules.version:
                await self._serve_in_order(tickets, known)
                return
            losses = LossDetector(store, self.executor.stored_name, self.executor.name)
            wanted = sum(ticket.left for ticket in tickets)
            # Claims of a rare kind read on in large pages, so that others wait for fewer of them.
            limit = min(max(_PAGE, wanted), limits.PAGE_ROWS) if search.after is None else limits.PAGE_ROWS
            page = await store.scan(self.executor.stored_name, layout.READY, after=search.after, limit=limit)
            known.learn_time(page.now_ms, self.executor.clock.awake_or_asleep_s())
            search.rules_version = known.rules.version
            offers = search.offers(page.entries, tickets, known.rules.rules.permits)
            if not offers:
                if page.next is not None:
                    search.after = page.next
                elif await self._due_tasks.promote(store, force=True) or not (
                    await known.confirm_rules(
                        store, self.executor.stored_name, search.rules_version, page.revision
                    )
                ):
                    search.after = None
                else:
                    rules = known.rules
                    if (
                        search.after is None
                        and not page.entries
                        and not rules.version
                        and rules.revision == page.revision
                    ):
                        known.keep_view(ReadyView(page.revision, losses))
                    for ticket in tickets:
                        ticket.first_error = search.first_error_of(ticket)
                    return
                continue
            if any(tasks.index_in(entry).key is not None for _, entry in offers):
                is_ordered = True  # keys take turns
                continue
            revision = await self._take(search, offers)
            if (
                revision == page.revision + 1
                and page.next is None
                and search.after is None
                and not known.rules.version
            ):
                view = ReadyView(revision, losses)
                view.entries = {entry.key: None for entry in page.entries if entry.key not in search.taken}
                known.keep_view(view)

    async def _serve_in_order(self, tickets: Sequence[PendingClaim], known: QueueCache) -> None:
        """Claim tasks by turns and by the rules of the queue."""
        store = await self.executor.store()
        rounds = OrderedClaims(self.executor, store, known, self._write_claim, self._warn)
        while tickets := [ticket for ticket in tickets if not _is_served(ticket)]:
            await rounds.serve(tickets)
            if not any(ticket.left for ticket in tickets):
                continue
            if await self._due_tasks.promote(store, force=True):
                continue
            if await rounds.confirm_rules():
                for ticket in tickets:
                    ticket.first_error = rounds.first_error_of(ticket)
                return

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
        if any(tasks.decode_record(stored.value, "a task").key is not None for _, stored, _ in ours):
            return  # keys take turns

        async def work(unit: Unit) -> list[tuple[PendingClaim, Won]]:
            entries = {entry.key: entry for _, *both in ours for entry in both}
            late_ms = min(_MOST_LATE_MS, *(ticket.request.lease_ms // 4 for ticket in tickets))
            unit.require_no_loss(view.losses)
            unit.assume_scanned(entries, view.revision, now_ms, until_ms=now_ms + late_ms)
            claims: list[tuple[PendingClaim, Won]] = []
            for ticket, (_, stored, payload_entry) in zip(plain, ours, strict=False):
                unit.check(stored.key, version=stored.version)
                record = tasks.decode_record(stored.value, f"task of {self.executor.name!r}")
                if tasks.is_expired(record, now_ms):
                    raise ConflictError(f"task {record.id!r} has expired", space=self.executor.name)
                payload = decode_value(self.executor, payload_entry.key, await unit.value(payload_entry))
                claimed = await self._write_claim(unit, record, stored.version, ticket.request, ())
                claims.append((ticket, (claimed, payload, payload_entry.value)))
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
            await followers.resume(self.executor, search.ended)
            for ticket, index, claimed in claims:
                ticket.found.append((*claimed, revision))
                search.taken.add(index.key)
            return revision

    async def _claim_all(
        self, unit: Unit, search: _Search, chosen: Sequence[_Offer]
    ) -> list[tuple[PendingClaim, Entry, Won]]:
        ids = [tasks.id_in(index) for _, index in chosen]
        *stored, rules = await unit.read(
            *map(tasks.task_key, ids), *map(tasks.payload_key, ids), layout.QUEUE_RULES
        )
        claims: list[tuple[PendingClaim, Entry, Won]] = []
        left = {ticket: ticket.left for ticket, _ in chosen}
        search.lost.clear()
        search.ended.clear()
        if not claimer_of(self.executor).known.learn_rules(rules, unit, search.rules_version):
            return claims  # the round goes on by the new rules
        for (ticket, index), entry, payload_entry in zip(
            chosen, stored[: len(ids)], stored[len(ids) :], strict=True
        ):
            if not left[ticket]:
                continue
            record = ready_record(self.executor, entry, index)
            if entry is None or record is None or payload_entry is None:
                search.lost.append(index.key)
                continue
            if tasks.is_expired(record, now_ms := await unit.now_ms()):
                search.end(index, followers.die(unit, record, now_ms, tasks.EXPIRED, version=entry.version))
                continue
            try:
                payload = decode_value(self.executor, payload_entry.key, await unit.value(payload_entry))
            except UNREADABLE as error:
                search.unreadable[index.key] = record.kind, error
                self._warn(record.id, error)
                continue
            left[ticket] -= 1
            claimed = await self._write_claim(unit, record, entry.version, ticket.request, ())
            claims.append((ticket, index, (claimed, payload, payload_entry.value)))
        return claims


def _is_served(ticket: PendingClaim) -> bool:
    """End a claim that has all its tasks, and return whether it has ended."""
    if not ticket.left:
        ticket.finish()
    return ticket.is_over


class _Search:
    """The progress of one round.

    Attributes:
        after: The key after which the next page begins.
        unreadable: The kinds and errors of tasks that this process cannot read, by index key.
        taken: The index keys of the tasks that were claimed.
        lost: The index keys whose tasks were not ready any more in the last read.
        ended: The ids of followed tasks that the last batch found to have expired.
        rules_version: The version of the rules by which the last offers were made.
    """

    def __init__(self) -> None:
        self.after: bytes | None = None
        self.unreadable: dict[bytes, tuple[str, KeepstateError]] = {}
        self.taken: set[bytes] = set()
        self.lost: list[bytes] = []
        self.ended: list[str] = []
        self.rules_version = 0
        self._given_up: set[bytes] = set()
        self._lost_once: set[bytes] = set()
        self._most, self._is_contended = _MOST_TAKEN, False

    def offers(
        self, page: Sequence[Entry], tickets: Sequence[PendingClaim], permits: Callable[[str], bool]
    ) -> list[_Offer]:
        """Return the tasks of a page for claims that want them, in order; a task is offered once."""
        offers: list[_Offer] = []
        left = {ticket: ticket.left for ticket in tickets}
        # What may turn out to be unreadable, or another's, is offered beyond what is wanted.
        spare = _PAGE if self.unreadable or self._is_contended else 0
        for entry in page:
            if entry.key in self.unreadable or entry.key in self._given_up:
                continue
            kind = tasks.index_in(entry).kind
            if not permits(kind):
                continue
            fitting = [ticket for ticket in left if accepts(ticket, kind)]
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
        return next((error for kind, error in self.unreadable.values() if accepts(ticket, kind)), None)

    def end(self, index: Entry, record: TaskRecord) -> None:
        """Note that a task expired before it was claimed."""
        self.taken.add(index.key)
        if record.is_followed:
            self.ended.append(record.id)

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
