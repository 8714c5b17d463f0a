"""Pages of an index: the rows that a query selects, read from the shortest list that contains them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple, get_args

from keepstate.engine.index.carrier import Carrier
from keepstate.engine.index.rows import (
    ALL,
    DUE,
    KIND,
    OWNER,
    STATE,
    Found,
    Row,
    decode_row,
    digest_in,
    list_prefix,
    place_in,
    prefixes_under,
    row_key,
    token_of,
)
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.kernel.subjects import KINDS
from keepstate.errors import InvalidError
from keepstate.names import INDEX_SPACE
from keepstate.stores.protocol import Mark
from keepstate.values.key import pack

Order = Literal["-changed", "changed", "due"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)

_AT_ONCE: Final = 256
_TRIED: Final = 1_024
"""The number of rows of a long list that are tried for `under`, before the rows under it are listed."""
_FEW: Final = 64
"""The number of rows under a name that are read at once, whatever the other filters are."""
_SORTED: Final = 8_192
"""The number of rows under a name that are sorted in memory."""


class Query(NamedTuple):
    """The rows that a listing shows."""

    kind: str | None = None
    state: str | None = None
    owner: str | None = None
    since_ms: int | None = None
    under: str = ""
    order: Order = "-changed"

    def shows(self, row: Row) -> bool:
        """Return whether the listing shows a row."""
        return (
            self.kind in (None, row.kind)
            and self.state in (None, row.state)
            and self.owner in (None, row.owner)
            and (self.since_ms is None or row.changed_ms >= self.since_ms)
            and (self.order != "due" or row.due_ms is not None)
            and is_under(row.space, self.under)
        )

    def time_of(self, row: Row) -> int:
        """Return the time by which the listing sorts a row."""
        return row.changed_ms if self.order != "due" or row.due_ms is None else row.due_ms

    def name(self) -> bytes:
        """Return the bytes that name the listing in its cursors."""
        return pack("find", *("\0" if part is None else f"={part}" for part in self))


def make_query(
    kind: str | None,
    state: str | None,
    owner: str | None,
    changed_since: datetime | None,
    under: str,
    order: str,
) -> Query:
    """Check the arguments of a listing, and return them.

    Raises:
        InvalidError: One of them is of the wrong type, or is not one of the known choices.
    """
    if kind is not None and kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidError(f"`kind` is {kind!r}; {hint}it is one of {', '.join(KINDS)}")
    for what, text in (("state", state), ("owner", owner)):
        if text is not None:
            check_text(what, text)
    since_ms = None
    if changed_since is not None:
        require_instance("changed_since", changed_since, datetime)
        if changed_since.tzinfo is None:
            raise InvalidError(
                f"`changed_since` is {changed_since!r}, without a time zone; give an aware datetime"
            )
        since_ms = to_milliseconds(changed_since)
    known: dict[str, Order] = {each: each for each in ORDERS}
    if type(order) is not str or order not in known:
        raise InvalidError(f"`order` is {order!r}; it is one of {', '.join(ORDERS)}")
    return Query(kind, state, owner, since_ms, check_text("under", under), known[order])


def is_under(space: str, under: str) -> bool:
    """Return whether a space has a name, or continues it after a `/`."""
    if not under:
        return True
    return space.startswith(under if under.endswith("/") else f"{under}/") or space == under


class _Place(NamedTuple):
    """A row's place in the order of a listing: its time, and the digest of its subject."""

    time: int
    digest: bytes


class Listing:
    """The listing of one query.

    Args:
        carrier: The carrier of the tenant, whose index is read.
        query: The query.
    """

    def __init__(self, carrier: Carrier, query: Query) -> None:
        self._carrier, self._query = carrier, query
        self._reverse = query.order == "-changed"
        self._mark = Mark(0, b"")

    async def page(self, after: str | None, limit: int) -> Page[Found]:
        """Return one page.

        Args:
            after: The `next` of a page of the same listing, or None.
            limit: The largest number of rows.
        """
        positions = Positions(self._carrier.store, self._carrier.space, INDEX_SPACE)
        start = None
        if after is not None:
            key = await positions.page_in(
                "after", check_text("after", after), layout.LISTS, self._query.name()
            )
            start = _Place(*place_in(key))
        found: list[tuple[_Place, Row]] = []
        async with aclosing(self._rows(start, limit + 1)) as rows:
            async for each in rows:
                found.append(each)
                if len(found) > limit:
                    break
        next_one = None
        if len(found) > limit:
            [next_one] = positions.of_page(
                self._query.name(), self._mark, [list_prefix(ALL, *found[limit - 1][0])]
            )
        tenant = self._carrier.tenant
        return Page((row.to_public(tenant) for _, row in found[:limit]), next=next_one)

    async def _rows(self, start: _Place | None, wanted: int) -> AsyncGenerator[tuple[_Place, Row]]:
        """Yield the rows of the listing that follow a place, in order."""
        if self._query.under and await self._has_few():
            for place, row in await self._rows_under() or ():
                if start is None or self._follows(place, start):
                    yield place, row
            return
        count = tried = 0
        at_once = min(wanted, _FEW if self._query.under else _AT_ONCE)  # many of a list may be elsewhere
        async with aclosing(self._places(start, at_once)) as pages:
            async for places in pages:
                for place, row in await self._read(places):
                    yield place, row
                    count, start = count + 1, place
                tried += len(places)
                if self._query.under and tried >= _TRIED and tried > 8 * count:
                    break
            else:
                return
        last = places[-1]
        if (few := await self._rows_under()) is not None:
            for place, row in few:
                if self._follows(place, last):
                    yield place, row
            return
        async with aclosing(self._places(last, _AT_ONCE)) as pages:
            async for places in pages:
                for place, row in await self._read(places):
                    yield place, row

    def _follows(self, place: _Place, other: _Place) -> bool:
        return place < other if self._reverse else place > other

    async def _read(self, places: Sequence[_Place]) -> list[tuple[_Place, Row]]:
        """Return the rows at some places that the listing shows, and that have not moved meanwhile."""
        keys = [row_key(place.digest) for place in places]
        reading = await self._carrier.store.read(self._carrier.space, keys)
        found: list[tuple[_Place, Row]] = []
        for place, entry in zip(places, reading.entries, strict=True):
            if entry is not None:
                row = decode_row(entry.value, entry.key).at(reading.now_ms)
                if self._query.shows(row) and self._query.time_of(row) == place.time:
                    found.append((place, row))
        return found

    async def _has_few(self) -> bool:
        """Return whether the rows under the name are so few that they are read before any other list."""
        count = 0
        for prefix in prefixes_under(self._query.under):
            page = await self._carrier.store.scan(self._carrier.space, prefix, limit=_FEW)
            count += len(page.entries)
            self._mark = max(self._mark, Mark(page.revision, page.nonce))
            if page.next is not None or count > _FEW:
                return False
        return True

    async def _rows_under(self) -> list[tuple[_Place, Row]] | None:
        """Return all rows of the listing under its name, sorted; None if there are too many."""
        found, count = list[tuple[_Place, Row]](), 0
        for prefix in prefixes_under(self._query.under):
            async with aclosing(self._carrier.rows(prefix)) as rows:
                async for key, row in rows:
                    count += 1
                    if count > _SORTED:
                        return None
                    if self._query.shows(row):
                        found.append((_Place(self._query.time_of(row), digest_in(key)), row))
        return sorted(found, reverse=self._reverse, key=lambda each: each[0])

    # ---- places

    def _prefixes(self) -> list[bytes]:
        """Return the prefixes of the shortest lists that together contain the listing."""
        query, name_of = self._query, self._carrier.name_of
        kinds = KINDS if query.kind is None else (query.kind,)
        if query.order == "due":
            return [list_prefix(DUE, kind) for kind in kinds]
        if query.owner is not None:
            return [list_prefix(OWNER, token_of(name_of, "owner", query.owner))]
        if query.state is not None:
            token = token_of(name_of, "state", query.state)
            return [list_prefix(STATE, kind, token) for kind in kinds]
        return [list_prefix(ALL) if query.kind is None else list_prefix(KIND, query.kind)]

    async def _places(self, start: _Place | None, at_once: int) -> AsyncGenerator[list[_Place]]:
        """Yield the places of the lists that follow a place, in order, in groups."""
        lists = [
            _List(self._carrier, prefix, self._bound(prefix, start), at_once, reverse=self._reverse)
            for prefix in self._prefixes()
        ]
        since_ms = self._query.since_ms if self._reverse else None
        group: list[_Place] = []
        while True:
            heads = [each for each in lists if await each.head() is not None]
            if not heads:
                break
            pick = max if self._reverse else min
            best = pick(heads, key=lambda each: each.place)
            self._mark = max(self._mark, best.mark)
            if since_ms is not None and best.place.time < since_ms:
                break
            # All places of a single list come at once; of several lists one at a time.
            group += best.take_all() if len(heads) == 1 else [best.take()]
            if len(group) >= at_once:
                yield group
                group = []
        if group:
            yield group

    def _bound(self, prefix: bytes, start: _Place | None) -> bytes | None:
        if start is not None:
            return prefix + pack(*start)
        if self._query.order == "changed" and self._query.since_ms is not None:
            return prefix + pack(self._query.since_ms)
        return None


class _List:
    """The places of one list, read in pages."""

    def __init__(
        self, carrier: Carrier, prefix: bytes, after: bytes | None, at_once: int, *, reverse: bool
    ) -> None:
        self._carrier, self._prefix, self._after = carrier, prefix, after
        self._at_once, self._reverse = at_once, reverse
        self._ready: list[_Place] = []
        self._is_over = False
        self.mark = Mark(0, b"")

    @property
    def place(self) -> _Place:
        """The first place that was not taken."""
        return self._ready[-1]

    async def head(self) -> _Place | None:
        """Return the first place that was not taken, or None at the end of the list."""
        while not self._ready and not self._is_over:
            page = await self._carrier.store.scan(
                self._carrier.space,
                self._prefix,
                after=self._after,
                limit=self._at_once,
                reverse=self._reverse,
            )
            self.mark = Mark(page.revision, page.nonce)
            self._ready = [_Place(*place_in(entry.key)) for entry in reversed(page.entries)]
            self._after, self._is_over = page.next, page.next is None
        return self._ready[-1] if self._ready else None

    def take(self) -> _Place:
        """Take the first place."""
        return self._ready.pop()

    def take_all(self) -> list[_Place]:
        """Take all places that were read."""
        taken, self._ready = self._ready[::-1], []
        return taken
