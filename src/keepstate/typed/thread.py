"""The state of one thread: what its space holds, in memory, and how a change gets there.

Each change is one conditional batch over the documents of the slots that it touches and over the head. Who
finds that others were faster does it again on the newest values; nothing else is read or written, however
many keys are registered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from keepstate.engine.documents.changed_names import list_changed_names
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import on_rollback, together
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ClosedError, HistoryLostError, NotLoadedError
from keepstate.typed.encoded_value import Kept
from keepstate.typed.layout import THREAD_SLOTS, Names
from keepstate.typed.memory import Memory
from keepstate.typed.records import Head, ValueRecord, kept_record, plain, read_record

T = TypeVar("T")
Slots: TypeAlias = Mapping[str, Kept | None]
"""Values by slot; None for what is absent."""

_NAMES_BY_READ = 500
_LOG_READS = 4
"""So often the log is followed while others write on; who is outrun by them reads all."""
_UNGUARDED_LOADS = 4
"""So often all is read page by page; who is outrun by so many changes reads it in a transaction."""
_ATTEMPTS = 1_000
"""So often a change is tried while others write the same thread: each of them has got on by then."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a piece of work does to a state.

    Attributes:
        slots: The slots as they are now; None for those that are gone.
        stored: Which of them stand in documents.
        restart: The revision and lineage that the state goes on from, if not its own.
    """

    slots: Slots
    stored: Collection[str] = ()
    restart: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored, as a piece of work finds it: the newest.

    Attributes:
        head: How far the state is.
        slots: Those that were asked for.
        at: The revision of the space that wrote the head; 0 for none, or in this very transaction.
    """

    head: Head
    slots: Slots
    at: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a piece of work."""

    before: Head
    found: Slots
    head: Head
    change: Change | None
    at: int


class _StoppedError(Exception):
    """What `compute` raised: not to be taken for a conflict of the batch, and not to be tried again."""

    def __init__(self, error: Exception) -> None:
        self.error = error


Compute = Callable[[Found], Change | None]
"""Says what to change, or None for nothing; called again where others were faster."""
Beside = Callable[[Transaction, Head], Awaitable[None]]
"""Does more in the same batch, given the head that it makes."""


class ThreadState:
    """The state of a thread, read into memory.

    Attributes:
        place: The space, or the transaction, that it stands in.
        names: What its documents are called there.
        run_id: Whose run-scoped values it has; empty for nobody's.
        lease: Changes apply only while this is held, if there is one.
        memory: What it held when it was read or changed last.
        is_loaded: Whether it was read.
        is_closed: Whether nothing more is to be read or changed by it.
        unstored: The slots that stand in no document: only this memory knows them.
    """

    def __init__(
        self, place: Space | Transaction, names: Names, run_id: str = "", *, is_empty: bool = False
    ) -> None:
        self.place, self.names, self.run_id = place, names, run_id
        self.memory, self.is_loaded = Memory(), is_empty
        self.lease: Lease | None = None
        self.unstored: frozenset[str] = frozenset()
        self._at = 0  # a revision of the space whose changes the memory has, as all before it
        self._losses: LossDetector | None = None  # of the space, when the memory was read
        self._mark = ""  # ends the lineage here, so that batches from before a loss are of another
        self._turns = FifoLock(place.runner)
        self.is_closed = False

    def known(self) -> Memory:
        """Return what was read.

        Raises:
            NotLoadedError: Nothing was yet.
        """
        if not self.is_loaded:
            raise NotLoadedError(
                f"the state in {self.place!r} is not read yet; call `refresh()`, or enter it"
            )
        return self.memory

    def carry(self, before: ThreadState) -> None:
        """Take over the thread-scoped values that stand in no document."""
        held = {slot: before.memory.slots.get(slot) for slot in before.unstored}
        self.unstored = frozenset(slot for slot in held if slot.startswith(THREAD_SLOTS) and held[slot])
        self.memory = self.memory.after(0, "", {slot: held[slot] for slot in self.unstored})

    async def serialized(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what the work returned, once all else that this memory is part of has ended.

        Raises:
            ClosedError: It is closed, also where the store was passed in and stays open.
        """
        self._refuse_closed()
        return await self._turns.run(work)

    def _refuse_closed(self) -> None:
        if self.is_closed:
            raise ClosedError(f"the state in {self.place!r} is closed; make another")

    # ---- reading

    async def load(self) -> None:
        """Read what is stored, unless it was read before."""
        self._refuse_closed()
        if not self.is_loaded:
            await self.serialized(self._load)

    async def refresh(self) -> None:
        """Bring the memory to what is stored now, reading only what has changed.

        Raises:
            HistoryLostError: The space lost what the memory was read of; the next call reads what is there.
        """
        await self.serialized(self._follow if self.is_loaded else self._load)

    async def _load(self) -> None:
        """Read all that is stored: page by page, and then what was changed meanwhile."""
        if isinstance(self.place, Space):
            self._losses = await self.place.executor.loss_detector()
        for _ in range(_UNGUARDED_LOADS):
            if isinstance(self.place, Transaction):
                break
            first = await self._together(lambda tx: self._read(tx, ()))
            self._keep(first, await self._scan(self.place))
            if await self._caught_up():
                return
        self._keep(*await self._together(self._everything))

    async def _everything(self, tx: Transaction) -> tuple[Found, dict[str, Kept]]:
        return await self._read(tx, ()), await self._scan(tx)

    def _keep(self, found: Found, slots: Mapping[str, Kept]) -> None:
        own = {slot: self.memory.slots[slot] for slot in self.unstored if slot in self.memory.slots}
        self.memory = Memory(found.head.revision, found.head.lineage, {**own, **slots})
        self._at, self.is_loaded = found.at, True

    async def _scan(self, place: Space | Transaction) -> dict[str, Kept]:
        slots: dict[str, Kept] = {}
        for prefix in (self.names.thread_prefix, self.names.run_prefix(self.run_id)):
            async for name, value in place.documents.items(f"{escape_pattern(prefix)}*"):
                slot = self.names.slot(name, self.run_id)
                if slot is not None:
                    slots[slot] = read_record(ValueRecord, name, value).kept()
        return slots

    async def _follow(self) -> None:
        self._verify()
        if not await self._caught_up() and not await self._caught_up_by_log():
            await self._load()

    async def _caught_up_by_log(self) -> bool:
        """Bring the memory to what is stored now by what the log names, unless that does not reach back."""
        names, at = set[str](), self._at
        for _ in range(_LOG_READS):
            if isinstance(self.place, Transaction) or not at:
                return False
            if (told := await list_changed_names(self.place.executor, self.names.all, at)) is None:
                return False
            names, at = names | told[0], told[1]
            slots = {slot for name in names if (slot := self.names.slot(name, self.run_id)) is not None}
            found = await self._together(partial(self._read, slots=slots))
            if not found.head.continues(self.memory.revision, self.memory.lineage):
                return False
            if found.at <= at:  # what was read is all in what the log has told
                self._take(found)
                return True
        return False

    def _take(self, found: Found) -> None:
        self.memory = self.memory.after(found.head.revision, found.head.lineage, found.slots)
        self._at = found.at

    async def _caught_up(self) -> bool:
        """Bring the memory to what is stored now, unless the head does not name what has changed."""

        async def work(tx: Transaction) -> Found | None:
            found = await self._read(tx, ())
            missed = self._missed(found.head)
            if missed is None:
                return None
            return await self._read(tx, missed) if missed else found

        found = await self._together(work)
        if found is None:
            return False
        self._take(found)
        return True

    def _missed(self, head: Head) -> set[str] | None:
        return head.changed_since(self.memory.revision, self.memory.lineage, self.run_id)

    async def _read(self, tx: Transaction, slots: Collection[str]) -> Found:
        """Return the head and what is stored of some slots, of one revision."""
        documents = {self.names.document(slot, self.run_id): slot for slot in sorted(slots)}
        names, head, at = list(documents), Head(), 0
        found: dict[str, Kept | None] = dict.fromkeys(documents.values())
        for begin in range(0, max(1, len(names)), _NAMES_BY_READ):
            asked = [self.names.head] * (begin == 0) + names[begin : begin + _NAMES_BY_READ]
            for name, entry in (await tx.documents.entries(*asked)).items():
                if name == self.names.head:
                    head, at = read_record(Head, name, entry.value), entry.version
                    head = replace(head, lineage=head.lineage + self._mark)
                else:
                    found[documents[name]] = read_record(ValueRecord, name, entry.value).kept()
        return Found(head, found, at)

    async def _together(
        self, work: Callable[[Transaction], Awaitable[T]], *, lease: Lease | None = None, message: str = ""
    ) -> T:
        try:
            return await together(self.place, work, lease=lease, message=message, attempts=_ATTEMPTS)
        except HistoryLostError:
            self._void()
            raise

    def _verify(self) -> None:
        """Raise `HistoryLostError`, once, if the space lost what the memory was read of."""
        if self._losses is not None and self._losses.has_lost_history:
            losses = self._losses
            self._void()
            losses.verify()

    def _void(self) -> None:
        """Let the next call read all anew, and refuse what was computed from what was lost."""
        self.is_loaded, self._losses = False, None
        self._mark = f"~{self.place.clock.random_bytes(4).hex()}"

    # ---- changing

    async def change(
        self,
        stored: Collection[str],
        compute: Compute,
        *,
        beside: Beside | None = None,
        message: str = "",
    ) -> Done:
        """Change the state by what `compute` says of its newest values, in one batch; then the memory.

        Args:
            stored: The slots that it looks at, of those that stand in documents.
            compute: Says what to change.
            beside: Does more in the same batch; also if nothing changes, with the head as it is.
            message: Says what it is for.
        """
        self._verify()

        async def work(tx: Transaction) -> Done:
            found = await self._read(tx, stored)
            others: Slots = {}
            if missed := (self._missed(found.head) or set()) - set(stored):
                others = (await self._read(tx, missed)).slots
            try:
                change = compute(found)
            except Exception as error:
                raise _StoppedError(error) from error
            head = found.head
            if change is not None:
                head = await self._write(tx, found.head, change)
            if beside is not None:
                await beside(tx, head)
            return Done(found.head, {**others, **found.slots}, head, change, found.at)

        try:
            done = await self._together(work, lease=self.lease, message=message)
        except _StoppedError as stopped:
            raise stopped.error from stopped.error.__cause__
        await self._adopt(done)
        return done

    async def _write(self, tx: Transaction, before: Head, change: Change) -> Head:
        stored = {slot: kept for slot, kept in change.slots.items() if slot in change.stored}
        for slot, kept in stored.items():
            name = self.names.document(slot, self.run_id)
            if kept is None:
                await tx.documents.delete(name)
            else:
                await tx.documents.put(name, kept_record(kept))
        if change.restart is None:
            begun = before.begun(self.place.clock)
            head = begun.after(stored, self.run_id, removes=None in change.slots.values())
        else:
            revision, lineage = change.restart
            runs = {**dict.fromkeys(before.runs, revision), self.run_id: revision}
            head = Head(revision, lineage, revision, revision, runs=runs, later=before.later)
        written = replace(head, lineage=head.lineage.removesuffix(self._mark))
        await tx.documents.put(self.names.head, plain(written))
        return head

    async def _adopt(self, done: Done) -> None:
        """Bring the memory to what a batch has made of the state; puts it back if that does not apply."""
        before = self.memory, self.unstored, self.is_loaded
        on_rollback(self.place, lambda: self._put_back(*before))
        changed, is_complete = dict(done.found), self._missed(done.before) is not None
        if done.change is not None:
            changed |= done.change.slots
            self.unstored = (self.unstored | done.change.slots.keys()) - set(done.change.stored)
        if is_complete:
            self.memory = self.memory.after(done.head.revision, done.head.lineage, changed)
            self._at = done.at
            return
        own = {slot: stored for slot, stored in changed.items() if slot in self.unstored}
        self.memory = self.memory.after(self.memory.revision, self.memory.lineage, own)
        if not await self._caught_up_by_log():
            await self._load()

    def _put_back(self, memory: Memory, unstored: frozenset[str], is_loaded: bool) -> None:  # noqa: FBT001
        self.memory, self.unstored, self.is_loaded = memory, unstored, is_loaded
