"""The queues of one tenant, followed through the tenant's index: which of them may have a task, and when.

Invariant: a queue whose outbox was delivered is reported by the next `changes`. An outbox that a killed
process has left is delivered by `sweep`, which visits the spaces that have changed since its last visit.
Heads are hints: the claim decides on the queue itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from keepstate.engine.index.carrier import AT_ONCE, Carrier, NoIndexError
from keepstate.engine.index.index import Index
from keepstate.engine.index.listing import is_under
from keepstate.engine.index.rows import Row, decode_row, prefixes_under
from keepstate.engine.index.walk import ChangedSpaces
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import last_changes_ms
from keepstate.engine.kernel.subjects import QUEUE
from keepstate.errors import CompactedError, HistoryLostError
from keepstate.stores.protocol import Change


@dataclass(frozen=True, slots=True)
class QueueHead:
    """A queue that may have a task.

    Attributes:
        space: The name of its space, without the tenant.
        due_in_s: Seconds until a task may be claimed, by the store's clock; 0 for now.
    """

    space: str
    due_in_s: float


class QueueHeads:
    """Follows the queues of one tenant.

    Args:
        index: The indexes of the store.
        carrier: The carrier of the tenant.
        under: The beginning of the names of the spaces.
        kinds: The kinds of tasks; None for all.
    """

    def __init__(self, index: Index, carrier: Carrier, under: str, kinds: Collection[str] | None) -> None:
        self._index, self._carrier, self._under = index, carrier, under
        self._kinds = None if kinds is None else frozenset(kinds)
        self._at: int | None = None
        self._nonce: bytes | None = None
        self._states: dict[str, dict[str, str]] = {}
        """The states of the listed queues of each space, by kind."""
        self._changed_spaces = ChangedSpaces()

    @property
    def space(self) -> str:
        """The stored name of the space whose hints tell of changes."""
        return self._carrier.space

    async def changes(self) -> list[QueueHead]:
        """Return the queues that have changed since the last call; at first, all with a task or a time."""
        if self._at is None:
            return await self._begin()
        store = self._carrier.store
        try:
            changes = await store.changes(self.space, self._at)
        except (CompactedError, HistoryLostError):
            return await self._begin()
        if changes.upto < self._at or (self._nonce and changes.nonces.get(self._at, b"") != self._nonce):
            return await self._begin()
        self._at, self._nonce = changes.upto, changes.nonces.get(changes.upto, b"")
        found: dict[str, Row | None] = {}
        for change in changes.items:
            self._note(change, found)
        if not found:
            return []
        now_ms = (await store.read(self.space, [])).now_ms
        return [_head(space, row, now_ms) for space, row in found.items()]

    def _note(self, change: Change, found: dict[str, Row | None]) -> None:
        """Add the space of a changed row to `found`, if its queues may have become ready."""
        if not change.key.startswith(layout.ROWS):
            return
        old = None if change.old is None else decode_row(change.old, change.key)
        new = None if change.new is None else decode_row(change.new, change.key)
        row = new or old
        if row is None or row.kind != QUEUE or not is_under(row.space, self._under):
            return
        states = self._states.setdefault(row.space, {})
        states.pop(row.id, None)
        # A task of one kind that has ended may have freed the slot that a task of another kind waits for.
        is_freed = any(state == "ready" and self._wants(kind) for kind, state in states.items())
        if new is not None:
            states[row.id] = new.state
        if not states:
            del self._states[row.space]
        is_due = new is not None and self._is_due(new)
        if is_freed or (is_due and row.space not in found):
            found[row.space] = None if is_freed else new
        elif is_due and (former := found[row.space]) is not None and _due_ms(row) < _due_ms(former):
            found[row.space] = new

    def _wants(self, kind: str) -> bool:
        return self._kinds is None or kind in self._kinds

    def _is_due(self, row: Row) -> bool:
        """Return whether a queue has to be looked at, now or at some time."""
        return self._wants(row.id) and (row.due_ms is not None or row.state == "waiting")

    async def _begin(self) -> list[QueueHead]:
        """Deliver all outboxes, and return the queues that are due at some time."""
        carrier, store = self._carrier, self._carrier.store
        self._states.clear()
        await self._visit()
        await self._index.deliver(carrier.tenant)
        if await carrier.meta() is None:
            return []  # the tenant has no space yet
        reading = await store.read(self.space, [])
        changes = await store.changes(self.space, reading.revision)
        found: dict[str, Row] = {}
        for prefix in prefixes_under(self._under):
            async for _, row in carrier.rows(prefix):
                if row.kind != QUEUE:
                    continue
                self._states.setdefault(row.space, {})[row.id] = row.state
                if not self._is_due(row):
                    continue
                if row.space not in found or _due_ms(row) < _due_ms(found[row.space]):
                    found[row.space] = row
        self._at, self._nonce = reading.revision, changes.nonces.get(reading.revision)
        return [_head(space, row, reading.now_ms) for space, row in found.items()]

    async def sweep(self) -> None:
        """Deliver what killed processes have left in spaces that have changed since the last call."""
        carrier = self._carrier
        if self._at is None:
            return
        try:
            await carrier.sweep_marks()
            waiting = [
                (space, subject)
                for space in await self._visit()
                for subject in [each async for each in carrier.waiting_in(space)]
            ]
            for begin in range(0, len(waiting), AT_ONCE):
                await carrier.carry(waiting[begin : begin + AT_ONCE])
        except NoIndexError:
            self._at = None  # the tenant was erased; the next call begins again

    async def _visit(self) -> list[str]:
        """Return the spaces that have changed since the last call."""
        store, changed = self._carrier.store, list[str]()
        self._changed_spaces.begin((await store.read(self.space, [])).now_ms)
        async for page in self._carrier.space_pages():
            mine = [pair for pair in page if is_under(pair[1], self._under)]
            times = await last_changes_ms(store, [stored for stored, _ in mine])
            visited = zip(mine, times, strict=True)
            changed += [name for (_, name), at_ms in visited if self._changed_spaces.has_changed(name, at_ms)]
        self._changed_spaces.end()
        return changed


def _due_ms(row: Row) -> int:
    return 0 if row.due_ms is None else row.due_ms


def _head(space: str, row: Row | None, now_ms: int) -> QueueHead:
    return QueueHead(space, 0.0 if row is None else max(_due_ms(row) - now_ms, 0) / 1000)
