"""Writes documents anew whose objects are stored in older versions of their classes.

Reading brings them up to date anyway; this is for the day on which an upcaster is to go. Each document is
written under a check of its version, so that nothing of anybody's is lost beside it, and what is there again
is skipped: it can be ended at any time and called again. Events and commits never change, and are brought up
to date whenever they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from keepstate.engine import layout
from keepstate.engine.document_record import joined_record, name_and_value
from keepstate.engine.scope import Scope
from keepstate.engine.space import Space
from keepstate.engine.unit import Unit
from keepstate.errors import ConflictError, InvalidError, UnsupportedError
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.nodes import classes_in
from keepstate.values.schema import CLASSES


@dataclass(slots=True)
class Migration:
    """What was found in a space, and done.

    Attributes:
        documents: How many there are.
        older: In how many of them objects of an older version stand, by `name@version`.
        written: How many were written anew.
        left: Documents to be written that cannot be, with the reason.
    """

    documents: int = 0
    older: Counter[str] = field(default_factory=Counter[str])
    written: int = 0
    left: dict[str, str] = field(default_factory=dict[str, str])


async def migrate(space: Space, *, dry_run: bool = False) -> Migration:
    """Writes a space's documents anew in the versions that this process writes, and returns what it did.

    Raises:
        UnsupportedError: A document is of a newer version than this process knows; both are named.
    """
    scope, done = space._alone, Migration()  # pyright: ignore[reportPrivateUsage]
    async for entry in _documents(scope):
        done.documents += 1
        name, older, reason = await _looked_at(scope, entry)
        done.older.update(older)
        if not older:
            continue
        if reason:
            done.left[name] = reason
        elif not dry_run:
            done.written += await _written(scope, entry.key)
    return done


async def _documents(scope: Scope) -> AsyncIterator[Entry]:
    async for _, entry in scope.scan(layout.DOCUMENTS):
        yield entry


async def _looked_at(scope: Scope, entry: Entry) -> tuple[str, set[str], str]:
    """Returns a document's name, the older versions in it, and why it cannot be written anew."""

    async def look(unit: Unit) -> tuple[str, bytes]:
        try:
            return name_and_value(entry.key, await unit.value(entry))
        except ConflictError:  # a large value was replaced meanwhile
            now = await unit.get(entry.key)
            return name_and_value(entry.key, await unit.value(now)) if now else ("", b"")

    (name, encoded), _ = await scope.run(look)
    try:
        classes = _classes(encoded)
        older = {each for each in classes if CLASSES.is_older(*_named(each))}
    except UnsupportedError as error:
        raise UnsupportedError(f"document {name!r} of {scope.name!r}: {error}") from error
    unknown = sorted(each for each in classes if not CLASSES.knows(*_named(each)))
    return name, older, f"nothing is registered for {', '.join(unknown)}" if unknown else ""


def _classes(encoded: bytes) -> set[str]:
    try:
        return classes_in(codec.body_of(encoded)) if encoded else set()
    except InvalidError:
        return set()  # a signed pickle, which is left as it is


def _named(text: str) -> tuple[str, int]:
    name, _, version = text.rpartition("@")
    return name, int(version)


async def _written(scope: Scope, place: bytes) -> int:
    """Writes a document anew unless somebody else has, and returns how many were written."""

    async def work(unit: Unit) -> int:
        entry = await unit.get(place)
        if entry is None:
            return 0
        name, encoded = name_and_value(place, await unit.value(entry))
        older = sorted(each for each in _classes(encoded) if CLASSES.is_older(*_named(each)))
        if not older:
            return 0
        ttl_ms = None
        if entry.expires_at_ms is not None:
            ttl_ms = max(1, entry.expires_at_ms - await unit.now_ms())
        value = codec.decode(encoded)
        unit.put(place, joined_record(place, name, codec.encode(value)), ttl_ms=ttl_ms)
        unit.notes.append((scope.author, f"bring {', '.join(older)} up to date"))
        return 1

    return (await scope.run(work))[0]
