"""Documents: named values with versions. Concurrent updates of a document are never lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast, overload

from keepstate.engine.documents.record import (
    DocumentRecord,
    decode_value,
    read_listed_record,
    read_record,
    split_record,
    write_record,
)
from keepstate.engine.documents.watch import Watch
from keepstate.engine.documents.write_rules import WriteRules, read_rules, records_prefix
from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.arguments import (
    check_duration_ms,
    check_flag,
    check_revision,
    check_text,
    check_wait,
    require_type,
    single_use,
    with_article,
)
from keepstate.engine.kernel.executor import ATTEMPTS, Executor, call_function
from keepstate.engine.kernel.glob import compile_pattern
from keepstate.engine.kernel.locks import apply_update
from keepstate.engine.kernel.positions import Page, Positions, Printable
from keepstate.engine.kernel.store_abilities import listen
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.kernel.unreadable import (
    UNREADABLE,
    IfUnreadable,
    Unreadable,
    check_unreadable,
    stand_in,
)
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.stores.protocol import SCAN_LIMIT, Entry, Mark, Store
from keepstate.values import limits, types
from keepstate.values.builtin import TYPE, Record
from keepstate.values.key import pack
from keepstate.values.notebooks import ShownAsTable

T = TypeVar("T")


_DELETED_BY_BATCH: Final = 500

Missing = types.Missing
MISSING: Final = types.MISSING
"""The value of an omitted `default`, because None is a valid default."""
Patch = Mapping[str, Any]
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DocumentEntry(ShownAsTable, Generic[T]):
    """A document as it was read.

    Attributes:
        key: The document's name.
        value: A copy. Changes to it are not stored.
        version: The revision that last wrote the document, for use within a handle; 0 if the current
            transaction wrote it.
        created: The revision that first wrote the document since it was last absent.
        expires_at: The time at which the document expires, by the store's clock, or None. None if the current
            transaction wrote the document.
        size_bytes: The size of the stored value.
    """

    key: str
    value: T
    version: int
    created: int
    expires_at: datetime | None = None
    size_bytes: int = 0
    _printable: Printable | None = field(default=None, repr=False, compare=False)

    @property
    def printed_version(self) -> str | None:
        """The version as an opaque text, for `expected_version` in any process. None while `version` is 0.

        It is rejected if the store has lost the history that it belongs to.
        """
        return None if self._printable is None else self._printable.text()


class Documents:
    """The documents of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __repr__(self) -> str:
        return f"<Documents of {self._executor.name!r}>"

    @property
    def executor(self) -> Executor:
        """The executor of the space; for the layers above."""
        return self._executor

    # ---- one document

    @overload
    async def get(self, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, default: T, *, type: type[T]) -> T: ...
    async def get(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return a copy of a document's value, or the default if it does not exist.

        Args:
            key: The document's name; 1 to 512 bytes of UTF-8.
            default: The result if the document does not exist.
            type: The type to validate the value against and convert it to.

        Raises:
            InvalidError: The value is not a `type`. The error names the path that differs.
        """
        found = await self._read(key, type)
        return default if found is None else found[1]

    @overload
    async def entry(self, key: str) -> DocumentEntry[Any] | None: ...
    @overload
    async def entry(self, key: str, *, type: type[T]) -> DocumentEntry[T] | None: ...
    async def entry(self, key: str, *, type: Any = None) -> DocumentEntry[Any] | None:
        """Return a document with its version, or None if it does not exist."""
        found = await self._read(key, type)
        return None if found is None else self._entry(key, found[1], found[0], await self._executor.store())

    async def _read(self, key: str, type: Any) -> tuple[Entry, Any] | None:
        """Return the entry and the value of a document, or None if it does not exist."""
        entry_key = layout.named_key(layout.DOCUMENTS, key)
        if type is not None:
            require_type(type)
        found = await self._executor.read_once(entry_key)
        if found is None:
            return None
        entry, stored = found
        encoded = split_record(entry_key, stored)[1] if layout.is_cut(layout.DOCUMENTS, entry_key) else stored
        return entry, decode_value(self._executor, entry_key, encoded, type, name=key)

    async def entries(self, *keys: str, unreadable: IfUnreadable = "raise") -> dict[str, DocumentEntry[Any]]:
        """Return the named documents that exist, by name, all at one revision and in one round trip.

        Args:
            keys: At most 1,000 names.
            unreadable: With `skip`, a document whose value cannot be read is left out. With `raw`, its value
                is an `Unreadable`.
        """
        check_unreadable(unreadable)
        entry_keys = {layout.named_key(layout.DOCUMENTS, key): key for key in keys}

        async def work(unit: Unit) -> dict[str, DocumentEntry[Any]]:
            found: dict[str, DocumentEntry[Any]] = {}
            for key, entry in zip(entry_keys.values(), await unit.read(*entry_keys), strict=True):
                if entry is None:
                    continue
                if unreadable == "raise":
                    record: DocumentRecord | None = await read_record(self._executor, unit, entry)
                else:
                    record = await read_listed_record(self._executor, unit, entry, unreadable)
                if record is not None:
                    found[key] = self._entry(key, record.value, entry, unit.store)
            return found

        return (await self._executor.run(work))[0]

    def _entry(self, key: str, value: Any, entry: Entry, store: Store) -> DocumentEntry[Any]:
        positions = Positions(store, self._executor.stored_name, self._executor.name)
        expires_at = None if entry.expires_at_ms is None else to_datetime(entry.expires_at_ms)
        manifest = large_values.parse_manifest(entry.value, f"document {key!r} of {self._executor.name!r}")
        size_bytes = len(entry.value) if manifest is None else manifest.size_bytes
        printable = Printable(None, positions, entry)
        return DocumentEntry(key, value, entry.version, entry.created, expires_at, size_bytes, printable)

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
        entry_key = layout.named_key(layout.DOCUMENTS, key)
        if expected_version is not None and not isinstance(expected_version, str):
            check_revision("expected_version", expected_version)
        stored = write_record(self._executor, entry_key, key, value)
        ttl_ms = None if ttl_s is None else check_duration_ms("ttl_s", ttl_s)

        async def work(unit: Unit) -> None:
            if expected_version is not None:
                version = await self._resolve_version(unit, key, entry_key, expected_version)
                unit.check(entry_key, version=version, argument=f"expected_version={version}")
            unit.put(entry_key, stored, ttl_ms=ttl_ms)

        _, version = await self._executor.run(work, attempts=1 if expected_version is not None else ATTEMPTS)
        return version

    async def _resolve_version(self, unit: Unit, key: str, entry_key: bytes, given: str | int) -> int:
        """Return the version that a document must have. A printed one is compared with the stored value."""
        if not isinstance(given, str):
            return given
        positions = Positions(unit.store, self._executor.stored_name, self._executor.name)
        version, digest = positions.version_in("expected_version", given, entry_key)
        entry = await unit.get(entry_key)
        if entry is not None and entry.version == version and positions.digest(entry.value) != digest:
            raise positions.lost(version, f"version {version} of document {key!r}")
        return version

    async def update(self, key: str, patch: Patch | Change, *, default: object = MISSING) -> Any:
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
        return await self._update(key, self.change_of(key, patch), default)

    def change_of(self, key: str, patch: Patch | Change) -> Change:
        """Return the function that applies a patch to a document.

        Raises:
            InvalidError: The patch is not a dict or a function.
        """
        if callable(patch):
            self._executor.reject_coroutine(patch)
            return patch
        _require_patch(key, patch)
        return lambda old: _merge(key, old, patch)

    def convert(self, key: str, value: object, type: type[T]) -> T:
        """Convert a value to the type of a document; for `Document` and `Collection`."""
        try:
            converted: T = self._copy(layout.named_key(layout.DOCUMENTS, key), value, type)
            return converted
        except InvalidError as error:
            raise InvalidError(
                f"document {key!r} of {self._executor.name!r} was not written: {error}", path=error.path
            ) from error

    def convert_listed(
        self, key: str, value: Any, type: type[T] | None, unreadable: IfUnreadable
    ) -> T | Unreadable | Missing:
        """Convert a listed value; an unreadable one becomes its stand-in. For `Collection`."""
        if type is None or isinstance(value, Unreadable):
            return cast("T | Unreadable", value)
        try:
            return self.convert(key, value, type)
        except UNREADABLE as error:
            return stand_in(
                unreadable, self._executor.encode(value, layout.named_key(layout.DOCUMENTS, key)), error
            )

    async def update_typed(self, key: str, change: Change, default: object, type: type[T]) -> T:
        """Change a document whose value must be a `type` before and after; for `Document`."""
        self._executor.reject_coroutine(change)

        async def typed(old: Any) -> Any:
            return self.convert(key, await call_function(change, old), type)

        answer: T = await self._update(key, typed, default, type)
        return answer

    async def _update(self, key: str, change: Change, default: object, type: Any = None) -> Any:
        return (await self._update_versioned(key, change, default, type))[0]

    async def _update_versioned(
        self, key: str, change: Change, default: object, type: Any = None
    ) -> tuple[Any, int]:
        """Change a document. Return the new value and its version, which is 0 inside a transaction."""
        entry_key = layout.named_key(layout.DOCUMENTS, key)

        async def before(unit: Unit, entry: Entry | None) -> Any:
            if entry is not None:
                return (await read_record(self._executor, unit, entry, type)).value
            if default is not MISSING:
                return self._copy(entry_key, default)  # a copy, so that the caller's default is not modified
            raise NotFoundError(
                f"document {key!r} does not exist in space {self._executor.name!r}. Call put() first, or "
                "pass default="
            )

        async def work(unit: Unit) -> Any:
            entry = await unit.get(entry_key)
            old = await before(unit, entry)
            new = await apply_update(unit.store, unit.space, entry_key, change, old)
            if new is None and self._has_changed(entry_key, old, await before(unit, entry)):
                raise InvalidError(
                    f"the function passed to update({key!r}) in space {self._executor.name!r} modified its "
                    "argument and returned None. Return the new value"
                )
            unit.put(
                entry_key,
                write_record(self._executor, entry_key, key, new),
                ttl_ms=await remaining_ms(unit, entry),
            )
            return new

        return await self._executor.serialized(entry_key, work)

    def _copy(self, entry_key: bytes, value: object, type: Any = None) -> Any:
        return self._executor.decode(self._executor.encode(value, entry_key), entry_key, type)

    def _has_changed(self, entry_key: bytes, value: object, before: object) -> bool:
        return self._executor.encode(value, entry_key) != self._executor.encode(before, entry_key)

    async def delete(self, key: str) -> bool:
        """Delete a document, and return whether it existed."""
        entry_key = layout.named_key(layout.DOCUMENTS, key)

        async def work(unit: Unit) -> bool:
            existed = await unit.get(entry_key) is not None
            if existed:
                unit.delete(entry_key)
            return existed

        return (await self._executor.run(work))[0]

    def document(self, key: str, type: type[T]) -> Document[T]:
        """Return a handle on one document of a known type, without a call to the store."""
        layout.named_key(layout.DOCUMENTS, key)
        require_type(type)
        return Document(self, key, type)

    # ---- many documents

    async def keys(
        self,
        pattern: str = "*",
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[str]:
        r"""Yield the names that match a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` matches any text, `?` one character, `[a-z]` one of a set. A backslash escapes the
                next character.
            prefix: Only names that start with this text, in which no character is special.
            after: Only names above this one, which need not exist.
            before: Only names below this one, which need not exist.
            reverse: Whether to begin with the last name.
            limit: The largest number of names; by default all.
        """
        listing = _Listing(pattern, prefix, reverse=reverse, limit=limit)
        async for _, _, record in self._matching(listing, *listing.bounds(after, before), values=False):
            yield record.name

    async def items(
        self,
        pattern: str = "*",
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> AsyncIterator[tuple[str, Any]]:
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
        listing = _Listing(pattern, prefix, reverse=reverse, limit=limit)
        check_unreadable(unreadable)
        bounds = listing.bounds(after, before)
        async for _, _, record in self._matching(listing, *bounds, values=True, unreadable=unreadable):
            yield record.name, record.value

    async def page(
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
        check_flag("values", values)
        check_unreadable(unreadable)
        limits.admit_count("limit", limit)
        listing = _Listing(pattern, prefix, reverse=reverse, limit=limit + 1)
        positions = Positions(await self._executor.store(), self._executor.stored_name, self._executor.name)
        part = await positions.range_in(
            listing.prefix, listing.query, after=after, before=before, reverse=reverse
        )
        listing.reverse = part.reverse
        rows: list[tuple[bytes, DocumentEntry[Any]]] = []
        mark = Mark(0, b"")
        async for unit, entry, record in self._matching(
            listing, part.after, part.before, values=values, unreadable=unreadable
        ):
            rows.append((entry.key, self._entry(record.name, record.value, entry, unit.store)))
            mark = unit.scanned_at
        return positions.page_of(listing.query, part, limit, rows, mark)

    async def delete_all(self, prefix: str) -> int:
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
        listing = _Listing("*", check_text("prefix", prefix), reverse=False, limit=None)
        await self._reject_records(listing.prefix, prefix)
        count, keys, size_bytes = 0, list[bytes](), 0
        async for unit, entry in self._executor.scan(listing.prefix):
            if not await self._matches(unit, entry, listing, prefix):
                continue
            if keys and (
                len(keys) == _DELETED_BY_BATCH or size_bytes + len(entry.value) > limits.READ_BYTES // 2
            ):
                count += await self._delete_each(keys)
                keys, size_bytes = [], 0
            keys.append(entry.key)
            size_bytes += len(entry.value)
        return count + (await self._delete_each(keys) if keys else 0)

    async def _reject_records(self, scanned: bytes, prefix: str) -> None:
        """Raise `InvalidError` if an indexed collection has a record under a prefix."""

        async def work(unit: Unit) -> WriteRules:
            return read_rules(await unit.get(layout.RULES))

        for name in (await self._executor.run(work))[0].collections:
            own, other = sorted((records_prefix(name), scanned), key=len)
            if other.startswith(own):
                async for _ in self._executor.scan(other, at_once=1):
                    raise InvalidError(
                        f"delete_all({prefix!r}) includes records of the indexed collection {name!r} of "
                        f"{self._executor.name!r}; delete them first through space.collection({name!r}, …)"
                    )

    async def _matches(self, unit: Unit, entry: Entry, listing: _Listing, prefix: str) -> bool:
        """Return whether a name starts with a prefix, which may be longer than the part of it in the key."""
        if not layout.is_cut(layout.DOCUMENTS, entry.key):
            return listing.matches(layout.name_of(layout.DOCUMENTS, entry.key))
        if listing.prefix == layout.DOCUMENTS + prefix.encode("utf-8", "surrogatepass"):
            return True
        try:
            return listing.matches(split_record(entry.key, await unit.value(entry))[0])
        except ConflictError:  # it is being written
            return False

    async def _delete_each(self, keys: Sequence[bytes]) -> int:
        async def work(unit: Unit) -> int:
            existing = [entry.key for entry in await unit.read(*keys) if entry is not None]
            for key in existing:
                unit.delete(key)
            return len(existing)

        return (await self._executor.run(work))[0]

    async def _matching(
        self,
        listing: _Listing,
        after: bytes | None,
        before: bytes | None,
        *,
        values: bool,
        unreadable: IfUnreadable = "raise",
    ) -> AsyncIterator[tuple[Unit, Entry, DocumentRecord]]:
        if listing.is_empty:
            return
        left = listing.limit
        at_once = left if left is not None and left < SCAN_LIMIT else None
        async for unit, entry in self._executor.scan(
            listing.prefix, after=after, before=before, reverse=listing.reverse, at_once=at_once
        ):
            is_cut = layout.is_cut(layout.DOCUMENTS, entry.key)
            if not is_cut and not listing.matches(layout.name_of(layout.DOCUMENTS, entry.key)):
                continue
            found: tuple[Entry, DocumentRecord] | None
            if values or is_cut:
                found = await self._read_again(unit, entry, unreadable)
            else:
                found = entry, DocumentRecord(layout.name_of(layout.DOCUMENTS, entry.key), None)
            if found is not None and listing.matches(found[1].name):
                yield unit, *found
                left = None if left is None else left - 1
                if left == 0:
                    return

    async def _read_again(
        self, unit: Unit, entry: Entry, unreadable: IfUnreadable
    ) -> tuple[Entry, DocumentRecord] | None:
        """Return an entry's document, or its current one if its large value was replaced concurrently."""

        async def read(unit: Unit, entry: Entry) -> tuple[Entry, DocumentRecord] | None:
            record = await read_listed_record(self._executor, unit, entry, unreadable)
            return None if record is None else (entry, record)

        async def read_current(unit: Unit) -> tuple[Entry, DocumentRecord] | None:
            current = await unit.get(entry.key)
            return None if current is None else await read(unit, current)

        try:
            return await read(unit, entry)
        except ConflictError:
            return (await self._executor.run(read_current))[0]

    @single_use
    async def watch(
        self,
        pattern: str = "*",
        *,
        after: str | int | None = None,
        timeout_s: float | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> AsyncGenerator[Watch]:
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
        self._executor.require_outside_transaction("watching")
        if after is not None and not isinstance(after, str):
            check_revision("after", after)
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        check_unreadable(unreadable)
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
            watch = Watch(store, self._executor, glob, hints, start, timeout_s, unreadable)
            await watch._begin()  # pyright: ignore[reportPrivateUsage]
            yield watch


class _Listing:
    """The documents that a listing shows."""

    def __init__(self, pattern: str, prefix: str, *, reverse: bool, limit: int | None) -> None:
        self.glob, self._text = compile_pattern(pattern), check_text("prefix", prefix)
        self.reverse = check_flag("reverse", reverse)
        if limit is not None:
            limits.admit_count("limit", limit)
        self.limit = limit
        own, other = sorted((self._text, self.glob.prefix), key=len)
        self.is_empty = not other.startswith(own)
        self.prefix = layout.name_prefix(layout.DOCUMENTS, other)
        self.query = layout.DOCUMENTS + pack(self._text, pattern)

    def matches(self, name: str) -> bool:
        """Return whether the listing shows a name."""
        return name.startswith(self._text) and self.glob.matches(name)

    def bounds(self, after: str | None, before: str | None) -> tuple[bytes | None, bytes | None]:
        """Return the keys of two names as bounds of a scan under the prefix."""
        low = None if after is None else layout.named_key(layout.DOCUMENTS, after)
        high = None if before is None else layout.named_key(layout.DOCUMENTS, before)
        if low is not None and not low.startswith(self.prefix):
            self.is_empty = self.is_empty or low > self.prefix
            low = None
        if high is not None and not high.startswith(self.prefix):
            self.is_empty = self.is_empty or high < self.prefix
            high = None
        return low, high


def _require_patch(key: str, patch: object) -> None:
    if not isinstance(patch, Mapping):
        raise InvalidError(
            f"update({key!r}) takes a dict or a function, not {with_article(type(patch).__name__)}"
        )


def _merge(key: str, value: object, patch: Patch) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise InvalidError(
            f"document {key!r} is {with_article(type(value).__name__)}, so a dict cannot be merged into it; "
            "pass a function to update()"
        )
    if isinstance(value, Record):
        raise InvalidError(
            f"document {key!r} is an object of class {value[TYPE]!r}, which this handle reads as a dict; "
            "change it with a handle that has the class"
        )
    return {**value, **patch}


async def remaining_ms(unit: Unit, entry: Entry | None) -> int | None:
    """Return the rest of an entry's TTL in milliseconds, or None if it does not expire."""
    if entry is not None and entry.version == UNWRITTEN:
        return unit.own_ttl_ms(entry.key)
    if entry is None or entry.expires_at_ms is None:
        return None
    return max(1, entry.expires_at_ms - await unit.now_ms())


class Document(Generic[T]):
    """One document of a known type.

    Attributes:
        key: The document's name.
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
        """Return the document's value, or the default if it does not exist.

        Raises:
            InvalidError: The stored value does not have the type.
        """
        entry = await self.entry()
        return default if entry is None else entry.value

    async def entry(self) -> DocumentEntry[T] | None:
        """Return the document's value and version, or None if it does not exist."""
        return await self._documents.entry(self.key, type=self._type)

    async def put(
        self, value: T, *, expected_version: str | int | None = None, ttl_s: float | None = None
    ) -> int:
        """Write the document, and return its version; see `Documents.put`.

        Raises:
            InvalidError: The value does not have the type.
        """
        converted = self._documents.convert(self.key, value, self._type)
        return await self._documents.put(self.key, converted, expected_version=expected_version, ttl_s=ttl_s)

    async def update(self, change: Callable[[T], T | Awaitable[T]], *, default: T | Missing = MISSING) -> T:
        """Change the document, and return its new value; see `Documents.update`."""
        return await self._documents.update_typed(self.key, change, default, self._type)

    async def delete(self) -> bool:
        """Delete the document, and return whether it existed."""
        return await self._documents.delete(self.key)


async def resolve_expected_version(documents: Documents, key: str, expected_version: str | int) -> int:
    """Return the version that `expected_version` requires; for the layers above the engine.

    Raises:
        HistoryLostError: The revision of the printed version contains a different value.
        InvalidError: The text is not a printed version of this document.
    """
    entry_key = layout.named_key(layout.DOCUMENTS, key)

    async def work(unit: Unit) -> int:
        return await documents._resolve_version(unit, key, entry_key, expected_version)  # pyright: ignore[reportPrivateUsage]

    return (await documents._executor.run(work))[0]  # pyright: ignore[reportPrivateUsage]
