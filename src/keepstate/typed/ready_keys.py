"""Ready-made keys: `class Visits(CounterKey): KEY = "visits"` is a complete definition."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, cast

from keepstate.errors import StateError
from keepstate.typed.key import MergeStrategy, StateKey

V = TypeVar("V")
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


class RegisterKey(StateKey[V, V], Generic[V]):
    """A value that each update replaces; exclusive."""

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
        return value + _check_type(cls, update, int)


class ListKey(StateKey[list[Item], list[Item]], Generic[Item]):
    """A list that updates append items to, in the order in which they are applied.

    For short lists, because an update reads and writes the whole list. Use a stream of events for unbounded
    data.
    """

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: list[Item], update: list[Item]) -> list[Item]:
        """Return the list with the items appended."""
        return [*value, *_check_type(cls, update, list)]


class SetKey(StateKey[set[Item], set[Item]], Generic[Item]):
    """A set that updates add members to. It only grows, so the order of updates does not matter."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: set[Item], update: set[Item]) -> set[Item]:
        """Return the union."""
        return value | _check_type(cls, update, set, frozenset)

    @classmethod
    def encode(cls, value: set[Item]) -> Any:
        """Return the members in a canonical order, so that equal sets are stored as equal bytes."""
        return sorted(super().encode(value), key=repr)


class MapKey(StateKey[dict[str, V], dict[str, V]], Generic[V]):
    """A dict that updates put items into. If two updates put the same name, the one applied last wins."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: dict[str, V], update: dict[str, V]) -> dict[str, V]:
        """Return the dict with the items of the update."""
        return {**value, **_check_type(cls, update, dict)}


class MaximumKey(StateKey[Number | None, Number], Generic[Number]):
    """The highest number of all updates; None before the first."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: Number | None, update: Number) -> Number | None:
        """Return the higher of both.

        Raises:
            StateError: The update is not a number, or is NaN, which has no order.
        """
        _check_type(cls, update, int, float)
        if update != update:  # only NaN differs from itself
            raise StateError(f"Key {cls.KEY!r} got the update NaN. Pass a number.", state_key=cls.KEY)
        return update if value is None else max(value, update)


def _check_type(key: type[StateKey[Any, Any]], update: V, *kinds: type) -> V:
    given: Any = update
    if not isinstance(given, kinds):
        wanted = "number" if float in kinds else kinds[0].__name__
        article = "an" if wanted == "int" else "a"
        raise StateError(
            f"Key {key.KEY!r} got the update {given!r}. Pass {article} {wanted}.",
            state_key=key.KEY,
        )
    return cast("V", given)
