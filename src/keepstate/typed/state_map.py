"""Maps of values by key: mutable, or frozen in a snapshot; and the values of a thread in memory.

Redefinitions of a key count as the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

from keepstate.engine.kernel.arguments import check_revision, require_instance
from keepstate.errors import StateError
from keepstate.typed.key import (
    AnyKey,
    EncodedValue,
    Identity,
    ReadableKey,
    StateKey,
    check_key,
    copy_value,
    decode_value,
    default_value,
    encode_value,
    identity,
    require_same_key,
)
from keepstate.typed.layout import slot_of
from keepstate.typed.registry import Registered

V = TypeVar("V")


class StateMap:
    """Values of state keys. Inserted values are validated and copied. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._values: dict[Identity, tuple[AnyKey, Any]] = {}  # values, encoded ones if not read yet

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {sorted(key.KEY for key in self._keys())}>"

    def _keys(self) -> list[AnyKey]:
        return [key for key, _ in self._values.values()]

    def _value(self, key: AnyKey) -> Any:
        """Return the stored value itself, converted for the given definition of its key."""
        key_id = identity(key)
        known, value = self._values[key_id]
        if isinstance(value, EncodedValue):
            value = decode_value(key, value)
        elif known is not key:
            value = decode_value(key, encode_value(known, value))
        self._values[key_id] = key, value
        return value

    def contains(self, key: type[StateKey[V, Any]]) -> bool:
        """Return whether there is a value."""
        check_key(key)
        return identity(key) in self._values

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of the value, or None if there is none."""
        known = cast("AnyKey", key)
        if not self.contains(known):
            return None
        value: V = copy_value(self._value(known), f"the value of {known.KEY!r}")
        return value

    def get_mut(self, key: type[StateKey[V, Any]]) -> V | None:
        """Return the value itself, for changes in place, or None if there is none.

        Replace an immutable value, such as an int, with `insert`.
        """
        value: V | None = self._value(key) if self.contains(key) else None
        return value

    def insert(self, key: type[StateKey[V, Any]], value: V) -> None:
        """Set the value of a key.

        Raises:
            StateError: The value does not fit the key; the error names the path.
        """
        check_key(key)
        self._values[identity(key)] = key, decode_value(key, encode_value(key, value))

    def remove(self, key: type[StateKey[V, Any]]) -> V | None:
        """Remove the value and return it, or None if there was none."""
        value: V | None = self.get_mut(key)
        self._values.pop(identity(key), None)
        return value

    def get_or_insert_default(self, key: type[StateKey[V, Any]]) -> V:
        """Return the value itself, for changes in place; insert the default first if there is none."""
        if not self.contains(key):
            self._values[identity(key)] = key, default_value(key)
        value: V = self._value(key)
        return value

    def copy(self) -> StateMap:
        """Return an independent map, which shares no value with this one."""
        copy = StateMap()
        copy._values = {
            key_id: (
                key,
                value if isinstance(value, EncodedValue) else copy_value(value, f"the value of {key.KEY!r}"),
            )
            for key_id, (key, value) in self._values.items()
        }
        return copy

    def __copy__(self) -> StateMap:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> StateMap:
        return self.copy()

    def freeze(self) -> FrozenMap:
        """Return an immutable map of the same values, each encoded once."""
        return FrozenMap(
            _EncodedByKey(
                {
                    key_id: (key, value if isinstance(value, EncodedValue) else encode_value(key, value))
                    for key_id, (key, value) in self._values.items()
                }
            )
        )


class _EncodedByKey(Mapping[AnyKey, EncodedValue]):
    """Encoded values by the classes of their keys."""

    def __init__(self, values: Mapping[Identity, tuple[AnyKey, EncodedValue]]) -> None:
        self._values = values

    def __getitem__(self, key: AnyKey) -> EncodedValue:
        check_key(key)
        return self._values[identity(key)][1]

    def __iter__(self) -> Iterator[AnyKey]:
        return (key for key, _ in self._values.values())

    def __len__(self) -> int:
        return len(self._values)


class FrozenMap(StateMap):
    """An immutable map of values, free to share; each reader gets copies."""

    def __init__(self, values: Mapping[AnyKey, EncodedValue]) -> None:
        self._encoded = values

    def _keys(self) -> list[AnyKey]:
        return list(self._encoded)

    def contains(self, key: type[StateKey[V, Any]]) -> bool:
        """Return whether there is a value."""
        return key in self._encoded

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of the value, or None if there is none.

        Raises:
            StateError: The stored value no longer validates; the error names the path and the stored version.
        """
        known = cast("type[StateKey[V, Any]]", key)
        return decode_value(known, found) if (found := self._encoded.get(known)) is not None else None

    def _refuse(self, key: AnyKey, *_: object, **__: object) -> NoReturn:
        """Raise `StateError`, because a snapshot is immutable."""
        check_key(key)
        raise StateError(
            f"Key {key.KEY!r} is in a snapshot, which is immutable. Add an update to a batch, or change "
            "`ext.copy()`.",
            state_key=key.KEY,
        )

    get_mut = insert = remove = get_or_insert_default = _refuse

    def copy(self) -> StateMap:
        """Return an independent mutable map; each value is decoded on first access."""
        copy = StateMap()
        copy._values = {identity(key): (key, stored) for key, stored in self._encoded.items()}
        return copy

    def freeze(self) -> FrozenMap:
        """Return this map."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state at one revision; immutable, and cheap to share.

    Attributes:
        revision: The revision.
        ext: The values.
    """

    revision: int
    ext: StateMap

    def __post_init__(self) -> None:
        check_revision("revision", self.revision)
        require_instance("ext", self.ext, StateMap)
        object.__setattr__(self, "ext", self.ext.freeze())

    @classmethod
    def new(cls, revision: int, ext: StateMap) -> Snapshot:
        """Return a snapshot of the current values of a map."""
        return cls(revision, ext)

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value; None if it was never updated, whatever its default.

        Raises:
            StateError: The stored value no longer validates; the error names the path and the stored version.
        """
        return self.ext.get(key)


@dataclass(frozen=True, slots=True)
class Memory:
    """Values by slot at a revision, including values of unregistered keys.

    Attributes:
        revision: The revision.
        lineage: The lineage of the revision.
        slots: The values.
    """

    revision: int = 0
    lineage: str = ""
    slots: Mapping[str, EncodedValue] = field(default_factory=dict[str, EncodedValue])

    def after(self, revision: int, lineage: str, changed: Mapping[str, EncodedValue | None]) -> Memory:
        """Return the memory after a change of these slots; None removes a slot."""
        slots = {**self.slots, **{slot: stored for slot, stored in changed.items() if stored is not None}}
        for slot, stored in changed.items():
            if stored is None:
                slots.pop(slot, None)
        return Memory(revision, lineage, slots)

    def snapshot(self, registered: Mapping[str, Registered]) -> Snapshot:
        """Return a snapshot of the registered keys, in constant time."""
        return Snapshot(self.revision, FrozenMap(RegisteredValues(self.slots, registered)))


class RegisteredValues(Mapping[AnyKey, EncodedValue]):
    """The values of registered keys, by the classes of the keys.

    Raises `StateError` for another class under a registered name, because its values have another form.
    """

    def __init__(self, slots: Mapping[str, EncodedValue], registered: Mapping[str, Registered]) -> None:
        self._slots, self._registered = slots, registered

    def __getitem__(self, key: AnyKey) -> EncodedValue:
        check_key(key)
        found = self._registered.get(key.KEY)
        if found is None:
            raise KeyError(key.KEY)
        require_same_key(found.key, key)
        return self._slots[slot_of(found.scope, key.KEY)]

    def __iter__(self) -> Iterator[AnyKey]:
        return (
            each.key for each in self._registered.values() if slot_of(each.scope, each.key.KEY) in self._slots
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)
