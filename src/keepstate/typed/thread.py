"""The state of one thread: its values in memory, and the changes to its space.

Each change is one conditional batch over the documents of the touched slots and the head. After a conflict
the change is retried on the latest values. No other document is read or written, however many keys are
registered. A batch of updates is applied to the latest values, one update after the other, all or none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from keepstate.engine.documents.watch import list_changed_names
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import on_rollback, run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ClosedError, HistoryLostError, NotLoadedError, StateConflictError, StateError
from keepstate.typed.batch import UNSET, MutationBatch
from keepstate.typed.key import AnyKey, EncodedValue, copy_value, decode_value, default_value, encode_value
from keepstate.typed.layout import THREAD_SLOTS, Names, slot_of
from keepstate.typed.records import Head, ValueRecord, read_record, to_document, value_document
from keepstate.typed.registry import Registered, Registry
from keepstate.typed.state_map import Memory

T = TypeVar("T")
Slots: TypeAlias = Mapping[str, EncodedValue | None]
"""Values by slot; None for an absent value."""

_NAMES_BY_READ = 500
_LOG_READS = 4
"""Number of attempts to catch up by the log under concurrent writes, before everything is read."""
_UNGUARDED_LOADS = 4
"""Number of attempts to read everything page by page, before a transaction is used."""
_ATTEMPTS = 1_000
"""Number of attempts of a change under concurrent writes; each conflict means another succeeded."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a state.

    Attributes:
        slots: The new values by slot; None removes a value.
        stored: The slots whose values are stored in documents.
        restart: The revision and lineage to continue from, if not the state's own.
    """

    slots: Slots
    stored: Collection[str] = ()
    restart: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """The latest stored state, as a change reads it.

    Attributes:
        head: The head of the state.
        slots: The requested slots.
        at: The space revision that wrote the head; 0 for none, or in the current transaction.
    """

    head: Head
    slots: Slots
    at: int = 0


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change."""

    before: Head
    found: Slots
    head: Head
    change: Change | None
    at: int


class _ComputeError(Exception):
    """Wraps an error of `compute`, so that it is not taken for a conflict and retried."""

    def __init__(self, error: Exception) -> None:
        self.error = error


Compute = Callable[[StoredState], Change | None]
"""Returns the change, or None for no change; called again after a conflict."""
ExtraWrites = Callable[[Transaction, Head], Awaitable[None]]
"""Adds writes to the same batch, given the head that the batch makes."""


class ThreadState:
    """The state of a thread in memory.

    Attributes:
        target: The space or transaction of the state.
        names: The document names of the state.
        run_id: The run of the run-scoped values; empty without a run.
        lease: If set, changes apply only while this lease is held.
        memory: The values as last read or changed.
        is_loaded: Whether the values were read.
        is_closed: Whether further reads and changes are rejected.
        unstored: The slots that are not stored in documents, so only this memory has them.
    """

    def __init__(
        self, target: Space | Transaction, names: Names, run_id: str = "", *, is_empty: bool = False
    ) -> None:
        self.target, self.names, self.run_id = target, names, run_id
        self.memory, self.is_loaded = Memory(), is_empty
        self.lease: Lease | None = None
        self.unstored: frozenset[str] = frozenset()
        self._at = 0  # the memory has all changes up to this space revision
        self._loss_detector: LossDetector | None = None  # created when the memory was read
        self._mark = ""  # lineage suffix, so that batches from before a loss are rejected
        self._lock = FifoLock(target.runner)
        self.is_closed = False

    def require_memory(self) -> Memory:
        """Return the values that were read.

        Raises:
            NotLoadedError: Nothing was read yet.
        """
        if not self.is_loaded:
            raise NotLoadedError(
                f"The state in space {self.target.executor.name!r} was not read yet. Call refresh(), or use "
                "`async with`."
            )
        return self.memory

    def carry(self, before: ThreadState) -> None:
        """Take over the unstored thread-scoped values of another state."""
        held = {slot: before.memory.slots.get(slot) for slot in before.unstored}
        self.unstored = frozenset(slot for slot in held if slot.startswith(THREAD_SLOTS) and held[slot])
        self.memory = self.memory.after(0, "", {slot: held[slot] for slot in self.unstored})

    async def serialized(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work after earlier work on this memory has ended, and return its result.

        Raises:
            ClosedError: The state is closed, even if its store was passed in and is still open.
        """
        self._require_open()
        return await self._lock.run(work)

    def _require_open(self) -> None:
        if self.is_closed:
            space = self.target.executor.name
            raise ClosedError(f"The state in space {space!r} is closed. Create a new object.")

    # ---- reading

    async def load(self) -> None:
        """Read the stored state, unless it was read before."""
        self._require_open()
        if not self.is_loaded:
            await self.serialized(self._load)

    async def refresh(self) -> None:
        """Update the memory to the stored state, reading only the changes.

        Raises:
            HistoryLostError: The space lost history that the memory was read from; the next call reads
                everything again.
        """
        await self.serialized(self._refresh if self.is_loaded else self._load)

    async def _load(self) -> None:
        """Read the stored state page by page, then the changes made during the read."""
        if isinstance(self.target, Space):
            self._loss_detector = await self.target.executor.loss_detector()
        for _ in range(_UNGUARDED_LOADS):
            if isinstance(self.target, Transaction):
                break
            first = await self._together(lambda tx: self._read(tx, ()))
            self._set_memory(first, await self._scan(self.target))
            if await self._catch_up():
                return
        self._set_memory(*await self._together(self._read_all))

    async def _read_all(self, tx: Transaction) -> tuple[StoredState, dict[str, EncodedValue]]:
        return await self._read(tx, ()), await self._scan(tx)

    def _set_memory(self, found: StoredState, slots: Mapping[str, EncodedValue]) -> None:
        own = {slot: self.memory.slots[slot] for slot in self.unstored if slot in self.memory.slots}
        self.memory = Memory(found.head.revision, found.head.lineage, {**own, **slots})
        self._at, self.is_loaded = found.at, True

    async def _scan(self, target: Space | Transaction) -> dict[str, EncodedValue]:
        slots: dict[str, EncodedValue] = {}
        for prefix in (self.names.thread_prefix, self.names.run_prefix(self.run_id)):
            async for name, value in target.documents.items(f"{escape_pattern(prefix)}*"):
                slot = self.names.slot(name, self.run_id)
                if slot is not None:
                    slots[slot] = read_record(ValueRecord, name, value).to_encoded()
        return slots

    async def _refresh(self) -> None:
        self._verify()
        if not await self._catch_up() and not await self._catch_up_by_log():
            await self._load()

    async def _catch_up_by_log(self) -> bool:
        """Update the memory by the changes in the log; return False if the log does not reach back."""
        names, at = set[str](), self._at
        for _ in range(_LOG_READS):
            if isinstance(self.target, Transaction) or not at:
                return False
            if (log := await list_changed_names(self.target.executor, self.names.state_prefix, at)) is None:
                return False
            names, at = names | log[0], log[1]
            slots = {slot for name in names if (slot := self.names.slot(name, self.run_id)) is not None}
            found = await self._together(partial(self._read, slots=slots))
            if not found.head.continues(self.memory.revision, self.memory.lineage):
                return False
            if found.at <= at:  # the log covers everything that was read
                self._update_memory(found)
                return True
        return False

    def _update_memory(self, found: StoredState) -> None:
        self.memory = self.memory.after(found.head.revision, found.head.lineage, found.slots)
        self._at = found.at

    async def _catch_up(self) -> bool:
        """Update the memory by the changes that the head names; return False if it names too few."""

        async def work(tx: Transaction) -> StoredState | None:
            found = await self._read(tx, ())
            missed = self._missed_slots(found.head)
            if missed is None:
                return None
            return await self._read(tx, missed) if missed else found

        found = await self._together(work)
        if found is None:
            return False
        self._update_memory(found)
        return True

    def _missed_slots(self, head: Head) -> set[str] | None:
        return head.changed_since(self.memory.revision, self.memory.lineage, self.run_id)

    async def _read(self, tx: Transaction, slots: Collection[str]) -> StoredState:
        """Read the head and some slots, at one revision."""
        documents = {self.names.document(slot, self.run_id): slot for slot in sorted(slots)}
        names, head, at = list(documents), Head(), 0
        found: dict[str, EncodedValue | None] = dict.fromkeys(documents.values())
        for begin in range(0, max(1, len(names)), _NAMES_BY_READ):
            asked = [self.names.head] * (begin == 0) + names[begin : begin + _NAMES_BY_READ]
            for name, entry in (await tx.documents.entries(*asked)).items():
                if name == self.names.head:
                    head, at = read_record(Head, name, entry.value), entry.version
                    head = replace(head, lineage=head.lineage + self._mark)
                else:
                    found[documents[name]] = read_record(ValueRecord, name, entry.value).to_encoded()
        return StoredState(head, found, at)

    async def _together(
        self, work: Callable[[Transaction], Awaitable[T]], *, lease: Lease | None = None, message: str = ""
    ) -> T:
        try:
            return await run_in_transaction(
                self.target, work, lease=lease, message=message, attempts=_ATTEMPTS
            )
        except HistoryLostError:
            self._invalidate()
            raise

    def _verify(self) -> None:
        """Raise `HistoryLostError`, once, if the space lost history that the memory was read from."""
        if self._loss_detector is not None and self._loss_detector.has_lost_history:
            loss_detector = self._loss_detector
            self._invalidate()
            loss_detector.verify()

    def _invalidate(self) -> None:
        """Make the next call read everything again, and reject batches computed from lost history."""
        self.is_loaded, self._loss_detector = False, None
        self._mark = f"~{self.target.clock.random_bytes(4).hex()}"

    # ---- changing

    async def change(
        self,
        stored: Collection[str],
        compute: Compute,
        *,
        extra_writes: ExtraWrites | None = None,
        message: str = "",
    ) -> ChangeResult:
        """Change the state in one batch, computed from its latest values, and then update the memory.

        Args:
            stored: The stored slots that `compute` reads.
            compute: Returns the change.
            extra_writes: Adds writes to the same batch; also called without a change, with the unchanged
                head.
            message: Description of the change.
        """
        self._verify()

        async def work(tx: Transaction) -> ChangeResult:
            found = await self._read(tx, stored)
            others: Slots = {}
            if missed := (self._missed_slots(found.head) or set()) - set(stored):
                others = (await self._read(tx, missed)).slots
            try:
                change = compute(found)
            except Exception as error:
                raise _ComputeError(error) from error
            head = found.head
            if change is not None:
                head = await self._write(tx, found.head, change)
            if extra_writes is not None:
                await extra_writes(tx, head)
            return ChangeResult(found.head, {**others, **found.slots}, head, change, found.at)

        try:
            done = await self._together(work, lease=self.lease, message=message)
        except _ComputeError as stopped:
            raise stopped.error from stopped.error.__cause__
        await self._adopt(done)
        return done

    async def _write(self, tx: Transaction, before: Head, change: Change) -> Head:
        stored = {slot: value for slot, value in change.slots.items() if slot in change.stored}
        for slot, value in stored.items():
            name = self.names.document(slot, self.run_id)
            if value is None:
                await tx.documents.delete(name)
            else:
                await tx.documents.put(name, value_document(value))
        if change.restart is None:
            begun = before.with_lineage(self.target.clock)
            head = begun.after(stored, self.run_id, removes=None in change.slots.values())
        else:
            revision, lineage = change.restart
            runs = {**dict.fromkeys(before.runs, revision), self.run_id: revision}
            head = Head(revision, lineage, revision, revision, runs=runs, later=before.later)
        written = replace(head, lineage=head.lineage.removesuffix(self._mark))
        await tx.documents.put(self.names.head, to_document(written))
        return head

    async def _adopt(self, done: ChangeResult) -> None:
        """Update the memory to the result of a batch; on rollback the memory is restored."""
        before = self.memory, self.unstored, self.is_loaded
        on_rollback(self.target, lambda: self._restore(*before))
        changed, is_complete = dict(done.found), self._missed_slots(done.before) is not None
        if done.change is not None:
            changed |= done.change.slots
            self.unstored = (self.unstored | done.change.slots.keys()) - set(done.change.stored)
        if is_complete:
            self.memory = self.memory.after(done.head.revision, done.head.lineage, changed)
            self._at = done.at
            return
        own = {slot: stored for slot, stored in changed.items() if slot in self.unstored}
        self.memory = self.memory.after(self.memory.revision, self.memory.lineage, own)
        if not await self._catch_up_by_log():
            await self._load()

    def _restore(self, memory: Memory, unstored: frozenset[str], is_loaded: bool) -> None:  # noqa: FBT001
        self.memory, self.unstored, self.is_loaded = memory, unstored, is_loaded


class BatchApplication:
    """The application of a batch to a state: the keys that it touches, and the values that it computes.

    Attributes:
        stored: The touched slots whose values are stored in documents.
    """

    def __init__(
        self, batch: MutationBatch, registry: Registry, unstored: Mapping[str, EncodedValue], run_id: str
    ) -> None:
        self._batch, self._unstored, self._run_id = batch, unstored, run_id
        self._touched = {operation.key.KEY: registry.require(operation.key) for operation in batch}
        self.stored = frozenset(_slot(each) for each in self._touched.values() if each.persistent)

    def compute(self, found: StoredState) -> Change | None:
        """Apply the updates to the latest values and return the change; None for an empty batch.

        Raises:
            StateConflictError: The batch conflicts with the latest values.
            Exception: Any error that `apply` of a key raises.
        """
        if self._batch.is_empty():
            return None
        if (conflict := self._find_conflict(found)) is not None:
            raise conflict
        values: dict[str, Any] = {}
        for key, update in self._batch:
            slot = _slot(self._touched[key.KEY])
            if update is UNSET:
                values[slot] = UNSET
                continue
            value = values[slot] if slot in values else self._current_value(slot, key, found)
            values[slot] = _apply(key, default_value(key) if value is UNSET else value, update)
        revision = found.head.revision + 1
        keys = {_slot(self._touched[operation.key.KEY]): operation.key for operation in self._batch}
        return Change(
            {
                slot: None if value is UNSET else encode_value(keys[slot], value, revision)
                for slot, value in values.items()
            },
            self.stored,
        )

    def _current_value(self, slot: str, key: AnyKey, found: StoredState) -> Any:
        stored = self._stored(slot, found)
        return default_value(key) if stored is None else decode_value(key, stored)

    def _stored(self, slot: str, found: StoredState) -> EncodedValue | None:
        return found.slots.get(slot) if slot in self.stored else self._unstored.get(slot)

    def _changed_key(self, base: int, found: StoredState) -> str | None:
        """Return an exclusive key of the batch that changed after its base revision, or None.

        A value with a revision above that of the state was written before an earlier state was restored.
        """
        for name in sorted(self._batch.exclusive_keys()):
            slot = _slot(self._touched[name])
            stored, head = self._stored(slot, found), found.head
            changed = head.removed_at(slot, self._run_id) if stored is None else stored.revision
            if base < changed <= head.revision:
                return name
        return None

    def _find_conflict(self, found: StoredState) -> StateConflictError | None:
        base, lineage = self._batch.base_revision, self._batch.lineage
        if base is None:
            return None
        head, exclusive = found.head, None
        if lineage is not None and not head.continues(base, lineage):
            reason = "the state was recreated, restored or lost since then"
        elif base > head.revision:
            reason = f"the state is only at revision {head.revision}"
        elif (exclusive := self._changed_key(base, found)) is not None:
            reason = f"exclusive key {exclusive!r} changed since then"
        else:
            return None
        return StateConflictError(
            f"The batch was computed from revision {base}, but {reason}. Nothing was applied. Compute "
            "it again from a new snapshot.",
            state_key=exclusive,
            actual=head.revision,
        )


def _slot(registered: Registered) -> str:
    return slot_of(registered.scope, registered.key.KEY)


def _apply(key: AnyKey, value: Any, update: Any) -> Any:
    try:
        new = key.apply(value, copy_value(update, f"an update of {key.KEY!r}"))
    except Exception as error:
        error.add_note(
            f"Raised by {key.__qualname__}.apply of key {key.KEY!r}. Nothing of the batch was applied."
        )
        raise
    if new is None and key.default() is not None:
        raise StateError(
            f"{key.__qualname__}.apply returned None for key {key.KEY!r}. Return the new value. "
            "Nothing of the batch was applied.",
            state_key=key.KEY,
        )
    return new
