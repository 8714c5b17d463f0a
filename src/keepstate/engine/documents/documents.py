"""Documents: named values that are updated, and never lose an update."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, overload

from keepstate.engine.documents.record import DocumentRecord, read_record, write_record
from keepstate.engine.documents.watch import Watch
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_revision, require_type
from keepstate.engine.kernel.executor import ATTEMPTS, Executor, call_function
from keepstate.engine.kernel.glob import compile_pattern
from keepstate.engine.kernel.notifications import listen
from keepstate.engine.kernel.positions import Positions, Printable
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.kernel.times import check_duration_ms, check_wait
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.kernel.update_lock import apply_update
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.stores.protocol import Entry, Mark
from keepstate.values import missing

T = TypeVar("T")


Missing = missing.Missing
MISSING: Final = missing.MISSING
"""Says that no default was given; None is a value."""
Patch = Mapping[str, Any]
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DocumentEntry(Generic[T]):
    """A document as it was read.

    Attributes:
        key: Its name.
        value: A copy; changing it changes nothing stored.
        version: The revision that last wrote it, for use within a handle; 0 if the transaction that reads it
            wrote it itself.
        created: The revision that first wrote it since it was last absent.
    """

    key: str
    value: T
    version: int
    created: int
    _printable: Printable | None = field(default=None, repr=False, compare=False)

    @property
    def printed_version(self) -> str | None:
        """An opaque text: as `expected_version` in any process, it is refused once its history is gone.

        None while `version` is 0.
        """
        return None if self._printable is None else self._printable.text()


class Documents:
    """The documents of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __repr__(self) -> str:
        return f"<Documents of {self._executor.name!r}>"

    # ---- one document

    @overload
    async def get(self, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, default: T, *, type: type[T]) -> T: ...
    async def get(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return a copy of a document's value, or the default if it is absent.

        Args:
            key: Its name; 1 to 512 bytes of UTF-8.
            default: What to return for an absent one.
            type: What the value must be; it is validated and converted to it.

        Raises:
            InvalidError: The value is no `type`; the path that differs is named.
        """
        entry = await self.entry(key, type=type)
        return default if entry is None else entry.value

    @overload
    async def entry(self, key: str) -> DocumentEntry[Any] | None: ...
    @overload
    async def entry(self, key: str, *, type: type[T]) -> DocumentEntry[T] | None: ...
    async def entry(self, key: str, *, type: Any = None) -> DocumentEntry[Any] | None:
        """Return a document with its version, or None if it is absent."""
        place = layout.named_key(layout.DOCUMENTS, key)
        if type is not None:
            require_type(type)

        async def work(unit: Unit) -> DocumentEntry[Any] | None:
            entry = await unit.get(place)
            if entry is None:
                return None
            record = await read_record(self._executor, unit, entry, type)
            return self._entry(key, record.value, entry, unit)

        return (await self._executor.run(work))[0]

    async def entries(self, *keys: str) -> dict[str, DocumentEntry[Any]]:
        """Return those of the named documents that are there, by name: of one revision, in one round trip.

        Args:
            keys: At most 1,000 names.
        """
        places = {layout.named_key(layout.DOCUMENTS, key): key for key in keys}

        async def work(unit: Unit) -> dict[str, DocumentEntry[Any]]:
            found: dict[str, DocumentEntry[Any]] = {}
            for key, entry in zip(places.values(), await unit.read(*places), strict=True):
                if entry is not None:
                    record = await read_record(self._executor, unit, entry)
                    found[key] = self._entry(key, record.value, entry, unit)
            return found

        return (await self._executor.run(work))[0]

    def _entry(self, key: str, value: Any, entry: Entry, unit: Unit) -> DocumentEntry[Any]:
        positions = Positions(unit.store, self._executor.stored_name, self._executor.name)
        printable = Printable(None, positions, entry)
        return DocumentEntry(key, value, entry.version, entry.created, printable)

    async def put(
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
        place = layout.named_key(layout.DOCUMENTS, key)
        if expected_version is not None and not isinstance(expected_version, str):
            check_revision("expected_version", expected_version)
        stored = write_record(self._executor, place, key, value)
        ttl_ms = None if ttl_s is None else check_duration_ms("ttl_s", ttl_s)

        async def work(unit: Unit) -> None:
            if expected_version is not None:
                version = await self._expected(unit, key, place, expected_version)
                unit.check(place, version=version, asked=f"expected_version={version}")
            unit.put(place, stored, ttl_ms=ttl_ms)

        _, version = await self._executor.run(work, attempts=1 if expected_version is not None else ATTEMPTS)
        return version

    async def _expected(self, unit: Unit, key: str, place: bytes, given: str | int) -> int:
        """Return the version that a document must have; compares a printed one with what is stored."""
        if not isinstance(given, str):
            return given
        positions = Positions(unit.store, self._executor.stored_name, self._executor.name)
        version, digest = positions.version_in("expected_version", given, place)
        entry = await unit.get(place)
        if entry is not None and entry.version == version and positions.digest(entry.value) != digest:
            raise positions.lost(version, f"version {version} of document {key!r}")
        return version

    async def update(self, key: str, patch: Patch | Change, *, default: object = MISSING) -> Any:
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
        if callable(patch):
            self._executor.reject_coroutine(patch)
            return await self._changed(key, patch, default)
        _admit_patch(key, patch)
        return await self._changed(key, lambda old: _merged(key, old, patch), default)

    def _fitted(self, key: str, value: object, type: type[T]) -> T:
        """Return a value as the type that a document must be of; for `Document`."""
        try:
            fitted: T = self._copied(layout.named_key(layout.DOCUMENTS, key), value, type)
            return fitted
        except InvalidError as error:
            raise InvalidError(
                f"document {key!r} of {self._executor.name!r} is not written: {error}", path=error.path
            ) from error

    async def _update_typed(self, key: str, change: Change, default: object, type: type[T]) -> T:
        """Change a document whose value must be a `type` before and after; for `Document`."""
        self._executor.reject_coroutine(change)

        async def typed(old: Any) -> Any:
            return self._fitted(key, await call_function(change, old), type)

        answer: T = await self._changed(key, typed, default, type)
        return answer

    async def _changed(self, key: str, change: Change, default: object, type: Any = None) -> Any:
        return (await self._made(key, change, default, type))[0]

    async def _made(self, key: str, change: Change, default: object, type: Any = None) -> tuple[Any, int]:
        """Return the new value and its version, which is 0 inside a transaction."""
        place = layout.named_key(layout.DOCUMENTS, key)

        async def before(unit: Unit, entry: Entry | None) -> Any:
            if entry is not None:
                return (await read_record(self._executor, unit, entry, type)).value
            if default is not MISSING:
                return self._copied(place, default)  # the caller's own default stays as it is
            raise NotFoundError(
                f"document {key!r} of {self._executor.name!r} is absent; put it, or give a default"
            )

        async def work(unit: Unit) -> Any:
            entry = await unit.get(place)
            old = await before(unit, entry)
            new = await apply_update(unit.store, unit.space, place, change, old)
            if new is None and self._has_changed(place, old, await before(unit, entry)):
                raise InvalidError(
                    f"what updates document {key!r} of {self._executor.name!r} changed its copy and returned "
                    "None; let it return the new value"
                )
            unit.put(place, write_record(self._executor, place, key, new), ttl_ms=await _left_ms(unit, entry))
            return new

        return await self._executor.serialized(place, work)

    def _copied(self, place: bytes, value: object, type: Any = None) -> Any:
        return self._executor.decode(self._executor.encode(value, place), place, type)

    def _has_changed(self, place: bytes, value: object, before: object) -> bool:
        return self._executor.encode(value, place) != self._executor.encode(before, place)

    async def delete(self, key: str) -> bool:
        """Remove a document, and return whether it existed."""
        place = layout.named_key(layout.DOCUMENTS, key)

        async def work(unit: Unit) -> bool:
            existed = await unit.get(place) is not None
            if existed:
                unit.delete(place)
            return existed

        return (await self._executor.run(work))[0]

    def document(self, key: str, type: type[T]) -> Document[T]:
        """Return a handle on one document of a known type; asks the store nothing."""
        layout.named_key(layout.DOCUMENTS, key)
        require_type(type)
        return Document(self, key, type)

    # ---- many documents

    async def keys(self, pattern: str = "*", *, after: str | None = None) -> AsyncIterator[str]:
        r"""Yield the names that fit a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` any text, `?` one character, `[a-z]` one of a set; a backslash makes the next one
                plain.
            after: Starts behind this name, whether there is such a document or not.
        """
        async for record in self._matching(pattern, after, values=False):
            yield record.name

    async def items(self, pattern: str = "*", *, after: str | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Yield names and values that fit a pattern, in the order of their names; see `keys`.

        Each value is one that its document really had; only inside a transaction are they all of one moment.
        A document that cannot be read ends the iteration. The error's `key` names it, and `items(after=key)`
        goes on behind it.

        Raises:
            UnsupportedError: A document was stored by a newer version of a class than this process knows.
            CorruptError: A document is damaged.
        """
        async for record in self._matching(pattern, after, values=True):
            yield record.name, record.value

    async def _matching(
        self, pattern: str, after: str | None, *, values: bool
    ) -> AsyncIterator[DocumentRecord]:
        glob = compile_pattern(pattern)
        place = None if after is None else layout.named_key(layout.DOCUMENTS, after)
        prefix = layout.name_prefix(layout.DOCUMENTS, glob.prefix)
        if place is not None and not place.startswith(prefix):
            if place > prefix:
                return
            place = None
        async for unit, entry in self._executor.scan(prefix, after=place):
            record = None
            if not layout.is_cut(layout.DOCUMENTS, entry.key):
                record = DocumentRecord(layout.name_of(layout.DOCUMENTS, entry.key), None)
                if not glob.matches(record.name):
                    continue
            if values or record is None:
                record = await self._read_again(unit, entry)
            if record is not None and glob.matches(record.name):
                yield record

    async def _read_again(self, unit: Unit, entry: Entry) -> DocumentRecord | None:
        """Return an entry's document, or what it has become if its large value was replaced meanwhile."""
        try:
            return await read_record(self._executor, unit, entry)
        except ConflictError:

            async def work(unit: Unit) -> DocumentRecord | None:
                now = await unit.get(entry.key)
                return None if now is None else await read_record(self._executor, unit, now)

            return (await self._executor.run(work))[0]

    @single_use
    async def watch(
        self, pattern: str = "*", *, after: str | int | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[Watch]:
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
        self._executor.require_outside_transaction("watching")
        if after is not None and not isinstance(after, str):
            check_revision("after", after)
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        store = await self._executor.store()
        glob = compile_pattern(pattern)
        async with listen(store, self._executor.stored_name) as hints:
            if isinstance(after, str):
                positions = Positions(store, self._executor.stored_name, self._executor.name)
                start: int | Mark = positions.mark_in("after", after)
            elif after is None:
                start = (await store.read(self._executor.stored_name, [])).revision
            else:
                start = after
            watch = Watch(store, self._executor, glob, hints, start, timeout_s)
            await watch._begin()  # pyright: ignore[reportPrivateUsage]
            yield watch


def _admit_patch(key: str, patch: object) -> None:
    if not isinstance(patch, Mapping):
        raise InvalidError(
            f"document {key!r} is updated by a dict or a function, not by {type(patch).__name__}"
        )


def _merged(key: str, value: object, patch: Patch) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise InvalidError(
            f"document {key!r} holds {type(value).__name__}, and no dict merges into that; give a function"
        )
    return {**value, **patch}


async def _left_ms(unit: Unit, entry: Entry | None) -> int | None:
    if entry is not None and entry.version == UNWRITTEN:
        return unit.own_ttl_ms(entry.key)
    if entry is None or entry.expires_at_ms is None:
        return None
    return max(1, entry.expires_at_ms - await unit.now_ms())


class Document(Generic[T]):
    """One document of a known type.

    Attributes:
        key: Its name.
    """

    def __init__(self, documents: Documents, key: str, type: type[T]) -> None:
        self._documents, self.key, self._type = documents, key, type

    def __repr__(self) -> str:
        return f"<Document {self.key!r} in {self._documents!r}>"

    @overload
    async def get(self) -> T | None: ...
    @overload
    async def get(self, default: T) -> T: ...
    async def get(self, default: T | None = None) -> T | None:
        """Return its value, or the default if it is absent.

        Raises:
            InvalidError: What is stored is no such type.
        """
        entry = await self.entry()
        return default if entry is None else entry.value

    async def entry(self) -> DocumentEntry[T] | None:
        """Return its value and version, or None if it is absent."""
        return await self._documents.entry(self.key, type=self._type)

    async def put(
        self, value: T, *, expected_version: str | int | None = None, ttl_s: float | None = None
    ) -> int:
        """Write it, and return its version; see `Documents.put`.

        Raises:
            InvalidError: The value is no such type.
        """
        fitted = self._documents._fitted(self.key, value, self._type)  # pyright: ignore[reportPrivateUsage]
        return await self._documents.put(self.key, fitted, expected_version=expected_version, ttl_s=ttl_s)

    async def update(self, change: Callable[[T], T | Awaitable[T]], *, default: T | Missing = MISSING) -> T:
        """Change it, and return its new value; see `Documents.update`."""
        return await self._documents._update_typed(self.key, change, default, self._type)  # pyright: ignore[reportPrivateUsage]

    async def delete(self) -> bool:
        """Remove it, and return whether it existed."""
        return await self._documents.delete(self.key)


async def demanded_version(documents: Documents, key: str, expected_version: str | int) -> int:
    """Return the version that a document must have, for what stands above the engine.

    Raises:
        HistoryLostError: The document is at the revision of a printed version, which wrote another value.
        InvalidError: The text is not a printed version of this document.
    """
    place = layout.named_key(layout.DOCUMENTS, key)

    async def work(unit: Unit) -> int:
        return await documents._expected(unit, key, place, expected_version)  # pyright: ignore[reportPrivateUsage]

    return (await documents._executor.run(work))[0]  # pyright: ignore[reportPrivateUsage]
