"""The indexes of all tenants of one store, for the handles that share it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
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
from keepstate.engine.kernel.subjects import QUEUE, Subject
from keepstate.errors import InvalidError
from keepstate.names import INDEX_SPACE
from keepstate.stores.protocol import Change, LacksKeys, Mark, Store
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.index import audit as _audit
    from keepstate.engine.index import carrier as _carrier
    from keepstate.engine.index import listing as _listing
    from keepstate.engine.index import rows as _rows
else:
    defer_imports(
        globals(),
        _audit="keepstate.engine.index.audit",
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

    async def _with_keys(self, tenant: str | None) -> _carrier.Carrier:
        """Return the carrier of a tenant, which can read the index.

        Raises:
            InvalidError: The store is encrypted, and was opened without its keys.
        """
        carrier = await self.carrier(tenant)
        if isinstance(carrier.store, LacksKeys):
            raise InvalidError(
                "the store is encrypted, and so is its index; open it with encryption=KeyRing(…)"
            )
        return carrier

    def note(
        self, tenant: str | None, space: str, subjects: Iterable[Subject], due_ms: Mapping[Subject, int]
    ) -> None:
        """Note that a batch has changed subjects, which are then carried in the background."""
        if self._delivery is None:
            self._delivery = Delivery(self._runner, self._clock, self.carrier)
        self._delivery.note(tenant, space, subjects, due_ms)

    async def close(self) -> None:
        """Carry what waits, and stop the background delivery."""
        if self._delivery is not None:
            await self._delivery.close()

    async def find(self, tenant: str | None, by: Filters, after: str | None, limit: int) -> Page[_rows.Found]:
        """Return one page of subjects; see `Keepstate.find`."""
        limits.admit_count("limit", limit)
        if after is not None:
            check_text("after", after)
        query = _listing.make_query(*by)
        carrier = await self._with_keys(tenant)
        if not await self._prepare(carrier):
            return Page()
        return await _listing.Listing(carrier, query).page(after, limit)

    async def find_everywhere(
        self,
        tenants: Callable[[str | None], AsyncGenerator[str]],
        by: Filters,
        after: str | None,
        limit: int,
    ) -> Page[_rows.Found]:
        """Return one page of the subjects of all tenants: first those of no tenant, then tenant by tenant.

        Args:
            tenants: Yields the tenants that follow one, or all.
            by: The filters.
            after: The `next` of a page, or None.
            limit: The largest number of rows.
        """
        limits.admit_count("limit", limit)
        tenant, place = (None, None) if after is None else _parse_cursor(check_text("after", after))
        found = list[_rows.Found]()
        async with aclosing(_chain(tenant, tenants(tenant))) as owners:
            async for owner in owners:
                # Behind a full page, one row of a further tenant shows that the page is not the last.
                page = await self.find(owner, by, place, max(limit - len(found), 1))
                if page and len(found) == limit:
                    return Page(found, next=_cursor(owner, None))
                found += page
                if page.next is not None:
                    return Page(found, next=_cursor(owner, page.next))
                place = None
        return Page(found)

    async def queue_spaces(self, tenant: str | None, under: str, start: str | None) -> AsyncGenerator[str]:
        """Yield the spaces under a name that have queues with tasks, in the order of their names.

        Args:
            tenant: The tenant.
            under: The beginning of the names.
            start: Begin with this space; None for the first one.
        """
        carrier = await self._with_keys(tenant)
        if not await self._prepare(carrier):
            return
        last: str | None = None
        for prefix in _rows.prefixes_under(under):
            after = None if start is None else _rows.list_prefix(_rows.SPACE, start)
            if after is not None and not after.startswith(prefix):
                if after > prefix:
                    continue
                after = None
            while True:
                page = await carrier.store.scan(carrier.space, prefix, after=after)
                for place in page.entries:
                    space, kind = _rows.space_in(place.key)
                    if kind == QUEUE and space != last:
                        yield space
                        last = space
                if (after := page.next) is None:
                    break

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
        try:
            await self._deliver(carrier)
        except _carrier.NoIndexError:  # the tenant is erased meanwhile
            return False
        return True

    async def _deliver(self, carrier: _carrier.Carrier) -> int:
        if self._delivery is not None:
            self._delivery.found_index(carrier.tenant)
        return await carrier.deliver()

    async def deliver(self, tenant: str | None) -> int:
        """Carry all outboxes of a tenant, and return their number."""
        carrier = await self._with_keys(tenant)
        try:
            return await self._deliver(carrier) if await carrier.ensure() else 0
        except _carrier.NoIndexError:
            return 0

    async def reindex(self, tenant: str | None) -> int:
        """Correct the index of a tenant, and return the number of errors; see `Keepstate.reindex`."""
        carrier = await self._with_keys(tenant)
        try:
            if not await carrier.ensure():
                return 0
            count = await _audit.Audit(carrier).correct()
            await self._deliver(carrier)
        except _carrier.NoIndexError:
            return 0
        return count

    async def findings(self, tenant: str | None) -> AsyncGenerator[str]:
        """Yield the errors of the index of a tenant; none if it has no index."""
        carrier = await self._with_keys(tenant)
        async for finding in _audit.Audit(carrier).findings():
            yield finding.what

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
        carrier = await self._with_keys(tenant)
        is_made = await self._prepare(carrier)
        store, positions = carrier.store, Positions(carrier.store, carrier.space, INDEX_SPACE)
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
                # A tenant without a space has no index. Its first space gets one here.
                is_made = is_made or await self._prepare(carrier)


async def _chain(first: str | None, rest: AsyncGenerator[str]) -> AsyncGenerator[str | None]:
    async with aclosing(rest):
        yield first
        async for each in rest:
            yield each


def _cursor(tenant: str | None, place: str | None) -> str:
    """Return the cursor of a listing of all tenants: the cursor in the tenant's listing, and the tenant."""
    return f"{place or ''}@{'' if tenant is None else f'={tenant}'}"


def _parse_cursor(after: str) -> tuple[str | None, str | None]:
    place, sign, owner = after.partition("@")
    if not sign or (owner and not owner.startswith("=")) or owner == "=":
        raise InvalidError(f"`after` is {after!a}; give `next` of a page of find(tenant=ALL)")
    return owner[1:] or None, place or None


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
