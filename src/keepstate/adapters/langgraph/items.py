"""How an item of a LangGraph store stands in its document, and what a caller gets of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import msgspec
from langgraph.store.base import Item, SearchItem

from keepstate.adapters.langgraph.namespaces import place_of
from keepstate.errors import CorruptError, InvalidError
from keepstate.values.limits import TTL_MS

_MINUTE_MS: Final = 60_000
_MOST_MINUTES: Final = TTL_MS // _MINUTE_MS
_TICK: Final = timedelta(microseconds=1)


class ItemRecord(msgspec.Struct, frozen=True):
    """What is kept of an item; in its document as a dict of these fields.

    Attributes:
        value: Its value.
        created_at: When it was first put since it was last absent; later ones keep it.
        updated_at: When it was last put; later each time, if only by a microsecond.
        after: The revision of the space that was seen before that: it orders what has one time.
        ttl_minutes: How long it lives after it was last put or read with `refresh_ttl`; None for ever.
    """

    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    after: int
    ttl_minutes: float | None = None

    @property
    def order(self) -> tuple[datetime, int]:
        """Sort items by when they were last put: by what the clock said, then by what was seen before."""
        at = self.updated_at
        return at.replace(microsecond=at.microsecond // 1000 * 1000), self.after

    @property
    def ttl_ms(self) -> int | None:
        """Return how long it lives from now, if it does not for ever."""
        return None if self.ttl_minutes is None else lifetime_ms(self.ttl_minutes)

    @classmethod
    def put(
        cls, value: dict[str, Any], at: datetime, after: int, ttl: float | None, old: Self | None
    ) -> Self:
        """Return an item as it is put, over an older one if there is one."""
        if old is None:
            return cls(value, at, at, after, ttl)
        return cls(value, old.created_at, max(at, old.updated_at + _TICK), after, ttl)

    def as_document(self) -> dict[str, Any]:
        """Return what is stored."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def item(self, name: str) -> Item:
        """Return what `get` gives."""
        namespace, key = place_of(name)
        return Item(
            value=self.value,
            key=key,
            namespace=namespace,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    def found(self, name: str, score: float | None) -> SearchItem:
        """Return what `search` gives."""
        namespace, key = place_of(name)
        return SearchItem(namespace, key, self.value, self.created_at, self.updated_at, score)


def read_item(name: str, document: Any) -> ItemRecord:
    """Return the item in a document.

    Raises:
        CorruptError: Something else wrote there.
    """
    try:
        return ItemRecord(**document)
    except TypeError as error:
        raise CorruptError(f"document {name!r} is no item of a LangGraph store", place=name) from error


def at_ms(now_ms: int) -> datetime:
    """Return the store's time as items tell it."""
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def lifetime_ms(minutes: object) -> int:
    """Return a time to live as stores take it.

    Raises:
        InvalidError: It is not positive, over a hundred years, or no number.
    """
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= _MOST_MINUTES:
        raise InvalidError(
            f"`ttl` is {minutes!r}; it is a number of minutes, more than 0 and at most {_MOST_MINUTES:,}, "
            "or None for ever"
        )
    return max(1, round(minutes * _MINUTE_MS))
