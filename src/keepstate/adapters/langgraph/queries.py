"""Reads checkpoints: one, a list, and the writes that led to the value of a delta channel."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite, writes_sort_key

from keepstate.adapters.langgraph.records import (
    THREADS,
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    decode,
    line_prefix,
    names_of,
    pending_prefix,
    short_names,
    task_of,
    thread_of,
)
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.adapters.langgraph.serde import MessageCopies, without_collection
from keepstate.adapters.langgraph.shapes import Snapshot
from keepstate.engine.history.record import scan_entries
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, InvalidError, PrunedError
from keepstate.stores.protocol import Entry, Page
from keepstate.values.codec import canonical
from keepstate.values.contents import open_contents, whole
from keepstate.values.merkle import gather
from keepstate.values.refs import Fetching

_PAGE: Final = 64
_ATTEMPTS: Final = 3
_WRITES: Final = 4
"""The usual number of tasks that write on a checkpoint."""
_SERIALIZED: Final = "what is stored as langgraph.serialized@"
"""The beginning of the error of a value that another serializer stored."""


class Stored(msgspec.Struct, frozen=True):
    """A stored checkpoint's record, and its version."""

    names: Names
    record: CheckpointRecord
    version: int


class Body(msgspec.Struct, frozen=True):
    """The parts of a checkpoint besides the values of its channels.

    Attributes:
        fields: The other fields.
        metadata: The metadata.
        channels: The channels that have a value.
    """

    fields: dict[str, Any]
    metadata: dict[str, Any]
    channels: list[str]


class Wanted(msgspec.Struct, frozen=True):
    """A selection of checkpoints.

    Attributes:
        thread: The thread; None for all.
        line: The namespace; None for all.
        id: The id of the only checkpoint.
        before: Only checkpoints with smaller ids.
        metadata: Fields that the metadata must have.
        limit: At most this many.
    """

    thread: str | None = None
    line: str | None = None
    id: str | None = None
    before: str | None = None
    metadata: Mapping[str, Any] = {}
    limit: int | None = None


class ThreadReader:
    """Reads the checkpoints of one thread, with a cache for what they share."""

    def __init__(self, state: SaverState, handle: Keepstate, thread: str) -> None:
        self._state, self._handle, self.thread = state, handle, thread
        self.executor: SpaceExecutor = state.executor(handle, thread)
        self._unit: Unit | None = None
        self._session: HistorySession | None = None
        self._listed: list[bytes] = []
        """The prefixes of the writes on the checkpoints of the page that is listed, in order."""
        self._writes: dict[bytes, list[Entry]] | None = None
        """The writes on them by prefix, once they were read."""

    async def unit(self) -> Unit:
        """Return the unit that reads."""
        if self._unit is None:
            self._unit = Unit(await self._handle.opened(), self.executor.stored_name, self.executor.name)
        return self._unit

    async def session(self) -> HistorySession:
        """Return the history of the thread."""
        if self._session is None:
            self._session = self._state.session(self.executor, await self.unit())
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
        record = decode(await unit.value(entry), CheckpointRecord, entry.key)
        return Stored(names_of(self.thread, entry.key, record), record, entry.version)

    async def records(
        self, line: str | None, before: str | None = None, count: int = _PAGE
    ) -> AsyncIterator[Stored]:
        """Yield records of a namespace, or of all namespaces for None; the latest first."""
        page: Page | None = None
        if line is None:
            unit, prefix = await self.unit(), layout.CHECKPOINTS
            first = await unit.store.scan(unit.space, prefix, limit=1)
            page = await unit.store.scan(unit.space, prefix, limit=count, reverse=True)
            lines = {short_names(entry.key)[0] for entry in (*first.entries, *page.entries[:1])}
            if len(lines) > 1:
                for stored in sorted(
                    [one async for one in self._all(prefix, None, 1_024)],
                    key=lambda stored: stored.names.id,
                    reverse=True,
                ):
                    yield stored
                return
        else:
            prefix = line_prefix(layout.CHECKPOINTS, line)
        after = None if before is None or line is None else checkpoint_key(line, before)
        async for stored in self._all(prefix, after, count, page):
            yield stored

    async def _all(
        self, prefix: bytes, after: bytes | None, count: int, page: Page | None = None
    ) -> AsyncIterator[Stored]:
        unit = await self.unit()
        while True:
            if page is None:
                page = await unit.store.scan(unit.space, prefix, after=after, limit=count, reverse=True)
            self._writes = None
            self._listed = [
                layout.PENDING + entry.key[len(layout.CHECKPOINTS) :] for entry in reversed(page.entries)
            ]
            for entry in page.entries:
                yield await self._stored(entry)
            after, count, page = page.next, _PAGE, None
            if after is None:
                return

    # ---- contents

    def body(self, stored: Stored) -> Body:
        """Return the parts of a checkpoint besides the values of its channels."""
        where = _describe(stored.names)
        with _located(where):
            fields, metadata, channels = self._state.values.load(stored.record.body, where)
        return Body(fields, metadata, channels)

    async def checkpoint(
        self,
        stored: Stored,
        body: Body,
        config: RunnableConfig | None = None,
        copies: MessageCopies | None = None,
    ) -> CheckpointTuple:
        """Return a whole checkpoint."""
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
        self, stored: Stored, channels: Sequence[str], copies: MessageCopies | None = None
    ) -> dict[str, Any]:
        """Return the values of channels, without those that have none."""
        session = await self.session()
        values = self._state.values
        session.read_loosely(stored.record.commit)
        root = (await session.record(stored.record.commit)).root
        called = {canonical(values.called(name)): name for name in channels}
        found: dict[str, bytes] = await session.serve(_channels(root, called))
        objects = await session.serve(gather(found.values()))
        loaded: dict[str, Any] = {}
        with without_collection():
            for name, encoding in found.items():
                with _located(f"channel {name!r} of {_describe(stored.names)}"):
                    loaded[name] = values.assemble(encoding, objects, copies)
        snapshots = stored.record.snapshots
        for name in [name for name in loaded if values.called(name) in snapshots] if snapshots else ():
            loaded[name] = Snapshot(loaded[name])
        return loaded

    async def pending(self, names: Names) -> list[PendingWrite]:
        """Return the writes on a checkpoint, in the order of tasks."""
        load, where = self._state.values.load, f"writes on {_describe(names)}"
        found: list[tuple[str, str, int, bytes]] = []
        async for key, record in self.writes(names):
            with _located(where):
                path, task = load(record.path, where), task_of(key, record)
            found += [(path, task, index, data) for index, data in record.writes]
        found.sort(key=lambda write: writes_sort_key(*write[:3]))
        with _located(where):
            return [(task, *load(data, where)) for _, task, _, data in found]

    async def writes(self, names: Names) -> AsyncIterator[tuple[bytes, PendingRecord]]:
        """Yield the records of the writes on a checkpoint, with their keys.

        The writes on all checkpoints of a listed page are read together, because one scan finds them.
        """
        unit = await self.unit()
        prefix = pending_prefix(names.line, names.id)
        if 1 < len(self._listed) <= _PAGE and prefix in self._listed:
            if self._writes is None:
                self._writes = await self._read_writes(self._listed)
            found = self._writes.get(prefix, ())
        else:
            found = [entry async for entry in scan_entries(unit.store, unit.space, prefix)]
        for entry in found:
            yield entry.key, decode(await unit.value(entry), PendingRecord, entry.key)

    async def _read_writes(self, prefixes: Sequence[bytes]) -> dict[bytes, list[Entry]]:
        """Return the writes on checkpoints that follow one another, by the prefix of each."""
        unit = await self.unit()
        found: dict[bytes, list[Entry]] = {}
        after: bytes | None = prefixes[0]  # a key of writes is longer
        while after is not None:
            page = await unit.store.scan(
                unit.space, layout.PENDING, after=after, limit=_WRITES * len(prefixes)
            )
            for entry in page.entries:
                prefix = prefixes[bisect_right(prefixes, entry.key) - 1]
                if entry.key.startswith(prefix):
                    found.setdefault(prefix, []).append(entry)
                elif prefix is prefixes[-1]:
                    return found
            after = page.next
        return found


def _describe(names: Names) -> str:
    return f"checkpoint {names.id} of thread {names.thread!r}"


@contextmanager
def _located(where: str) -> Generator[None]:
    """Add the location to the error of a value that cannot be read, and advice for another serializer."""
    try:
        yield
    except (InvalidError, CorruptError) as error:
        own, cause = error, error.__cause__
        text = str(error)
        if text.startswith(_SERIALIZED) and isinstance(cause, InvalidError | CorruptError):
            own, text = cause, str(cause)
        elif text.startswith(_SERIALIZED):
            text = f"it cannot be read ({cause!r}); give the saver the serializer and the key that stored it"
        text = text if where in text else f"{where}: {text}"
        if isinstance(own, CorruptError):
            raise CorruptError(text, url=own.url, space=own.space, place=own.place or where) from error
        raise InvalidError(text, path=own.path) from error


def _channels(root: bytes, called: Mapping[bytes, str]) -> Fetching[dict[str, bytes]]:
    """Return the encodings of channels, in the order of `called`."""
    contents = yield from open_contents(root)
    entries = {entry.key: entry for entry in (yield from contents.items())}
    present = [key for key in called if key in entries]
    encodings = yield from whole([entries[key] for key in present])
    return {called[key]: encoding for key, encoding in zip(present, encodings, strict=True)}


def config_of(names: Names) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": names.thread,
            "checkpoint_ns": names.line,
            "checkpoint_id": names.id,
        }
    }


# ---- the calls of a saver


async def get(
    state: SaverState,
    handle: Keepstate,
    thread: str,
    line: str,
    id: str | None,
    config: RunnableConfig | None,
) -> CheckpointTuple | None:
    """Return a checkpoint, the latest where no id is given; None if there is none."""
    for attempt in range(1, _ATTEMPTS + 1):
        reader = ThreadReader(state, handle, thread)
        stored = await reader.latest(line) if id is None else await reader.one(line, id)
        if stored is None:
            return None
        try:
            return await reader.checkpoint(stored, reader.body(stored), config)
        except PrunedError:  # it was deleted during the read
            if attempt == _ATTEMPTS:
                raise
    return None


async def list_threads(handle: Keepstate) -> AsyncIterator[str]:
    """Yield the ids of threads that have checkpoints."""
    store = await handle.opened()
    async for space in handle.spaces(THREADS):
        name = handle.stored_name(space)
        page = await store.scan(name, layout.CHECKPOINTS, limit=1)
        for entry in page.entries:
            unit = Unit(store, name, space)
            record = decode(await unit.value(entry), CheckpointRecord, entry.key)
            yield names_of(thread_of(space), entry.key, record).thread


async def list_checkpoints(
    state: SaverState, handle: Keepstate, wanted: Wanted
) -> AsyncIterator[CheckpointTuple]:
    """Yield checkpoints, the latest first."""
    if wanted.limit is not None and wanted.limit <= 0:
        return
    left, copies = wanted.limit, MessageCopies()
    async for reader, stored in _candidates(state, handle, wanted):
        if wanted.id is not None and stored.names.id != wanted.id:
            continue
        if wanted.before is not None and stored.names.id >= wanted.before:
            continue
        body = reader.body(stored)
        if any(body.metadata.get(key) != value for key, value in wanted.metadata.items()):
            continue
        try:
            found = await reader.checkpoint(stored, body, copies=copies)
        except PrunedError:
            continue  # it was deleted during the read
        yield found
        if left is not None:
            left -= 1
            if left == 0:
                return


async def _candidates(
    state: SaverState, handle: Keepstate, wanted: Wanted
) -> AsyncIterator[tuple[ThreadReader, Stored]]:
    count = _PAGE if wanted.limit is None or wanted.metadata else min(wanted.limit, _PAGE)
    if wanted.thread is not None:
        reader = ThreadReader(state, handle, wanted.thread)
        if wanted.id is not None and wanted.line is not None:
            stored = await reader.one(wanted.line, wanted.id)
            if stored is not None:
                yield reader, stored
            return
        async for stored in reader.records(wanted.line, wanted.before, count):
            yield reader, stored
        return
    found: list[tuple[ThreadReader, Stored]] = []
    async for thread in list_threads(handle):
        reader = ThreadReader(state, handle, thread)
        found += [(reader, stored) async for stored in reader.records(wanted.line)]
    for pair in sorted(found, key=lambda pair: pair[1].names.id, reverse=True):
        yield pair


async def delta_history(
    state: SaverState, handle: Keepstate, thread: str, line: str, id: str | None, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """Return the writes to channels before a checkpoint, back to the nearest stored value of each channel."""
    reader = ThreadReader(state, handle, thread)
    collected: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    left = set(channels)
    stored = await reader.latest(line) if id is None else await reader.one(line, id)
    while left and stored is not None and stored.record.parent is not None:
        stored = await reader.one(line, stored.record.parent)
        if stored is None:
            break
        for write in reversed(await reader.pending(stored.names)):
            if write[1] in left:
                collected[write[1]].append(write)
        here = [channel for channel in reader.body(stored).channels if channel in left]
        if here:
            seeds |= await reader.values(stored, here)
            left.difference_update(here)
    found: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        found[channel] = {"writes": collected[channel][::-1]}
        if channel in seeds:
            found[channel]["seed"] = seeds[channel]
    return found
