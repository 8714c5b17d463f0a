"""Messages as they lie in memory: whether nothing in them was replaced since, told without encoding them.

Nodes change messages in place, so that a message that is the same object may say something else. But a text,
a number and None cannot change. So messages say what they said as long as each of their attributes is the
very same text or number, and each dict and list in them holds the very same ones. C code compares a thousand
messages like that in 0.2 ms, and takes several times as long to encode them. Any other value may hide what
changes, or be replaced by one that is only equal: messages that hold such are encoded each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from gc import get_referents
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from keepstate.adapters.langgraph.identities import identities
from keepstate.errors import InvalidError

_FIXED: Final = frozenset({str, int, float, bool, bytes, type(None)})
_GROUPS: Final[frozenset[type]] = frozenset({list, dict})
_ODD_IN: Final = 4
"""Of so many messages one may have to be encoded; with more of them it takes no longer to encode all."""

_GROUP_BYTES: Final = 256
"""A dict or list, about."""

_attributes: Final = attrgetter("__dict__")
_extra: Final = attrgetter("__pydantic_extra__")

Tell: TypeAlias = Callable[[Any], bytes]


def attributes_of(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return copies of the messages' attributes; dicts and list in them are the very same."""
    return [*map(dict, map(_attributes, messages))]


class Holding:
    """What messages hold at one time.

    Python is asked what objects refer to, as its garbage collector asks: a message to its class, its
    attributes and its extra ones, which are dicts; a dict to its values. What was referred to is kept, so
    that nothing else can take its address. For CPython (`identities.ARE_TOLD`).

    Args:
        messages: The messages; all of LangChain's own classes, without extra attributes.
        attributes: Copies of their attributes, of which all is told that is told of the messages: these may
            be changed meanwhile, and back again.
        tell: Returns an encoding that no two messages share.
    """

    __slots__ = (
        *("_dicts", "_empty", "_groups", "_names", "_named", "_odd", "_own", "_sizes", "_tell"),
        *("_valued", "_values", "kinds"),
    )

    def __init__(self, messages: Sequence[Any], attributes: Sequence[dict[str, Any]], tell: Tell) -> None:
        self._tell = tell
        self.kinds: list[type] = [*map(type, messages)]
        self._empty: list[Any] = [*map(_extra, messages)]
        self._dicts: list[dict[Any, Any]] = [*map(_attributes, messages)]
        self._groups: list[dict[Any, Any] | list[Any]] = [*self._dicts]
        self._odd: list[tuple[Any, bytes]] = []
        inner = [one for one in get_referents(*attributes) if type(one) not in _FIXED]
        if _GROUPS.issuperset(map(type, inner)) and not any(inner):
            self._empty += inner
        else:
            for message, held in zip(messages, attributes, strict=True):
                if not self._look_into([one for one in held.values() if type(one) not in _FIXED]):
                    self._odd.append((message, tell(message)))
        count = len(messages)
        self._sizes = [*map(len, attributes), *map(len, self._groups[count:])]
        self._names = [*chain.from_iterable(attributes), *chain.from_iterable(self._dicts[count:])]
        self._values = get_referents(*attributes, *self._groups[count:])
        self._own = identities(get_referents(*messages))
        self._named = identities(self._names)
        self._valued = identities(self._values)

    def _look_into(self, groups: list[Any]) -> bool:
        """Note dicts and list, at any depth; returns whether nothing else is there that may change."""
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
                self._groups.append(group)
                if kind is dict:
                    self._dicts.append(group)
                    groups += [one for one in group if type(one) not in _FIXED]
                items: Any = group.values() if kind is dict else group
                groups += [one for one in items if type(one) not in _FIXED]
        return True

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def is_odd(self) -> bool:
        """Whether a message holds what may change and is neither a list nor a dict."""
        return bool(self._odd)

    @property
    def is_slow(self) -> bool:
        """Whether to encode the messages takes no longer than to ask whether they are what they were."""
        return len(self._odd) * _ODD_IN > len(self.kinds)

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes, about, but for the texts that it keeps."""
        kept = len(self._values) + len(self._names)
        return 16 * kept + _GROUP_BYTES * (len(self._groups) + len(self._empty))

    def holds(self, messages: Sequence[Any]) -> bool:
        """Return whether messages are what they were, none added and none gone."""
        try:
            return (
                identities(get_referents(*messages)) == self._own
                and identities(get_referents(*self._groups)) == self._valued
                and identities([*chain.from_iterable(self._dicts)]) == self._named
                and [*map(len, self._groups)] == self._sizes
                and not any(self._empty)
                and all(self._tell(message) == was for message, was in self._odd)
            )
        except (InvalidError, RuntimeError):  # something that is not stored, or that changes just now
            return False

    def followed(self, more: Holding) -> Holding:
        """Return what these messages hold and others behind them."""
        both = Holding.__new__(Holding)
        both._tell = self._tell
        both.kinds, both._empty = self.kinds + more.kinds, self._empty + more._empty
        both._dicts, both._groups = self._dicts + more._dicts, self._groups + more._groups
        both._odd, both._sizes = self._odd + more._odd, self._sizes + more._sizes
        both._names, both._values = self._names + more._names, self._values + more._values
        both._own, both._named = self._own + more._own, self._named + more._named
        both._valued = self._valued + more._valued
        return both


def _kind(value: object) -> Any:
    return type(value)
