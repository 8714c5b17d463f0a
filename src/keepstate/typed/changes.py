"""How a key's value changes: as it happens, and between two moments of the recorded past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.typed.encoded_value import Kept, value_of
from keepstate.typed.key import StateKey, opened
from keepstate.typed.layout import key_in, slot_of
from keepstate.typed.options import Registered
from keepstate.typed.records import ValueRecord, read_record

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StateChange(Generic[V]):
    """The value of a key changed.

    Attributes:
        key: The name of the key.
        old: The value before, None if there was none.
        new: The value after, None if there is none.
        revision: The revision of the state that wrote the new value; of what was removed, the old one.
        position: An opaque text: `after=` it, any process goes on behind this change.
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
        """An opaque text: `after=` it, a watch in any process goes on where this one stands."""
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
        return None if record is None else opened(self._key, record.value, record.version)


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key has another value at a later moment.

    Attributes:
        key: The name of the key.
        old: The value before, None if there was none; JSON if the key is not registered.
        new: The value after, None if there is none.
    """

    key: str
    old: Any
    new: Any


def differences(
    old: Mapping[str, Kept], new: Mapping[str, Kept], registered: Mapping[str, Registered]
) -> list[KeyDifference]:
    """Return where the values of two moments differ, by name of key."""
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
            found.append(KeyDifference(key_in(slot), _shown(before, known), _shown(after, known)))
    return found


def _shown(stored: Kept | None, known: Registered | None) -> Any:
    if stored is None:
        return None
    return stored.raw if known is None else value_of(known.key, stored)
