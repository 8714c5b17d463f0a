"""Which versions have been read, by whom: tasks that share one object do not share what they know.

A context belongs to one task or thread; one that is started inside another begins with what that knows. Who
reads in a task made for just that, as `asyncio.wait_for` does, goes by what anybody has read, until it
writes: from then on such tasks tell it what they read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from weakref import ref


@dataclass(slots=True)
class _Note:
    """A version, and whether tasks that are started from here tell what they read."""

    version: int
    is_told: bool = False


_Versions = Mapping[tuple[str, str], _Note]
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
        own = self._own()
        before = own.get((owner, key))
        if before is None:
            self._shared[owner, key] = version
        elif before.is_told:
            before.version = version
        self._note({**own, (owner, key): _Note(version)})

    def expected(self, owner: str, key: str) -> int | None:
        """Returns the version that was read here last, or None if none was."""
        noted = self._own().get((owner, key))
        return self._shared.get((owner, key)) if noted is None else noted.version

    def wrote(self, owner: str, key: str, version: int) -> None:
        """Notes what was written over what was read; others have not read that."""
        place, own = (owner, key), self._own()
        if place in own or place in self._shared:
            is_told = own[place].is_told if place in own else True
            self._note({**own, place: _Note(version, is_told)})

    def refused(self, owner: str, key: str) -> None:
        """Notes that what was read is not what is there: it is to be read again from here."""
        place, own = (owner, key), self._own()
        if place not in own and place in self._shared:
            self._note({**own, place: _Note(self._shared[place], is_told=True)})

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
