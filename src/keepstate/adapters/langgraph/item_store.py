"""The operations of a LangGraph store in its space: get, put, search, list.

An item is a document, and its vectors are another document; both change in one batch. See `items` for their
names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from copy import deepcopy
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, cast

from langgraph.store.base import GetOp, Item, ListNamespacesOp, PutOp, SearchItem, SearchOp
from msgspec import structs

from keepstate.adapters.langgraph.items import (
    BEHIND_VECTORS,
    VECTORS,
    ItemRecord,
    Namespace,
    at_ms,
    behind,
    common_prefix,
    lifetime_ms,
    name_of,
    parse_name,
    pattern_of,
    read_item,
    select_namespaces,
)
from keepstate.adapters.langgraph.operations import matches
from keepstate.adapters.langgraph.vectors import Vectors
from keepstate.engine.documents.documents import Documents
from keepstate.engine.documents.record import read_record, write_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError
from keepstate.stores.protocol import Entry

T = TypeVar("T")

_PICKLE: Final = "register the class, store its fields, or allow it in pickle=SignedPickle(…)"
_REGISTER: Final = "register the class with keepstate.register, or store its fields"
_BY_BATCH: Final = 400
"""Items to read or write together: each has two entries, and a batch has at most 1,000."""
_SKIP_FROM: Final = 256
"""The number of items of one namespace in a row before the rest is skipped: a page of a scan."""

StoredVectors = dict[str, bytes]
"""Stored vectors by the paths of their texts."""


class ItemStore:
    """The items in the space of an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._documents = executor, Documents(executor)

    # ---- get and put

    async def get(self, ops: Sequence[GetOp]) -> list[Item | None]:
        """Return items in the order of the operations, and renew the time to live where an operation asks."""
        names = [name_of(op.namespace, op.key) for op in ops]
        found: dict[str, ItemRecord] = {}
        for some in _batches(list(dict.fromkeys(names)), _BY_BATCH):
            entries = await self._documents.entries(*some)
            found |= {name: read_item(name, entry.value) for name, entry in entries.items()}
        asked = {name for name, op in zip(names, ops, strict=True) if op.refresh_ttl}
        await self._refresh([name for name in found if name in asked and found[name].ttl_minutes is not None])
        given: set[str] = set()
        items: list[Item | None] = []
        for name in names:
            record = found.get(name)
            if (
                record is not None and name in given
            ):  # two reads of one item return objects that share nothing
                record = structs.replace(record, value=deepcopy(record.value))
            given.add(name)
            items.append(None if record is None else record.item(name))
        return items

    async def put(self, ops: Sequence[PutOp], vectors: Sequence[StoredVectors]) -> None:
        """Put and delete items; up to 400 in one batch."""
        made = list(zip(ops, vectors, strict=True))
        for some in _batches(made, _BY_BATCH):

            async def work(unit: Unit, some: Sequence[tuple[PutOp, StoredVectors]] = some) -> None:
                await self._put(unit, some)

            await self._executor.run(work, attempts=None)

    async def _put(self, unit: Unit, made: Sequence[tuple[PutOp, StoredVectors]]) -> None:
        names = [name_of(op.namespace, op.key) for op, _ in made]
        items, vectors = self._keys(names)
        entries = await unit.read(*items, *vectors)
        now = at_ms(await unit.now_ms())
        for index, (op, stored) in enumerate(made):
            key, before = items[index], entries[index]
            if op.value is None:
                self._drop(unit, key, before)
            else:
                old = None if before is None else await self._read(unit, before)
                record = ItemRecord.put(dict(op.value), now, unit.revision or 0, op.ttl, old)
                self._write(unit, key, names[index], record.as_document(), record.ttl_ms)
            if stored:
                life = None if op.ttl is None else lifetime_ms(op.ttl)
                self._write(unit, vectors[index], VECTORS + names[index], stored, life)
            else:
                self._drop(unit, vectors[index], entries[len(made) + index])

    def _keys(self, names: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        return (
            [layout.named_key(layout.DOCUMENTS, name) for name in names],
            [layout.named_key(layout.DOCUMENTS, VECTORS + name) for name in names],
        )

    def _write(self, unit: Unit, key: bytes, name: str, value: Any, ttl_ms: int | None) -> None:
        try:
            record = write_record(self._executor, key, name, value)
        except InvalidError as error:
            self._raise_unstorable(error, name)
        unit.put(key, record, ttl_ms=ttl_ms)

    def _raise_unstorable(self, error: InvalidError, name: str) -> NoReturn:
        """Raise the error of an item that cannot be stored, with its namespace and key."""
        namespace, key = parse_name(name.removeprefix(VECTORS))
        has_pickle = self._executor.home.pickle is not None
        text = str(error) if has_pickle else str(error).replace(_PICKLE, _REGISTER)
        raise InvalidError(f"item {key!r} of {namespace}: {text}", path=error.path) from error

    @staticmethod
    def _drop(unit: Unit, key: bytes, entry: Entry | None) -> None:
        if entry is not None:
            unit.delete(key)

    async def _read(self, unit: Unit, entry: Entry) -> ItemRecord:
        record = await read_record(self._executor, unit, entry)
        return read_item(record.name, record.value)

    # ---- times to live

    async def _refresh(self, names: Sequence[str]) -> None:
        """Renew the time to live of items. An item that is written at the same time is skipped."""
        for some in _batches(names, _BY_BATCH):
            if not await self._refreshed(some) and len(some) > 1:
                for name in some:
                    await self._refreshed([name])

    async def _refreshed(self, names: Sequence[str]) -> bool:
        async def work(unit: Unit) -> None:
            items, vectors = self._keys(names)
            entries = await unit.read(*items, *vectors)
            for index, entry in enumerate(entries[: len(names)]):
                if entry is None or (life := (await self._read(unit, entry)).ttl_ms) is None:
                    continue
                for each in (entry, entries[len(names) + index]):
                    if each is not None:
                        unit.put(each.key, await unit.value(each), ttl_ms=life)
            unit.document_writes = 0  # values are unchanged, so no commit is recorded

        try:
            await self._executor.run(work, attempts=1)
        except ConflictError:
            return False
        return True

    # ---- search and list

    async def search(
        self, op: SearchOp, vectors: Vectors | None = None, query: Sequence[float] | None = None
    ) -> list[SearchItem]:
        """Return items at and below a namespace: the latest first, or the nearest to a query."""
        records: dict[str, ItemRecord] = {}
        async for name, value in self._each(op.namespace_prefix):
            record = read_item(name, value)
            if matches(record.value, op.filter):
                records[name] = record
        scores: dict[str, float] = {}
        if vectors is not None and query is not None:
            stored = [each async for each in self._vectors(op.namespace_prefix, records)]
            scores = vectors.scores(query, stored)
            ranked = sorted(sorted(scores), key=scores.__getitem__, reverse=True)
        else:
            ranked = sorted(sorted(records), key=lambda name: records[name].order, reverse=True)
        page = ranked[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            await self._refresh([name for name in page if records[name].ttl_minutes is not None])
        return [records[name].found(name, scores.get(name)) for name in page]

    async def list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        """Return the namespaces with items that an operation asks for."""
        found: set[Namespace] = set()
        prefix = common_prefix(op)
        after: str | None = None
        while True:
            last, seen, after_last = None, 0, after
            async with _closing(self._names(prefix, after)) as names:
                async for name in names:
                    namespace = parse_name(name)[0]
                    found.add(namespace)
                    last, seen = namespace, seen + 1 if namespace == last else 1
                    if seen == _SKIP_FROM and (skipped := behind(namespace)) is not None:
                        after_last = skipped
                        break
            if after_last == after:
                return select_namespaces(found, op)
            after = after_last

    async def _each(self, prefix: Namespace) -> AsyncIterator[tuple[str, Any]]:
        """Yield the names and documents of items, without the vectors between them."""
        read = partial(self._documents.items, pattern_of(prefix))
        async for name, value in _without_vectors(read, lambda pair: pair[0]):
            yield name, value

    def _names(self, prefix: Namespace, after: str | None) -> AsyncIterator[str]:
        read = partial(self._documents.keys, pattern_of(prefix))
        return _without_vectors(read, lambda name: name, after)

    async def _vectors(
        self, prefix: Namespace, wanted: Iterable[str]
    ) -> AsyncIterator[tuple[str, StoredVectors]]:
        names = set(wanted)
        async for name, value in self._documents.items(pattern_of(prefix, before=VECTORS)):
            if (item := name.removeprefix(VECTORS)) in names:
                yield item, value


async def _without_vectors(
    read: Callable[..., AsyncIterator[T]], name_of_one: Callable[[T], str], after: str | None = None
) -> AsyncIterator[T]:
    """Yield what `read` yields, and continue behind the vectors when it reaches them."""
    while True:
        async with _closing(read(after=after)) as found:
            async for one in found:
                name = name_of_one(one)
                if name.startswith("."):
                    after = BEHIND_VECTORS
                    break
                if ".." in name:
                    yield one
            else:
                return


def _closing(items: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Close a generator that is not read to its end."""
    return aclosing(cast("AsyncGenerator[T]", items))


def _batches(items: Sequence[T], count: int) -> Iterable[Sequence[T]]:
    return (items[start : start + count] for start in range(0, len(items), count))
