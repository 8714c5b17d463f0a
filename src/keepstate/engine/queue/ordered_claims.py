"""Claims by the rules of a queue: turns between keys, limits, pauses and aging.

A round first brings back the lines whose reason to wait is over, then moves arrived tasks into their lines,
and then goes through the turns and the tasks without a line in the order of claiming. Its batch checks the
rules, each turn that it moves, each task, each slot and each bucket. What cannot start because a key is at a
limit leaves the order in that batch, so that no later claim meets it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.capacity import Block, Capacity, is_provable, require_block, write_slots
from keepstate.engine.queue.claim_requests import (
    UNREADABLE,
    Claimed,
    PendingClaim,
    Won,
    WriteClaim,
    accepts,
    ready_record,
)
from keepstate.engine.queue.line_keeper import LineKeeper
from keepstate.engine.queue.lines import (
    Turn,
    block_turn,
    decode_turn,
    end_line,
    give_turn,
    hold_turn,
    rank_of_arrival,
    turn_of_first,
    turns_prefix,
)
from keepstate.engine.queue.queue_cache import QueueCache
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import ConflictError, InvalidError, KeepstateError
from keepstate.stores.protocol import Entry, Store
from keepstate.values.key import unpack

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

_MOST_TAKEN: Final = 64
_TURNS_PAGE: Final = 32
_BEHIND: Final = 1 << 16
"""Index of a turn that was just taken: above those of all tasks of a batch."""


class _Source:
    """A task without a line, or the turn of a line with its first tasks.

    Attributes:
        rank: The rank in the order of claiming.
        entries: The index entries of the tasks, in order.
        at: The turn, and the entry that has it; None for a task without a line.
        turn: The turn as it will be; None once the line has no tasks.
        block: The reason for which the line leaves the order.
    """

    def __init__(self, rank: tuple[int, int, int], at: tuple[Turn, Entry] | None = None) -> None:
        self.rank, self.at = rank, at
        self.turn = None if at is None else at[0]
        self.entries: list[Entry] = []
        self.is_moved = False
        self.block: Block | None = None

    @property
    def kind_and_key(self) -> tuple[str, str | None]:
        if self.at is not None:
            return self.at[0].line.kind, self.at[0].line.key
        index = tasks.index_in(self.entries[0])
        return index.kind, index.key


class _Choice(msgspec.Struct, frozen=True):
    """A task that a batch will claim, for a claim that waits."""

    ticket: PendingClaim
    index: Entry
    slots: tuple[bytes, ...]


class _Plan(msgspec.Struct):
    """The claims and the moved turns of one batch."""

    capacity: Capacity
    chosen: list[_Choice]
    moved: list[_Source]


class OrderedClaims:
    """One round of claims in a queue with rules.

    Args:
        executor: The executor of the space.
        store: The store of the space.
        cache: What this process knows of the queue.
        write_claim: Moves a task to claimed.
        warn: Logs that a task cannot be read.
    """

    def __init__(
        self,
        executor: Executor,
        store: Store,
        cache: QueueCache,
        write_claim: WriteClaim,
        warn: Callable[[str, KeepstateError], None],
    ) -> None:
        self._executor, self._store, self._cache = executor, store, cache
        self._keeper = LineKeeper(executor, store, cache)
        self._write_claim, self._warn = write_claim, warn
        self._most, self._is_contended = _MOST_TAKEN, False
        self._ended: list[str] = []
        """The ids of followed tasks that the last batch found to have expired."""

    def first_error_of(self, ticket: PendingClaim) -> KeepstateError | None:
        """Return the error of the first unreadable task that a claim wants; None without one."""
        found = self._keeper.unreadable.values()
        return next((error for kind, error in found if accepts(ticket, kind)), None)

    async def confirm_rules(self) -> bool:
        """Return whether the last round went by the present rules; if not, the next one does."""
        return await self._keeper.confirm_rules()

    async def serve(self, tickets: Sequence[PendingClaim]) -> None:
        """Claim tasks until all claims have theirs, or no task can start."""
        self._cache.next_ms = None
        while any(ticket.left for ticket in tickets):
            self._keeper.begin()
            if self._keeper.rules.is_paused:
                return
            if self._keeper.rules.uncounted:
                await self._keeper.count_running(self._keeper.rules)
                continue
            await self._keeper.restore()
            plan = await self._plan(tickets)
            if plan.chosen or plan.moved:
                await self._apply(plan)
            elif self._keeper.is_sorted:
                if plan.capacity.next_ms is not None:
                    self._cache.wake_at(plan.capacity.next_ms)
                return

    # ---- choosing

    async def _plan(self, tickets: Sequence[PendingClaim]) -> _Plan:
        """Choose tasks in the order of claiming, as the limits allow."""
        wanted = min(sum(ticket.left for ticket in tickets), self._most)
        spare = _TURNS_PAGE if self._is_contended else 0
        plain = await self._keeper.sort_arrivals(wanted + spare, tickets)
        rules = self._keeper.rules
        now_ms = self._keeper.now_ms
        capacity = Capacity(self._executor, self._store, rules, now_ms)
        plan = _Plan(capacity, [], [])
        kinds = {rule.kind: None for rule in rules.limits if rule.kind is not None and not rule.each_key}
        await capacity.load([("", None), *((kind, None) for kind in kinds)])
        general = [rule for rule in rules.limits if rule.kind is None and not rule.each_key]
        if any(capacity.is_closed(limit) for limit in general):
            return plan
        sources = [self._plain_source(entry) for entry in plain]
        for lane in range(len(rules.lanes) + 1):
            sources += await self._turns(lane, wanted + spare, tickets, capacity)
        if self._is_contended and len(sources) > 1:
            sources.sort(key=lambda source: source.rank)
            sources = sources[int(self._executor.clock.spread() * len(sources)) :]
        await self._simulate(plan, sources, wanted, tickets, now_ms)
        return plan

    def _plain_source(self, entry: Entry) -> _Source:
        source = _Source(rank_of_arrival(entry))
        source.entries.append(entry)
        return source

    async def _turns(
        self, lane: int, wanted: int, tickets: Sequence[PendingClaim], capacity: Capacity
    ) -> list[_Source]:
        """Return the first turns of a lane that may be of use."""
        rules = self._keeper.rules
        if lane:
            kind = rules.lanes[lane - 1]
            if not rules.permits(kind) or not accepts(tickets[0], kind) or capacity.block_of(kind, None):
                return []
        found: list[_Source] = []
        after: bytes | None = None
        while len(found) < wanted:
            page = await self._keeper.scan(
                turns_prefix(rules, lane), after=after, limit=max(wanted, _TURNS_PAGE)
            )
            for entry in page.entries:
                turn = decode_turn(entry)
                kind = turn.line.kind
                if rules.lane_of(kind) == lane and (not rules.permits(kind) or not accepts(tickets[0], kind)):
                    continue
                found.append(_Source(turn.rank, (turn, entry)))
            if page.next is None:
                break
            after = page.next
        return found

    async def _simulate(
        self,
        plan: _Plan,
        sources: list[_Source],
        wanted: int,
        tickets: Sequence[PendingClaim],
        now_ms: int,
    ) -> None:
        sources.sort(key=lambda source: source.rank)
        sources = sources[: 2 * wanted + _TURNS_PAGE]
        rules, capacity = self._keeper.rules, plan.capacity
        heap: list[tuple[tuple[int, int, int], int, _Source]] = []
        read = 0
        waiting = iter([ticket for ticket in tickets for _ in range(ticket.left)])
        while len(plan.chosen) < wanted:
            if read < len(sources) and (not heap or sources[read].rank <= heap[0][0]):
                next_ones = sources[read : read + max(read, wanted)]
                await self._read_first_tasks(next_ones, wanted, capacity)
                for number, source in enumerate(next_ones, read):
                    heappush(heap, (source.rank, number, source))
                read += len(next_ones)
                continue
            if not heap:
                break
            _, number, source = heappop(heap)
            kind, key = source.kind_and_key if source.at or source.entries else ("", None)
            if source.at is not None and rules.lane_of(kind) != self._lane_at(source.at[1]):
                source.is_moved = True  # its kind has a lane now
                if not rules.permits(kind) or not accepts(tickets[0], kind):
                    continue
            if not source.entries:
                continue
            block = capacity.block_of(kind, key)
            if block is not None:
                if source.at is not None and is_provable(block):
                    source.block, source.is_moved = block, True
                continue
            plan.chosen.append(_Choice(next(waiting), source.entries.pop(0), capacity.take(kind, key)))
            if source.at is None or source.turn is None:
                continue
            source.is_moved = True
            if not source.entries:
                source.turn = None
                continue
            source.turn = self._next_turn(source, now_ms, len(plan.chosen))
            heappush(heap, (source.turn.rank, number, source))
        plan.moved = [source for source in sources if source.is_moved]

    async def _read_first_tasks(self, sources: Sequence[_Source], wanted: int, capacity: Capacity) -> None:
        """Read the first tasks of lines, and what their limits allow."""
        lined = [source for source in sources if source.at is not None]
        most = wanted + 1 + len(self._keeper.unreadable) + len(self._keeper.given_up)
        firsts = await self._keeper.gather(
            [
                partial(self._keeper.scan, source.at[0].line.tasks_prefix, limit=most)
                for source in lined
                if source.at is not None
            ]
        )
        for source, page in zip(lined, firsts, strict=True):
            source.entries = [
                entry
                for entry in page.entries
                if entry.key not in self._keeper.unreadable and entry.key not in self._keeper.given_up
            ]
            if not page.entries:
                source.turn, source.is_moved = None, True
        await capacity.load(source.kind_and_key for source in sources)

    def _lane_at(self, entry: Entry) -> int:
        _, lane, *_ = unpack(entry.key[len(layout.TURNS) :])
        return lane if isinstance(lane, int) else 0

    def _next_turn(self, source: _Source, now_ms: int, number: int) -> Turn:
        """Return the turn of a line whose first task was chosen."""
        assert source.turn is not None
        rules, line = self._keeper.rules, source.turn.line
        if line.key is None:
            return turn_of_first(rules, line, source.entries[0])
        order = rules.order_of(line.priority, now_ms)
        return Turn(line, rules.order_epoch, order, self._keeper.revision, _BEHIND + number)

    # ---- the batch

    async def _apply(self, plan: _Plan) -> None:
        claims: list[tuple[PendingClaim, Won]] = []
        try:
            _, revision = await self._executor.run(
                partial(self._claim_all, plan=plan, claims=claims), attempts=1
            )
        except ConflictError:
            self._contend(len(plan.chosen))
            return
        except InvalidError:  # too large for one read or one batch
            if self._most == 1:
                raise
            self._most = max(1, min(len(plan.chosen), self._most) // 2)
            return
        if not revision:
            return
        self._is_contended, self._most = False, _MOST_TAKEN
        await followers.resume(self._executor, self._ended)
        for ticket, claimed in claims:
            won: Claimed = (*claimed, revision)
            ticket.found.append(won)

    def _contend(self, chosen: int) -> None:
        self._is_contended, self._most = True, max(1, min(chosen, self._most) // 2)

    async def _claim_all(self, unit: Unit, plan: _Plan, claims: list[tuple[PendingClaim, Won]]) -> None:
        claims.clear()
        self._ended.clear()
        ids = [tasks.id_in(choice.index) for choice in plan.chosen]
        rules_entry, *stored = await unit.read(
            layout.QUEUE_RULES, *map(tasks.task_key, ids), *map(tasks.payload_key, ids)
        )
        if not self._cache.learn_rules(rules_entry, unit, self._keeper.known.version):
            return  # the round goes on by the new rules
        ready: list[tuple[_Choice, Entry, TaskRecord, Entry, Any]] = []
        for choice, entry, payload_entry in zip(
            plan.chosen, stored[: len(ids)], stored[len(ids) :], strict=True
        ):
            record = ready_record(self._executor, entry, choice.index)
            if entry is None or record is None or payload_entry is None:
                self._keeper.note_lost(choice.index.key)
                continue
            if tasks.is_expired(record, now_ms := await unit.now_ms()):
                dead = followers.die(unit, record, now_ms, tasks.EXPIRED, version=entry.version)
                self._ended += [dead.id] if dead.is_followed else []
                continue
            try:
                payload = decode_value(self._executor, payload_entry.key, await unit.value(payload_entry))
            except UNREADABLE as error:
                self._keeper.unreadable[choice.index.key] = record.kind, error
                self._warn(record.id, error)
                continue
            ready.append((choice, entry, record, payload_entry, payload))
        if len(ready) < len(plan.chosen):
            return  # another plan, without those that are lost, have expired or cannot be read
        if not await self._move_turns(unit, plan.moved):
            self._contend(len(plan.chosen))
            return
        for choice, entry, record, payload_entry, payload in ready:
            write_slots(unit, choice.slots)
            claimed = await self._write_claim(
                unit, record, entry.version, choice.ticket.request, choice.slots
            )
            claims.append((choice.ticket, (claimed, payload, payload_entry.value)))
        plan.capacity.write(unit)

    async def _move_turns(self, unit: Unit, moved: Sequence[_Source]) -> bool:
        """Write the turns as they are after the claims; return False if another process moved one."""
        at = [source.at for source in moved if source.at is not None]
        found = await unit.read(*(entry.key for _, entry in at), *(turn.line.key_of_entry for turn, _ in at))
        if any(
            now is None or now.version != entry.version for now, (_, entry) in zip(found, at, strict=False)
        ):
            return False
        rules = self._keeper.rules
        for source, (first, entry) in zip(moved, at, strict=True):
            unit.delete(entry.key)
            block, turn = source.block, source.turn
            if turn is None:
                end_line(unit, rules, first.line)
            elif block is None:
                give_turn(unit, rules, turn)
            else:
                require_block(unit, block)
                if block.until_ms is not None:
                    hold_turn(unit, rules, turn, block.until_ms)
                else:
                    assert block.counter is not None
                    block_turn(unit, rules, turn, block.counter)
        return True
