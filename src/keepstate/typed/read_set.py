"""Which versions have been read, by whom: tasks that share one object do not share what they know.

A context belongs to one task or thread; one that is started inside another begins with what that knows. Who
reads in a task made for just that, as `asyncio.wait_for` does, goes by what anybody has read, until it
writes: from then on such tasks tell it what they read.

What was read long ago is forgotten, so that a server that reads for ever does not grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final
from weakref import ref

from keepstate._runner import Lock

MOST: Final = 65_536
"""So many values that were read last are remembered, by each context and by all together."""


@dataclass(slots=True)
class _Note:
    """A version, and whether tasks that are started from here tell what they read."""

    version: int
    is_told: bool = False


_Place = tuple[str, str]


class _Notes:
    """What one context knows: never changed, as others begin with it, and yet cheap to add to.

    Layers, each at least twice as large as the one before: a note is copied as often as the number of notes
    has doubled since. None in a layer is for what was forgotten. Where the last layer has twice as many as
    are to be remembered, those of it that were noted first are left out.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[Mapping[_Place, _Note | None], ...] = ()) -> None:
        self._layers = layers

    def get(self, place: _Place) -> _Note | None:
        """Return the note of a place, or None."""
        return next((layer[place] for layer in self._layers if place in layer), None)

    def places(self) -> set[_Place]:
        """Return the places that have, or had, a note."""
        return {place for layer in self._layers for place in layer}

    def including(self, notes: Mapping[_Place, _Note | None], most: int) -> _Notes:
        """Return these notes and others, which come in their place; at least so many of the last ones."""
        top, under = dict(notes), self._layers
        while under and len(under[0]) < 2 * len(top):
            older = {place: note for place, note in under[0].items() if place not in top}
            top, under = {**older, **top}, under[1:]
        if not under:
            top = {place: note for place, note in top.items() if note is not None}
            if len(top) >= 2 * most:
                top = dict(islice(top.items(), len(top) - most, None))
        return _Notes((top, *under))


_NONE = _Notes()

_known: ContextVar[Mapping[ref[Reads], _Notes]] = ContextVar("keepstate_reads", default=MappingProxyType({}))


class Reads:
    """The versions that are known of some values.

    Args:
        most: How many values that were read last are remembered at least.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, Lock()
        self._shared: dict[_Place, int] = {}  # for who reads in a task made for just that; the last one last

    def read(self, owner: str, key: str, version: int) -> None:
        """Note what was read."""
        place = owner, key
        before = self._own().get(place)
        if before is None:
            self._share(place, version)
        elif before.is_told:
            before.version = version
        self._note({place: _Note(version)})

    def expected(self, owner: str, key: str) -> int | None:
        """Return the version that was read here last, or None if none was."""
        noted = self._own().get((owner, key))
        return self._shared.get((owner, key)) if noted is None else noted.version

    def wrote(self, owner: str, key: str, version: int) -> None:
        """Note what was written over what was read; others have not read that."""
        place = owner, key
        noted = self._own().get(place)
        if noted is not None or place in self._shared:
            self._note({place: _Note(version, is_told=noted is None or noted.is_told)})

    def refused(self, owner: str, key: str) -> None:
        """Note that what was read is not what is there: it is to be read again from here."""
        place = owner, key
        if self._own().get(place) is None and (shared := self._shared.get(place)) is not None:
            self._note({place: _Note(shared, is_told=True)})

    def forget(self, owner: str, key: str | None = None) -> None:
        """Forget one value, or all of an owner."""
        places = {(owner, key)} if key is not None else self._places_of(owner)
        with self._lock:
            for place in places:
                self._shared.pop(place, None)
        if known := [place for place in places if self._own().get(place) is not None]:
            self._note(dict.fromkeys(known))

    def _share(self, place: _Place, version: int) -> None:
        with self._lock:
            self._shared.pop(place, None)
            self._shared[place] = version
            if len(self._shared) > self._most:
                del self._shared[next(iter(self._shared))]

    def _places_of(self, owner: str) -> set[_Place]:
        with self._lock:
            shared = list(self._shared)
        return {place for place in {*self._own().places(), *shared} if place[0] == owner}

    def _own(self) -> _Notes:
        return _known.get().get(ref(self), _NONE)

    def _note(self, notes: Mapping[_Place, _Note | None]) -> None:
        others = {who: known for who, known in _known.get().items() if who() is not None}
        _known.set(MappingProxyType({**others, ref(self): self._own().including(notes, self._most)}))
