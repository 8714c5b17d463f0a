"""The spaces of a store in memory, by name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TypeVar

from keepstate.stores.space_state import SpaceState

S = TypeVar("S", bound=SpaceState)


class SpaceTable(dict[str, S]):
    """Spaces by name. None is ever removed, so the names are sorted once and not for each page."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        """The names at the last listing, sorted."""

    def page(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """Return the names of spaces that are not empty, in the order of their UTF-8 bytes."""
        if len(self._names) != len(self):
            names = [*self._names, *islice(self, len(self._names), None)]  # the new ones come last in a dict
            names.sort()
            self._names = names  # at once, so that an interrupt does no harm
        names = self._names
        start = bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect_right(names, after))
        found: list[str] = []
        for index in range(start, len(names)):
            name = names[index]
            if len(found) == limit or not name.startswith(prefix):
                break
            if self[name].exists:
                found.append(name)
        return found
