"""Measurement of every operation on a store, passed to a callback."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Self, TypeVar, Unpack

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Changes, Conflict, Outcome, Page, Reading, ScanOptions, Sizes
from keepstate.stores.wrappers.wrapper import StoreWrapper

T = TypeVar("T")
Operation = Literal["apply", "read", "scan", "sizes", "changes", "wait", "spaces", "drop", "sweep"]

_log = logging.getLogger("keepstate.stores")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that has ended.

    Attributes:
        operation: The method of the protocol.
        duration_s: Time for which the caller waited, in seconds.
        count: Number of batches applied, keys read or entries found; 0 for other operations.
        conflicts: Number of rejected batches.
        errors: Number of failed batches, or 1 if the whole operation failed.
        error: The class of the first error, or None.
    """

    operation: Operation
    duration_s: float
    count: int = 0
    conflicts: int = 0
    errors: int = 0
    error: str | None = None


class MeasuredStore(StoreWrapper):
    """A store that reports its operations to a callback.

    Args:
        store: The store that executes them.
        tell: Called after each operation, in the caller's task or thread. It should be quick. Its exceptions
            are logged and not raised.
        clock: The clock that measures the time.
    """

    def __init__(
        self,
        store: StoreBase | StoreWrapper,
        tell: Callable[[Measurement], object],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(store)
        self._tell, self._clock = tell, clock

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        return type(self)(store, self._tell, clock=self._clock)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply the batches."""
        return await self._measure_apply(self._store.apply(batches), len(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that were checked."""
        return await self._measure_apply(self._store.apply_checked(batches, sizes), len(batches))

    async def _measure_apply(self, work: Awaitable[list[Outcome]], count: int) -> list[Outcome]:
        began_s = self._clock.monotonic_s()
        try:
            outcomes = await work
        except Exception as error:  # reported, and raised again
            self._report("apply", began_s, failures=[error])
            raise
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        conflicts = sum(type(outcome) is Conflict for outcome in outcomes)
        self._report("apply", began_s, count=count, conflicts=conflicts, failures=failures)
        return outcomes

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key."""
        return await self._measure("read", self._store.read(space, keys, at_ms=at_ms), lambda _: len(keys))

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read a page of entries."""
        page = self._store.scan(space, prefix, **options)
        return await self._measure("scan", page, lambda page: len(page.entries))

    async def sizes(self, space: str) -> Sizes:
        """Read the size of each part."""
        return await self._measure("sizes", self._store.sizes(space), lambda _: 0)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        changes = self._store.changes(space, after, limit=limit)
        return await self._measure("changes", changes, lambda changes: len(changes.items))

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Wait for a hint."""
        await self._measure("wait", self._store.wait(spaces, timeout_s), lambda _: 0)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces."""
        return await self._measure("spaces", self._store.spaces(prefix, after=after, limit=limit), len)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Empty a space; return whether it was there."""
        return await self._measure("drop", self._store.drop(space, at=at), lambda _: 0)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove expired entries."""
        return await self._measure("sweep", self._store.sweep(prefix, limit=limit), lambda removed: removed)

    async def _measure(self, operation: Operation, work: Awaitable[T], count: Callable[[T], int]) -> T:
        began_s = self._clock.monotonic_s()
        try:
            answer = await work
        except Exception as error:  # reported, and raised again
            self._report(operation, began_s, failures=[error])
            raise
        self._report(operation, began_s, count=count(answer))
        return answer

    def _report(
        self,
        operation: Operation,
        began_s: float,
        *,
        count: int = 0,
        conflicts: int = 0,
        failures: Sequence[Exception] = (),
    ) -> None:
        measurement = Measurement(
            operation=operation,
            duration_s=self._clock.monotonic_s() - began_s,
            count=count,
            conflicts=conflicts,
            errors=len(failures),
            error=type(failures[0]).__name__ if failures else None,
        )
        try:
            self._tell(measurement)
        except Exception:  # noqa: BLE001  a callback's failure must not fail an operation that is done
            _log.exception("The callback of %r failed for %s", self, operation)
