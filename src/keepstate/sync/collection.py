"""Blocking twins of `keepstate.engine.documents.collection`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from keepstate._finish import finish, finish_each
from keepstate.engine.documents import collection as engine
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.sync.twin import Twin
from keepstate.values.key import Segment

T = TypeVar("T")


class Collection(Twin[engine.Collection[T]], Generic[T]):
    """The records of one type, by id. `Space.collection` makes one.

    Attributes:
        prefix: Prefix of the names of the documents.
    """

    @property
    def prefix(self) -> str:
        """Prefix of the names of the documents."""
        return self._inner.prefix

    def name(self, id: str) -> str:
        """Return the name of the document with an id."""
        return self._inner.name(id)

    def get(self, id: str) -> T | None:
        """Return a copy of a record, or None if there is none with this id."""
        return finish(self._inner.get(id))

    def get_each(self, *ids: str) -> dict[str, T]:
        """Return the records that exist, by id, all at one revision and in one round trip."""
        return finish(self._inner.get_each(*ids))

    def put(self, id: str, value: T, *, ttl_s: float | None = None) -> None:
        """Write a record, which expires after `ttl_s` seconds.

        Raises:
            InvalidError: The record does not have the type, or its place in an index is not a tuple of texts,
                integers, bytes, UUIDs and aware times, or a newer version of the collection has taken over.
        """
        finish(self._inner.put(id, value, ttl_s=ttl_s))

    def update(
        self, id: str, patch: Mapping[str, Any] | Callable[[T], Any], *, default: object = MISSING
    ) -> T:
        """Change a record, and return the new one. Concurrent updates lose no change.

        Args:
            id: The id of the record.
            patch: Top-level keys to merge into a dict, or a function that takes a copy and returns the new
                record. The function may be called several times.
            default: The record to change if there is none.
        """
        return finish(self._inner.update(id, patch, default=default))

    def delete(self, id: str) -> bool:
        """Delete a record, and return whether it existed."""
        return finish(self._inner.delete(id))

    def ids(self) -> Iterator[str]:
        """Yield the ids of all records, in the order of their UTF-8 bytes. Reads no values."""
        return finish_each(self._inner.ids())

    def items(
        self, after: str | None = None, *, unreadable: IfUnreadable = "raise"
    ) -> Iterator[tuple[str, T]]:
        """Yield ids with their records, in the order of their UTF-8 bytes, starting after the id `after`.

        Args:
            after: The id before the first one.
            unreadable: With `skip`, a record that cannot be read, or does not have the type, is left out.
                With `raw`, it is an `Unreadable`.
        """
        return finish_each(self._inner.items(after, unreadable=unreadable))

    def values(self) -> Iterator[T]:
        """Yield all records, in the order of their ids."""
        return finish_each(self._inner.values())

    def by(
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
        return finish(
            self._inner.by(
                index,
                *prefix,
                reverse=reverse,
                after=after,
                before=before,
                limit=limit,
                unreadable=unreadable,
            )
        )

    def reindex(self) -> int:
        """Build the indexes from all records, and return the number of records.

        Needed once for records that were written before the collection had indexes, after `version` was
        raised, and after a rollback of a recorded space. Records may be written during the call. It works in
        batches; an interrupted call is completed by the next one. Until then, `by` is rejected.

        Raises:
            InvalidError: A newer version of the collection has taken over, or the call is part of a
                transaction.
        """
        return finish(self._inner.reindex())
