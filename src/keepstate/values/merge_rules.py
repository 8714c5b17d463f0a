"""Merge rules: the handling of a value that two sides changed differently, by path.

A rule applies to its path and everything below without a rule of its own. It is consulted at the deepest path
at which the sides have different changes. `counter` is also consulted for equal changes, because two steps of
one are a step of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any, Final, Literal, TypeAlias

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.diff import Path, Step
from keepstate.values.missing import MISSING

RuleName: TypeAlias = Literal[
    "refuse", "ours", "theirs", "counter", "maximum", "minimum", "append", "union", "last_writer"
]
Rule: TypeAlias = RuleName | Callable[[Any, Any, Any], Any]
"""A name, or a function of base, ours and theirs to the merged value; `MISSING` is nothing, on either way."""
Pattern: TypeAlias = tuple[Step | None, ...]
"""A path; None stands for any one step."""


class MergeConflict(msgspec.Struct, frozen=True):
    """A conflict that no rule decided: the encodings of the three sides, None for an absent value.

    In a list it has the index in `ours`, and the lists of the conflicting items.
    """

    path: Path
    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    reason: str


class Rules:
    """The rules of one merge.

    Args:
        rules: Rules by pattern; `()` is the default rule, `refuse` if not given.
        ours_is_later: Whether `last_writer` takes `ours`.

    Raises:
        InvalidError: A rule name is unknown.
    """

    def __init__(self, rules: Mapping[Pattern, Rule], *, ours_is_later: bool = True) -> None:
        for rule in rules.values():
            if not callable(rule) and rule not in _NAMES:
                names = ", ".join(_NAMES)
                raise InvalidError(f"the merge rule {rule!r} is none; give a function or one of {names}")
        self._rules = dict(rules)
        self._ours_is_later = ours_is_later
        self._counts = any(rule == "counter" for rule in rules.values())

    def at(self, path: Path) -> Rule:
        """Return the rule of the longest pattern that is a prefix of the path.

        Of equally long patterns, one with a given step wins over one with any step.
        """
        fitting = [pattern for pattern in self._rules if _fits(pattern, path)]
        if not fitting:
            return "refuse"
        return self._rules[max(fitting, key=lambda pattern: (len(pattern), [s is not None for s in pattern]))]

    def count_below(self, path: Path) -> bool:
        """Return whether a counter may be at a path or below, so that equal changes still add up."""
        return self._counts and (
            self.at(path) == "counter"
            or any(
                rule == "counter" and len(pattern) > len(path) and _fits(pattern[: len(path)], path)
                for pattern, rule in self._rules.items()
            )
        )

    def side(self, rule: Rule) -> Literal["ours", "theirs"] | None:
        """Return the side that a rule always takes, or None."""
        if rule == "last_writer":
            return "ours" if self._ours_is_later else "theirs"
        if callable(rule):
            return None
        return rule if rule == "ours" or rule == "theirs" else None


def decide(rule: Rule, base: Any, ours: Any, theirs: Any) -> Any:
    """Return the merged value.

    Raises:
        InvalidError: The rule does not apply to these values; the error says why.
    """
    if callable(rule):
        return rule(base, ours, theirs)
    if rule not in _DECIDED:
        raise InvalidError("both sides changed it")
    return _DECIDED[rule](base, ours, theirs)


def _counter(base: Any, ours: Any, theirs: Any) -> Any:
    # One side took the counter away: there is nothing left to count on.
    numbers = [0 if base is MISSING else base, ours, theirs]
    if any(isinstance(number, bool) or not isinstance(number, Number) for number in numbers):
        raise InvalidError("a counter must be a number on both sides")
    try:
        return ours + theirs - numbers[0]
    except TypeError as error:
        raise InvalidError(f"the sides count in different types: {error}") from error


def _most(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def decided(base: Any, ours: Any, theirs: Any) -> Any:
        if ours is MISSING or theirs is MISSING:
            raise InvalidError("one side removed it")
        try:
            return choose(ours, theirs)
        except TypeError as error:
            raise InvalidError(f"the sides cannot be compared: {error}") from error

    return decided


def _union(base: Any, ours: Any, theirs: Any) -> Any:
    """Return the items of either side, without those that either side removed."""
    before: Any = frozenset[Any]() if base is MISSING else base
    if not all(isinstance(members, set | frozenset) for members in (before, ours, theirs)):
        raise InvalidError("a union needs sets or lists on both sides")
    return type(ours)((ours | theirs) - ((before - ours) | (before - theirs)))


_DECIDED: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "counter": _counter,
    "maximum": _most(max),
    "minimum": _most(min),
    "union": _union,
}
_NAMES: Final = (
    "refuse",
    "ours",
    "theirs",
    "counter",
    "maximum",
    "minimum",
    "append",
    "union",
    "last_writer",
)


def _fits(pattern: Pattern, path: Path) -> bool:
    return len(pattern) <= len(path) and all(
        wanted is None or wanted == step for wanted, step in zip(pattern, path, strict=False)
    )
