"""Indexes of a collection: an entry for each record in each index, written by the batch of the record.

The key of an entry is the tuple that a function of the record returns, followed by the id. The rules of the
space name the indexed collections, so no other batch writes their records. They also number the builds of an
index: a build becomes readable once it contains every record, and the entries of a former build are never
read again. A process with an older version of the functions is rejected from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import msgspec

from keepstate.engine.documents.documents import MISSING, Documents, Missing, remaining_ms
from keepstate.engine.documents.record import read_listed_record, read_record, split_record, write_record
from keepstate.engine.documents.write_rules import (
    CollectionRule,
    WriteRules,
    put_rules,
    read_rules,
    records_prefix,
)
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor, call_function
from keepstate.engine.kernel.locks import apply_update
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.stored import corrupt_error, decode_text, describe, to_microseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import (
    UNREADABLE,
    IfUnreadable,
    Unreadable,
    stand_in,
)
from keepstate.errors import InvalidError, NotFoundError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import Segment, pack

T = TypeVar("T")

Place: TypeAlias = tuple[Segment | datetime, ...]
"""The place of a record in an index: texts, integers, bytes, UUIDs and aware times, compared one by one."""

_BUILT_BY_BATCH: Final = 800
"""The largest number of index entries that one batch of `reindex` writes."""
_DELETED_BY_BATCH: Final = 500
_TUPLE_END: Final = b"\0"
"""The byte between tuple and id. Every segment sorts after it, so a tuple sorts before longer ones."""
_NUL_CONTINUES: Final = b"\xff"
"""The byte after a packed text in keys of texts that go on with a NUL. No segment begins with it."""


class Indexes(Generic[T]):
    """The indexes of one collection.

    Args:
        documents: The documents of a space or transaction.
        name: The name of the collection.
        type: The type of its records.
        functions: The functions that return a record's place in each index, or None if it has none there.
        version: The version of the functions.
    """

    def __init__(
        self,
        documents: Documents,
        name: str,
        type: type[T],
        functions: Mapping[str, Callable[[T], Place | None]],
        version: int,
    ) -> None:
        self._documents, self._name, self._type = documents, name, type
        self._functions, self._version = dict(sorted(functions.items())), version
        self._known: CollectionRule | None = None
        """The rule that the last page was read by; the next page tries it without reading it first."""

    @property
    def _executor(self) -> Executor:
        return self._documents.executor

    # ---- writing

    async def write(
        self,
        id: str,
        name: str,
        change: Callable[[T | None], Any],
        *,
        ttl_ms: int | None,
        keeps: bool = False,
    ) -> T:
        """Write a record with its index entries. `keeps` continues the TTL of the former record."""
        key = layout.named_key(layout.DOCUMENTS, name)

        async def work(unit: Unit) -> T:
            await unit.read(layout.RULES, key)
            rule = await self._rule_to_write(unit)
            entry = await unit.get(key)
            old = await self._value(unit, entry)
            # The change may modify `old` in place. The batch may be that of a caller who catches an error.
            before = set[bytes]() if entry is None else self._keys(rule, id, cast("T", old))
            if keeps:
                new = self._convert(name, await apply_update(unit.store, unit.space, key, change, old))
            else:
                new = cast("T", change(None))
            had_ttl = entry is not None and (
                entry.expires_at_ms is not None or unit.own_ttl_ms(key) is not None
            )
            left_ms = await remaining_ms(unit, entry) if keeps else ttl_ms
            after = self._keys(rule, id, new)
            unit.put(key, write_record(self._executor, key, name, new), ttl_ms=left_ms)
            unit.permit(key)
            for stale in before - after:
                unit.delete(stale)
            for fresh in after if had_ttl or left_ms is not None else after - before:
                unit.put(fresh, id.encode(), ttl_ms=left_ms)
            return new

        return (await self._executor.serialized(key, work))[0]

    def _convert(self, name: str, value: object) -> T:
        return self._documents.convert(name, value, self._type)

    async def update(self, id: str, name: str, patch: Any, default: object) -> T:
        """Change a record with its index entries."""
        function = self._documents.change_of(name, patch)

        async def change(old: T | None) -> Any:
            if old is None:
                if default is MISSING:
                    raise NotFoundError(
                        f"there is no record {id!r} in collection {self._name!r} of {self._executor.name!r}; "
                        "put it, or pass default="
                    )
                old = self._convert(name, default)
            return await call_function(function, old)

        return await self.write(id, name, change, ttl_ms=None, keeps=True)

    async def delete(self, id: str, name: str) -> bool:
        """Delete a record with its index entries."""
        key = layout.named_key(layout.DOCUMENTS, name)

        async def work(unit: Unit) -> bool:
            _, entry = await unit.read(layout.RULES, key)
            rule = await self._rule_to_write(unit)
            if entry is None:
                return False
            stale_keys = self._keys(rule, id, cast("T", await self._value(unit, entry)))
            unit.delete(key)
            unit.permit(key)
            for stale in stale_keys:
                unit.delete(stale)
            return True

        return (await self._executor.serialized(key, work))[0]

    async def _value(self, unit: Unit, entry: Entry | None) -> T | None:
        if entry is None:
            return None
        value: T = (await read_record(self._executor, unit, entry, self._type)).value
        return value

    async def _rule_to_write(self, unit: Unit) -> CollectionRule:
        """Return the rule that writes follow. The unit's batch registers a new one."""
        rule = self._registered(unit) or read_rules(await unit.get(layout.RULES)).collections.get(self._name)
        if rule is None:
            if await self._has_records(unit):
                raise self._build_error("its records were written without one")
            rule = CollectionRule(self._version, 1, True, list(self._functions))
            unit.registered[self._name] = rule
        elif rule.version < self._version:
            rule = self._next_build(rule)
            unit.registered[self._name] = rule
        self._require_current(rule)
        return rule

    def _registered(self, unit: Unit) -> CollectionRule | None:
        rule: CollectionRule | None = unit.registered.get(self._name)
        return rule

    def _next_build(self, rule: CollectionRule | None) -> CollectionRule:
        build = 1 if rule is None else rule.build + 1
        later = () if rule is None else rule.later
        return CollectionRule(self._version, build, False, list(self._functions), later)

    async def _has_records(self, unit: Unit) -> bool:
        async for _ in unit.scan(records_prefix(self._name), at_once=1):
            return True
        return False

    def _require_current(self, rule: CollectionRule) -> None:
        what = f"collection {self._name!r} of {self._executor.name!r}"
        if rule.version > self._version:
            raise InvalidError(
                f"{what} has version {self._version} here, and version {rule.version} has taken over; deploy "
                "that version here too"
            )
        if rule.version == self._version and rule.indexes != list(self._functions):
            raise InvalidError(
                f"{what} has the indexes {', '.join(rule.indexes)} in version {rule.version}, and "
                f"{', '.join(self._functions)} here; pass version={rule.version + 1} and call reindex()"
            )

    def _build_error(self, why: str) -> InvalidError:
        return InvalidError(
            f"the index of collection {self._name!r} of {self._executor.name!r} is not complete: {why}. Call "
            "reindex() on it"
        )

    # ---- keys

    def _keys(self, rule: CollectionRule, id: str, record: T) -> set[bytes]:
        """Return the keys of a record's index entries."""
        keys = (self._key(rule, index, id, record) for index in self._functions)
        return {key for key in keys if key is not None}

    def _key(self, rule: CollectionRule, index: str, id: str, record: T) -> bytes | None:
        place: Any = self._functions[index](record)
        if place is None:
            return None
        what = f"the index {index!r} of record {id!r} of collection {self._name!r}"
        given: object = place
        if not isinstance(given, tuple):
            raise InvalidError(f"{what} is {place!r:.80}; its function returns a tuple, or None")
        key = self._prefix(rule, index, place, what) + _TUPLE_END + pack(id)
        if len(key) > limits.KEY_BYTES:
            raise InvalidError(f"{what} has a key of {len(key)} bytes; it has at most {limits.KEY_BYTES}")
        return key

    def _prefix(self, rule: CollectionRule, index: str, place: Iterable[Any], what: str) -> bytes:
        try:
            packed = pack(*(_segment(each) for each in place))
        except InvalidError as error:
            raise InvalidError(f"{what} is wrong: {error}") from error
        return layout.INDEX + pack(self._name, rule.build, index) + packed

    # ---- reading

    async def page(
        self,
        index: str,
        prefix: tuple[Segment | datetime, ...],
        *,
        reverse: bool,
        after: str | None,
        before: str | None,
        limit: int,
        unreadable: IfUnreadable,
    ) -> Page[T]:
        """Return one page of records in the order of an index; see `Collection.by`."""
        if index not in self._functions:
            raise InvalidError(
                f"`index` is {index!r}; collection {self._name!r} has {', '.join(self._functions)}"
            )
        what = f"the prefix of the index {index!r}"

        async def work(unit: Unit) -> Page[T]:
            rule = self._registered(unit) or self._known
            if rule is not None and not rule.is_complete:
                raise self._build_error("a new one was begun")
            if rule is None:
                rule = self._to_read(read_rules(await unit.get(layout.RULES)))
            if rule is None:
                if await self._has_records(unit):
                    raise self._build_error("its records were written without one")
                return Page()
            begin = self._prefix(rule, index, prefix, what)
            positions = Positions(unit.store, self._executor.stored_name, self._executor.name)
            part = await positions.range_in(begin, begin, after=after, before=before, reverse=reverse)
            end = begin + _NUL_CONTINUES
            end = end if part.before is None else min(end, part.before)
            scan = unit.scan(begin, after=part.after, before=end, reverse=part.reverse, at_once=limit + 1)
            places: list[Entry] = []
            async for entry in scan:
                places.append(entry)
                if len(places) > limit:
                    break
            keys = [self._record_key(entry) for entry in places[:limit]]
            records = await self._read(unit, [layout.RULES, *keys])
            if rule != self._registered(unit):
                self._known = self._to_read(read_rules(records[0]))
                if self._known != rule:
                    raise _RuleChangedError
            values = [
                await self._record(unit, rule, index, entry, record, unreadable)
                for entry, record in zip(places[:limit], records[1:], strict=True)
            ]
            rows = [(entry.key, value) for entry, value in zip(places, [*values, None], strict=False)]
            page = positions.page_of(begin, part, limit, rows, unit.scanned_at)
            present = (cast("T", value) for value in page if value is not MISSING)
            return Page(present, next=page.next, previous=page.previous)

        while True:
            try:
                return (await self._executor.run(work))[0]
            except _RuleChangedError:
                continue  # the rule is known now

    def _to_read(self, rules: WriteRules) -> CollectionRule | None:
        """Return the rule that pages follow; None if the collection is not registered."""
        rule = rules.collections.get(self._name)
        if rule is None:
            return None
        self._require_current(rule)
        if rule.version < self._version:
            raise self._build_error(
                f"it has version {rule.version}, and version {self._version} is used here"
            )
        if not rule.is_complete:
            raise self._build_error("a new one was begun")
        return rule

    def _record_key(self, place: Entry) -> bytes:
        return layout.named_key(layout.DOCUMENTS, f"{self._name}/{_id_in(place)}")

    async def _read(self, unit: Unit, keys: Sequence[bytes]) -> list[Entry | None]:
        """Read entries in as few reads as the limits allow."""
        try:
            return await unit.read(*keys)
        except InvalidError:  # too many or too large for one read
            if len(keys) == 1:
                raise
            half = len(keys) // 2
            return await self._read(unit, keys[:half]) + await self._read(unit, keys[half:])

    async def _record(
        self,
        unit: Unit,
        rule: CollectionRule,
        index: str,
        place: Entry,
        record: Entry | None,
        unreadable: IfUnreadable,
    ) -> T | Unreadable | Missing:
        """Return the record of an index entry, after verifying that the entry is that of the record.

        An unreadable record cannot be verified.

        `MISSING` if the record has expired: an entry that `reindex` wrote outlives it by the time between
        read and write, and a sweep may come between the two reads of a page.
        """
        expires_at_ms = place.expires_at_ms
        is_late = expires_at_ms is not None and (record is None or record.expires_at_ms != expires_at_ms)
        if record is None:
            if is_late:
                return MISSING
            raise corrupt_error(f"{describe(place.key)} of {self._executor.name!r}", "its record is missing")
        try:
            value = cast("T", await self._value(unit, record))
        except UNREADABLE as error:
            listed = await read_listed_record(self._executor, unit, record, unreadable)
            if listed is None or isinstance(listed.value, Unreadable):
                return MISSING if listed is None else listed.value
            return stand_in(unreadable, self._executor.encode(listed.value, record.key), error)
        if self._key(rule, index, _id_in(place), value) != place.key:
            if is_late:
                return MISSING
            raise InvalidError(
                f"the index {index!r} of collection {self._name!r} of {self._executor.name!r} has record "
                f"{_id_in(place)!r} at another place than its function returns: the function has changed. "
                "Pass a higher `version` and call reindex()"
            )
        return value

    # ---- building

    async def build(self) -> int:
        """Build the indexes from all records; see `Collection.reindex`."""
        self._executor.require_outside_transaction("reindexing a collection")
        while True:
            rule = await self._begin()
            try:
                count = await self._build_all(rule)
                await self._finish(rule)
            except _RuleChangedError:
                continue  # a rollback has begun a new build, or another process has finished this one
            await self._delete_former(rule)
            return count

    async def _begin(self) -> CollectionRule:
        async def work(unit: Unit) -> CollectionRule:
            rules = read_rules(await unit.get(layout.RULES))
            rule = rules.collections.get(self._name)
            if rule is not None:
                self._require_current(rule)
            if rule is None or rule.version < self._version or rule.is_complete:
                rule = self._next_build(rule)
                put_rules(unit, rules.with_collections({self._name: rule}))
            return rule

        return (await self._executor.run(work, attempts=None))[0]

    async def _build_all(self, rule: CollectionRule) -> int:
        by_batch = max(1, _BUILT_BY_BATCH // len(self._functions))
        count, keys, size_bytes = 0, list[bytes](), 0
        async for _, entry in self._executor.scan(records_prefix(self._name)):
            full = len(keys) >= by_batch or size_bytes + len(entry.value) > limits.READ_BYTES // 2
            if keys and full:
                count += await self._build_some(rule, keys)
                keys, size_bytes = [], 0
            keys.append(entry.key)
            size_bytes += len(entry.value)
        return count + (await self._build_some(rule, keys) if keys else 0)

    async def _build_some(self, rule: CollectionRule, keys: Sequence[bytes]) -> int:
        async def work(unit: Unit) -> int:
            rules, *entries = await self._read(unit, [layout.RULES, *keys])
            self._require_unchanged(rules, rule)
            found = [entry for entry in entries if entry is not None]
            for entry in found:
                name, _ = split_record(entry.key, await unit.value(entry))
                id = name[len(self._name) + 1 :]
                for key in self._keys(rule, id, cast("T", await self._value(unit, entry))):
                    unit.put(key, id.encode(), ttl_ms=await remaining_ms(unit, entry))
            return len(found)

        return (await self._executor.run(work, attempts=None))[0]

    def _require_unchanged(self, entry: Entry | None, rule: CollectionRule) -> WriteRules:
        rules = read_rules(entry)
        if rules.collections.get(self._name) != rule:
            raise _RuleChangedError
        return rules

    async def _finish(self, rule: CollectionRule) -> None:
        async def work(unit: Unit) -> None:
            rules = self._require_unchanged(await unit.get(layout.RULES), rule)
            complete = msgspec.structs.replace(rule, is_complete=True)
            put_rules(unit, rules.with_collections({self._name: complete}))

        await self._executor.run(work, attempts=None)

    async def _delete_former(self, rule: CollectionRule) -> None:
        """Delete the entries of former builds, which are never read again."""
        keys: list[bytes] = []
        present = layout.INDEX + pack(self._name, rule.build)
        async for _, entry in self._executor.scan(layout.INDEX + pack(self._name), before=present):
            keys.append(entry.key)
            if len(keys) == _DELETED_BY_BATCH:
                await self._delete_each(keys)
                keys = []
        if keys:
            await self._delete_each(keys)

    async def _delete_each(self, keys: Sequence[bytes]) -> None:
        async def work(unit: Unit) -> None:
            for key in keys:
                unit.delete(key)

        await self._executor.run(work)


class _RuleChangedError(Exception):
    """The rule of the collection is another one than the work was based on."""


def _segment(value: Any) -> Any:
    """Return a value of a tuple as a segment of a key."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidError(f"{value!r} has no time zone; give an aware time")
        return to_microseconds(value)
    return value


def _id_in(place: Entry) -> str:
    return decode_text(place.value, describe(place.key))
