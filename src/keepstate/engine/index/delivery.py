"""Background delivery: what a handle has written is carried after its commit, and never during it.

A subject is carried at most once a second, but at once if a task of a queue is due sooner than the index
says. Errors do not reach the writer: the outbox stays, and the next writer, worker or sweep carries it. While
a tenant has no index, nothing is carried: the first `find` makes the index from the outboxes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from keepstate._clock import Clock
from keepstate._deferral import defer_imports
from keepstate._runner import Runner, Signal, Work, fork_generation, reentrant_lock
from keepstate.engine.kernel.subjects import QUEUE, Subject
from keepstate.errors import KeepstateError

if TYPE_CHECKING:
    from keepstate.engine.index import carrier as _carrier
else:
    defer_imports(globals(), _carrier="keepstate.engine.index.carrier")

_log = logging.getLogger("keepstate.engine")

INTERVAL_S: Final = 1.0
"""The shortest time between two deliveries of one subject."""
_STEP_S: Final = 0.05
_ABSENT_S: Final = 10.0
"""The time for which a tenant is taken to have no index, after it was looked for."""
_REST_FACTOR: Final = 3
"""The pause after a delivery is at least this many times its duration, unless a task is due sooner."""
_LATEST: Final = 1 << 62
_WAITING: Final = 10_000
"""The largest number of subjects that wait; the outboxes of further ones are left to others."""

_AT_CLOSE: Final = 1_000
"""The largest number of subjects that are carried when a handle is closed."""

Waiting = tuple[str | None, tuple[str, Subject]]
"""A tenant, and a subject that waits to be carried."""


class Delivery:
    """Carries the subjects that the handles of one store change.

    Args:
        runner: The runner of the handles' mode.
        clock: The clock.
        carrier_of: Returns the carrier of a tenant.
    """

    def __init__(
        self, runner: Runner, clock: Clock, carrier_of: Callable[[str | None], Awaitable[_carrier.Carrier]]
    ) -> None:
        self._runner, self._clock, self._carrier_of = runner, clock, carrier_of
        self._lock = reentrant_lock()
        self._begin()

    def _begin(self) -> None:
        self._generation = fork_generation()
        self._due_s: dict[Waiting, float] = {}
        """The time at which each waiting subject is carried."""
        self._tasks_ms: dict[Waiting, int] = {}
        """The earliest time at which a task of a waiting queue can be claimed, until it is compared."""
        self._carried_s: dict[Waiting, float] = {}
        """The time at which each subject was carried last, for a second."""
        self._absent_s: dict[str | None, float] = {}
        """The time until which a tenant is taken to have no index."""
        self._present = set[str | None]()
        """The tenants that are known to have an index."""
        self._looked = set[str | None]()
        """The tenants whose index was looked for, because the first task was put."""
        self._work: Work | None = None
        self._wake: Signal | None = None
        self._is_closed = False

    def note(
        self, tenant: str | None, space: str, subjects: Iterable[Subject], due_ms: Mapping[Subject, int]
    ) -> None:
        """Note that a batch has changed subjects. Returns at once.

        Args:
            tenant: The tenant of the space.
            space: The name of the space, without its tenant.
            subjects: The subjects.
            due_ms: The earliest time at which a task can be claimed that the batch moved, by queue.
        """
        if self._generation != fork_generation():
            self._begin()  # the work belongs to the parent process
        now_s = self._clock.monotonic_s()
        if self._is_closed or self._absent_s.get(tenant, now_s) > now_s:
            return
        is_urgent = False
        with self._lock:
            for subject in subjects:
                waiting = tenant, (space, subject)
                if len(self._due_s) >= _WAITING:
                    return
                due_s = self._due_s.setdefault(waiting, self._next_s(waiting, now_s))
                is_urgent = due_s <= now_s or is_urgent
                if subject in due_ms:
                    is_urgent = True  # whether it is due sooner than the index says, the work finds out
                    self._tasks_ms[waiting] = min(
                        due_ms[subject], self._tasks_ms.get(waiting, due_ms[subject])
                    )
            if self._wake is None:
                self._wake = self._runner.signal()
            if self._work is None:
                self._work = self._runner.start(self._run, "delivery")
        if is_urgent:
            self._wake.set()

    def _next_s(self, waiting: Waiting, now_s: float) -> float:
        """Return the time at which a subject that has changed now is carried."""
        last_s = self._carried_s.get(waiting)
        if last_s is not None:
            return max(last_s + INTERVAL_S, now_s)
        tenant, (_, subject) = waiting
        if tenant not in self._present:
            return now_s + INTERVAL_S  # the index is looked for once the first writes are over
        return now_s if subject.kind == QUEUE else now_s + _STEP_S

    async def flush(self, tenant: str | None) -> None:
        """Carry what waits of a tenant now."""
        with self._lock:
            waiting = [each for each in self._due_s if each[0] == tenant]
        await self._carry(waiting)

    async def close(self) -> None:
        """Stop carrying in the background, and carry what waits: first the queues, which workers wait for.

        Without this, the last writes of a short program would be listed only after the next sweep. Subjects
        beyond the first `_AT_CLOSE` keep their outboxes, so that closing a handle takes a bounded time.
        """
        self._is_closed, work = True, self._work
        if self._generation != fork_generation():
            return
        if work is not None:
            await work.stop()
        with self._lock:
            waiting = sorted(self._due_s, key=lambda each: each[1][1].kind != QUEUE)
            self._due_s.clear()
        await self._carry(waiting[:_AT_CLOSE])

    async def _run(self, signal: Signal) -> None:
        assert self._wake is not None
        rested_s = self._clock.monotonic_s()
        while not self._is_closed and not await signal.wait(0):
            with self._lock:
                if not self._due_s:
                    self._work = None
                    return
                tasks_ms, self._tasks_ms = self._tasks_ms, {}
            due = await self._due_sooner(tasks_ms)
            now_s = self._clock.monotonic_s()
            if now_s >= rested_s:
                with self._lock:
                    due |= {waiting for waiting, due_s in self._due_s.items() if due_s <= now_s}
            if due:
                await self._carry(due)
                ended_s = self._clock.monotonic_s()
                rested_s = ended_s + min(INTERVAL_S, _REST_FACTOR * (ended_s - now_s))
            else:
                await self._wake.wait(_STEP_S)
        self._work = None

    async def _due_sooner(self, tasks_ms: Mapping[Waiting, int]) -> set[Waiting]:
        """Return the queues that have a task that can be claimed sooner than the index says.

        If another process replaces the row after this read, it has read the queue after the write, or finds
        that the outbox has changed. Either way its row tells of the task.
        """
        found = set[Waiting]()
        for tenant in {tenant for tenant, _ in tasks_ms}:
            mine = [waiting for waiting in tasks_ms if waiting[0] == tenant]
            try:
                carrier = await self._carrier_of(tenant)
                if not await self._has_index(carrier, tenant):
                    continue  # it is looked for again, once the first writes are over
                rows = await carrier.read_rows([location for _, location in mine])
            except KeepstateError:
                _log.debug("the index was not read; its queues are delivered within a second", exc_info=True)
                continue
            for waiting, row in zip(mine, rows, strict=True):
                known_ms = _LATEST if row is None or row.due_ms is None else row.due_ms
                if tasks_ms[waiting] < known_ms and (row is None or row.state != "ready"):
                    found.add(waiting)
        with self._lock:
            return found & self._due_s.keys()

    async def _has_index(self, carrier: _carrier.Carrier, tenant: str | None) -> bool:
        """Return whether a tenant is known to have an index. Looks for it once."""
        if tenant not in self._present and tenant not in self._looked:
            self._looked.add(tenant)
            if await carrier.meta() is not None:
                self._present.add(tenant)
        return tenant in self._present

    async def _carry(self, waiting: Collection[Waiting]) -> None:
        for tenant in {tenant for tenant, _ in waiting}:
            mine = [location for of, location in waiting if of == tenant]
            with self._lock:
                now_s = self._clock.monotonic_s()
                for location in mine:
                    self._due_s.pop((tenant, location), None)
                    self._tasks_ms.pop((tenant, location), None)
                    self._carried_s[tenant, location] = now_s
                self._forget(now_s)
            try:
                carrier = await self._carrier_of(tenant)
                if await carrier.meta() is None:
                    raise _carrier.NoIndexError
                self._present.add(tenant)
                await carrier.carry(mine)
            except _carrier.NoIndexError:
                self._present.discard(tenant)
                self._looked.discard(tenant)
                self._absent_s[tenant] = now_s + _ABSENT_S
            except KeepstateError:
                _log.debug("delivery of %d subjects failed; their outboxes stay", len(mine), exc_info=True)

    def found_index(self, tenant: str | None) -> None:
        """Note that a tenant has an index."""
        self._absent_s.pop(tenant, None)
        self._present.add(tenant)

    def _forget(self, now_s: float) -> None:
        if len(self._carried_s) > _WAITING:
            self._carried_s = {
                waiting: at_s for waiting, at_s in self._carried_s.items() if now_s - at_s < INTERVAL_S
            }
