"""Writes documents anew whose objects are stored in older versions of their classes.

Reading brings them up to date anyway; this is for the day on which an upcaster is to go. Documents are
written some at a time, each under a check of its version, so that nothing of anybody's is lost beside it, and
what is up to date is skipped: it can be ended at any time and called again. Events and commits never change,
and are brought up to date whenever they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from keepstate.engine.documents.record import join_record, split_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Space
from keepstate.errors import AttemptsExhaustedError, ConflictError, InvalidError, UnsupportedError
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.nodes import classes_in
from keepstate.values.schema import CLASSES

AT_ONCE: Final = 50
"""So many documents are written by one batch; more would be in the way of those who change one of them."""
_AT_ONCE_BYTES: Final = 1 << 20
_TOLD_EVERY: Final = 1_000


@dataclass(slots=True)
class Migration:
    """What was found in a space, and done.

    Attributes:
        documents: How many there are.
        older: In how many of them objects of an older version stand, by `name@version`.
        due: How many of them are to be written anew, and can be.
        written: How many were.
        left: Documents to be written that cannot be, with the reason.
        newer: In how many of them objects stand of a version above the one that this process writes.
        unknown: In how many of them objects stand for whose name and version nothing is registered.
    """

    documents: int = 0
    older: Counter[str] = field(default_factory=Counter[str])
    due: int = 0
    written: int = 0
    left: dict[str, str] = field(default_factory=dict[str, str])
    newer: Counter[str] = field(default_factory=Counter[str])
    unknown: Counter[str] = field(default_factory=Counter[str])


async def migrate(
    space: Space, *, dry_run: bool = False, tell: Callable[[Migration], object] = lambda _: None
) -> Migration:
    """Write a space's documents anew in the versions that this process writes, and return what it did.

    Args:
        space: The space.
        dry_run: Whether only to look.
        tell: Called with what was done so far, after each batch and each thousand documents.

    Raises:
        UnsupportedError: A document is of a newer version than this process knows; both are named.
    """
    executor, done = space.executor, Migration()
    waiting, size_bytes = list[bytes](), 0
    async for entry in _documents(executor):
        name, found_bytes, classes = await _looked_at(executor, entry)
        older = {each for each in classes if CLASSES.is_older(*_named(each))}
        unknown = {each for each in classes if not CLASSES.knows(*_named(each))}
        done.documents += 1
        done.older.update(older)
        done.newer.update(each for each in classes if CLASSES.is_above_written(*_named(each)))
        done.unknown.update(unknown)
        if older and unknown:
            done.left[name] = f"nothing is registered for {', '.join(sorted(unknown))}"
        elif older:
            done.due += 1
            if not dry_run:
                waiting.append(entry.key)
                size_bytes += found_bytes
        if len(waiting) == AT_ONCE or size_bytes > _AT_ONCE_BYTES:
            done.written += await _written(executor, waiting)
            waiting, size_bytes = [], 0
            tell(done)
        elif done.documents % _TOLD_EVERY == 0:
            tell(done)
    done.written += await _written(executor, waiting)
    return done


async def _documents(executor: Executor) -> AsyncIterator[Entry]:
    async for _, entry in executor.scan(layout.DOCUMENTS):
        yield entry


async def _looked_at(executor: Executor, entry: Entry) -> tuple[str, int, set[str]]:
    """Return a document's name and bytes, and the classes of objects in it by `name@version`."""

    async def look(unit: Unit) -> tuple[str, bytes]:
        try:
            return split_record(entry.key, await unit.value(entry))
        except ConflictError:  # a large value was replaced meanwhile
            now = await unit.get(entry.key)
            return split_record(entry.key, await unit.value(now)) if now else ("", b"")

    (name, encoded), _ = await executor.run(look)
    try:
        classes = _classes(encoded)
        for each in classes:
            CLASSES.is_older(*_named(each))
    except UnsupportedError as error:
        raise UnsupportedError(f"document {name!r} of {executor.name!r}: {error}") from error
    return name, len(encoded), classes


def _classes(encoded: bytes) -> set[str]:
    try:
        return classes_in(codec.body_of(encoded)) if encoded else set()
    except InvalidError:
        return set()  # a signed pickle, which is left as it is


def _named(text: str) -> tuple[str, int]:
    name, _, version = text.rpartition("@")
    return name, int(version)


async def _written(executor: Executor, places: Sequence[bytes]) -> int:
    """Write documents anew unless somebody else has, and return how many were written."""

    async def work(unit: Unit) -> int:
        versions, count = set[str](), 0
        for place in places:
            older = await _put(unit, place)
            versions |= older
            count += bool(older)
        if versions:
            unit.notes.append((executor.author, f"bring {', '.join(sorted(versions))} up to date"))
        return count

    try:
        return (await executor.run(work))[0]
    except (ConflictError, AttemptsExhaustedError):
        if len(places) < 2:
            raise
        # One by one they are in fewer ways.
        return sum([await _written(executor, [place]) for place in places])


async def _put(unit: Unit, place: bytes) -> set[str]:
    """Write a document anew, and return the older versions that were in it; none if it was left."""
    entry = await unit.get(place)
    if entry is None:
        return set()
    name, encoded = split_record(place, await unit.value(entry))
    older = {each for each in _classes(encoded) if CLASSES.is_older(*_named(each))}
    if older:
        ttl_ms = None
        if entry.expires_at_ms is not None:
            ttl_ms = max(1, entry.expires_at_ms - await unit.now_ms())
        unit.put(place, join_record(place, name, codec.encode(codec.decode(encoded))), ttl_ms=ttl_ms)
    return older
