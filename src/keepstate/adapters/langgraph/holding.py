"""Messages as they lie in memory: whether nothing in them was replaced since, told without encoding them.

Nodes change messages in place, so that a message that is the same object may say something else. But a text,
a number and None cannot change. So messages say what they said as long as each of their attributes is the
very same text or number, and each dict and list in them holds the very same ones. C code compares a thousand
messages like that in 0.3 ms, and takes three times as long to encode them. Any other value may hide what
changes, or be replaced by one that is only equal: messages that hold such are encoded each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final, Protocol, cast

from keepstate.errors import InvalidError

_FIXED: Final = frozenset({str, int, float, bool, bytes, type(None)})
_GROUPS: Final[frozenset[type]] = frozenset({list, dict})
_ODD_IN: Final = 4
"""Of so many messages one may have to be encoded; with more of them it takes no longer to encode all."""

_attributes: Final = attrgetter("__dict__")
_extra: Final = attrgetter("__pydantic_extra__")
_values: Final[Any] = cast("Any", dict).values

Encode = Callable[[Mapping[str, Any]], bytes]


class _Inner(Sized, Iterable[Any], Protocol):
    """A list, the keys of a dict, or its values, as they are now."""


class Holding:
    """What messages hold at one time.

    Args:
        messages: The messages; all of LangChain's own classes.
        encode: Returns an encoding that no two values share.
    """

    __slots__ = ("_empty", "_encode", "_inner", "_items", "_names", "_odd", "_sizes", "_values", "kinds")

    def __init__(self, messages: Sequence[Any], encode: Encode) -> None:
        self._encode = encode
        self.kinds: list[type] = [*map(type, messages)]
        held = [*map(_attributes, messages)]
        self._names: list[str] = [*chain.from_iterable(held)]
        self._values: list[Any] = [*chain.from_iterable(map(_values, held))]
        self._inner: list[_Inner] = []
        self._items: list[Any] = []
        self._empty = [one for one in self._values if type(one) not in _FIXED]
        self._odd: dict[int, bytes] = {}
        if any(self._empty) or not _GROUPS.issuperset(map(type, self._empty)):
            self._empty = []
            for place, attributes in enumerate(held):
                if not self._look_into([one for one in attributes.values() if type(one) not in _FIXED]):
                    self._odd[place] = encode(attributes)
        self._sizes = [*map(len, self._inner)]

    def _look_into(self, groups: list[Any]) -> bool:
        """Notes what dicts and lists hold, at any depth; returns whether that is all that may change."""
        seen: set[int] = set()
        while groups:
            group = groups.pop()
            kind = _kind(group)
            if kind is not dict and kind is not list:
                return False
            if not group:
                self._empty.append(group)
            elif id(group) not in seen:
                seen.add(id(group))
                parts: list[_Inner] = [group] if kind is list else [group, group.values()]
                for part in parts:
                    items = [*part]
                    self._inner.append(part)
                    self._items += items
                    groups += [item for item in items if type(item) not in _FIXED]
        return True

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def is_slow(self) -> bool:
        """Whether to encode the messages takes no longer than to ask whether they are what they were."""
        return len(self._odd) * _ODD_IN > len(self.kinds)

    @property
    def size_bytes(self) -> int:
        """Returns how much memory it takes, about."""
        return 8 * (2 * len(self._values) + 3 * len(self._items) + len(self._empty) + len(self.kinds))

    def holds(self, messages: Sequence[Any]) -> bool:
        """Returns whether messages are what they were, none added and none gone."""
        if [*map(type, messages)] != self.kinds:
            return False
        attributes = [*map(_attributes, messages)]
        try:
            return (
                all(map(is_, chain.from_iterable(map(_values, attributes)), self._values))
                and [*chain.from_iterable(attributes)] == self._names
                and not any(map(_extra, messages))
                and not any(self._empty)
                and [*map(len, self._inner)] == self._sizes
                and all(map(is_, chain.from_iterable(self._inner), self._items))
                and all(self._encode(attributes[place]) == was for place, was in self._odd.items())
            )
        except (InvalidError, RuntimeError):  # something that is not stored, or that changes just now
            return False

    def followed(self, more: Holding) -> Holding:
        """Returns what these messages hold and others behind them."""
        both = Holding((), self._encode)
        both.kinds = self.kinds + more.kinds
        both._names, both._values = self._names + more._names, self._values + more._values
        both._inner, both._items = self._inner + more._inner, self._items + more._items
        both._sizes, both._empty = self._sizes + more._sizes, self._empty + more._empty
        both._odd = self._odd | {len(self) + place: was for place, was in more._odd.items()}
        return both


def _kind(value: object) -> Any:
    return type(value)
