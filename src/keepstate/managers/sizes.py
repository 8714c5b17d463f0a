"""Sizes of managers' data, and alerts on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from keepstate.engine.space.space import Space, SpaceSize
from keepstate.errors import InvalidError
from keepstate.managers.callbacks import invoke_callback

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ManagerSize:
    """Amount of stored data.

    Attributes:
        spaces: Number of spaces.
        entries: Number of entries in them, including history.
        size_bytes: Size of keys and values as stored, without the overhead of the store.
    """

    spaces: int
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SizeAlert:
    """An alert that a size exceeds a bound.

    Attributes:
        reason: `limit` for the total size, `growth` for the growth within an hour.
        size: The measured size.
        growth_bytes: Growth within the last hour, as far as it was measured.
    """

    reason: Literal["limit", "growth"]
    size: ManagerSize
    growth_bytes: int


AlertCallback = Callable[[SizeAlert], Awaitable[Any] | Any]


class SizeCache:
    """Sizes of spaces from the last measurement, each with its revision."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, SpaceSize]] = {}

    async def measure(self, spaces: Sequence[Space]) -> ManagerSize:
        """Return the total size of spaces. Reads those that changed since the last measurement."""
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
    """Registered alerts, and the measurements of the last hour."""

    def __init__(self) -> None:
        self._wanted: list[_Alert] = []
        self._measured: deque[tuple[float, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def add(self, limit_bytes: int | None, growth_per_hour: int | None, callback: AlertCallback) -> None:
        """Register an alert.

        Raises:
            InvalidError: Neither a limit nor a growth is given, or a bound is not a number of bytes.
        """
        if limit_bytes is None and growth_per_hour is None:
            raise InvalidError("an alert needs a bound. Pass `limit_bytes` or `growth_per_hour`, in bytes.")
        for name, number in (("limit_bytes", limit_bytes), ("growth_per_hour", growth_per_hour)):
            if number is not None and (type(number) is not int or number < 1):
                raise InvalidError(f"`{name}` is {number!r}. Pass a number of bytes, 1 or more.")
        self._wanted += [
            _Alert(reason, bound, callback)
            for reason, bound in (("limit", limit_bytes), ("growth", growth_per_hour))
            if bound is not None
        ]

    async def notify(self, size: ManagerSize, now_s: float) -> None:
        """Call the alerts whose bound is exceeded now and was not in the last measurement."""
        while self._measured and self._measured[0][0] < now_s - _HOUR_S:
            self._measured.popleft()
        lowest = min((seen for _, seen in self._measured), default=size.size_bytes)
        growth = max(0, size.size_bytes - lowest)
        self._measured.append((now_s, size.size_bytes))
        for wanted in self._wanted:
            is_over = (size.size_bytes if wanted.reason == "limit" else growth) > wanted.bound
            was_over, wanted.is_over = wanted.is_over, is_over
            if is_over and not was_over:
                await invoke_callback(
                    wanted.callback, SizeAlert(wanted.reason, size, growth), of="size alert"
                )


class _Alert:
    def __init__(self, reason: str, bound: int, callback: AlertCallback) -> None:
        self.reason: Literal["limit", "growth"] = "limit" if reason == "limit" else "growth"
        self.bound, self.callback, self.is_over = bound, callback, False
