"""A store in memory for the tests of an application, with a clock that is set and faults that are ordered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keepstate
import keepstate.sync
from keepstate._runner import Runner
from keepstate.errors import ClosedError, OutcomeUnknownError, UnsupportedError
from keepstate.names import is_reserved
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryHeap, MemoryStore, name_heap
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Outcome, Put
from keepstate.stores.retries import RetryBudget
from keepstate.testing.clocks import StoreClock

OtherWriter: TypeAlias = Callable[[keepstate.sync.Keepstate], object]
"""Writes as another process would, with a blocking handle of its own."""


class StoreForTests:
    """A store in memory that a test opens by its URL, crashes, and orders faults from.

    Args:
        name: Names the store in its URL; unique in this process.
        clock: The clock of the store.

    Attributes:
        url: The URL, for code that opens the store itself: `keepstate.open(keepstate_store.url)`.
        clock: The clock of the store, for expiry, leases, delays and times of records.
    """

    def __init__(self, name: str, clock: StoreClock | None = None) -> None:
        self.url = f"memory://{name}"
        self.clock = clock or StoreClock()
        self._heap = _FaultyHeap(self.clock)
        # The other writer has a store of its own: a shared one would wait for the write that is under way.
        self._names = (name, f"{name}-another-writer")
        for one in self._names:
            name_heap(one, self._heap)
        self.clock.on_change(self._heap.wake)

    def __repr__(self) -> str:
        return f"<StoreForTests {self.url}>"

    def open(self, **options: Any) -> keepstate.Keepstate:
        """Return an async handle. The options are those of `keepstate.open`."""
        return keepstate.open(self.url, **options)

    def open_blocking(self, **options: Any) -> keepstate.sync.Keepstate:
        """Return a blocking handle. The options are those of `keepstate.sync.open`."""
        return keepstate.sync.open(self.url, **options)

    def crash(self) -> None:
        """End each handle that is open, as the death of its process does.

        What was acknowledged stays. Leases and claims stay taken until they run out. A handle that was open
        raises `ClosedError` at each call, so nothing of the dead process writes again; closing it does
        nothing. Open the store again for the process that comes next.
        """
        self._heap.crash()

    def lose_next_reply(self, *, for_good: bool = False) -> None:
        """Apply the next write, and lose its reply.

        keepstate asks again by the token of the write, so the caller gets its answer and the write is applied
        once. Calling it twice loses the replies of the next two writes.

        Args:
            for_good: Lose the answers to all questions about this write too. The caller gets
                `OutcomeUnknownError`, as it does when a server stays away.
        """
        self._heap.order_lost_reply(for_good=for_good)

    def conflict_next(self, by: OtherWriter | None = None) -> None:
        """Let another writer change the data before the next write that depends on a read.

        A `transaction` then raises `ConflictError`. `update` and `transact` read again and succeed, having
        called their function twice.

        Args:
            by: What the other writer does. By default it writes the value again that is already there, or,
                where nothing is, the value that your code was to write.
        """
        url = f"memory://{self._names[1]}"
        self._heap.order_conflict(by, lambda: keepstate.sync.open(url, author="another writer"))

    def unused_faults(self) -> list[str]:
        """Return the faults that were ordered and did not happen, such as `conflict_next`."""
        return self._heap.unused()

    def close(self) -> None:
        """Forget the store and its data."""
        self._heap.crash()
        for name in self._names:
            name_heap(name, None)


class _FaultyHeap(MemoryHeap):
    """The spaces of a store for tests, with the faults that were ordered and have not happened."""

    def __init__(self, clock: StoreClock) -> None:
        super().__init__(clock)
        self._ordering = threading.Lock()
        self._lost_replies: list[bool] = []
        self._conflicts: list[tuple[OtherWriter | None, Callable[[], keepstate.sync.Keepstate]]] = []
        self.is_bothering = False

    def store(self, name: str, runner: Runner) -> MemoryStore:
        """Return an unopened store on these spaces."""
        return _FaultyStore(name=name, runner=runner, clock=self.clock, heap=self)

    def crash(self) -> None:
        """Mark each open store as that of a dead process."""
        for handle in self.handles.living():
            if isinstance(handle, _FaultyStore):
                handle.crash()

    def wake(self) -> None:
        """Let everyone who waits for a change look again, because time has passed."""
        for handle in self.handles.living():
            if isinstance(handle, _FaultyStore):
                handle.look_again()

    def order_lost_reply(self, *, for_good: bool) -> None:
        """Lose the reply of one more write."""
        with self._ordering:
            self._lost_replies.append(for_good)

    def order_conflict(
        self, by: OtherWriter | None, reopened: Callable[[], keepstate.sync.Keepstate]
    ) -> None:
        """Write before one more checked batch."""
        with self._ordering:
            self._conflicts.append((by, reopened))

    def unused(self) -> list[str]:
        """Return the names of the ordered faults that did not happen."""
        with self._ordering:
            return ["lose_next_reply"] * len(self._lost_replies) + ["conflict_next"] * len(self._conflicts)

    def lost_reply(self, batch: Batch, outcome: Outcome) -> bool | None:
        """Take the order to lose the reply of a batch: for good, or once. None if there is none."""
        if type(outcome) is not Applied or not batch.writes or is_reserved(batch.space):
            return None
        with self._ordering:
            return self._lost_replies.pop(0) if self._lost_replies else None

    def come_between(self, batch: Batch) -> None:
        """Write as another writer before a batch, if that was ordered and the batch depends on a read."""
        if self.is_bothering or not batch.writes or is_reserved(batch.space):
            return
        if batch.at is None and self._checked(batch) is None:
            return
        with self._ordering:
            if not self._conflicts:
                return
            by, reopened = self._conflicts.pop(0)
        self.is_bothering = True
        try:
            if by is None:
                self._write_what_is_there(batch)
            else:
                with reopened() as other:
                    by(other)
        finally:
            self.is_bothering = False

    def _checked(self, batch: Batch) -> Check | None:
        """Return the check of a version on which the batch depends, first of all of a key that it writes."""
        versions = [check for check in batch.checks if check.version is not None]
        written = {write.key for write in batch.writes}
        return next((check for check in versions if check.key in written), versions[0] if versions else None)

    def _write_what_is_there(self, batch: Batch) -> None:
        check = self._checked(batch)
        key = check.key if check is not None else batch.writes[0].key
        puts = {write.key: write for write in batch.writes if isinstance(write, Put) and not write.stamp}
        with self.lock:
            now_ms = self.clock.now_ms()
            state = self.state_of(batch.space)
            found = state.read(batch.space, [key], now_ms, None).entries
            there = {entry.key: entry for entry in found if entry is not None}
            if check is not None and check.version == ABSENT and key not in there and key not in puts:
                raise UnsupportedError(
                    "conflict_next() cannot tell what another writer would write to a key that is absent and "
                    "only read; pass the writer: conflict_next(lambda ks: ks.space(...).documents.put(...))"
                )
            if key in there:
                expires_at_ms = there[key].expires_at_ms
                ttl_ms = None if expires_at_ms is None else max(1, expires_at_ms - now_ms)
                write = Put(key, there[key].value, ttl_ms)
            else:
                write = puts.get(key) or next(iter(puts.values()))
            self.apply(Batch(batch.space, [write]), now_ms)
        self.handles.notify(batch.space)


class _FaultyStore(MemoryStore):
    """An open store on the spaces of a store for tests. Its replies can be lost, so it retries."""

    retries = True
    _heap: _FaultyHeap
    _has_crashed = False
    _gives_up = False

    def crash(self) -> None:
        """Answer nothing any more."""
        self._has_crashed, self._is_open = True, False
        self.look_again()

    def look_again(self) -> None:
        """Wake everyone who waits for a change of a space."""
        for space in self._board.spaces():
            self.notify(space)

    def _check_open(self) -> None:
        if self._has_crashed:
            raise ClosedError(f"the process that opened {self.url} was crashed by the test; open it again")
        super()._check_open()

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply batches as a store does whose replies can be lost."""
        return await StoreBase.apply(self, batches)

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that were checked."""
        return await StoreBase.apply_checked(self, batches, sizes)

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self._check_open()
        return [self._applied(batch) for batch in batches]

    def _applied(self, batch: Batch) -> Outcome:
        self._heap.come_between(batch)
        (outcome,) = self._apply_now([batch])
        lost = self._heap.lost_reply(batch, outcome)
        if lost is None:
            return outcome
        self._gives_up = lost
        return OutcomeUnknownError("the reply was lost, as the test ordered", url=self.url)

    def _retry_budget(self, since_s: float | None = None) -> RetryBudget:
        seconds, self._gives_up = 0.0 if self._gives_up else self._retry_for_s, False
        return RetryBudget(seconds, since_s=since_s, runner=self._runner, clock=self._clock)
