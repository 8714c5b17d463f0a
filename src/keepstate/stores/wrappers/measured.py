"""Tells a callback of every operation on a store: which, how long, and how it ended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Self, TypeVar

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Changes, Conflict, Outcome, Page, Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper

T = TypeVar("T")
Operation = Literal["apply", "read", "scan", "changes", "wait", "spaces", "drop", "sweep"]

_log = logging.getLogger("keepstate.stores")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that has ended.

    Attributes:
        operation: Which method of the protocol it was.
        duration_s: How long the caller waited, in seconds.
        count: Batches applied, keys asked for or entries found; 0 where nothing is counted.
        conflicts: How many of its batches were refused.
        errors: How many of its batches failed, or 1 if the whole operation did.
        error: The class of the first error, or None.
    """

    operation: Operation
    duration_s: float
    count: int = 0
    conflicts: int = 0
    errors: int = 0
    error: str | None = None


class MeasuredStore(StoreWrapper):
    """A store that tells of its operations.

    Args:
        store: What does them.
        tell: Called after each operation, where that was called. It should be quick; what it raises is logged
            and goes no further.
        clock: What the time is read from.
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
        """Return the same around another store."""
        return type(self)(store, self._tell, clock=self._clock)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply the batches."""
        return await self._told(self._store.apply(batches), len(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply what was admitted."""
        return await self._told(self._store.apply_checked(batches, sizes), len(batches))

    async def _told(self, work: Awaitable[list[Outcome]], count: int) -> list[Outcome]:
        begun_s = self._clock.monotonic_s()
        try:
            outcomes = await work
        except Exception as error:  # told, and raised again
            self._failed("apply", begun_s, error)
            raise
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        self._ended(
            "apply",
            begun_s,
            count=count,
            conflicts=sum(type(outcome) is Conflict for outcome in outcomes),
            errors=len(failures),
            error=type(failures[0]).__name__ if failures else None,
        )
        return outcomes

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key."""
        return await self._measured("read", self._store.read(space, keys, at_ms=at_ms), lambda _: len(keys))

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Read a page of entries."""
        page = self._store.scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)
        return await self._measured("scan", page, lambda page: len(page.entries))

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        changes = self._store.changes(space, after, limit=limit)
        return await self._measured("changes", changes, lambda changes: len(changes.items))

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Wait for a hint."""
        await self._measured("wait", self._store.wait(spaces, timeout_s), lambda _: 0)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces."""
        return await self._measured("spaces", self._store.spaces(prefix, after=after, limit=limit), len)

    async def drop(self, space: str) -> None:
        """Empty a space."""
        await self._measured("drop", self._store.drop(space), lambda _: 0)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove expired entries."""
        return await self._measured("sweep", self._store.sweep(prefix, limit=limit), lambda removed: removed)

    async def _measured(self, operation: Operation, work: Awaitable[T], count: Callable[[T], int]) -> T:
        begun_s = self._clock.monotonic_s()
        try:
            answer = await work
        except Exception as error:  # told, and raised again
            self._failed(operation, begun_s, error)
            raise
        self._ended(operation, begun_s, count=count(answer))
        return answer

    def _failed(self, operation: Operation, begun_s: float, error: Exception) -> None:
        self._ended(operation, begun_s, errors=1, error=type(error).__name__)

    def _ended(
        self,
        operation: Operation,
        begun_s: float,
        *,
        count: int = 0,
        conflicts: int = 0,
        errors: int = 0,
        error: str | None = None,
    ) -> None:
        measurement = Measurement(
            operation=operation,
            duration_s=self._clock.monotonic_s() - begun_s,
            count=count,
            conflicts=conflicts,
            errors=errors,
            error=error,
        )
        try:
            self._tell(measurement)
        except Exception:  # noqa: BLE001  the caller's own code, and no reason to fail what has already happened
            _log.exception("the callback of %r failed on %s", self, operation)
