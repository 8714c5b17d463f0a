"""Changes of a key's value: live, and between two moments of the recorded history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.typed.encoded_value import EncodedValue, decode_value
from keepstate.typed.key import StateKey, decode_stored
from keepstate.typed.layout import key_in, slot_of
from keepstate.typed.options import Registered
from keepstate.typed.records import ValueRecord, read_record

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StateChange(Generic[V]):
    """A change of a key's value.

    Attributes:
        key: The name of the key.
        old: The value before, or None.
        new: The value after, or None.
        revision: The state revision that wrote the new value; for a removal, that of the old value.
        position: An opaque text. Pass it as `after=` in any process to continue after this change.
    """

    key: str
    old: V | None
    new: V | None
    revision: int
    position: str = field(default="", compare=False)


class StateWatch(Generic[V]):
    """An iterator over the changes of one key."""

    def __init__(self, key: type[StateKey[V, Any]], changes: Watch) -> None:
        self._key, self._changes = key, changes

    def __repr__(self) -> str:
        return f"<StateWatch of {self._key.KEY!r}>"

    @property
    def position(self) -> str:
        """An opaque text. Pass it as `after=` in any process to continue where this watch is."""
        return self._changes.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateChange[V]:
        change = await self._changes.__anext__()
        old, new = self._read(change, change.old), self._read(change, change.new)
        revision = max(each.revision for each in (old, new) if each is not None)
        return StateChange(self._key.KEY, self._value(old), self._value(new), revision, change.position)

    def _read(self, change: DocumentChange, value: Any) -> ValueRecord | None:
        return None if value is None else read_record(ValueRecord, change.key, value)

    def _value(self, record: ValueRecord | None) -> V | None:
        return None if record is None else decode_stored(self._key, record.value, record.version)


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose value differs between two moments.

    Attributes:
        key: The name of the key.
        old: The value before, or None; JSON if the key is not registered.
        new: The value after, or None.
    """

    key: str
    old: Any
    new: Any


def find_differences(
    old: Mapping[str, EncodedValue], new: Mapping[str, EncodedValue], registered: Mapping[str, Registered]
) -> list[KeyDifference]:
    """Return the values that differ between two moments, ordered by key name."""
    found: list[KeyDifference] = []
    for slot in sorted(old.keys() | new.keys(), key=lambda slot: (key_in(slot), slot)):
        before, after = old.get(slot), new.get(slot)
        if (
            before is None
            or after is None
            or (before.encoded, before.version) != (after.encoded, after.version)
        ):
            known = registered.get(key_in(slot))
            if known is not None and slot_of(known.scope, known.key.KEY) != slot:
                known = None
            found.append(KeyDifference(key_in(slot), _to_public(before, known), _to_public(after, known)))
    return found


def _to_public(stored: EncodedValue | None, known: Registered | None) -> Any:
    if stored is None:
        return None
    return stored.raw if known is None else decode_value(known.key, stored)
