"""Migration: rewrites documents so that their objects are stored in the versions that this process writes.

That is up after an upgrade, and down before a rollback; `register_write_version` chooses. Reading converts
every version anyway. Documents are written in small batches, each under a check of its version, so no
concurrent write is lost. Documents in the written versions are skipped, so a migration can be stopped at any
time and started again. Events, commits and tasks never change; they are converted whenever they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keepstate.engine.documents.record import join_record, split_record
from keepstate.engine.documents.write_rules import mark_changed, read_rules, records_prefix
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.recorded import Note
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Space
from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    CorruptError,
    InvalidError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.nodes import classes_in
from keepstate.values.schema import CLASSES

AT_ONCE: Final = 50
"""Documents written by one batch. A larger batch would conflict more often with other writers."""
_AT_ONCE_BYTES: Final = 1 << 20
_REPORTED_EVERY: Final = 1_000
_UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError


class Step(NamedTuple):
    """A version of a class that is stored, and the version that this process writes, as `name@version`."""

    stored: str
    written: str

    def __str__(self) -> str:
        return f"{self.stored} to {self.written}"


@dataclass(slots=True)
class Migration:
    """The result of a migration of one space.

    Attributes:
        documents: The number of documents.
        steps: The number of documents that can be rewritten, by the steps of their objects.
        due: The number of documents to rewrite.
        written: The number of documents that were rewritten.
        lost: The number of documents that lose data on the way down, by what their downcasters declare.
        refused: The documents that should be rewritten and cannot be, or cannot be read, with the reason.
        unknown: The number of documents with objects of a class that is not registered, by `name@version`.
        to_reindex: The indexed collections that need `reindex`, because a record of theirs lost data.
    """

    documents: int = 0
    steps: Counter[Step] = field(default_factory=Counter[Step])
    due: int = 0
    written: int = 0
    lost: Counter[str] = field(default_factory=Counter[str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    unknown: Counter[str] = field(default_factory=Counter[str])
    to_reindex: set[str] = field(default_factory=set[str])


class _Converted(NamedTuple):
    """A document in the written versions.

    Attributes:
        encoded: The value to store.
        steps: The steps of its objects.
        lost: What its downcasters declare to lose, if the value has changed.
    """

    encoded: bytes
    steps: set[Step]
    lost: list[str]


async def migrate(
    space: Space, *, dry_run: bool = False, tell: Callable[[Migration], object] = lambda _: None
) -> Migration:
    """Rewrite the documents of a space in the versions that this process writes, and return the result.

    A document that cannot be converted stays as it is, and is in `refused`.

    Args:
        space: The space.
        dry_run: Convert and count the documents without writing.
        tell: A function to call with the result so far, after each batch and each thousand documents.
    """
    executor, done = space.executor, Migration()
    converter = _Converter()
    waiting, size_bytes = list[bytes](), 0
    async for _, entry in executor.scan(layout.DOCUMENTS):
        done.documents += 1
        name, encoded = "", b""
        try:
            name, encoded = await _read(executor, entry)
            converted = converter.convert(encoded)
        except _UNREADABLE as error:
            done.refused[name or entry.key[1:].decode("utf-8", "replace")] = str(error)
            continue
        done.unknown.update(converter.unknown_in(encoded))
        if converted is not None:
            done.due += 1
            done.steps.update(converted.steps)
            done.lost.update(converted.lost)
            if converted.lost:
                done.to_reindex |= await _collections_of(executor, entry.key)
            if not dry_run:
                waiting.append(entry.key)
                size_bytes += len(encoded)
        if len(waiting) == AT_ONCE or size_bytes > _AT_ONCE_BYTES:
            done.written += await _rewrite(executor, waiting, converter)
            waiting, size_bytes = [], 0
            tell(done)
        elif done.documents % _REPORTED_EVERY == 0:
            tell(done)
    done.written += await _rewrite(executor, waiting, converter)
    return done


async def _read(executor: Executor, entry: Entry) -> tuple[str, bytes]:
    """Return a document's name and its encoded value; no bytes if it was deleted concurrently."""

    async def look(unit: Unit) -> tuple[str, bytes]:
        try:
            return split_record(entry.key, await unit.value(entry))
        except ConflictError:  # a large value was replaced concurrently
            now = await unit.get(entry.key)
            return split_record(entry.key, await unit.value(now)) if now else ("", b"")

    return (await executor.run(look))[0]


async def _collections_of(executor: Executor, key: bytes) -> set[str]:
    async def look(unit: Unit) -> set[str]:
        rules = read_rules(await unit.get(layout.RULES))
        return {name for name in rules.collections if key.startswith(records_prefix(name))}

    return (await executor.run(look))[0]


class _Converter:
    """Converts stored values to the versions that this process writes."""

    def __init__(self) -> None:
        self._newest = codec.Codec(CLASSES.newest())

    def convert(self, encoded: bytes) -> _Converted | None:
        """Return a value in the written versions; None if it is so already.

        Raises:
            CorruptError: The bytes are not a stored value.
            InvalidError: A caster is missing or failed, or an undeclared loss would happen.
            UnsupportedError: An object has a newer version than this application knows.
        """
        stored = {each for each in _classes(encoded) if CLASSES.is_due(*_named(each))}
        if not stored:
            return None
        value = codec.decode(encoded)
        written = codec.encode(value)
        steps = {Step(each, CLASSES.written_as(_named(each)[0])) for each in stored}
        lost = list[str]()
        if self._newest.encode(codec.decode(written)) != self._newest.encode(value):
            lost = [one for each in stored for one in CLASSES.losses(*_named(each))]
            if not lost:
                raise InvalidError(
                    f"{', '.join(map(str, sorted(steps)))} does not come back as it was; correct the "
                    "downcaster, or declare the loss: @downcast(name, version, loses='the currency')"
                )
        return _Converted(written, steps, lost)

    def unknown_in(self, encoded: bytes) -> set[str]:
        """Return the classes that are not registered, as `name@version`."""
        return {each for each in _classes(encoded) if not CLASSES.knows(*_named(each))}


def _classes(encoded: bytes) -> set[str]:
    if encoded.startswith(codec.SIGNED):
        return set()  # it contains a pickle, and stays as it is
    return classes_in(codec.body_of(encoded)) if encoded else set()


def _named(text: str) -> tuple[str, int]:
    name, _, version = text.rpartition("@")
    return name, int(version)


async def _rewrite(executor: Executor, keys: Sequence[bytes], converter: _Converter) -> int:
    """Rewrite documents that are not in the written versions, and return their number."""

    async def work(unit: Unit) -> int:
        steps, count = set[Step](), 0
        for key in keys:
            made = await _put(unit, key, converter)
            steps |= made
            count += bool(made)
        if steps:
            message = f"migrate {', '.join(map(str, sorted(steps)))}"
            unit.notes.append(Note(executor.author, message, executor.meta))
        return count

    try:
        return (await executor.run(work))[0]
    except (ConflictError, AttemptsExhaustedError):
        if len(keys) < 2:
            raise
        # A single document conflicts with fewer writers.
        return sum([await _rewrite(executor, [key], converter) for key in keys])


async def _put(unit: Unit, key: bytes, converter: _Converter) -> set[Step]:
    """Rewrite a document, and return the steps of its objects; none if it was skipped."""
    entry = await unit.get(key)
    if entry is None:
        return set()
    name, encoded = split_record(key, await unit.value(entry))
    try:
        converted = converter.convert(encoded)
    except _UNREADABLE:
        return set()  # written since it was listed; the next migration reports it
    if converted is None:
        return set()
    ttl_ms = None
    if entry.expires_at_ms is not None:
        ttl_ms = max(1, entry.expires_at_ms - await unit.now_ms())
    unit.put(key, join_record(key, name, converted.encoded), ttl_ms=ttl_ms)
    unit.permit(key)  # indexes are made from the decoded record, which stays the same
    if converted.lost:
        mark_changed(unit, read_rules(await unit.get(layout.RULES)), [key])
    return converted.steps
