"""Values by key: a map to work with, and the frozen one in a snapshot. Definitions of one key are one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from keepstate.engine.kernel.arguments import check_revision, require_instance
from keepstate.errors import StateError
from keepstate.typed.encoded_value import Kept, copied, fresh, kept, value_of
from keepstate.typed.key import AnyKey, Identity, ReadableKey, StateKey, admit_key, identity

V = TypeVar("V")


class StateMap:
    """Values of state keys. What is inserted is validated and copied; one map is for one thread."""

    def __init__(self) -> None:
        self._values: dict[Identity, tuple[AnyKey, Any]] = {}  # values, or what is kept and was not read yet

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {sorted(key.KEY for key in self._keys())}>"

    def _keys(self) -> list[AnyKey]:
        return [key for key, _ in self._values.values()]

    def _value(self, key: AnyKey) -> Any:
        """Return the value itself, as the given definition of its key has it."""
        place = identity(key)
        known, value = self._values[place]
        if isinstance(value, Kept):
            value = value_of(key, value)
        elif known is not key:
            value = value_of(key, kept(known, value))
        self._values[place] = key, value
        return value

    def contains(self, key: type[StateKey[V, Any]]) -> bool:
        """Return whether there is a value."""
        admit_key(key)
        return identity(key) in self._values

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of the value, or None if there is none."""
        known = cast("AnyKey", key)
        if not self.contains(known):
            return None
        value: V = copied(self._value(known), f"the value of {known.KEY!r}")
        return value

    def get_mut(self, key: type[StateKey[V, Any]]) -> V | None:
        """Return the value itself, to be changed in place, or None if there is none.

        One that cannot be changed in place, such as an int, is replaced by `insert`.
        """
        value: V | None = self._value(key) if self.contains(key) else None
        return value

    def insert(self, key: type[StateKey[V, Any]], value: V) -> None:
        """Put a value in place of what is there.

        Raises:
            StateError: It is no value of the key; names the path.
        """
        admit_key(key)
        self._values[identity(key)] = key, value_of(key, kept(key, value))

    def remove(self, key: type[StateKey[V, Any]]) -> V | None:
        """Take the value out and return it, or None if there was none."""
        value: V | None = self.get_mut(key)
        self._values.pop(identity(key), None)
        return value

    def get_or_insert_default(self, key: type[StateKey[V, Any]]) -> V:
        """Return the value itself, to be changed in place; a key without one gets its default first."""
        if not self.contains(key):
            self._values[identity(key)] = key, fresh(key)
        value: V = self._value(key)
        return value

    def copy(self) -> StateMap:
        """Return a map of its own, which shares no value with this one."""
        copy = StateMap()
        copy._values = {
            place: (key, value if isinstance(value, Kept) else copied(value, f"the value of {key.KEY!r}"))
            for place, (key, value) in self._values.items()
        }
        return copy

    def __copy__(self) -> StateMap:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> StateMap:
        return self.copy()

    def freeze(self) -> FrozenMap:
        """Return the same values, never to be changed; each is encoded once."""
        return FrozenMap(
            _KeptByKey(
                {
                    place: (key, value if isinstance(value, Kept) else kept(key, value))
                    for place, (key, value) in self._values.items()
                }
            )
        )


class _KeptByKey(Mapping[AnyKey, Kept]):
    """What is kept, by the classes of keys."""

    def __init__(self, values: Mapping[Identity, tuple[AnyKey, Kept]]) -> None:
        self._values = values

    def __getitem__(self, key: AnyKey) -> Kept:
        admit_key(key)
        return self._values[identity(key)][1]

    def __iter__(self) -> Iterator[AnyKey]:
        return (key for key, _ in self._values.values())

    def __len__(self) -> int:
        return len(self._values)


class FrozenMap(StateMap):
    """Values that stay as they are; each reader gets copies. It costs nothing to share."""

    def __init__(self, values: Mapping[AnyKey, Kept]) -> None:
        self._kept = values

    def _keys(self) -> list[AnyKey]:
        return list(self._kept)

    def contains(self, key: type[StateKey[V, Any]]) -> bool:
        """Return whether there is a value."""
        return key in self._kept

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of the value, or None if there is none.

        Raises:
            StateError: What was stored no longer validates; names the path and the stored version.
        """
        known = cast("type[StateKey[V, Any]]", key)
        return value_of(known, found) if (found := self._kept.get(known)) is not None else None

    def get_mut(self, key: type[StateKey[V, Any]]) -> NoReturn:
        """Raise: a snapshot is never changed."""
        raise _frozen(key)

    def insert(self, key: type[StateKey[V, Any]], value: V) -> NoReturn:
        """Raise: a snapshot is never changed."""
        raise _frozen(key)

    def remove(self, key: type[StateKey[V, Any]]) -> NoReturn:
        """Raise: a snapshot is never changed."""
        raise _frozen(key)

    def get_or_insert_default(self, key: type[StateKey[V, Any]]) -> NoReturn:
        """Raise: a snapshot is never changed."""
        raise _frozen(key)

    def copy(self) -> StateMap:
        """Return a map of its own that can be changed; each value is read when it is asked for."""
        copy = StateMap()
        copy._values = {identity(key): (key, stored) for key, stored in self._kept.items()}
        return copy

    def freeze(self) -> FrozenMap:
        """Return itself."""
        return self


def _frozen(key: AnyKey) -> StateError:
    admit_key(key)
    return StateError(
        f"{key.KEY!r} is in a snapshot, which is never changed; give an update to a batch, or change "
        "`ext.copy()`",
        state_key=key.KEY,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state as it was at one revision; immutable, and cheap to share.

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
        """Return a snapshot of what the map holds now."""
        return cls(revision, ext)

    def get(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value; None if it was never touched, whatever its default.

        Raises:
            StateError: What was stored no longer validates; names the path and the stored version.
        """
        return self.ext.get(key)
