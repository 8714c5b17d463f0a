"""Ready-made keys: `class Visits(CounterKey): KEY = "visits"` is all that an application writes."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, cast

from keepstate.errors import StateError
from keepstate.typed.key import MergeStrategy, StateKey

V = TypeVar("V")
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


class RegisterKey(StateKey[V, V], Generic[V]):
    """One value, replaced by each update; exclusive."""

    @classmethod
    def apply(cls, value: V, update: V) -> V:
        """Return the update."""
        return update


class CounterKey(StateKey[int, int]):
    """A number that updates add to."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        """Return the sum."""
        return value + _admitted(cls, update, int)


class ListKey(StateKey[list[Item], list[Item]], Generic[Item]):
    """A list that updates append items to: all of them are kept, in the order in which they were applied.

    For short lists: an update reads and writes all of it. What grows without end is a stream of events.
    """

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: list[Item], update: list[Item]) -> list[Item]:
        """Return the list with the items at its end."""
        return [*value, *_admitted(cls, update, list)]


class SetKey(StateKey[set[Item], set[Item]], Generic[Item]):
    """A set that updates add members to; it only grows, so that any order gives the same."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: set[Item], update: set[Item]) -> set[Item]:
        """Return the union."""
        return value | _admitted(cls, update, set, frozenset)

    @classmethod
    def encode(cls, value: set[Item]) -> Any:
        """Return the members in an order of their own, so that equal sets are stored as equal bytes."""
        return sorted(super().encode(value), key=repr)


class MapKey(StateKey[dict[str, V], dict[str, V]], Generic[V]):
    """A dict that updates put items into. Of two that put the same name, the one applied last stands."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: dict[str, V], update: dict[str, V]) -> dict[str, V]:
        """Return the dict with the items of the update."""
        return {**value, **_admitted(cls, update, dict)}


class MaximumKey(StateKey[Number | None, Number], Generic[Number]):
    """The highest number that any update gave; None before the first."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: Number | None, update: Number) -> Number | None:
        """Return the higher of both.

        Raises:
            StateError: The update is no number, or NaN, which is neither higher nor lower than another.
        """
        _admitted(cls, update, int, float)
        if update != update:  # NaN alone is not itself
            raise StateError(f"{cls.KEY!r} is updated with NaN; give a number", state_key=cls.KEY)
        return update if value is None else max(value, update)


def _admitted(key: type[StateKey[Any, Any]], update: V, *kinds: type) -> V:
    given: Any = update
    if not isinstance(given, kinds):
        wanted = "number" if float in kinds else kinds[0].__name__
        article = "an" if wanted == "int" else "a"
        raise StateError(f"{key.KEY!r} is updated with {given!r}; give {article} {wanted}", state_key=key.KEY)
    return cast("V", given)
