"""Rules for another attempt after an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from keepstate.engine.kernel.arguments import check_delay_ms, check_duration_ms, check_name
from keepstate.errors import InvalidError

_MOST_DOUBLINGS: Final = 64
ErrorClass: TypeAlias = type[BaseException] | str
"""A class of errors, or its name: `ValueError` for a builtin one, otherwise `module.Class`."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The rules by which a task is tried again after its handler raised.

    A class of errors is given itself or by its name, such as `"ValueError"` or `"app.errors.RefusedError"`. A
    name fits the errors of the class and of its subclasses, also in a process that cannot import it.

    Attributes:
        first_s: Seconds until the second attempt.
        factor: The factor by which each later pause is longer than the one before; 1 or more.
        longest_s: Seconds of the longest pause.
        jitter: The share by which a pause is longer or shorter by chance; 0 to 1.
        never: Classes of errors after which the task is dead at once.
        rules: Other rules for some classes of errors; the first class that fits counts.
    """

    first_s: float = 1
    factor: float = 2
    longest_s: float = 300
    jitter: float = 0.1
    never: tuple[ErrorClass, ...] = ()
    rules: Mapping[ErrorClass, Retry] = field(default_factory=dict[ErrorClass, Any])

    def __post_init__(self) -> None:
        check_delay_ms("first_s", self.first_s)
        check_duration_ms("longest_s", self.longest_s)
        for name, number, least, most in (("factor", self.factor, 1, 1000), ("jitter", self.jitter, 0, 1)):
            if type(number) not in (int, float) or not least <= number <= most:
                raise InvalidError(f"`{name}` is {number!r}; it must be {least} to {most}")
        given: Any = self.never
        if not isinstance(given, tuple) or not all(map(_is_error, self.never)):
            raise InvalidError(f"`never` is {self.never!r}; give a tuple of classes of errors")
        rules: Any = self.rules
        is_fit = isinstance(rules, Mapping)
        pairs: list[tuple[Any, Any]] = [*rules.items()] if is_fit else []
        if not is_fit or not all(_is_error(kind) and isinstance(rule, Retry) for kind, rule in pairs):
            raise InvalidError(f"`rules` is {self.rules!r}; give a dict of classes of errors and Retry")

    def pause_s(self, attempt: int, error: object, spread: float) -> float | None:
        """Return the seconds until the next attempt; None if there is to be none.

        Args:
            attempt: The number of the attempt that failed, from 1.
            error: The error of that attempt. A text is of no class.
            spread: A random number in [0, 1).
        """
        for kind, rule in self.rules.items():
            if _fits(error, kind):
                return rule.pause_s(attempt, error, spread)
        if any(_fits(error, kind) for kind in self.never):
            return None
        growth = self.factor ** min(max(attempt - 1, 0), _MOST_DOUBLINGS)
        pause_s = min(self.first_s * growth, self.longest_s)
        return min(pause_s * (1 + self.jitter * (2 * spread - 1)), self.longest_s)


def name_of(kind: ErrorClass) -> str:
    """Return the name of a class of errors."""
    if isinstance(kind, str):
        return kind
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _fits(error: object, kind: ErrorClass) -> bool:
    if not isinstance(kind, str):
        return isinstance(error, kind)
    return isinstance(error, BaseException) and any(name_of(each) == kind for each in type(error).__mro__)


def _is_error(kind: object) -> bool:
    if isinstance(kind, str):
        return bool(check_name("the name of a class of errors", kind))
    return isinstance(kind, type) and issubclass(kind, BaseException)
