"""Reads checkpoints: one, many of a thread or of all, and what led to the value of a delta channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite, writes_sort_key

from keepstate.adapters.langgraph.copies import Copies, uncollected
from keepstate.adapters.langgraph.records import (
    THREADS,
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    line_prefix,
    names_of,
    pending_prefix,
    read,
    short_names,
    task_of,
    thread_of,
)
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.adapters.langgraph.shapes import Snapshot
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, InvalidError, PrunedError
from keepstate.stores.protocol import Entry
from keepstate.values.codec import canonical
from keepstate.values.contents import open_contents, whole
from keepstate.values.merkle import gather
from keepstate.values.refs import Fetching

_PAGE: Final = 64
_ATTEMPTS: Final = 3
_SERIALIZED: Final = "what is stored as langgraph.serialized@"
"""How it begins what is said of a value that a serializer has stored and another one cannot read."""


class Stored(msgspec.Struct, frozen=True):
    """A checkpoint's record as it was found, and its version."""

    names: Names
    record: CheckpointRecord
    version: int


class Body(msgspec.Struct, frozen=True):
    """What a checkpoint says beside the values of its channels.

    Attributes:
        fields: Its other fields.
        metadata: Its metadata.
        channels: The channels that have a value.
    """

    fields: dict[str, Any]
    metadata: dict[str, Any]
    channels: list[str]


class Wanted(msgspec.Struct, frozen=True):
    """Which checkpoints are asked for.

    Attributes:
        thread: Whose; None for all.
        line: Of which namespace; None for all.
        id: The only one.
        before: Those whose id comes before this one.
        metadata: What their metadata must have.
        limit: So many at most.
    """

    thread: str | None = None
    line: str | None = None
    id: str | None = None
    before: str | None = None
    metadata: Mapping[str, Any] = {}
    limit: int | None = None


class Reading:
    """Reads the checkpoints of one thread; what was read for one is at hand for the next.

    Args:
        keeper: What is at hand.
        handle: The store.
        thread: The thread.
    """

    def __init__(self, keeper: Keeper, handle: Keepstate, thread: str) -> None:
        self._keeper, self._handle, self.thread = keeper, handle, thread
        self.executor: SpaceExecutor = keeper.executor(handle, thread)
        self._unit: Unit | None = None
        self._session: HistorySession | None = None

    async def unit(self) -> Unit:
        """Return what reads."""
        if self._unit is None:
            self._unit = Unit(await self._handle.opened(), self.executor.stored_name, self.executor.name)
        return self._unit

    async def session(self) -> HistorySession:
        """Return the history of the thread."""
        if self._session is None:
            self._session = self._keeper.session(self.executor, await self.unit())
        return self._session

    # ---- records

    async def one(self, line: str, id: str) -> Stored | None:
        """Return the record of a checkpoint."""
        unit = await self.unit()
        key = checkpoint_key(line, id)
        entry = (await unit.store.read(unit.space, [key])).entries[0]
        return None if entry is None else await self._stored(entry)

    async def latest(self, line: str) -> Stored | None:
        """Return the record of the latest checkpoint of a namespace."""
        unit = await self.unit()
        page = await unit.store.scan(unit.space, line_prefix(layout.CHECKPOINTS, line), limit=1, reverse=True)
        return await self._stored(page.entries[0]) if page.entries else None

    async def _stored(self, entry: Entry) -> Stored:
        unit = await self.unit()
        record = read(await unit.value(entry), CheckpointRecord, entry.key)
        return Stored(names_of(self.thread, entry.key, record), record, entry.version)

    async def records(
        self, line: str | None, before: str | None = None, count: int = _PAGE
    ) -> AsyncIterator[Stored]:
        """Yield records of a namespace, the latest first; without one of all, by their ids."""
        if line is None:
            lines = await self._lines()
            if len(lines) > 1:
                for stored in sorted(
                    [one async for one in self._all(layout.CHECKPOINTS, None, 1_024)],
                    key=lambda stored: stored.names.id,
                    reverse=True,
                ):
                    yield stored
                return
            prefix = layout.CHECKPOINTS
        else:
            prefix = line_prefix(layout.CHECKPOINTS, line)
        after = None if before is None or line is None else checkpoint_key(line, before)
        async for stored in self._all(prefix, after, count):
            yield stored

    async def _all(self, prefix: bytes, after: bytes | None, count: int) -> AsyncIterator[Stored]:
        unit = await self.unit()
        while True:
            page = await unit.store.scan(unit.space, prefix, after=after, limit=count, reverse=True)
            for entry in page.entries:
                yield await self._stored(entry)
            after, count = page.next, _PAGE
            if after is None:
                return

    async def _lines(self) -> set[str]:
        """Return the first and the last namespace, as they stand in keys: one if there is only one."""
        unit = await self.unit()
        lines: set[str] = set()
        for is_reverse in (False, True):
            page = await unit.store.scan(unit.space, layout.CHECKPOINTS, limit=1, reverse=is_reverse)
            lines.update(short_names(entry.key)[0] for entry in page.entries)
        return lines

    # ---- what they say

    def body(self, stored: Stored) -> Body:
        """Return what a checkpoint says beside the values of its channels."""
        place = _place(stored.names)
        with _read_at(place):
            fields, metadata, channels = self._keeper.values.load(stored.record.body, place)
        return Body(fields, metadata, channels)

    async def told(
        self,
        stored: Stored,
        body: Body,
        config: RunnableConfig | None = None,
        copies: Copies | None = None,
    ) -> CheckpointTuple:
        """Return a checkpoint whole."""
        names, record = stored.names, stored.record
        values = await self.values(stored, body.channels, copies)
        pending = await self.pending(names)
        return CheckpointTuple(
            config or config_of(names),
            # as they were put
            {**body.fields, "id": names.id, "channel_values": values},  # type: ignore[typeddict-item]
            body.metadata,  # type: ignore[arg-type]  # as it was put
            config_of(names._replace(id=record.parent)) if record.parent is not None else None,
            pending,
        )

    async def values(
        self, stored: Stored, channels: Sequence[str], copies: Copies | None = None
    ) -> dict[str, Any]:
        """Return the values that some channels have."""
        session = await self.session()
        values = self._keeper.values
        session.read_loosely(stored.record.commit)
        root = (await session.record(stored.record.commit)).root
        called = {canonical(values.called(name)): name for name in channels}
        found: dict[str, bytes] = await session.serve(_channels(root, called))
        objects = await session.serve(gather(found.values()))
        loaded: dict[str, Any] = {}
        with uncollected():
            for name, encoding in found.items():
                with _read_at(f"channel {name!r} of {_place(stored.names)}"):
                    loaded[name] = values.assemble(encoding, objects, copies)
        snapshots = stored.record.snapshots
        for name in [name for name in loaded if values.called(name) in snapshots] if snapshots else ():
            loaded[name] = Snapshot(loaded[name])
        return loaded

    async def pending(self, names: Names) -> list[PendingWrite]:
        """Return what was written on a checkpoint, in the order of tasks."""
        unit = await self.unit()
        load, place = self._keeper.values.load, f"writes on {_place(names)}"
        found: list[tuple[str, str, int, bytes]] = []
        after: bytes | None = None
        while True:
            page = await unit.store.scan(unit.space, pending_prefix(names.line, names.id), after=after)
            for entry in page.entries:
                record = read(await unit.value(entry), PendingRecord, entry.key)
                with _read_at(place):
                    path, task = load(record.path, place), task_of(entry.key, record)
                found += [(path, task, index, data) for index, data in record.writes]
            after = page.next
            if after is None:
                break
        found.sort(key=lambda write: writes_sort_key(*write[:3]))
        with _read_at(place):
            return [(task, *load(data, place)) for _, task, _, data in found]


def _place(names: Names) -> str:
    return f"checkpoint {names.id} of thread {names.thread!r}"


@contextmanager
def _read_at(place: str) -> Generator[None]:
    """Say of what cannot be read where it stands, and of a serializer's what is to be done."""
    try:
        yield
    except (InvalidError, CorruptError) as error:
        told, cause = error, error.__cause__
        text = str(error)
        if text.startswith(_SERIALIZED) and isinstance(cause, InvalidError | CorruptError):
            told, text = cause, str(cause)
        elif text.startswith(_SERIALIZED):
            text = f"it cannot be read ({cause!r}); give the saver the serializer and the key that stored it"
        text = text if place in text else f"{place}: {text}"
        if isinstance(told, CorruptError):
            raise CorruptError(text, url=told.url, space=told.space, place=told.place or place) from error
        raise InvalidError(text, path=told.path) from error


def _channels(root: bytes, called: Mapping[bytes, str]) -> Fetching[dict[str, bytes]]:
    """Return the encodings of channels, in the order in which they are asked for."""
    contents = yield from open_contents(root)
    entries = {entry.key: entry for entry in (yield from contents.items())}
    there = [key for key in called if key in entries]
    encodings = yield from whole([entries[key] for key in there])
    return {called[key]: encoding for key, encoding in zip(there, encodings, strict=True)}


def config_of(names: Names) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": names.thread,
            "checkpoint_ns": names.line,
            "checkpoint_id": names.id,
        }
    }


# ---- what savers ask


async def get(
    keeper: Keeper, handle: Keepstate, thread: str, line: str, id: str | None, config: RunnableConfig | None
) -> CheckpointTuple | None:
    """Return a checkpoint, the latest where no id is given; None if there is none."""
    for attempt in range(1, _ATTEMPTS + 1):
        reading = Reading(keeper, handle, thread)
        stored = await reading.latest(line) if id is None else await reading.one(line, id)
        if stored is None:
            return None
        try:
            return await reading.told(stored, reading.body(stored), config)
        except PrunedError:  # it was let go of while it was read
            if attempt == _ATTEMPTS:
                raise
    return None


async def threads(handle: Keepstate) -> AsyncIterator[str]:
    """Yield the ids of threads that have checkpoints."""
    store = await handle.opened()
    async for space in handle.spaces(THREADS):
        name = handle.stored_name(space)
        page = await store.scan(name, layout.CHECKPOINTS, limit=1)
        for entry in page.entries:
            unit = Unit(store, name, space)
            record = read(await unit.value(entry), CheckpointRecord, entry.key)
            yield names_of(thread_of(space), entry.key, record).thread


async def listed(keeper: Keeper, handle: Keepstate, wanted: Wanted) -> AsyncIterator[CheckpointTuple]:
    """Yield checkpoints, the latest first."""
    if wanted.limit is not None and wanted.limit <= 0:
        return
    left, copies = wanted.limit, Copies()
    async for reading, stored in _candidates(keeper, handle, wanted):
        if wanted.id is not None and stored.names.id != wanted.id:
            continue
        if wanted.before is not None and stored.names.id >= wanted.before:
            continue
        body = reading.body(stored)
        if any(body.metadata.get(key) != value for key, value in wanted.metadata.items()):
            continue
        try:
            told = await reading.told(stored, body, copies=copies)
        except PrunedError:
            continue  # it was let go of while it was read
        yield told
        if left is not None:
            left -= 1
            if left == 0:
                return


async def _candidates(
    keeper: Keeper, handle: Keepstate, wanted: Wanted
) -> AsyncIterator[tuple[Reading, Stored]]:
    count = _PAGE if wanted.limit is None or wanted.metadata else min(wanted.limit, _PAGE)
    if wanted.thread is not None:
        reading = Reading(keeper, handle, wanted.thread)
        if wanted.id is not None and wanted.line is not None:
            stored = await reading.one(wanted.line, wanted.id)
            if stored is not None:
                yield reading, stored
            return
        async for stored in reading.records(wanted.line, wanted.before, count):
            yield reading, stored
        return
    found: list[tuple[Reading, Stored]] = []
    async for thread in threads(handle):
        reading = Reading(keeper, handle, thread)
        found += [(reading, stored) async for stored in reading.records(wanted.line)]
    for pair in sorted(found, key=lambda pair: pair[1].names.id, reverse=True):
        yield pair


async def delta_history(
    keeper: Keeper, handle: Keepstate, thread: str, line: str, id: str | None, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """Return what was written to channels before a checkpoint, back to the nearest stored value of each."""
    reading = Reading(keeper, handle, thread)
    collected: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    left = set(channels)
    stored = await reading.latest(line) if id is None else await reading.one(line, id)
    while left and stored is not None and stored.record.parent is not None:
        stored = await reading.one(line, stored.record.parent)
        if stored is None:
            break
        for write in reversed(await reading.pending(stored.names)):
            if write[1] in left:
                collected[write[1]].append(write)
        here = [channel for channel in reading.body(stored).channels if channel in left]
        if here:
            seeds |= await reading.values(stored, here)
            left.difference_update(here)
    found: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        found[channel] = {"writes": collected[channel][::-1]}
        if channel in seeds:
            found[channel]["seed"] = seeds[channel]
    return found
