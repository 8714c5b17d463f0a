"""The memory store: spaces as state machines in this process.

The async and the blocking store of one `memory://NAME` share one `MemoryHeap`. Its lock is held for one
batch, and nothing under it waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import ClassVar

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Mode, Runner
from keepstate.errors import InvalidError
from keepstate.stores.admission import check_read
from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.hints import Handles
from keepstate.stores.key_index import SpaceTable
from keepstate.stores.protocol import (
    NONCE_BYTES,
    Applied,
    Batch,
    Capabilities,
    Changes,
    Durability,
    Leap,
    Outcome,
    Page,
    Reading,
    Sizes,
)
from keepstate.stores.records import Record
from keepstate.stores.space_state import SpaceState
from keepstate.stores.urls import StoreUrl


class MemoryHeap:
    """The spaces of a memory store, and the open stores to notify of changes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self._nonce = clock.random_bytes(NONCE_BYTES)
        """The nonce of every revision: a heap is lost only as a whole."""
        self.spaces = SpaceTable[SpaceState]()
        self.handles = Handles()

    def apply(self, batch: Batch, clock_ms: int) -> tuple[SpaceState, Outcome, Record | None]:
        """Apply a batch to its space; the space is created only if the batch leaves something in it."""
        state = self.spaces.get(batch.space)
        if state is not None:
            return state, *state.apply(batch, clock_ms)
        state = SpaceState(self._nonce)
        outcome, record = state.apply(batch, clock_ms)
        if not state.is_new:
            self.spaces[batch.space] = state
        return state, outcome, record

    def state_of(self, name: str) -> SpaceState:
        """Return the space to read from, without creating it."""
        return self.spaces.get(name) or SpaceState(self._nonce)

    def store(self, name: str, runner: Runner) -> MemoryStore:
        """Return an unopened store on these spaces."""
        return MemoryStore(name=name, runner=runner, clock=self.clock, heap=self)


_named: dict[str, MemoryHeap] = {}
_naming = threading.Lock()


def _forget_parent() -> None:
    """Reset a forked child, because its parent's locks and listeners would never be released there."""
    global _naming
    _named.clear()
    _naming = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def _heap(name: str) -> MemoryHeap:
    if not name:
        return MemoryHeap()
    with _naming:
        return _named.setdefault(name, MemoryHeap())


def name_heap(name: str, heap: MemoryHeap | None) -> None:
    """Let `memory://NAME` open this heap, or forget the name with None."""
    with _naming:
        if heap is None:
            _named.pop(name, None)
        else:
            _named[name] = heap


class MemoryStore(StoreBase):
    """A store in memory: `memory://` is private to its opener, `memory://NAME` is shared in the process."""

    schemes: ClassVar[Sequence[str]] = ("memory",)

    def __init__(
        self,
        *,
        name: str = "",
        runner: Runner | Mode = "async",
        clock: Clock = SYSTEM_CLOCK,
        heap: MemoryHeap | None = None,
    ) -> None:
        super().__init__(url=f"memory://{name}", runner=runner, clock=clock)
        self._name, self._heap = name, heap or _heap(name)

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> MemoryStore:
        """Return the store that the URL names."""
        url.reject_options()
        if url.path or url.user is not None:
            raise InvalidError(f"{url} has more than a name. Use memory:// or memory://NAME.")
        return _heap(url.host).store(url.host, runner)

    def twin(self, runner: Runner) -> MemoryStore:
        """Return an unopened store on the same spaces for another mode."""
        return type(self)(name=self._name, runner=runner, clock=self._clock, heap=self._heap)

    async def _open(self) -> Capabilities:
        self._heap.handles.join(self)
        return Capabilities(durability=Durability.NONE, shared=False)

    async def _close(self) -> None:
        self._heap.handles.leave(self)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply batches at once, because there is no flush whose cost batches could share."""
        self.check_batches(batches)
        return await self.apply_checked(batches, ())

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that were checked."""
        if self._turn.is_over():
            await self._turn.pass_on()
        outcomes = self._apply_now(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is Applied and self._ahead.is_due(batch.space, outcome.now_ms):
                await self._ahead.report(batch.space, outcome.now_ms)
        return outcomes

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return self._apply_now(batches)

    def _apply_now(self, batches: Sequence[Batch]) -> list[Outcome]:
        heap = self._heap
        if len(batches) == 1:
            batch = batches[0]
            with heap.lock:
                clock_ms = self._clock.now_ms()
                state, outcome, record = heap.apply(batch, clock_ms)
                if record is not None and state.expires:
                    state.sweep(clock_ms, SWEPT_BY_FLUSH)
            if record is not None:
                heap.handles.notify(batch.space)
            return [outcome]
        outcomes: list[Outcome] = []
        changed: dict[str, SpaceState] = {}
        with heap.lock:
            clock_ms = self._clock.now_ms()
            for batch in batches:
                state, outcome, record = heap.apply(batch, clock_ms)
                outcomes.append(outcome)
                if record is not None:
                    changed[batch.space] = state
            for state in changed.values():
                state.sweep(clock_ms, SWEPT_BY_FLUSH)
        for space in changed:
            heap.handles.notify(space)
        return outcomes

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Return at most 1,000 entries and 8 MiB of values, all of one revision."""
        self._check_open()
        check_read(space, keys, at_ms)
        if self._turn.is_over():
            await self._turn.pass_on()
        with self._heap.lock:
            reading = self._heap.state_of(space).read(space, keys, self._clock.now_ms(), at_ms)
        if self._ahead.is_due(space, reading.now_ms):
            await self._ahead.report(space, reading.now_ms)
        return reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        return await self.read(space, keys, at_ms=at_ms)

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        with self._heap.lock:
            clock_ms = self._clock.now_ms()
            return self._heap.state_of(space).scan(prefix, after, limit, reverse, clock_ms, at_ms)

    async def _last_leap(self, space: str) -> Leap | None:
        with self._heap.lock:
            return self._heap.state_of(space).leap

    async def _sizes(self, space: str) -> Sizes:
        with self._heap.lock:
            return self._heap.state_of(space).sizes(self._clock.now_ms())

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        with self._heap.lock:
            return [self._heap.state_of(space).written_ms or None for space in spaces]

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        with self._heap.lock:
            return self._heap.state_of(space).changes(space, after, limit)

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        with self._heap.lock:
            return self._heap.spaces.page(prefix, after, limit)

    async def _drop(self, space: str, at: int | None) -> bool:
        with self._heap.lock:
            state = self._heap.state_of(space)
            if was_there := state.exists and at in (None, state.revision):
                state.drop(self._clock.now_ms())
        self._heap.handles.notify(space)
        return was_there

    async def _trim(self, space: str, keep: int) -> None:
        with self._heap.lock:
            self._heap.state_of(space).trim(keep)

    async def _scrub(self) -> Sequence[str]:
        return ()

    async def _sweep(self, prefix: str, limit: int) -> int:
        swept: list[str] = []
        removed = 0
        with self._heap.lock:
            clock_ms = self._clock.now_ms()
            for name, state in self._heap.spaces.items():
                if removed == limit or not name.startswith(prefix):
                    continue
                if (record := state.sweep(clock_ms, limit - removed)) is not None:
                    removed += len(record.deleted)
                    swept.append(name)
        for name in swept:
            self._heap.handles.notify(name)
        return removed
