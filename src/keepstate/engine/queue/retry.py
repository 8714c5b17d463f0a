"""Rules for another attempt after an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_delay_ms, check_duration_ms
from keepstate.errors import InvalidError

_MOST_DOUBLINGS: Final = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """The rules by which a task is tried again after its handler raised.

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
    never: tuple[type[BaseException], ...] = ()
    rules: Mapping[type[BaseException], Retry] = field(default_factory=dict[type[BaseException], Any])

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

    def pause_s(self, attempt: int, error: BaseException, spread: float) -> float | None:
        """Return the seconds until the next attempt; None if there is to be none.

        Args:
            attempt: The number of the attempt that failed, from 1.
            error: The error of that attempt.
            spread: A random number in [0, 1).
        """
        for kind, rule in self.rules.items():
            if isinstance(error, kind):
                return rule.pause_s(attempt, error, spread)
        if isinstance(error, self.never):
            return None
        growth = self.factor ** min(max(attempt - 1, 0), _MOST_DOUBLINGS)
        pause_s = min(self.first_s * growth, self.longest_s)
        return min(pause_s * (1 + self.jitter * (2 * spread - 1)), self.longest_s)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
