"""How much a manager keeps, and who wants to hear when it is much."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from keepstate.engine.space.size import SpaceSize
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError
from keepstate.managers.callbacks import tell
from keepstate.values import limits

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ManagerSize:
    """How much there is.

    Attributes:
        spaces: How many spaces it is in.
        entries: How many entries they have, those of history included.
        size_bytes: Of their keys and values as they are stored; what the store itself needs comes on top.
    """

    spaces: int
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SizeAlert:
    """More is kept than somebody wanted.

    Attributes:
        reason: Whether it is over the limit, or has grown too fast.
        size: How much there is.
        growth_bytes: How much came within the last hour, as far as it was measured.
    """

    reason: Literal["limit", "growth"]
    size: ManagerSize
    growth_bytes: int


AlertCallback = Callable[[SizeAlert], Awaitable[Any] | Any]


class Measured:
    """What spaces held when they were last measured, and at which revision."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, SpaceSize]] = {}

    async def measure(self, spaces: Sequence[Space]) -> ManagerSize:
        """Return how much spaces hold altogether; reads those that have changed."""
        sizes: dict[str, tuple[int, SpaceSize]] = {}
        for space in spaces:
            revision, known = await space.revision(), self._known.get(space.name)
            is_same = known is not None and known[0] == revision
            sizes[space.name] = known if is_same and known else (revision, await space.size())
        self._known = sizes
        found = [size for _, size in sizes.values()]
        return ManagerSize(
            len(found), sum(size.entries for size in found), sum(size.size_bytes for size in found)
        )


class SizeAlerts:
    """Those who want to hear, and what was measured within the last hour."""

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []
        self._measured: deque[tuple[float, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def add(self, limit_bytes: int | None, growth_per_hour: int | None, callback: AlertCallback) -> None:
        """Let somebody hear from now on.

        Raises:
            InvalidError: Neither a limit nor a growth is given, or one is no number of bytes.
        """
        if limit_bytes is None and growth_per_hour is None:
            raise InvalidError("an alert needs `limit_bytes` or `growth_per_hour`, in bytes")
        for name, number in (("limit_bytes", limit_bytes), ("growth_per_hour", growth_per_hour)):
            if number is not None and (type(number) is not int or number < 1):
                raise InvalidError(f"`{name}` is {number!r}; it is a number of bytes, 1 or more")
        self._wanted += [
            _Wanted(reason, bound, callback)
            for reason, bound in (("limit", limit_bytes), ("growth", growth_per_hour))
            if bound is not None
        ]

    async def tell(self, size: ManagerSize, now_s: float) -> None:
        """Call those whose bound is passed now, and was not when it was last measured."""
        while self._measured and self._measured[0][0] < now_s - _HOUR_S:
            self._measured.popleft()
        lowest = min((seen for _, seen in self._measured), default=size.size_bytes)
        growth = max(0, size.size_bytes - lowest)
        self._measured.append((now_s, size.size_bytes))
        for wanted in self._wanted:
            is_over = (size.size_bytes if wanted.reason == "limit" else growth) > wanted.bound
            was_over, wanted.is_over = wanted.is_over, is_over
            if is_over and not was_over:
                await tell(wanted.callback, SizeAlert(wanted.reason, size, growth), of="size alert")


class _Wanted:
    def __init__(self, reason: str, bound: int, callback: AlertCallback) -> None:
        self.reason: Literal["limit", "growth"] = "limit" if reason == "limit" else "growth"
        self.bound, self.callback, self.is_over = bound, callback, False


def admit_interval(name: str, seconds: Any) -> float:
    """Return a number of seconds that may be 0."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= limits.TTL_MS / 1000:
        raise InvalidError(f"`{name}` is {seconds!r}; it is 0 seconds or more")
    return float(seconds)
