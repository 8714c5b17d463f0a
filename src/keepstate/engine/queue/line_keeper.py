"""The upkeep of a queue's lines: arrived tasks go into them, and lines that waited get their turns back.

It is done by the rounds of `OrderedClaims`, in batches of its own before that of the claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.capacity import write_slots
from keepstate.engine.queue.claim_requests import PendingClaim, accepts, ready_record
from keepstate.engine.queue.lines import (
    Line,
    Turn,
    blocked_prefix,
    decode_turn,
    epoch_in,
    first_turns,
    give_turn,
    held_until,
    turn_of_first,
)
from keepstate.engine.queue.queue_cache import QueueCache
from keepstate.engine.queue.rules import KnownRules, QueueRules, known_rules, put_rules
from keepstate.engine.queue.slots import counter_name, overflow_number, slot_name
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import ConflictError, KeepstateError
from keepstate.stores.protocol import LAST_REVISION, Entry, Page, Store
from keepstate.values.key import unpack

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

_SORTED_PAGE: Final = 160
"""Tasks that one batch moves into their lines, each with three writes, and two for its line."""
_SORTED_PAGES: Final = 26
"""Such batches in one round. So many arrived tasks, 4,160, are in their exact order before a claim."""
_RESTORED: Final = 64
_RESTORED_PAGES: Final = 16
_COUNTED_PAGE: Final = 40


class LineKeeper:
    """Keeps the lines of a queue for one round of claims.

    Args:
        executor: The executor of the space.
        store: The store of the space.
        cache: What this process knows of the queue.

    Attributes:
        known: The rules by which the present round goes.
        unreadable: The kinds and errors of tasks that this process cannot read, by index key.
        lost_once: The index keys of tasks that another process took, or that have no record.
        given_up: Those that were lost twice.
        is_sorted: Whether all arrived tasks are in their lines.
        revision: The revision of the last page of arrived tasks.
        now_ms: The time of that page.
    """

    def __init__(self, executor: Executor, store: Store, cache: QueueCache) -> None:
        self._executor, self._store, self._cache = executor, store, cache
        self.known: KnownRules = cache.rules
        self.unreadable: dict[bytes, tuple[str, KeepstateError]] = {}
        self.lost_once: set[bytes] = set()
        self.given_up: set[bytes] = set()
        self.is_sorted = True
        self.revision = self.now_ms = 0

    def begin(self) -> None:
        """Begin a round by the rules that this process knows."""
        self.known = self._cache.rules
        self.revision = LAST_REVISION  # of a paused queue, the rules are read again

    @property
    def rules(self) -> QueueRules:
        """The rules by which the present round goes."""
        return self.known.rules

    async def confirm_rules(self) -> bool:
        """Return whether the last round went by the present rules; if not, the next one does."""
        return await self._cache.confirm_rules(
            self._store, self._executor.stored_name, self.known.version, self.revision
        )

    async def scan(self, prefix: bytes, *, after: bytes | None = None, limit: int) -> Page:
        """Return a page of the queue's entries."""
        return await self._store.scan(self._executor.stored_name, prefix, after=after, limit=limit)

    async def gather(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run reads concurrently, and return their results in order."""
        found = await self._executor.runner.gather(works)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found

    async def _run(self, work: Callable[[Unit], Any]) -> bool:
        """Run work on a unit under the known rules, and return whether it was applied."""
        written: list[Unit] = []

        async def under_rules(unit: Unit) -> None:
            entry = await unit.get(layout.QUEUE_RULES)
            written.append(unit)
            if self._cache.learn_rules(entry, unit, self.known.version):
                await work(unit)

        try:
            _, revision = await self._executor.run(under_rules, attempts=1)
        except ConflictError:
            return False
        if revision and (entry := written[0].as_applied(layout.QUEUE_RULES, revision)) is not None:
            self._cache.rules = self.known = known_rules(entry, revision)
        return revision != 0

    # ---- arrivals

    async def sort_arrivals(self, wanted: int, tickets: Sequence[PendingClaim]) -> list[Entry]:
        """Move arrived tasks into their lines, and return the first tasks that have none and may start."""
        plain: list[Entry] = []
        after: bytes | None = None
        self.is_sorted = True
        pages = 0
        while len(plain) < wanted:
            page = await self.scan(layout.READY, after=after, limit=_SORTED_PAGE)
            self.revision, self.now_ms, rules = page.revision, page.now_ms, self.rules
            arrived = [entry for entry in page.entries if not entry.key.startswith(layout.LINED)]
            lined: list[Entry] = []
            for entry in arrived:
                index = tasks.index_in(entry)
                if entry.key in self.given_up:
                    continue
                if rules.has_line(index.kind, index.key):
                    lined.append(entry)
                elif self._may_start(entry.key, index.kind, tickets):
                    plain.append(entry)
            if lined:
                pages += 1
                if pages > _SORTED_PAGES:
                    self.is_sorted = False
                    break
                if not await self._run(partial(self._add, lined=lined)):
                    self.is_sorted = False  # another process moves them, or the rules have changed
                    break
            if page.next is None or len(arrived) < len(page.entries):
                break
            after = page.next
        return plain

    async def _add(self, unit: Unit, lined: Sequence[Entry]) -> None:
        rules = self.rules
        ids = [tasks.id_in(entry) for entry in lined]
        stored = await unit.read(*map(tasks.task_key, ids))
        added: list[tuple[Entry, TaskRecord]] = []
        for index, entry in zip(lined, stored, strict=True):
            record = ready_record(self._executor, entry, index)
            if record is not None:
                added.append((index, record))
            else:
                self.note_lost(index.key)
        keys = list({Line(each.priority, each.kind, each.key).key_of_entry: None for _, each in added})
        entries = dict(zip(keys, await unit.read(*keys), strict=True))
        first_turns(unit, rules, added, entries)
        if added and not self.known.version:
            put_rules(unit, rules)  # from now on every process knows that there are lines

    def note_lost(self, key: bytes) -> None:
        """Note that a task was not ready any more; one that is lost twice, or has no record, is given up."""
        (self.given_up if key in self.lost_once else self.lost_once).add(key)

    def _may_start(self, key: bytes, kind: str, tickets: Sequence[PendingClaim]) -> bool:
        return (
            key not in self.unreadable
            and key not in self.given_up
            and self.rules.permits(kind)
            and accepts(tickets[0], kind)
        )

    # ---- lines that come back

    async def restore(self) -> None:
        """Give turns to lines whose reason to wait may be over, and to those of former rules."""
        rules = self.rules
        if rules.limit_epoch:
            for _ in range(_RESTORED_PAGES):
                page = await self.scan(layout.FREED, limit=_RESTORED)
                if not page.entries or not await self._run(partial(self._unblock, marks=page.entries)):
                    break
        if any(limit.each_key and limit.starts is not None for limit in rules.limits):
            await self._release_held(rules)
        if self._cache.settled != self.known.version and (rules.limit_epoch or rules.order_epoch):
            for part, epoch in (
                (layout.TURNS, rules.order_epoch),
                (layout.BLOCKED, rules.limit_epoch),
                (layout.HELD, rules.limit_epoch),
            ):
                if not await self._replace_former(part, epoch):
                    return
            self._cache.settled = self.known.version

    async def _unblock(self, unit: Unit, marks: Sequence[Entry]) -> None:
        await unit.read(*(mark.key for mark in marks))
        rules = self.rules
        running = {limit.id: limit.running or 0 for limit in rules.limits}
        for mark in marks:
            counter = mark.key[len(layout.FREED) :]
            number = unpack(counter)[0]
            allowed = running.get(number, 0) if isinstance(number, int) else 0
            most = min(allowed, _RESTORED)
            if not most:
                unit.delete(mark.key)
                continue
            page = await self.scan(blocked_prefix(rules, counter), limit=most)
            if page.next is None or allowed <= _RESTORED:
                unit.delete(mark.key)
            await self._give_turns(unit, page.entries)

    async def _release_held(self, rules: QueueRules) -> None:
        for _ in range(_RESTORED_PAGES):
            page = await self.scan(layout.HELD, limit=_RESTORED)
            due = [entry for entry in page.entries if held_until(entry.key) <= page.now_ms]
            if len(due) < len(page.entries):
                self._cache.wake_at(held_until(page.entries[len(due)].key))
            if not due or not await self._run(partial(self._give_turns, entries=due)):
                return

    async def _replace_former(self, part: bytes, epoch: int) -> bool:
        """Give new turns to lines of former rules, and return whether there are no more of them."""
        for _ in range(_RESTORED_PAGES):
            page = await self.scan(part, limit=_RESTORED)
            former = [entry for entry in page.entries if epoch_in(part, entry.key) < epoch]
            if not former:
                return True
            if not await self._run(partial(self._give_turns, entries=former)):
                return False
        return False

    async def _give_turns(self, unit: Unit, entries: Sequence[Entry]) -> None:
        """Put lines back into the order of claiming."""
        turns = [decode_turn(entry) for entry in entries]
        found = await unit.read(
            *(entry.key for entry in entries), *(turn.line.key_of_entry for turn in turns)
        )
        firsts = await self.gather([partial(self.scan, turn.line.tasks_prefix, limit=1) for turn in turns])
        rules = self.rules
        for turn, entry, first in zip(turns, found, firsts, strict=False):
            if entry is None:
                continue
            unit.delete(entry.key)
            give_turn(unit, rules, self._present_turn(turn, first, await unit.now_ms()))

    def _present_turn(self, turn: Turn, first: Page, now_ms: int) -> Turn:
        """Return a turn by the present aging."""
        rules = self.rules
        if turn.epoch == rules.order_epoch:
            return turn
        if first.entries:
            return turn_of_first(rules, turn.line, first.entries[0])
        order = rules.order_of(turn.line.priority, now_ms)
        return Turn(turn.line, rules.order_epoch, order, turn.revision, turn.index)

    # ---- new limits

    async def count_running(self, rules: QueueRules) -> None:
        """Give slots of new limits to the tasks that are claimed already, page by page."""
        while self._cache.rules.version == self.known.version and not await self._count_pages(rules):
            continue

        async def finish(unit: Unit) -> None:
            changed = [
                msgspec.structs.replace(limit, overflows=limit.overflows or limit.id in rules.uncounted)
                for limit in rules.limits
            ]
            put_rules(unit, msgspec.structs.replace(rules, limits=tuple(changed), uncounted=()))

        if self._cache.rules.version == self.known.version:
            await self._run(finish)

    async def _count_pages(self, rules: QueueRules) -> bool:
        """Go through all claimed tasks once, and return whether all of them have their slots now."""
        is_complete, after = True, None
        while True:
            page = await self.scan(layout.CLAIMED, after=after, limit=_COUNTED_PAGE)
            counted = list[int]()
            was_applied = await self._run(
                partial(self._count, entries=page.entries, rules=rules, counted=counted)
            )
            # Over several pages, a task whose lease was shortened meanwhile may have been missed.
            if counted != [0] and (not was_applied or after is not None or page.next is not None):
                is_complete = False
            if page.next is None:
                return is_complete
            after = page.next

    async def _count(
        self, unit: Unit, entries: Sequence[Entry], rules: QueueRules, counted: list[int]
    ) -> None:
        """Give slots to claimed tasks, and note how many got one."""
        stored = await unit.read(*(tasks.task_key(tasks.id_in(entry)) for entry in entries))
        number = 0
        for entry in stored:
            if entry is None:
                continue
            record = tasks.decode_record(entry.value, f"a task record of {self._executor.name!r}")
            if record.state != "claimed":
                continue
            held = {unpack(name)[0] for name in record.slots}
            names = [
                slot_name(
                    counter_name(limit.id, record.key if limit.each_key else None),
                    overflow_number(limit.running or 0, record.id),
                )
                for limit in rules.limits_of(record.kind, record.key)
                if limit.id in rules.uncounted and limit.id not in held
            ]
            if names:
                number += 1
                write_slots(unit, names)
                changed = msgspec.structs.replace(record, slots=(*record.slots, *names))
                unit.put(entry.key, tasks.encode_record(changed))
        counted.append(number)
