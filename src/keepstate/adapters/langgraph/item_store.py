"""What one colour of a LangGraph store does in its space: gets, puts, searches, lists.

Written once: the blocking colour only finishes these coroutines. An item is a document, its vectors another
one beside it, and both change in one batch. See `namespaces` for their names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from copy import deepcopy
from typing import Any, Final, NoReturn, TypeVar, cast

from langgraph.store.base import GetOp, Item, ListNamespacesOp, PutOp, SearchItem, SearchOp
from msgspec import structs

from keepstate.adapters.langgraph import namespaces
from keepstate.adapters.langgraph.filters import fits
from keepstate.adapters.langgraph.items import ItemRecord, at_ms, lifetime_ms, read_item
from keepstate.adapters.langgraph.namespaces import (
    BEHIND_VECTORS,
    VECTORS,
    Namespace,
    name_of,
    pattern_of,
    place_of,
)
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
"""Items that are read or written together: each has two entries, and a batch has at most 1,000."""
_SKIP_FROM: Final = 256
"""Items of one namespace seen one after the other before the rest of it is passed over: a page of a scan."""

Kept = dict[str, bytes]
"""Vectors as they are stored, by the paths of their texts."""


class Shelf:
    """Items in the space of a scope."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._documents = executor, Documents(executor)

    # ---- one by one

    async def get(self, ops: Sequence[GetOp]) -> list[Item | None]:
        """Return items in the order asked; those that are to be refreshed live on from now."""
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
            if record is not None and name in given:  # who asks twice gets two that share nothing
                record = structs.replace(record, value=deepcopy(record.value))
            given.add(name)
            items.append(None if record is None else record.item(name))
        return items

    async def put(self, ops: Sequence[PutOp], vectors: Sequence[Kept]) -> None:
        """Put and delete items; up to 400 in one batch."""
        made = list(zip(ops, vectors, strict=True))
        for some in _batches(made, _BY_BATCH):

            async def work(unit: Unit, some: Sequence[tuple[PutOp, Kept]] = some) -> None:
                await self._put(unit, some)

            await self._executor.run(work, attempts=None)

    async def _put(self, unit: Unit, made: Sequence[tuple[PutOp, Kept]]) -> None:
        names = [name_of(op.namespace, op.key) for op, _ in made]
        items, beside = self._places(names)
        entries = await unit.read(*items, *beside)
        now = at_ms(await unit.now_ms())
        for index, (op, kept) in enumerate(made):
            place, before = items[index], entries[index]
            if op.value is None:
                self._drop(unit, place, before)
            else:
                old = None if before is None else await self._read(unit, before)
                record = ItemRecord.put(dict(op.value), now, unit.revision or 0, op.ttl, old)
                self._write(unit, place, names[index], record.as_document(), record.ttl_ms)
            if kept:
                life = None if op.ttl is None else lifetime_ms(op.ttl)
                self._write(unit, beside[index], VECTORS + names[index], kept, life)
            else:
                self._drop(unit, beside[index], entries[len(made) + index])

    def _places(self, names: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        return (
            [layout.named_key(layout.DOCUMENTS, name) for name in names],
            [layout.named_key(layout.DOCUMENTS, VECTORS + name) for name in names],
        )

    def _write(self, unit: Unit, place: bytes, name: str, value: Any, ttl_ms: int | None) -> None:
        try:
            record = write_record(self._executor, place, name, value)
        except InvalidError as error:
            self._refuse(error, name)
        unit.put(place, record, ttl_ms=ttl_ms)

    def _refuse(self, error: InvalidError, name: str) -> NoReturn:
        """Raise that an item cannot be stored, by its names and in words that help here."""
        namespace, key = place_of(name.removeprefix(VECTORS))
        has_pickle = self._executor.home.pickle is not None
        text = str(error) if has_pickle else str(error).replace(_PICKLE, _REGISTER)
        raise InvalidError(f"item {key!r} of {namespace}: {text}", path=error.path) from error

    @staticmethod
    def _drop(unit: Unit, place: bytes, entry: Entry | None) -> None:
        if entry is not None:
            unit.delete(place)

    async def _read(self, unit: Unit, entry: Entry) -> ItemRecord:
        record = await read_record(self._executor, unit, entry)
        return read_item(record.name, record.value)

    # ---- times to live

    async def _refresh(self, names: Sequence[str]) -> None:
        """Let items live on from now; one that is being written just now has its time from that."""
        for some in _batches(names, _BY_BATCH):
            if not await self._refreshed(some) and len(some) > 1:
                for name in some:
                    await self._refreshed([name])

    async def _refreshed(self, names: Sequence[str]) -> bool:
        async def work(unit: Unit) -> None:
            items, beside = self._places(names)
            entries = await unit.read(*items, *beside)
            for index, entry in enumerate(entries[: len(names)]):
                if entry is None or (life := (await self._read(unit, entry)).ttl_ms) is None:
                    continue
                for each in (entry, entries[len(names) + index]):
                    if each is not None:
                        unit.put(each.key, await unit.value(each), ttl_ms=life)
            unit.document_writes = 0  # they say what they said: there is no moment to record

        try:
            await self._executor.run(work, attempts=1)
        except ConflictError:
            return False
        return True

    # ---- many

    async def search(
        self, op: SearchOp, vectors: Vectors | None = None, query: Sequence[float] | None = None
    ) -> list[SearchItem]:
        """Return items at and below a namespace: those put last first, or those nearest to a query."""
        records: dict[str, ItemRecord] = {}
        async for name, value in self._each(op.namespace_prefix):
            record = read_item(name, value)
            if fits(record.value, op.filter):
                records[name] = record
        scores: dict[str, float] = {}
        if vectors is not None and query is not None:
            kept = [each async for each in self._vectors(op.namespace_prefix, records)]
            scores = vectors.scores(query, kept)
            ranked = sorted(sorted(scores), key=scores.__getitem__, reverse=True)
        else:
            ranked = sorted(sorted(records), key=lambda name: records[name].order, reverse=True)
        page = ranked[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            await self._refresh([name for name in page if records[name].ttl_minutes is not None])
        return [records[name].found(name, scores.get(name)) for name in page]

    async def list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        """Return the namespaces that have items, as asked."""
        found: set[Namespace] = set()
        prefix = namespaces.common_prefix(op)
        after: str | None = None
        while True:
            last, seen, after_last = None, 0, after
            async with _closing(self._names(prefix, after)) as names:
                async for name in names:
                    namespace = namespaces.place_of(name)[0]
                    found.add(namespace)
                    last, seen = namespace, seen + 1 if namespace == last else 1
                    if seen == _SKIP_FROM and (behind := namespaces.behind(namespace)) is not None:
                        after_last = behind
                        break
            if after_last == after:
                return namespaces.listed(found, op)
            after = after_last

    async def _each(self, prefix: Namespace) -> AsyncIterator[tuple[str, Any]]:
        """Yield names and documents of items, and passes over vectors, which stand in between."""
        after: str | None = None
        while True:
            async with _closing(self._documents.items(pattern_of(prefix), after=after)) as items:
                async for name, value in items:
                    if name.startswith("."):
                        after = BEHIND_VECTORS
                        break
                    if ".." in name:
                        yield name, value
                else:
                    return

    async def _names(self, prefix: Namespace, after: str | None) -> AsyncIterator[str]:
        while True:
            async with _closing(self._documents.keys(pattern_of(prefix), after=after)) as names:
                async for name in names:
                    if name.startswith("."):
                        after = BEHIND_VECTORS
                        break
                    if ".." in name:
                        yield name
                else:
                    return

    async def _vectors(self, prefix: Namespace, wanted: Iterable[str]) -> AsyncIterator[tuple[str, Kept]]:
        names = set(wanted)
        async for name, value in self._documents.items(pattern_of(prefix, before=VECTORS)):
            if (item := name.removeprefix(VECTORS)) in names:
                yield item, value


def _closing(items: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Close a generator that is not read to its end."""
    return aclosing(cast("AsyncGenerator[T]", items))


def _batches(items: Sequence[T], count: int) -> Iterable[Sequence[T]]:
    return (items[start : start + count] for start in range(0, len(items), count))
