"""Truncation: deletes the oldest events of a stream after verifying and storing the states folded from them.

One batch stores the folded states and replaces the last event by an end record. From then on, readers that
need earlier events get an error, and readers from the start begin after the end record. The events themselves
are deleted afterwards. The next truncation finishes one that was killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from keepstate.engine.events.folds import CHECKPOINT, Folding, FoldRecord
from keepstate.engine.events.record import (
    Cursor,
    EventRecord,
    append_records,
    check_number,
    event_id_key,
    event_key,
    read_stamp,
    stamp_at,
    to_number,
)
from keepstate.engine.events.reducers import Fold
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError, NotFoundError
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.key import Stamp, stamp_suffix, unpack

_BY_BATCH = 400


async def truncate(
    executor: Executor, stream: str, folding: Folding, upto: int, folds: Sequence[Fold]
) -> int:
    """Delete the events of a stream up to a number, and return the number of deleted events."""
    executor.require_outside_transaction("truncating a stream")
    check_number("upto", upto)
    for fold in folds:
        require_instance("folds", fold, Fold)
    bases = [(fold, await _verify(folding, fold, upto)) for fold in folds]
    await _require_ready(executor, stream, {fold.title for fold in folds}, upto)
    end = layout.stream_key(layout.EVENTS, stream) + stamp_suffix(
        stamp_at(upto).revision, stamp_at(upto).index
    )

    positions = Positions(await executor.store(), executor.stored_name, executor.name)

    async def work(unit: Unit) -> None:
        entry = await unit.get(end)
        if entry is None:
            raise NotFoundError(f"stream {stream!r} of {executor.name!r} has no event at number {upto}")
        for fold, base in bases:
            if base is not None:
                unit.put(layout.fold_key(stream, fold.title, "base"), msgspec.msgpack.encode(base))
        record = decode_stored(await unit.value(entry), EventRecord, f"event {upto}")
        if not record.is_end:
            digest = positions.digest(entry.value)
            last = EventRecord(codec.encode(None), record.recorded_at_ms, None, {"truncated": digest})
            unit.put(end, msgspec.msgpack.encode(last))
            if "id" in record.details:
                unit.delete(event_id_key(unit.store, unit.space, stream, record.details["id"]))

    before = await _is_event(executor, end)
    await executor.run(work)
    await _remove_checkpoints(executor, stream, upto)
    return await _remove(executor, stream, end) + before


async def drop_stream(executor: Executor, stream: str) -> int:
    """Delete a stream, and return the number of deleted events.

    The first batch appends an end record, which hides all events before it and stays behind: a position of a
    deleted event then raises `PrunedError`, and not `HistoryLostError`. It also marks the stream as dropped:
    an id that is older than the mark counts as absent. The last batch deletes the head and the mark.
    """
    executor.require_outside_transaction("dropping a stream")
    index, revision = await executor.run(lambda unit: _begin_drop(executor, unit, stream), attempts=None)
    return 0 if index is None else await finish_drop(executor, stream, to_number(Stamp(revision, index)))


async def hide_stream(executor: Executor, stream: str) -> int:
    """Begin to drop a stream that exists as part of a transaction, and return the index of its end record.

    With the revision of the transaction, the index is the number for `finish_drop`.
    """
    index, _ = await executor.run(lambda unit: _begin_drop(executor, unit, stream))
    assert index is not None
    return index


async def _begin_drop(executor: Executor, unit: Unit, stream: str) -> int | None:
    if await unit.get(layout.stream_key(layout.HEADS, stream)) is None:
        return None
    end = EventRecord(codec.encode(None), executor.clock.now_ms(), None, {"truncated": b"", "dropped": True})
    unit.put(layout.stream_key(layout.DROPPED, stream), b"")
    return append_records(unit, stream, [msgspec.msgpack.encode(end)])


async def finish_drop(executor: Executor, stream: str, number: int) -> int:
    """Delete the events before the end record of a drop, and return their number. Later events remain."""
    head, mark = layout.stream_key(layout.HEADS, stream), layout.stream_key(layout.DROPPED, stream)
    revision = stamp_at(number).revision
    removed = await _remove(executor, stream, event_key(stream, number))
    await _remove_derived(executor, stream, number)

    async def finish(unit: Unit) -> None:
        last, marked = await unit.read(head, mark)
        # Another version means an event that was appended meanwhile, or another drop that began.
        if last is not None and last.version == revision:
            unit.delete(head)
        if marked is not None and marked.version == revision:
            unit.delete(mark)

    await executor.run(finish, attempts=None)
    return removed


async def append_after(executor: Executor, stream: str, number: int, event: object) -> int:
    """Append an event after the last one, given by its number, in one round trip; return its number.

    Raises:
        ConflictError: The stream has another last event, or was dropped. Nothing was appended.
    """
    encoded = executor.encode(event, layout.stream_key(layout.EVENTS, stream))
    record = msgspec.msgpack.encode(EventRecord(encoded, executor.clock.now_ms(), executor.author))

    async def work(unit: Unit) -> int:
        unit.check(layout.stream_key(layout.HEADS, stream), version=stamp_at(number).revision)
        return append_records(unit, stream, [record])

    index, revision = await executor.run(work, attempts=1)
    return to_number(Stamp(revision, index))


async def _remove_derived(executor: Executor, stream: str, end: int) -> None:
    """Delete folds and cursors of a dropped stream, unless they contain an event after the drop."""
    keys: list[bytes] = []
    for part in (layout.FOLDS, layout.CURSORS):
        async for unit, entry in _of_stream(executor, part, stream):
            if part == layout.CURSORS:
                number = Cursor.of(entry.value, "a projection").number
            else:
                number = decode_stored(await unit.value(entry), FoldRecord, "a fold").number
            if number is None or number < end:
                keys.append(entry.key)
    for start in range(0, len(keys), _BY_BATCH):
        await _delete(executor, keys[start : start + _BY_BATCH])


def _of_stream(executor: Executor, part: bytes, stream: str) -> AsyncIterator[tuple[Unit, Entry]]:
    """Yield the entries of a stream, and not those of streams whose names go on with a NUL."""
    prefix = layout.stream_key(part, stream)
    return executor.scan(prefix, before=prefix + b"\xff")


async def _verify(folding: Folding, fold: Fold, upto: int) -> FoldRecord | None:
    """Fold the events twice and return the state, to detect a reducer that is not deterministic.

    A reducer that modifies an object that it uses, such as a memo, is rejected too. Its digest would change
    with each event, so that its stored state could never be used.
    """
    before = fold.digest()
    first, second = await folding.fold_from_base(fold, upto), await folding.fold_from_base(fold, upto)
    if fold.digest() != before:
        raise InvalidError(
            f"the reducer {fold.title!r} modifies an object that it uses, such as a table, so it cannot be "
            "recognized later. Nothing was deleted. Use only the state and the event in it, or keep such a "
            "table with functools.lru_cache"
        )
    if (first and first.state) != (second and second.state):
        raise InvalidError(
            f"the reducer {fold.title!r} returned two different states for the same events. Nothing was "
            "deleted. Use only the state and the event in it"
        )
    return first


async def _require_ready(executor: Executor, stream: str, given: set[str], upto: int) -> None:
    """Raise `InvalidError` if a fold or a projection still needs the events."""
    async for _, entry in _of_stream(executor, layout.FOLDS, stream):
        title = str(unpack(entry.key[len(layout.FOLDS) :])[1])
        if title not in given:
            raise InvalidError(
                f"stream {stream!r} of {executor.name!r} has a cached state of the fold {title!r}, "
                "which needs the events. Pass that Fold too"
            )
    async for _, entry in _of_stream(executor, layout.CURSORS, stream):
        name = str(unpack(entry.key[len(layout.CURSORS) :])[1])
        number = Cursor.of(entry.value, name).number
        if number is None or number < upto:
            raise InvalidError(
                f"projection {name!r} of stream {stream!r} is at event {number}, before {upto}. Run it first"
            )


async def _is_event(executor: Executor, key: bytes) -> bool:
    found = await executor.read_once(key)
    return found is not None and not decode_stored(found[1], EventRecord, "an event").is_end


async def _remove_checkpoints(executor: Executor, stream: str, upto: int) -> None:
    """Delete the checkpoints before the end, because their later events are gone."""
    keys: list[bytes] = []
    async for _, entry in _of_stream(executor, layout.FOLDS, stream):
        _, _, kind, *number = unpack(entry.key[len(layout.FOLDS) :])
        if kind == CHECKPOINT and int(str(number[0])) < upto:
            keys.append(entry.key)
    for start in range(0, len(keys), _BY_BATCH):
        await _delete(executor, keys[start : start + _BY_BATCH])


async def _remove(executor: Executor, stream: str, end: bytes) -> int:
    """Delete the events and end records before the end. Return the number of deleted events."""
    prefix = layout.stream_key(layout.EVENTS, stream)
    removed = 0
    keys: list[bytes] = []
    ids: dict[bytes, int] = {}
    async for unit, entry in executor.scan(prefix + end[len(prefix) : len(prefix) + 1]):
        if entry.key >= end:
            break
        record = decode_stored(await unit.value(entry), EventRecord, "an event")
        removed += not record.is_end
        keys.append(entry.key)
        if "id" in record.details:
            id_key = event_id_key(unit.store, unit.space, stream, record.details["id"])
            ids[id_key] = read_stamp(entry).revision
        if len(keys) + len(ids) >= _BY_BATCH:
            await _delete(executor, keys, ids)
            keys, ids = [], {}
    if keys:
        await _delete(executor, keys, ids)
    return removed


async def _delete(executor: Executor, keys: Sequence[bytes], ids: Mapping[bytes, int] = {}) -> None:
    """Delete entries, and ids of events unless the id was used again at a later revision."""

    async def work(unit: Unit) -> None:
        for key in keys:
            unit.delete(key)
        for entry in await unit.read(*ids) if ids else ():
            if entry is not None and entry.version == ids[entry.key]:
                unit.delete(entry.key)

    await executor.run(work)
