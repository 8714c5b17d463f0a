"""The rules of a space that every batch with document writes keeps: recording, and indexed collections.

They are one entry, whose version every such batch checks: 0 in a space without rules. A process that does not
know the rules can therefore neither leave out a commit nor write a record of a collection without its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.stored import (
    StoredMs,
    corrupt_error,
    decode_fields,
    decode_stored,
    describe,
    encode_fields,
)
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
        later: Fields added by a later version of keepstate. They are written back unchanged.
    """

    version: Positive
    build: Positive
    is_complete: bool
    indexes: list[str]
    later: tuple[Any, ...] = ()


class WriteRules(msgspec.Struct, array_like=True, frozen=True):
    """The rules of one space.

    Attributes:
        format: The format of the record.
        expiring_ms: A time before which no recorded document expires; None if none of them expires.
        is_recorded: Whether each change of documents is also a commit of `main`.
        collections: The indexed collections, by name.
        later: Fields added by a later version of keepstate. They are written back unchanged.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT)] = _FORMAT
    expiring_ms: StoredMs | None = None
    is_recorded: bool = False
    collections: dict[str, CollectionRule] = {}
    later: tuple[Any, ...] = ()

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


_COLLECTIONS_AT: Final = WriteRules.__struct_fields__.index("collections")


def records_prefix(collection: str) -> bytes:
    """Return the prefix of the keys of a collection's records."""
    return layout.name_prefix(layout.DOCUMENTS, f"{collection}/")


def read_rules(entry: Entry | None) -> WriteRules:
    """Return the rules in an entry; an absent entry means none."""
    return WriteRules() if entry is None else decode_rules(entry.value)


def decode_rules(stored: bytes) -> WriteRules:
    """Decode the rules."""
    location = describe(layout.RULES)
    fields = decode_stored(stored, list[Any], location)
    if len(fields) > _COLLECTIONS_AT:
        try:
            rules = msgspec.convert(fields[_COLLECTIONS_AT], dict[str, Any])
        except msgspec.ValidationError as error:
            raise corrupt_error(location, error) from error
        fields[_COLLECTIONS_AT] = {
            name: decode_fields(rule, CollectionRule, location) for name, rule in rules.items()
        }
    return decode_fields(fields, WriteRules, location)


def put_rules(unit: Unit, rules: WriteRules) -> None:
    """Write the rules."""
    fields = encode_fields(rules)
    fields[_COLLECTIONS_AT] = {name: encode_fields(rule) for name, rule in rules.collections.items()}
    unit.put(layout.RULES, msgspec.msgpack.encode(fields))


class KnownRules(msgspec.Struct, frozen=True):
    """The rules of a space that is not recorded, as this process read them last.

    Attributes:
        rules: The rules.
        version: The version of their entry; 0 for none.
        losses: Detects whether the store has lost history since.
    """

    rules: WriteRules = WriteRules()
    version: int = 0
    losses: LossDetector | None = None

    @classmethod
    def of(cls, entry: Entry | None, losses: LossDetector) -> KnownRules:
        """Return the rules of an entry that was read."""
        return cls(read_rules(entry), entry.version if entry else 0, losses)

    @property
    def is_void(self) -> bool:
        """True if the store has lost history since, so that the version may be that of other rules."""
        return self.losses is not None and self.losses.has_lost_history


class SpaceRules:
    """The rules of one space, and whether it is recorded, as a process last read them.

    Attributes:
        last: The rules as they were read last. Threads replace them as a whole.
        is_recorded: Whether the space is known to be recorded.
    """

    def __init__(self) -> None:
        self.last, self.is_recorded = KnownRules(), False


def apply_rules(unit: Unit, own: Unit, rules: WriteRules) -> None:
    """Set the rules of the collections that a unit registers, in `own`, and reject writes around them."""
    present = rules.with_collections(unit.registered)
    present.reject_bypass(unit)
    if unit.registered:
        put_rules(own, present)


def mark_changed(unit: Unit, rules: WriteRules, keys: Iterable[bytes]) -> None:
    """Allow a unit to write records without their indexes. Their collections need `reindex` afterwards."""
    prefixes = {records_prefix(name): name for name in rules.collections}
    for key in keys:
        for prefix, name in prefixes.items():
            if key.startswith(prefix):
                rule = rules.collections[name]
                unit.registered[name] = msgspec.structs.replace(rule, build=rule.build + 1, is_complete=False)
                unit.permit(key)
