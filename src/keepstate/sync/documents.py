"""Blocking twins of `keepstate.engine.documents.documents`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar, overload

from keepstate._finish import entered, finish, finish_each
from keepstate.engine.documents import documents as engine
from keepstate.engine.documents.documents import MISSING, Change, DocumentEntry, Missing, Patch
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
        """Return a copy of a document's value, or the default if it is absent.

        Args:
            key: Its name; 1 to 512 bytes of UTF-8.
            default: What to return for an absent one.
            type: What the value must be; it is validated and converted to it.

        Raises:
            InvalidError: The value is no `type`; the path that differs is named.
        """
        get: Any = self._inner.get
        answer: Any = finish(get(key, default, type=type))
        return answer

    @overload
    def entry(self, key: str) -> DocumentEntry[Any] | None: ...
    @overload
    def entry(self, key: str, *, type: type[T]) -> DocumentEntry[T] | None: ...
    def entry(self, key: str, *, type: Any = None) -> DocumentEntry[Any] | None:
        """Return a document with its version, or None if it is absent."""
        entry: Any = self._inner.entry
        answer: DocumentEntry[Any] | None = finish(entry(key, type=type))
        return answer

    def entries(self, *keys: str) -> dict[str, DocumentEntry[Any]]:
        """Return those of the named documents that are there, by name: of one revision, in one round trip.

        Args:
            keys: At most 1,000 names.
        """
        return finish(self._inner.entries(*keys))

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
            key: Its name; 1 to 512 bytes of UTF-8.
            value: Anything the codec keeps without loss; classes only if they are registered.
            expected_version: Writes only over this version; 0 only if it is absent. A `printed_version` may
                come from another process; a number is for use within a handle.
            ttl_s: Lets it expire so many seconds from now.

        Returns:
            Its new version; 0 inside a transaction, which has none before it ends.

        Raises:
            ConflictError: It is not at `expected_version`; `actual` says where it is.
            HistoryLostError: It is at the revision of a `printed_version`, which wrote something else: the
                store lost what was printed, and others wrote after.
            InvalidError: The value would not come back equal; the path of what is at fault is named.
        """
        return finish(self._inner.put(key, value, expected_version=expected_version, ttl_s=ttl_s))

    def update(self, key: str, patch: Patch | Change, *, default: object = MISSING) -> Any:
        """Change a document, again and again until nobody else has changed it meanwhile.

        Args:
            key: Its name.
            patch: Top-level keys to merge into a dict, or a function that is given a copy and returns the new
                value, which may be None. It may be called several times, and may write other documents, but
                not this one.
            default: What to change if the document is absent.

        Returns:
            The new value. A time to live that the document has goes on.

        Raises:
            NotFoundError: It is absent, and there is no default.
            InvalidError: A dict patch meets a value that is no dict; or the function changed its copy and
                returned None, as one does that has forgotten its `return`, or wrote this document itself.
            AttemptsExhaustedError: It was changed by others 1,000 times and more, for a minute and more.
        """
        return finish(self._inner.update(key, patch, default=default))

    def delete(self, key: str) -> bool:
        """Remove a document, and return whether it existed."""
        return finish(self._inner.delete(key))

    def document(self, key: str, type: type[T]) -> Document[T]:
        """Return a handle on one document of a known type; asks the store nothing."""
        return Document(self._inner.document(key, type))

    def keys(self, pattern: str = "*", *, after: str | None = None) -> Iterator[str]:
        """Yield the names that fit a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` any text, `?` one character, `[a-z]` one of a set; a backslash makes the next one
                plain.
            after: Starts behind this name, whether there is such a document or not.
        """
        return finish_each(self._inner.keys(pattern, after=after))

    def items(self, pattern: str = "*", *, after: str | None = None) -> Iterator[tuple[str, Any]]:
        """Yield names and values that fit a pattern, in the order of their names; see `keys`.

        Each value is one that its document really had; only inside a transaction are they all of one moment.
        A document that cannot be read ends the iteration. The error's `key` names it, and `items(after=key)`
        goes on behind it.

        Raises:
            UnsupportedError: A document was stored by a newer version of a class than this process knows.
            CorruptError: A document is damaged.
        """
        return finish_each(self._inner.items(pattern, after=after))

    @single_use
    def watch(
        self, pattern: str = "*", *, after: str | int | None = None, timeout_s: float | None = None
    ) -> Generator[Watch]:
        """Yield an iterator over changes of documents that fit a pattern: in order, exact, none missing.

        A change that cannot be read, of a class that is not registered here, raises from the iterator in its
        place, and asking again goes on after it.

        Args:
            pattern: As for `keys`.
            after: Starts behind a `position` that a watch or a change told, in this process or another; or,
                within a handle, behind a revision. Without it, where the space stands on entering.
            timeout_s: Ends the iteration when nothing has changed for so long; without it, it never ends.

        Raises:
            CompactedError: The log no longer reaches back to `after`.
            HistoryLostError: The store no longer has what `after` stands behind: a backup was restored, or a
                server failed over, and others may have written since.
            InvalidError: `after` is not a position, or one of another space or kind.
        """
        with entered(self._inner.watch(pattern, after=after, timeout_s=timeout_s)) as inner:
            yield Watch(inner)


class Document(Twin[engine.Document[T]], Generic[T]):
    """One document of a known type.

    Attributes:
        key: Its name.
    """

    @property
    def key(self) -> str:
        """Its name."""
        return self._inner.key

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """Return its value, or the default if it is absent.

        Raises:
            InvalidError: What is stored is no such type.
        """
        get: Any = self._inner.get
        answer: T | None = finish(get(default))
        return answer

    def entry(self) -> DocumentEntry[T] | None:
        """Return its value and version, or None if it is absent."""
        return finish(self._inner.entry())

    def put(self, value: T, *, expected_version: str | int | None = None, ttl_s: float | None = None) -> int:
        """Write it, and return its version; see `Documents.put`.

        Raises:
            InvalidError: The value is no such type.
        """
        return finish(self._inner.put(value, expected_version=expected_version, ttl_s=ttl_s))

    def update(self, change: Callable[[T], T], *, default: T | Missing = MISSING) -> T:
        """Change it, and return its new value; see `Documents.update`."""
        return finish(self._inner.update(change, default=default))

    def delete(self) -> bool:
        """Remove it, and return whether it existed."""
        return finish(self._inner.delete())
