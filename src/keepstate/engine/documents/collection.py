"""Collections: documents of one type under a common prefix, each with an id.

A collection is a view of the documents of a space or transaction: `prefix + id` is the name of one. With an
index, each write of a record goes through `collection_indexes`, and no other write of it is possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, cast

from keepstate.engine.documents.collection_indexes import Indexes, Place
from keepstate.engine.documents.documents import MISSING, Documents, Missing
from keepstate.engine.kernel.arguments import (
    check_duration_ms,
    check_flag,
    check_text,
    require_instance,
    require_type,
)
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable, check_unreadable
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.key import Segment

T = TypeVar("T")

_NO_INDEX: Final[Mapping[str, Any]] = MappingProxyType({})
_NAME_BYTES: Final = 100
"""The size of the name of a collection or an index, as UTF-8."""
_INDEXES: Final = 16
"""The largest number of indexes of a collection."""


class Collection(Generic[T]):
    """The records of one type, by id. `Space.collection` makes one.

    Attributes:
        prefix: Prefix of the names of the documents.
    """

    def __init__(
        self,
        documents: Documents,
        prefix: str,
        check: Callable[[str], str] | None = None,
        *,
        type: type[T] | None = None,
        indexes: Indexes[T] | None = None,
    ) -> None:
        self._documents, self.prefix, self._check = documents, prefix, check
        self._type, self._indexes = type, indexes

    def __repr__(self) -> str:
        return f"<Collection {self.prefix!r} of {self._documents!r}>"

    @property
    def _executor(self) -> Executor:
        return self._documents.executor

    def name(self, id: str) -> str:
        """Return the name of the document with an id."""
        return self.prefix + id if self._check is None else self._check(id)

    async def get(self, id: str) -> T | None:
        """Return a copy of a record, or None if there is none with this id."""
        if self._type is None:
            found: T | None = await self._documents.get(self.name(id))
            return found
        return await self._documents.get(self.name(id), type=self._type)

    async def get_each(self, *ids: str) -> dict[str, T]:
        """Return the records that exist, by id, all at one revision and in one round trip."""
        names = {self.name(id): id for id in ids}
        entries = await self._documents.entries(*names)
        return {names[name]: self._convert(name, entry.value) for name, entry in entries.items()}

    def _convert(self, name: str, value: Any) -> T:
        if self._type is None:
            return cast("T", value)
        return self._documents.convert(name, value, self._type)

    async def put(self, id: str, value: T, *, ttl_s: float | None = None) -> None:
        """Write a record, which expires after `ttl_s` seconds.

        Raises:
            InvalidError: The record does not have the type, or its place in an index is not a tuple of texts,
                integers, bytes, UUIDs and aware times, or a newer version of the collection has taken over.
        """
        name = self.name(id)
        converted = self._convert(name, value)
        if self._indexes is None:
            await self._documents.put(name, converted, ttl_s=ttl_s)
            return
        ttl_ms = None if ttl_s is None else check_duration_ms("ttl_s", ttl_s)
        await self._indexes.write(id, name, lambda _: converted, ttl_ms=ttl_ms)

    async def update(
        self, id: str, patch: Mapping[str, Any] | Callable[[T], Any], *, default: object = MISSING
    ) -> T:
        """Change a record, and return the new one. Concurrent updates lose no change.

        Args:
            id: The id of the record.
            patch: Top-level keys to merge into a dict, or a function that takes a copy and returns the new
                record. The function may be called several times.
            default: The record to change if there is none.
        """
        name = self.name(id)
        if self._indexes is not None:
            return await self._indexes.update(id, name, patch, default)
        if self._type is not None:
            change = self._documents.change_of(name, patch)
            return await self._documents.document(name, self._type).update(change, default=cast("T", default))
        changed: T = await self._documents.update(name, patch, default=default)
        return changed

    async def delete(self, id: str) -> bool:
        """Delete a record, and return whether it existed."""
        if self._indexes is not None:
            return await self._indexes.delete(id, self.name(id))
        return await self._documents.delete(self.name(id))

    async def ids(self) -> AsyncIterator[str]:
        """Yield the ids of all records, in the order of their UTF-8 bytes. Reads no values."""
        async for name in self._documents.keys(escape_pattern(self.prefix) + "*"):
            yield name[len(self.prefix) :]

    async def items(
        self, after: str | None = None, *, unreadable: IfUnreadable = "raise"
    ) -> AsyncIterator[tuple[str, T]]:
        """Yield ids with their records, in the order of their UTF-8 bytes, starting after the id `after`.

        Args:
            after: The id before the first one.
            unreadable: With `skip`, a record that cannot be read, or does not have the type, is left out.
                With `raw`, it is an `Unreadable`.
        """
        start = None if after is None else self.prefix + after
        async for name, value in self._documents.items(
            escape_pattern(self.prefix) + "*", after=start, unreadable=unreadable
        ):
            listed = self._documents.convert_listed(name, value, self._type, unreadable)
            if not isinstance(listed, Missing):
                yield name[len(self.prefix) :], cast("T", listed)

    async def values(self) -> AsyncIterator[T]:
        """Yield all records, in the order of their ids."""
        async for _, value in self.items():  # noqa: PERF102 - this is the method itself
            yield value

    # ---- indexes

    async def by(
        self,
        index: str,
        *prefix: Segment | datetime,
        reverse: bool = False,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        unreadable: IfUnreadable = "raise",
    ) -> Page[T]:
        """Return one page of records in the order of an index, all at one revision.

        Cost: two round trips, and three for the first call.

        Args:
            index: The name of the index.
            prefix: Only records whose tuple begins with these values.
            reverse: Whether the listing begins with the last record.
            after: The `next` of a page of the same listing: continue after that page.
            before: The `previous` of a page of the same listing: go back to the rows before that page.
            limit: The largest number of records in the page.
            unreadable: As for `items`. A page from which records were left out is shorter.

        Raises:
            CompactedError: The log no longer reaches back to the cursor, which cannot be verified.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The index has to be built by `reindex` first, or the cursor belongs to another
                listing.
        """
        check_flag("reverse", reverse)
        limits.admit_count("limit", limit)
        check_unreadable(unreadable)
        return await self._require_indexes().page(
            index, prefix, reverse=reverse, after=after, before=before, limit=limit, unreadable=unreadable
        )

    async def reindex(self) -> int:
        """Build the indexes from all records, and return the number of records.

        Needed once for records that were written before the collection had indexes, after `version` was
        raised, and after a rollback of a recorded space. Records may be written during the call. It works in
        batches; an interrupted call is completed by the next one. Until then, `by` is rejected.

        Raises:
            InvalidError: A newer version of the collection has taken over, or the call is part of a
                transaction.
        """
        return await self._require_indexes().build()

    def _require_indexes(self) -> Indexes[T]:
        if self._indexes is None:
            raise InvalidError(f"{self!r} has no index; pass `index` to space.collection()")
        return self._indexes


def make_collection(
    documents: Documents,
    name: str,
    type: type[T],
    index: Mapping[str, Callable[[T], Place | None]] | None,
    version: int,
) -> Collection[T]:
    """Return a collection of a space or transaction; see `Space.collection`."""
    check_collection_name("name", name)
    limits.admit_count("version", version)
    functions = _NO_INDEX if index is None else index
    require_instance("index", functions, Mapping)
    if len(functions) > _INDEXES:
        raise InvalidError(f"`index` has {len(functions)} functions; a collection has at most {_INDEXES}")
    for each, function in functions.items():
        check_collection_name("index", each)
        documents.executor.reject_coroutine(function)
    require_type(type)
    indexes = Indexes(documents, name, type, functions, version) if functions else None
    return Collection(documents, f"{name}/", type=type, indexes=indexes)


def check_collection_name(what: str, name: object) -> str:
    """Return the name of a collection or an index: 1 to 100 bytes of UTF-8 without a slash."""
    text = check_text(what, name)
    if not 0 < len(text.encode()) <= _NAME_BYTES or "/" in text:
        raise InvalidError(
            f"`{what}` is {text[:60]!r}; a name has 1 to {_NAME_BYTES} bytes of UTF-8, and no slash"
        )
    return text
