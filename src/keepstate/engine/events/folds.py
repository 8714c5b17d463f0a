"""States folded from the events of a stream, and their caches, checkpoints and bases.

A fold stores its state as a cache. A later fold with the same reducer and initial state continues from it.
There are two caches, so that two versions of an application, as during a deployment, do not evict each
other's. Every 10,000 events the state is also stored as a permanent checkpoint, for folds up to an earlier
event or time. Truncation stores a base: the state at the last deleted event. A cache can be deleted at any
time; a base cannot, because its events are gone.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from keepstate.engine.events.record import Event
from keepstate.engine.events.reducers import Fold
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor, call_function
from keepstate.engine.kernel.stored import StoredMs, decode_stored, to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, PrunedError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack

_log = logging.getLogger("keepstate.engine")

_PAGE = 1_024
_CACHES = ("cache", "cache/2")
CHECKPOINT: Final = "moment"
"""The key segment of checkpoints. The number of the last event follows it. The stored word is frozen."""
_STALE_AT_ONCE = 500
_CHECKPOINT_EVERY = 10_000
"""Events between two checkpoints. A long fold that is killed continues from the last checkpoint, and a fold
up to an earlier event or time reads at most this many events."""

ReadPoint = int | datetime | None


@dataclass(frozen=True, slots=True)
class FoldEntry:
    """A folded state.

    Attributes:
        state: The state.
        number: The number of the last event in it, for `expected` of an append; None without any event.
        events_read: The number of events that were read.
    """

    state: Any
    number: int | None
    events_read: int


class FoldRecord(msgspec.Struct, array_like=True, frozen=True):
    """A folded state as it is stored."""

    digest: bytes
    number: int
    latest_ms: StoredMs
    """The latest time at which one of its events was recorded."""
    state: bytes
    count: int = 0
    """The number of events in the state."""

    def is_within(self, upto: ReadPoint) -> bool:
        """Return whether all of its events are up to this number or time."""
        if isinstance(upto, datetime):
            return self.latest_ms <= to_milliseconds(upto)
        return upto is None or self.number <= upto

    def covers(self, base: FoldRecord | None) -> bool:
        """Return whether all later events exist, because truncation deleted only events in this state."""
        return base is None or base.number <= self.number


class Source(Protocol):
    """A readable stream of events."""

    async def page(self, after: int | None, limit: int, *, whole: bool) -> list[Event]:
        """Return events in order; see `Events.read`."""
        ...


@dataclass(slots=True)
class _Progress:
    """The progress of a fold."""

    state: Any
    number: int | None = None
    latest_ms: int = 0
    count: int = 0
    stored_count: int = 0
    """The number of events in the state when it was last stored."""
    read: int = 0

    def add(self, state: Any, event: Event) -> None:
        self.state = state
        self.latest_ms = max(self.latest_ms, to_milliseconds(event.recorded_at))
        self.count, self.read = self.count + 1, self.read + 1
        self.number = self.number if event.number is None else event.number

    def is_checkpoint_due(self) -> bool:
        """Return whether a multiple of 10,000 events was passed since the state was last stored."""
        return self.count // _CHECKPOINT_EVERY > self.stored_count // _CHECKPOINT_EVERY


class Folding:
    """Folds one stream.

    Args:
        executor: The executor of the space.
        stream: The name of the stream.
        source: The reader of the stream's events.
    """

    def __init__(self, executor: Executor, stream: str, source: Source) -> None:
        self._executor, self._stream, self._source = executor, stream, source

    async def fold(self, fold: Fold, upto: ReadPoint = None, *, from_base: bool = False) -> FoldEntry:
        """Fold the events up to a number or time. Cache the state if `cache_every` events were read."""
        self._executor.reject_coroutine(fold.reducer)
        digest = b"" if fold.cache_every is None else fold.digest()
        start = await self._start(fold, digest, upto, from_base=from_base)
        progress = await self._fold_from(fold, digest, start, upto)
        if fold.cache_every is not None and progress.read >= fold.cache_every:
            await self._store(fold, digest, progress, upto)
        return FoldEntry(progress.state, progress.number, progress.read)

    async def fold_from_base(self, fold: Fold, upto: int) -> FoldRecord | None:
        """Fold the events up to a number without a cache; None if there are no events."""
        digest = fold.digest()
        base = await self.read_stored(fold, "base")
        start = self._usable_base(fold, base, digest, upto, from_base=False)
        progress = await self._fold_from(fold, None, start, upto)
        return None if progress.number is None else self._record(fold, digest, progress, progress.number)

    async def _fold_from(
        self, fold: Fold, digest: bytes | None, start: FoldRecord | None, upto: ReadPoint
    ) -> _Progress:
        if start is None:
            progress = _Progress(deepcopy(fold.initial))
        else:
            state = self._decode(fold, start)
            progress = _Progress(state, start.number, start.latest_ms, start.count, start.count)
        after = progress.number
        most = (
            limits.COUNT if self._executor.gathers else _PAGE
        )  # own events have no number to continue after
        while True:
            events = await self._source.page(after, most, whole=True)
            for event in events:
                if is_after(event, upto):
                    return progress
                progress.add(await _reduce(fold, progress.state, event), event)
            if len(events) < most:
                return progress
            after = progress.number
            if digest and progress.is_checkpoint_due():
                await self._store(fold, digest, progress, upto)

    # ---- stored states

    async def read_stored(self, fold: Fold, kind: str) -> FoldRecord | None:
        """Return a stored state of the kind `cache` or `base`."""
        found = await self._executor.read_once(layout.fold_key(self._stream, fold.title, kind))
        return None if found is None else decode_stored(found[1], FoldRecord, f"{fold.title!r}")

    async def _read_caches(self, fold: Fold) -> list[FoldRecord]:
        """Return the cached states, without damaged ones."""

        async def work(unit: Unit) -> list[FoldRecord]:
            entries = await unit.read(*self._cache_keys(fold))
            return [
                record
                for entry in entries
                if entry and (record := await self._decode_cache(fold, unit, entry))
            ]

        return (await self._executor.run(work))[0]

    async def _decode_cache(self, fold: Fold, unit: Unit, entry: Entry) -> FoldRecord | None:
        try:
            return decode_stored(await unit.value(entry), FoldRecord, f"{fold.title!r}")
        except CorruptError as error:  # it can be folded from the events again
            _log.warning("%s; folding it again", error)
            return None

    def _cache_keys(self, fold: Fold) -> list[bytes]:
        return [layout.fold_key(self._stream, fold.title, kind) for kind in _CACHES]

    async def _start(
        self, fold: Fold, digest: bytes, upto: ReadPoint, *, from_base: bool
    ) -> FoldRecord | None:
        base = await self.read_stored(fold, "base")
        if digest:
            for cache in await self._read_caches(fold):
                if cache.digest == digest and cache.is_within(upto) and cache.covers(base):
                    return cache
            if (
                upto is not None
                and (moment := await self._find_checkpoint(fold, digest, base, upto)) is not None
            ):
                return moment
        return self._usable_base(fold, base, digest or fold.digest(), upto, from_base=from_base)

    def _usable_base(
        self, fold: Fold, base: FoldRecord | None, digest: bytes, upto: ReadPoint, *, from_base: bool
    ) -> FoldRecord | None:
        if base is None:
            return None
        if not base.is_within(upto):
            raise PrunedError(f"the events of stream {self._stream!r} before {base.number} were truncated")
        if base.digest != digest and not from_base:
            raise PrunedError(
                f"the events of stream {self._stream!r} up to {base.number} were truncated with "
                f"a different version of the reducer {fold.title!r}. Pass from_base=True to continue from "
                "its state"
            )
        return base

    async def _find_checkpoint(
        self, fold: Fold, digest: bytes, base: FoldRecord | None, upto: ReadPoint
    ) -> FoldRecord | None:
        """Return the latest usable checkpoint up to a number or time."""
        if self._executor.gathers:  # a transaction that scans depends on the whole space
            return None
        found = None
        async for unit, entry in self._executor.scan(self._checkpoints_key(fold)):
            record = await self._decode_cache(fold, unit, entry)
            if record is None or record.digest != digest:
                continue
            if not record.is_within(upto):
                break
            if record.covers(base):
                found = record
        return found

    def _checkpoints_key(self, fold: Fold) -> bytes:
        return layout.fold_key(self._stream, fold.title, CHECKPOINT)

    async def _store(self, fold: Fold, digest: bytes, progress: _Progress, upto: ReadPoint) -> None:
        is_due = progress.is_checkpoint_due()
        if self._executor.gathers or progress.number is None or not (is_due or upto is None):
            return
        stored = msgspec.msgpack.encode(self._record(fold, digest, progress, progress.number))
        moment = self._checkpoints_key(fold) + pack(progress.number)
        keys = self._cache_keys(fold)
        stale = await self._find_stale(fold, digest) if is_due else []

        async def work(unit: Unit) -> None:
            if is_due:
                unit.put(moment, stored)
            for key in stale:
                unit.delete(key)
            if upto is not None:
                return
            entries = list(zip(keys, await unit.read(*keys), strict=True))
            oldest = min(entries, key=lambda entry: entry[1].version if entry[1] else 0)[0]
            for key, found in entries:
                known = await self._decode_cache(fold, unit, found) if found else None
                if known is not None and known.digest == digest:
                    oldest = key
                    break
            unit.put(oldest, stored)

        await self._executor.run(work)
        progress.stored_count = progress.count

    async def _find_stale(self, fold: Fold, digest: bytes) -> list[bytes]:
        """Return the keys of checkpoints of reducers that no longer have a cache."""
        alive = {digest, *(cache.digest for cache in await self._read_caches(fold))}
        found: list[bytes] = []
        async for unit, entry in self._executor.scan(self._checkpoints_key(fold)):
            record = await self._decode_cache(fold, unit, entry)
            if (record is None or record.digest not in alive) and len(found) < _STALE_AT_ONCE:
                found.append(entry.key)
        return found

    def _record(self, fold: Fold, digest: bytes, progress: _Progress, number: int) -> FoldRecord:
        return FoldRecord(
            digest, number, progress.latest_ms, self._encode(fold, progress.state), progress.count
        )

    def _encode(self, fold: Fold, state: Any) -> bytes:
        try:
            return self._executor.encode(state, layout.fold_key(self._stream, fold.title, "state"))
        except InvalidError as error:
            raise InvalidError(
                f"the state of the fold {fold.title!r} cannot be stored: {error}; or pass cache_every=None",
                path=error.path,
            ) from error

    def _decode(self, fold: Fold, record: FoldRecord) -> Any:
        return self._executor.decode(record.state, layout.fold_key(self._stream, fold.title, "state"))


async def _reduce(fold: Fold, state: Any, event: Event) -> Any:
    new = await call_function(fold.reducer, state, event)
    if new is None and state is not None:
        at = "" if event.number is None else f" for event {event.number}"
        raise InvalidError(f"the reducer {fold.title!r} returned None{at}. Return the next state from it")
    return new


def is_after(event: Event, upto: ReadPoint) -> bool:
    """Return whether an event is after a number or time."""
    if isinstance(upto, datetime):
        return event.recorded_at > upto
    return upto is not None and (event.number is None or event.number > upto)
