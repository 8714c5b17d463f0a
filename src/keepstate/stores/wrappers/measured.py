"""Tells a callback of every operation on a store: which, how long, and how it ended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, TypeVar

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Colour
from keepstate.stores.base import StoreBase
from keepstate.stores.hints import HintListener
from keepstate.stores.protocol import Batch, Capabilities, Changes, Conflict, Outcome, Page, Reading

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


class MeasuredStore:
    """A store that tells of its operations.

    Args:
        store: An opened store; closing this one closes it.
        tell: Called after each operation, where that was called. It should be quick; what it raises is logged
            and goes no further.
        clock: What the time is read from.
    """

    def __init__(
        self, store: StoreBase, tell: Callable[[Measurement], object], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store, self._tell, self._clock = store, tell, clock

    def __repr__(self) -> str:
        return f"<MeasuredStore around {self._store!r}>"

    @property
    def url(self) -> str:
        """Returns what names the store, without a password."""
        return self._store.url

    @property
    def colour(self) -> Colour:
        """Returns `async` or `blocking`."""
        return self._store.colour

    @property
    def capabilities(self) -> Capabilities:
        """Returns what the store offers."""
        return self._store.capabilities

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies the batches."""
        begun_s = self._clock.monotonic_s()
        try:
            outcomes = await self._store.apply(batches)
        except Exception as error:  # told, and raised again
            self._failed("apply", begun_s, error)
            raise
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        self._ended(
            "apply",
            begun_s,
            count=len(batches),
            conflicts=sum(type(outcome) is Conflict for outcome in outcomes),
            errors=len(failures),
            error=type(failures[0]).__name__ if failures else None,
        )
        return outcomes

    async def read(self, space: str, keys: Sequence[bytes]) -> Reading:
        """Reads entries by key."""
        return await self._measured("read", self._store.read(space, keys), lambda _: len(keys))

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
    ) -> Page:
        """Reads a page of entries."""
        page = self._store.scan(space, prefix, after=after, limit=limit, reverse=reverse)
        return await self._measured("scan", page, lambda page: len(page.entries))

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Reads the log."""
        changes = self._store.changes(space, after, limit=limit)
        return await self._measured("changes", changes, lambda changes: len(changes.items))

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Waits for a hint."""
        await self._measured("wait", self._store.wait(spaces, timeout_s), lambda _: 0)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Lists spaces."""
        return await self._measured("spaces", self._store.spaces(prefix, after=after, limit=limit), len)

    async def drop(self, space: str) -> None:
        """Empties a space."""
        await self._measured("drop", self._store.drop(space), lambda _: 0)

    async def sweep(self, *, limit: int = 256) -> int:
        """Removes expired entries."""
        return await self._measured("sweep", self._store.sweep(limit=limit), lambda removed: removed)

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Returns a listener of the store; what it waits is not measured."""
        return self._store.listen(spaces)

    async def close(self) -> None:
        """Closes the store."""
        await self._store.close()

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
