"""Claims of one worker over many spaces: which space is looked at next.

A space is looked at when the index reports its queue, when the time of its next task has come, and directly
for two seconds after it had a task, because the index is told of a busy queue once a second only. Spaces with
tasks take turns: each turn claims a share of the free places, and then the space goes to the end of the line.
So a space waits for at most one turn of each other one.

Nothing here decides: a claim is that of the space's own queue, with its rules and its batch.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from keepstate._runner import Signal
from keepstate.engine.index.heads import QueueHeads
from keepstate.engine.index.index import Index
from keepstate.engine.kernel.executor import Home
from keepstate.engine.kernel.log_cursor import LogCursor
from keepstate.engine.kernel.shield import run_shielded
from keepstate.engine.kernel.store_abilities import last_changes_ms, listen_to
from keepstate.engine.queue.claims import CLAIMING
from keepstate.engine.queue.queue import Queue, Task
from keepstate.errors import ClosedError, KeepstateError, StoreUnavailableError
from keepstate.names import OWN, TenantScope
from keepstate.stores.protocol import Listener

_AT_ONCE: Final = 16
"""The number of spaces that are looked at together."""
_WARM_S: Final = 2.0
_MOST_WARM: Final = 64
_MOST_QUEUES: Final = 1_024
_FOLLOW_S: Final = 5.0
"""Seconds after which the index is read also without a hint."""
_RETRY_S: Final = 5.0
"""Seconds for which a space is left alone whose tasks cannot be claimed because of an error."""
_SWEEP_S: Final = 10.0
_REST_FACTOR: Final = 200
"""A sweep rests at least this many times its duration."""
_SHORTEST_REST_S, _LONGEST_REST_S = 0.01, 24 * 3600.0
_MOST_LOGGED: Final = 1_000

_log = logging.getLogger("keepstate.worker")

Place = tuple[str | None, str]
"""A tenant, and the name of a space of the tenant."""


class SpacesHome(Home, Protocol):
    """A handle as a worker over its spaces uses it."""

    @property
    def index(self) -> Index:
        """The indexes of the store."""
        ...

    def space(self, name: str) -> Any:
        """Return a space."""
        ...

    def tenant(self, id: str) -> SpacesHome:
        """Return the handle of a tenant."""
        ...

    def stored_name(self, space: str) -> str:
        """Return the stored name of a space."""
        ...

    def tenant_ids(self, after: str | None = None) -> AsyncGenerator[str]:
        """Yield the ids of the tenants that have spaces, those above one that is given."""
        ...

    def space_names(
        self, under: str, tenant: TenantScope, after: str | None
    ) -> AsyncGenerator[tuple[str | None, str]]:
        """Yield the tenant and the name of each space under a name."""
        ...


@dataclass(slots=True)
class _Warm:
    """A space that had a task a moment ago.

    Attributes:
        until_s: The time until which it is listened to.
        changed_ms: The time of its last change when it was looked at last.
        log: Tells whether its queue has changed.
    """

    until_s: float
    changed_ms: int | None
    log: LogCursor


class SpaceTurns:
    """Claims tasks of all spaces under a name.

    Args:
        ks: The handle.
        under: The beginning of the names of the spaces.
        tenant: `OWN`, or `ALL` tenants.
        kinds: The kinds of tasks; None for all.
    """

    def __init__(self, ks: SpacesHome, under: str, tenant: TenantScope, kinds: Sequence[str] | None) -> None:
        self._ks, self._under, self._scope, self._kinds = ks, under, tenant, kinds
        self._runner, self._clock = ks.runner, ks.clock
        self._handles: dict[str | None, SpacesHome] = {}
        self._heads: dict[str | None, QueueHeads] = {}
        self._index_ms: dict[str, int | None] = {}
        self._ready: OrderedDict[Place, None] = OrderedDict()
        self._timers: list[tuple[float, int, Place]] = []
        self._due_s: dict[Place, float] = {}
        self._timer_count = 0
        self._warm: OrderedDict[Place, _Warm] = OrderedDict()
        self._queues: OrderedDict[Place, Queue] = OrderedDict()
        self._listener: tuple[frozenset[str], Listener] | None = None
        self._is_hinted = True
        self._followed_at_s = 0.0
        self._logged: set[tuple[Place, str]] = set()

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[SpaceTurns]:
        """Follow the index for the time of the block."""
        work = self._runner.start(self._sweep, "sweeps of a worker")
        try:
            yield self
        finally:
            await run_shielded(self._runner, work.stop)
            if self._listener is not None:
                self._listener[1].close()

    # ---- claiming

    async def claim(
        self, worker: str, *, lease_s: float, count: int, wait_s: float, kinds: Sequence[str] | None
    ) -> list[Task]:
        """Claim up to `count` tasks, and wait for the first one; see `Queue.claim`."""
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            await self._follow()
            chosen = self._choose(count)
            found = await self._claim_from(chosen, worker, lease_s, kinds) if chosen else []
            now_s = self._clock.monotonic_s()
            if found or now_s >= deadline_s:
                return found
            if not self._ready:
                await self._wait(deadline_s - now_s)

    def _choose(self, count: int) -> dict[Place, int]:
        """Return the spaces whose turn it is, with their shares of the free places."""
        now_s = self._clock.monotonic_s()
        while self._timers and self._timers[0][0] <= now_s:
            at_s, _, place = heappop(self._timers)
            if self._due_s.get(place) == at_s:
                del self._due_s[place]
                self._ready.setdefault(place)
        number = min(len(self._ready), count, _AT_ONCE)
        places = [self._ready.popitem(last=False)[0] for _ in range(number)]
        return {place: count // number + (at < count % number) for at, place in enumerate(places)}

    async def _claim_from(
        self, shares: dict[Place, int], worker: str, lease_s: float, kinds: Sequence[str] | None
    ) -> list[Task]:
        found: list[Task] = []
        changed_ms = dict(zip(shares, await self._times([*shares]), strict=True))

        async def look(place: Place, share: int) -> None:
            try:
                queue = self._queue(place)
                claimed = await queue.claim(worker, lease_s=lease_s, count=share, kinds=kinds)
                found.extend(claimed)
                if claimed:
                    await self._keep_warm(place, changed_ms[place])
                if len(claimed) == share:
                    self._ready.setdefault(place)
                    return
                if not claimed and (warm := self._warm.get(place)) is not None:
                    warm.changed_ms = changed_ms[place]
                self._rest(place, await queue.next_look_s())
            except (ClosedError, StoreUnavailableError):
                self._ready.setdefault(place)
                raise
            except KeepstateError as error:
                self._report(place, error)
                self._rest(place, _RETRY_S)

        try:
            answers = await self._runner.gather([partial(look, *each) for each in shares.items()])
            errors = [each for each in answers if isinstance(each, BaseException)]
            if errors and not (found and isinstance(errors[0], StoreUnavailableError)):
                raise errors[0]
        except BaseException:  # also a cancellation; raised again
            for place in shares:
                if place not in self._due_s:
                    self._ready.setdefault(place)
            await run_shielded(self._runner, partial(_release, found))
            raise
        return found

    def _report(self, place: Place, error: KeepstateError) -> None:
        known = place, type(error).__name__
        if known not in self._logged:
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged.add(known)
            _log.warning("tasks of %r cannot be claimed, and are left for a while: %s", place[1], error)

    def _queue(self, place: Place) -> Queue:
        queue = self._queues.pop(place, None)
        if queue is None:
            queue = self._handle(place[0]).space(place[1]).queue
        self._queues[place] = queue
        if len(self._queues) > _MOST_QUEUES:
            self._queues.popitem(last=False)
        return queue

    def _handle(self, tenant: str | None) -> SpacesHome:
        if tenant == self._ks.tenant_id:
            return self._ks
        if tenant not in self._handles:
            assert tenant is not None
            self._handles[tenant] = self._ks.tenant(tenant)
        return self._handles[tenant]

    # ---- the times of spaces

    def _rest(self, place: Place, seconds: float) -> None:
        """Look at a space again after some time, unless something happens before."""
        self._due_s.pop(place, None)
        self._wake_in(place, min(max(seconds, _SHORTEST_REST_S), _LONGEST_REST_S))

    def _wake_in(self, place: Place, seconds: float) -> None:
        if place in self._ready:
            return
        if seconds <= 0:
            self._ready[place] = None
            return
        at_s = self._clock.monotonic_s() + seconds
        if place not in self._due_s or at_s < self._due_s[place]:
            self._due_s[place] = at_s
            self._timer_count += 1
            heappush(self._timers, (at_s, self._timer_count, place))

    async def _keep_warm(self, place: Place, changed_ms: int | None) -> None:
        known = self._warm.pop(place, None)
        log = await self._log_of(place) if known is None else known.log
        self._warm[place] = _Warm(self._clock.monotonic_s() + _WARM_S, changed_ms, log)
        if len(self._warm) > _MOST_WARM:
            self._warm.popitem(last=False)

    # ---- hints

    async def _follow(self) -> None:
        """Learn from the index, and from busy spaces themselves, what has changed."""
        now_s = self._clock.monotonic_s()
        for place in [place for place, warm in self._warm.items() if warm.until_s <= now_s]:
            del self._warm[place]
        if not self._heads:
            await self._find_tenants()
        if now_s >= self._followed_at_s:
            await self._follow_indexes(self._heads)
            now_s, begun_s = self._clock.monotonic_s(), now_s
            self._followed_at_s = now_s + max(_FOLLOW_S, _REST_FACTOR * (now_s - begun_s))
        elif self._is_hinted:
            self._is_hinted = False
            warm = [*self._warm]
            for place, at_ms in zip(warm, await self._times(warm), strict=True):
                if at_ms is None or at_ms != self._warm[place].changed_ms:
                    await self._find_change(place, at_ms)
            await self._follow_indexes(await self._changed_indexes())

    async def _follow_indexes(self, tenants: Sequence[str | None] | dict[str | None, QueueHeads]) -> None:
        for tenant in [*tenants]:
            for head in await self._heads[tenant].changes():
                self._wake_in((tenant, head.space), head.due_in_s)

    async def _changed_indexes(self) -> list[str | None]:
        """Return the tenants whose index may have changed."""
        if len(self._heads) == 1:
            return [*self._heads]
        spaces = [heads.space for heads in self._heads.values()]
        times = await last_changes_ms(await self._ks.opened(), spaces)
        changed = [
            tenant
            for tenant, space, at_ms in zip(self._heads, spaces, times, strict=True)
            if at_ms is None or self._index_ms.get(space) != at_ms
        ]
        self._index_ms = dict(zip(spaces, times, strict=True))
        return changed

    async def _find_tenants(self) -> None:
        """Follow the indexes of tenants that are new, and of no others."""
        present: list[str | None] = [self._ks.tenant_id]
        if self._scope is not OWN:
            present += [id async for id in self._ks.tenant_ids()]
        for tenant in self._heads.keys() - {*present}:
            del self._heads[tenant]
        for tenant in present:
            if tenant not in self._heads:
                index = self._ks.index
                carrier = await index.carrier(tenant)
                self._heads[tenant] = QueueHeads(index, carrier, self._under, self._kinds)
                self._followed_at_s = 0.0

    async def _find_change(self, place: Place, at_ms: int | None) -> None:
        """Let a busy space that has changed have a turn, if the change concerns its queue."""
        warm = self._warm[place]
        if place in self._ready:
            return
        try:
            has_changed = await warm.log.has_changed()
        except KeepstateError:  # the turn meets it again, and reports it
            has_changed = True
        if has_changed:
            self._ready.setdefault(place)
        else:
            warm.changed_ms = at_ms

    async def _log_of(self, place: Place) -> LogCursor:
        stored = self._handle(place[0]).stored_name(place[1])
        return LogCursor(await self._ks.opened(), stored, CLAIMING)

    async def _times(self, places: Sequence[Place]) -> list[int | None]:
        """Return the times of the last changes of spaces; None if the store does not know them."""
        stored = [self._handle(tenant).stored_name(name) for tenant, name in places]
        return await last_changes_ms(await self._ks.opened(), stored)

    async def _wait(self, longest_s: float) -> None:
        """Wait for a hint, or for the next time."""
        now_s, store = self._clock.monotonic_s(), await self._ks.opened()
        spaces = frozenset(
            [heads.space for heads in self._heads.values()]
            + [self._handle(tenant).stored_name(name) for tenant, name in self._warm]
        )
        if self._listener is None or self._listener[0] != spaces:
            former, self._listener = self._listener, (spaces, listen_to(store, sorted(spaces)))
            if former is not None:
                former[1].close()
            self._is_hinted = True  # a change may have come before the listener
            return
        wait_s = min(longest_s, self._followed_at_s - now_s)
        if self._timers:
            wait_s = min(wait_s, self._timers[0][0] - now_s)
        if wait_s > 0:
            await self._listener[1].wait(wait_s)
        self._is_hinted = True

    async def _sweep(self, signal: Signal) -> None:
        """Deliver what killed processes have left, and find tenants, for the time of the worker."""
        rest_s = _SWEEP_S
        while not await signal.wait(rest_s):
            begun_s = self._clock.monotonic_s()
            try:
                await self._find_tenants()
                for heads in [*self._heads.values()]:
                    await heads.sweep()
            except ClosedError:
                return
            except KeepstateError as error:
                _log.debug("a sweep of a worker failed, and is tried again: %s", error)
            rest_s = max(_SWEEP_S, _REST_FACTOR * (self._clock.monotonic_s() - begun_s))


async def _release(tasks: Sequence[Task]) -> None:
    for task in tasks:
        try:
            await task.release()
        except KeepstateError as error:
            _log.warning("task %r could not be released, and waits for its lease: %s", task.id, error)
