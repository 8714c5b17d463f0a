"""The indexes of all tenants of one store, for the handles that share it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from keepstate._clock import Clock
from keepstate._deferral import defer_imports
from keepstate._runner import Runner
from keepstate.engine.index.delivery import Delivery
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text, check_wait
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.store_abilities import listen
from keepstate.engine.kernel.subjects import Subject
from keepstate.stores.protocol import Change, Mark, Store
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.index import carrier as _carrier
    from keepstate.engine.index import listing as _listing
    from keepstate.engine.index import rows as _rows
else:
    defer_imports(
        globals(),
        _carrier="keepstate.engine.index.carrier",
        _listing="keepstate.engine.index.listing",
        _rows="keepstate.engine.index.rows",
    )

_LONGEST_WAIT_S = 5.0


Filters = tuple[str | None, str | None, str | None, datetime | None, str, str]
"""The kind, state, owner, earliest change and name of a listing, and its order."""


class Index:
    """Lists, watches and carries subjects.

    Args:
        opened: Opens the store on the first call.
        runner: The runner of the handles' mode.
        clock: The clock.
    """

    def __init__(self, opened: Callable[[], Awaitable[Store]], runner: Runner, clock: Clock) -> None:
        self._opened, self._runner, self._clock = opened, runner, clock
        self._delivery: Delivery | None = None

    async def carrier(self, tenant: str | None) -> _carrier.Carrier:
        """Return the carrier of a tenant."""
        return _carrier.Carrier(await self._opened(), tenant, self._clock)

    def note(self, tenant: str | None, space: str, subjects: Iterable[Subject]) -> None:
        """Note that a batch has changed subjects, which are then carried in the background."""
        if self._delivery is None:
            self._delivery = Delivery(self._runner, self._clock, self.carrier)
        self._delivery.note(tenant, space, subjects)

    async def close(self) -> None:
        """Stop the background delivery."""
        if self._delivery is not None:
            await self._delivery.close()

    async def find(self, tenant: str | None, by: Filters, after: str | None, limit: int) -> Page[_rows.Found]:
        """Return one page of subjects; see `Keepstate.find`."""
        limits.admit_count("limit", limit)
        if after is not None:
            check_text("after", after)
        query = _listing.make_query(*by)
        carrier = await self.carrier(tenant)
        if not await self._prepare(carrier):
            return Page()
        return await _listing.Listing(carrier, query).page(after, limit)

    async def _prepare(self, carrier: _carrier.Carrier) -> bool:
        """Make the index of a tenant, or carry what this handle has changed. Return whether there is one."""
        if await carrier.is_complete():
            if self._delivery is not None:
                self._delivery.found_index(carrier.tenant)
                await self._delivery.flush(carrier.tenant)
            return True
        return await self._build(carrier)

    async def _build(self, carrier: _carrier.Carrier) -> bool:
        if not await carrier.ensure():
            return False
        if self._delivery is not None:
            self._delivery.found_index(carrier.tenant)
        try:
            await carrier.deliver()
        except _carrier.NoIndexError:  # the tenant is erased meanwhile
            return False
        return True

    async def deliver(self, tenant: str | None) -> int:
        """Carry all outboxes of a tenant, and return their number."""
        carrier = await self.carrier(tenant)
        if not await carrier.ensure():
            return 0
        if self._delivery is not None:
            self._delivery.found_index(tenant)
        try:
            return await carrier.deliver()
        except _carrier.NoIndexError:
            return 0

    async def drop(self, tenant: str | None, space: str) -> bool:
        """Drop a space with the rows of its subjects; return whether there was something to drop."""
        return await (await self.carrier(tenant)).drop(space)

    async def watch(
        self, tenant: str | None, by: Filters, after: str | None, timeout_s: float | None
    ) -> AsyncGenerator[_rows.FoundChange]:
        """Yield the changes of a listing; see `Keepstate.watch`."""
        query = _listing.make_query(*by)
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        if after is not None:
            check_text("after", after)
        carrier = await self.carrier(tenant)
        await self._prepare(carrier)
        store, positions = carrier.store, Positions(carrier.store, carrier.space, _rows.INDEX_SPACE)
        if after is None:
            at, nonce = (await store.read(carrier.space, [])).revision, None
        else:
            at, nonce = positions.mark_in("after", after)
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        async with listen(store, carrier.space) as hints:
            while True:
                changes = await store.changes(carrier.space, at)
                if nonce is not None and changes.nonces.get(at, b"") != nonce:
                    raise positions.lost(at, f"revision {at}")
                for change in changes.items:
                    mark = Mark(change.revision, changes.nonces.get(change.revision, b""))
                    for found in _public_changes(query, tenant, change, positions.of_mark(mark)):
                        yield found
                        if timeout_s is not None:
                            deadline_s = self._clock.monotonic_s() + timeout_s
                has_moved, at = changes.upto > at, changes.upto
                nonce = changes.nonces.get(at, b"")
                if has_moved:
                    continue
                left_s = _LONGEST_WAIT_S if deadline_s is None else deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return
                await hints.wait(min(left_s, _LONGEST_WAIT_S))


def _public_changes(
    query: _listing.Query, tenant: str | None, change: Change, position: str
) -> list[_rows.FoundChange]:
    if not change.key.startswith(layout.ROWS):
        return []
    old, new = _row(change.old, change.key), _row(change.new, change.key)
    before = old is not None and query.shows(old)
    if new is not None and query.shows(new):
        if before and old is not None and old.shows(new):
            return []
        return [_rows.FoundChange("changed" if before else "added", new.to_public(tenant), position)]
    if before and old is not None:
        return [_rows.FoundChange("removed", old.to_public(tenant), position)]
    return []


def _row(stored: bytes | None, key: bytes) -> _rows.Row | None:
    return None if stored is None else _rows.decode_row(stored, key)
