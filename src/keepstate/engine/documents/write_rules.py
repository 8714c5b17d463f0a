"""The rules of a space that every batch with document writes keeps: recording, and indexed collections.

They are one entry, whose version every such batch checks: 0 in a space without rules. A process that does not
know the rules can therefore neither leave out a commit nor write a record of a collection without its index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import StoredMs, decode_stored, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry

_FORMAT: Final = 1
_COLLECTIONS: Final = 1_000
"""The largest number of indexed collections of a space."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class CollectionRule(msgspec.Struct, array_like=True, frozen=True):
    """The state of the index of one collection.

    Attributes:
        version: The version of the index functions.
        build: The number of the index in its keys. Each new build has a number of its own.
        is_complete: Whether the build contains every record.
        indexes: The names of the indexes, sorted.
    """

    version: Positive
    build: Positive
    is_complete: bool
    indexes: list[str]


class WriteRules(msgspec.Struct, array_like=True, frozen=True):
    """The rules of one space.

    Attributes:
        format: The format of the record.
        expiring_ms: A time before which no recorded document expires; None if none of them expires.
        is_recorded: Whether each change of documents is also a commit of `main`.
        collections: The indexed collections, by name.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT)] = _FORMAT
    expiring_ms: StoredMs | None = None
    is_recorded: bool = False
    collections: dict[str, CollectionRule] = {}

    def with_collections(self, changed: Mapping[str, CollectionRule]) -> WriteRules:
        """Return the rules with some collections added or changed.

        Raises:
            InvalidError: The space would have more than 1,000 indexed collections.
        """
        collections = self.collections | dict(changed)
        if len(collections) > _COLLECTIONS:
            raise InvalidError(
                f"the space has {_COLLECTIONS} indexed collections already; use one collection for all "
                "records of one kind, or another space"
            )
        return msgspec.structs.replace(self, collections=collections)

    def reject_bypass(self, unit: Unit) -> None:
        """Raise `InvalidError` if a unit writes a record of an indexed collection without its index."""
        if not self.collections:
            return
        prefixes = {records_prefix(name): name for name in self.collections}
        for key in unit.written_around(tuple(prefixes)):
            name = next(name for prefix, name in prefixes.items() if key.startswith(prefix))
            raise InvalidError(
                f"{describe(key)} of {unit.name!r} is a record of the indexed collection {name!r}, and is "
                f"written through it only; use space.collection({name!r}, …)"
            )


def records_prefix(collection: str) -> bytes:
    """Return the prefix of the keys of a collection's records."""
    return layout.name_prefix(layout.DOCUMENTS, f"{collection}/")


def read_rules(entry: Entry | None) -> WriteRules:
    """Return the rules in an entry; an absent entry means none."""
    return WriteRules() if entry is None else decode_rules(entry.value)


def decode_rules(stored: bytes) -> WriteRules:
    """Decode the rules."""
    return decode_stored(stored, WriteRules, describe(layout.RULES))


def put_rules(unit: Unit, rules: WriteRules) -> None:
    """Write the rules."""
    unit.put(layout.RULES, msgspec.msgpack.encode(rules))
