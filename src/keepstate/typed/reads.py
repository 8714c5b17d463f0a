"""Which versions have been read, by whom: tasks that share one object do not share what they know.

A context belongs to one task or thread; one that is started inside another begins with what that knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from weakref import ref

_Versions = Mapping[tuple[str, str], int]
_NONE: _Versions = MappingProxyType({})

_known: ContextVar[Mapping[ref[Reads], _Versions]] = ContextVar(
    "keepstate_reads", default=MappingProxyType({})
)


class Reads:
    """The versions that are known of some values."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str], int] = {}  # for who reads in a task made for just that

    def read(self, owner: str, key: str, version: int) -> None:
        """Notes what was read."""
        self._note({**self._own(), (owner, key): version})
        self._shared[owner, key] = version

    def expected(self, owner: str, key: str) -> int | None:
        """Returns the version that was read here last, or None if none was."""
        return self._own().get((owner, key), self._shared.get((owner, key)))

    def wrote(self, owner: str, key: str, version: int) -> None:
        """Notes what was written over what was read."""
        place = owner, key
        if place in self._own():
            self._note({**self._own(), place: version})
        elif place in self._shared:
            self._shared[place] = version

    def forget(self, owner: str, key: str | None = None) -> None:
        """Forgets one value, or all of an owner."""
        own = self._own()
        for place in {*own, *self._shared}:
            if place[0] == owner and key in (None, place[1]):
                self._shared.pop(place, None)
        self._note(
            {place: known for place, known in own.items() if place[0] != owner or key not in (None, place[1])}
        )

    def _own(self) -> _Versions:
        return _known.get().get(ref(self), _NONE)

    def _note(self, versions: _Versions) -> None:
        others = {who: known for who, known in _known.get().items() if who() is not None}
        _known.set(MappingProxyType({**others, ref(self): versions}))
