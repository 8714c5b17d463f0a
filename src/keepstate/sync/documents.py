"""Blocking twins of `keepstate.engine.documents.documents`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar, overload

from keepstate._finish import entered, finish, finish_each
from keepstate.engine.documents import documents as engine
from keepstate.engine.documents.documents import MISSING, Change, DocumentEntry, Missing, Patch
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.sync.twin import Twin, single_use
from keepstate.sync.watch import Watch

T = TypeVar("T")


class Documents(Twin[engine.Documents]):
    """The documents of a space, or of a transaction on it."""

    @overload
    def get(self, key: str, default: Any = None) -> Any: ...
    @overload
    def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    def get(self, key: str, default: T, *, type: type[T]) -> T: ...
    def get(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return a copy of a document's value, or the default if it does not exist.

        Args:
            key: The document's name; 1 to 512 bytes of UTF-8.
            default: The result if the document does not exist.
            type: The type to validate the value against and convert it to.

        Raises:
            InvalidError: The value is not a `type`. The error names the path that differs.
        """
        get: Any = self._inner.get
        answer: Any = finish(get(key, default, type=type))
        return answer

    @overload
    def entry(self, key: str) -> DocumentEntry[Any] | None: ...
    @overload
    def entry(self, key: str, *, type: type[T]) -> DocumentEntry[T] | None: ...
    def entry(self, key: str, *, type: Any = None) -> DocumentEntry[Any] | None:
        """Return a document with its version, or None if it does not exist."""
        entry: Any = self._inner.entry
        answer: DocumentEntry[Any] | None = finish(entry(key, type=type))
        return answer

    def entries(self, *keys: str, unreadable: IfUnreadable = "raise") -> dict[str, DocumentEntry[Any]]:
        """Return the named documents that exist, by name, all at one revision and in one round trip.

        Args:
            keys: At most 1,000 names.
            unreadable: With `skip`, a document whose value cannot be read is left out. With `raw`, its value
                is an `Unreadable`.
        """
        return finish(self._inner.entries(*keys, unreadable=unreadable))

    def put(
        self,
        key: str,
        value: object,
        *,
        expected_version: str | int | None = None,
        ttl_s: float | None = None,
    ) -> int:
        """Write a document.

        Args:
            key: The document's name; 1 to 512 bytes of UTF-8.
            value: Any value that the codec stores without loss. Objects need a registered class.
            expected_version: The version that the document must have; 0 if it must not exist. A
                `printed_version` may come from another process; a number is for use within a handle.
            ttl_s: Seconds from now until the document expires.

        Returns:
            The new version; 0 inside a transaction, which does not have one before it commits.

        Raises:
            ConflictError: The document is not at `expected_version`. `actual` is its version.
            HistoryLostError: The revision of the `printed_version` contains a different value, because the
                store lost the printed one and was written to after that.
            InvalidError: The value would not be read back equal. The error names the path at fault.
        """
        return finish(self._inner.put(key, value, expected_version=expected_version, ttl_s=ttl_s))

    def update(self, key: str, patch: Patch | Change, *, default: object = MISSING) -> Any:
        """Change a document, and retry until no other writer has changed it in between.

        Args:
            key: The document's name.
            patch: Top-level keys to merge into a dict, or a function that takes a copy and returns the new
                value, which may be None. The function may be called several times. It may write other
                documents, but not this one.
            default: The value to change if the document does not exist.

        Returns:
            The new value. The document's TTL continues.

        Raises:
            NotFoundError: The document does not exist, and there is no default.
            InvalidError: A dict patch was applied to a value that is not a dict. Or the function modified its
                argument and returned None (a missing `return`), or wrote this document itself.
            AttemptsExhaustedError: There were at least 1,000 conflicts over at least a minute.
        """
        return finish(self._inner.update(key, patch, default=default))

    def delete(self, key: str) -> bool:
        """Delete a document, and return whether it existed."""
        return finish(self._inner.delete(key))

    def document(self, key: str, type: type[T]) -> Document[T]:
        """Return a handle on one document of a known type, without a call to the store."""
        return Document(self._inner.document(key, type))

    def keys(
        self,
        pattern: str = "*",
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[str]:
        """Yield the names that match a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` matches any text, `?` one character, `[a-z]` one of a set. A backslash escapes the
                next character.
            prefix: Only names that start with this text, in which no character is special.
            after: Only names above this one, which need not exist.
            before: Only names below this one, which need not exist.
            reverse: Whether to begin with the last name.
            limit: The largest number of names; by default all.
        """
        return finish_each(
            self._inner.keys(pattern, prefix=prefix, after=after, before=before, reverse=reverse, limit=limit)
        )

    def items(
        self,
        pattern: str = "*",
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> Iterator[tuple[str, Any]]:
        """Yield the names and values that match a pattern, in the order of the names; see `keys`.

        Inside a transaction, all values are of one revision. Outside, each value is one that its document had
        during the iteration. A document that cannot be read ends the iteration with an error. Its `key` is
        the name of the document, and `items(after=key)` continues after it.

        Args:
            pattern, prefix, after, before, reverse, limit: As for `keys`.
            unreadable: With `skip`, a document that cannot be read is left out. With `raw`, its value is an
                `Unreadable`, which has the reason and the builtin form.

        Raises:
            UnsupportedError: A document was stored by a newer version of a class than this process knows.
            CorruptError: A document is damaged.
        """
        return finish_each(
            self._inner.items(
                pattern,
                prefix=prefix,
                after=after,
                before=before,
                reverse=reverse,
                limit=limit,
                unreadable=unreadable,
            )
        )

    def page(
        self,
        pattern: str = "*",
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int = 100,
        values: bool = True,
        unreadable: IfUnreadable = "raise",
    ) -> Page[DocumentEntry[Any]]:
        """Return one page of documents with their versions, sizes and times of expiry.

        Cost: one scan, unless a pattern skips documents or the values exceed 8 MiB.

        Args:
            pattern, prefix: As for `keys`.
            after: The `next` of a page of the same listing: continue after that page.
            before: The `previous` of a page of the same listing: go back to the rows before that page.
            reverse: Whether the listing begins with the last name.
            limit: The largest number of documents in the page.
            values: Whether to decode the values. Without them, `value` is None.
            unreadable: As for `items`. The next page continues after a document that was left out.

        Raises:
            CompactedError: The log no longer reaches back to the cursor, which cannot be verified.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another space or listing.
        """
        return finish(
            self._inner.page(
                pattern,
                prefix=prefix,
                after=after,
                before=before,
                reverse=reverse,
                limit=limit,
                values=values,
                unreadable=unreadable,
            )
        )

    def delete_all(self, prefix: str) -> int:
        """Delete all documents whose names start with a prefix, and return their number.

        The documents are deleted in batches of at most 500. An interrupted call is completed by the next one.
        A document that is written during the call may remain. Inside a transaction, all of them are part of
        its batch.

        Args:
            prefix: The beginning of the names, in which no character is special; empty for all documents.

        Raises:
            InvalidError: One of them is a record of an indexed collection. Nothing was deleted, unless it was
                written during the call.
        """
        return finish(self._inner.delete_all(prefix))

    @single_use
    def watch(
        self,
        pattern: str = "*",
        *,
        after: str | int | None = None,
        timeout_s: float | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> Generator[Watch]:
        """Yield an iterator over every change of the documents that match a pattern, in order.

        A change that cannot be read, for example because its class is not registered, raises from the
        iterator. The next call continues after that change.

        Args:
            pattern: As for `keys`.
            after: Start after a `position` of a watch or a change, from any process, or, within a handle,
                after a revision. The default is the revision of the space on entering.
            timeout_s: End the iteration after this many seconds without a change. The default never ends.
            unreadable: With `skip`, a change that cannot be read is left out. With `raw`, the value that
                cannot be read is an `Unreadable`.

        Raises:
            CompactedError: The log no longer reaches back to `after`.
            HistoryLostError: The store has lost the history that `after` belongs to: a backup was restored,
                or a server failed over.
            InvalidError: `after` is not a position, or is one of another space or kind.
        """
        with entered(
            self._inner.watch(pattern, after=after, timeout_s=timeout_s, unreadable=unreadable)
        ) as inner:
            yield Watch(inner)


class Document(Twin[engine.Document[T]], Generic[T]):
    """One document of a known type.

    Attributes:
        key: The document's name.
    """

    @property
    def key(self) -> str:
        """The document's name."""
        return self._inner.key

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """Return the document's value, or the default if it does not exist.

        Raises:
            InvalidError: The stored value does not have the type.
        """
        get: Any = self._inner.get
        answer: T | None = finish(get(default))
        return answer

    def entry(self) -> DocumentEntry[T] | None:
        """Return the document's value and version, or None if it does not exist."""
        return finish(self._inner.entry())

    def put(self, value: T, *, expected_version: str | int | None = None, ttl_s: float | None = None) -> int:
        """Write the document, and return its version; see `Documents.put`.

        Raises:
            InvalidError: The value does not have the type.
        """
        return finish(self._inner.put(value, expected_version=expected_version, ttl_s=ttl_s))

    def update(self, change: Callable[[T], T], *, default: T | Missing = MISSING) -> T:
        """Change the document, and return its new value; see `Documents.update`."""
        return finish(self._inner.update(change, default=default))

    def delete(self) -> bool:
        """Delete the document, and return whether it existed."""
        return finish(self._inner.delete())
