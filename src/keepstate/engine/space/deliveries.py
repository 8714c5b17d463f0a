"""Deliveries to the index of what killed processes have left, in the background of a server or a worker.

A round lists the spaces with the times of their last changes. It looks only into those that have changed
since the round before, and into the index of their tenant. So in a store at rest it costs two calls for 256
spaces. Several processes may deliver at once: a subject that two of them carry has one row in the end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from keepstate._runner import Signal
from keepstate.engine.index.carrier import Carrier, Location, NoIndexError
from keepstate.engine.index.listing import is_under
from keepstate.engine.index.rows import decode_meta
from keepstate.engine.index.walk import ChangedSpaces
from keepstate.engine.kernel.shield import run_shielded
from keepstate.engine.kernel.store_abilities import last_changes_ms
from keepstate.engine.space.space_turns import SpacesHome
from keepstate.errors import ClosedError, CorruptError, KeepstateError, StoreUnavailableError
from keepstate.names import (
    ALL,
    INDEX_SPACE,
    OWN,
    TENANTS,
    TenantScope,
    beginning,
    is_index,
    is_reserved,
    parts_of,
    stored_name,
)
from keepstate.stores.protocol import LacksKeys

EVERY_S: Final = 10.0
"""The longest pause between two short rounds."""
_REST_FACTOR: Final = 200
"""A pause is at least this many times half the duration of the round before it."""
_OF_ALL: Final = (ClosedError, StoreUnavailableError)
"""Errors that each further tenant would meet too."""

_log = logging.getLogger("keepstate.engine")


@dataclass(slots=True)
class _Changes:
    """Changes in the spaces of one tenant.

    Attributes:
        spaces: The names of the changed spaces.
        has_index_changed: Whether the index has changed, so that a dead carrier may have left a mark.
        stored: The stored names of all of them.
    """

    spaces: list[str] = field(default_factory=list[str])
    has_index_changed: bool = False
    stored: list[str] = field(default_factory=list[str])


class Deliveries:
    """Delivers what killed processes have left in the spaces under a name.

    Args:
        ks: The handle.
        under: The beginning of the names of the spaces.
        tenant: `OWN`, or `ALL` tenants.
        every_s: The longest pause between two short rounds.
    """

    def __init__(
        self, ks: SpacesHome, under: str = "", tenant: TenantScope = OWN, *, every_s: float = EVERY_S
    ) -> None:
        self._ks, self._under, self._scope, self._every_s = ks, under, tenant, every_s
        self._changed_spaces = ChangedSpaces()
        self._expires_ms: dict[str | None, int] = {}
        """The time at which the next approval of a tenant expires."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Deliver in rounds while the block runs."""
        work = self._ks.runner.start(self._run, "deliveries")
        try:
            yield
        finally:
            await run_shielded(self._ks.runner, work.stop)

    async def _run(self, signal: Signal) -> None:
        clock, rest_s = self._ks.clock, self._every_s
        # Servers that began together deliver at different times.
        while not await signal.wait(rest_s * (0.5 + clock.spread() / 2)):
            begun_s = clock.monotonic_s()
            try:
                await self.deliver()
            except ClosedError:
                return
            except KeepstateError as error:
                _log.debug("a delivery failed, and is tried again: %s", error)
            rest_s = max(self._every_s, _REST_FACTOR * (clock.monotonic_s() - begun_s))

    async def deliver(self) -> int:
        """Deliver what killed processes have left in spaces that have changed since the last call.

        Tenants without an index are left alone: their first `find` makes it from all that they have.

        Returns:
            The number of subjects that were delivered.
        """
        if isinstance(await self._ks.opened(), LacksKeys):
            return 0
        count, changes = 0, await self._look()
        now_ms = self._ks.clock.now_ms()
        due = {tenant for tenant, at_ms in self._expires_ms.items() if at_ms <= now_ms}
        for tenant in [*changes, *(due - changes.keys())]:
            changed = changes.get(tenant, _Changes())
            try:
                count += await self._deliver_tenant(tenant, changed, is_due=tenant in due)
            except NoIndexError:  # the tenant was erased meanwhile
                self._expires_ms.pop(tenant, None)
            except BaseException as error:
                self._changed_spaces.forget(changed.stored)
                if not isinstance(error, KeepstateError) or isinstance(error, _OF_ALL):
                    raise
                _log.debug("a delivery of tenant %r failed, and is tried again: %s", tenant, error)
        return count

    async def _look(self) -> dict[str | None, _Changes]:
        """Return what has changed since the last call, by tenant."""
        store, found = await self._ks.opened(), dict[str | None, _Changes]()
        own = self._ks.tenant_id
        self._changed_spaces.begin((await store.read(stored_name(own, INDEX_SPACE), [])).now_ms)
        prefix = beginning(own) if self._scope is ALL else stored_name(own, self._under)
        after: str | None = None
        while page := await store.spaces(prefix, after=after):
            if self._scope is not ALL and own is None and page[0].startswith(TENANTS):
                break
            after = page[-1]
            mine = [stored for stored in page if self._covers(stored)]
            for stored, at_ms in zip(mine, await last_changes_ms(store, mine), strict=True):
                if self._changed_spaces.has_changed(stored, at_ms):
                    tenant, name = parts_of(stored)
                    changed = found.setdefault(tenant, _Changes())
                    changed.stored.append(stored)
                    if is_index(stored):
                        changed.has_index_changed = True
                    else:
                        changed.spaces.append(name)
        self._changed_spaces.end()
        return found

    def _covers(self, stored: str) -> bool:
        try:
            tenant, name = parts_of(stored)
        except CorruptError:  # a name of another program, which `doctor` reports
            return False
        if self._scope is not ALL and tenant != self._ks.tenant_id:
            return False
        return is_index(stored) or (not is_reserved(stored) and is_under(name, self._under))

    async def _deliver_tenant(self, tenant: str | None, changed: _Changes, *, is_due: bool) -> int:
        carrier = await self._ks.index.carrier(tenant)
        meta = await carrier.meta()
        if meta is None or not decode_meta(meta).is_complete:
            return 0
        count = await carrier.sweep_marks() if changed.has_index_changed else 0
        waiting: list[Location] = []
        for space in changed.spaces:
            waiting += [(space, subject) async for subject in carrier.waiting_in(space)]
        if waiting:
            count += len(await carrier.carry(waiting))
        if changed.has_index_changed or is_due:
            count += await self._deliver_expired(tenant, carrier)
        return count

    async def _deliver_expired(self, tenant: str | None, carrier: Carrier) -> int:
        now_ms = (await carrier.store.read(carrier.space, [])).now_ms
        count, next_ms = await carrier.sweep_expired(now_ms)
        if next_ms is None:
            self._expires_ms.pop(tenant, None)
        else:
            self._expires_ms[tenant] = next_ms
        return count
