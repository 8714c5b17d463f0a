"""What becomes of a value that two sides changed to different ones: rules by path, and what each does.

A rule stands at a path and holds for all below it that has no rule of its own. It is asked at the deepest
path at which both sides changed to different values; `counter` also where both changed to the same: two steps
of one are a step of two.
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
    """Where two sides cannot both have their way: the encodings there, None for nothing.

    Of a list it is the place in ours, and the lists of the items that stand against each other.
    """

    path: Path
    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    reason: str


class Rules:
    """The rules of one merge.

    Args:
        rules: By pattern; `()` is for what no other holds for, `refuse` if not given.
        ours_is_later: What `last_writer` goes by.

    Raises:
        InvalidError: A rule has no such name.
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
        """Return the rule with the longest pattern that the path begins with; a step before any step."""
        fitting = [pattern for pattern in self._rules if _fits(pattern, path)]
        if not fitting:
            return "refuse"
        return self._rules[max(fitting, key=lambda pattern: (len(pattern), [s is not None for s in pattern]))]

    def count_below(self, path: Path) -> bool:
        """Whether a counter may be at a path or below: then equal changes are no agreement."""
        return self._counts and (
            self.at(path) == "counter"
            or any(
                rule == "counter" and len(pattern) > len(path) and _fits(pattern[: len(path)], path)
                for pattern, rule in self._rules.items()
            )
        )

    def side(self, rule: Rule) -> Literal["ours", "theirs"] | None:
        """Return the side that a rule takes whatever the values are, if it does."""
        if rule == "last_writer":
            return "ours" if self._ours_is_later else "theirs"
        if callable(rule):
            return None
        return rule if rule == "ours" or rule == "theirs" else None


def decide(rule: Rule, base: Any, ours: Any, theirs: Any) -> Any:
    """Return the merged value.

    Raises:
        InvalidError: The rule cannot be kept with such values; says why.
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
    """Return what either side has, without what either removed."""
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
