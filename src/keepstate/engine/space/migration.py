"""Migration: rewrites documents that contain objects of older versions of their classes.

Reading upgrades old objects anyway. Migrate before you remove an upcaster. Documents are written in small
batches, each under a check of its version, so no concurrent write is lost. Current documents are skipped, so
a migration can be stopped at any time and started again. Events and commits never change; they are upgraded
whenever they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from keepstate.engine.documents.record import join_record, split_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.recorded import Note
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Space
from keepstate.errors import AttemptsExhaustedError, ConflictError, InvalidError, UnsupportedError
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.nodes import classes_in
from keepstate.values.schema import CLASSES

AT_ONCE: Final = 50
"""Documents written by one batch. A larger batch would conflict more often with other writers."""
_AT_ONCE_BYTES: Final = 1 << 20
_REPORTED_EVERY: Final = 1_000


@dataclass(slots=True)
class Migration:
    """The result of a migration of one space.

    Attributes:
        documents: The number of documents.
        older: The number of documents with objects of each older version, by `name@version`.
        due: The number of documents to rewrite.
        written: The number of documents that were rewritten.
        left: The documents that should be rewritten and cannot be, with the reason.
        newer: The number of documents with objects of a version above the one that this process writes, by
            `name@version`.
        unknown: The number of documents with objects of a version that is not registered, by `name@version`.
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
    """Rewrite the documents of a space in the versions that this process writes, and return the result.

    Args:
        space: The space.
        dry_run: Count the documents without writing.
        tell: A function to call with the result so far, after each batch and each thousand documents.

    Raises:
        UnsupportedError: A document has a newer version than this process knows. The error names both.
    """
    executor, done = space.executor, Migration()
    waiting, size_bytes = list[bytes](), 0
    async for _, entry in executor.scan(layout.DOCUMENTS):
        name, found_bytes, classes = await _inspect(executor, entry)
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
            done.written += await _rewrite(executor, waiting)
            waiting, size_bytes = [], 0
            tell(done)
        elif done.documents % _REPORTED_EVERY == 0:
            tell(done)
    done.written += await _rewrite(executor, waiting)
    return done


async def _inspect(executor: Executor, entry: Entry) -> tuple[str, int, set[str]]:
    """Return a document's name, its size in bytes, and the classes of its objects as `name@version`."""

    async def look(unit: Unit) -> tuple[str, bytes]:
        try:
            return split_record(entry.key, await unit.value(entry))
        except ConflictError:  # a large value was replaced concurrently
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
        return set()  # a signed pickle, which stays as it is


def _named(text: str) -> tuple[str, int]:
    name, _, version = text.rpartition("@")
    return name, int(version)


async def _rewrite(executor: Executor, keys: Sequence[bytes]) -> int:
    """Rewrite documents that still contain older versions, and return their number."""

    async def work(unit: Unit) -> int:
        versions, count = set[str](), 0
        for key in keys:
            older = await _put(unit, key)
            versions |= older
            count += bool(older)
        if versions:
            unit.notes.append(
                Note(executor.author, f"bring {', '.join(sorted(versions))} up to date", executor.meta)
            )
        return count

    try:
        return (await executor.run(work))[0]
    except (ConflictError, AttemptsExhaustedError):
        if len(keys) < 2:
            raise
        # A single document conflicts with fewer writers.
        return sum([await _rewrite(executor, [key]) for key in keys])


async def _put(unit: Unit, key: bytes) -> set[str]:
    """Rewrite a document, and return the older versions that it contained; none if it was skipped."""
    entry = await unit.get(key)
    if entry is None:
        return set()
    name, encoded = split_record(key, await unit.value(entry))
    older = {each for each in _classes(encoded) if CLASSES.is_older(*_named(each))}
    if older:
        ttl_ms = None
        if entry.expires_at_ms is not None:
            ttl_ms = max(1, entry.expires_at_ms - await unit.now_ms())
        unit.put(key, join_record(key, name, codec.encode(codec.decode(encoded))), ttl_ms=ttl_ms)
        unit.permit(key)  # indexes are made from the decoded record, which stays the same
    return older
