"""Caches of one opened store: they save round trips, and every answer stays that of the store.

The caches belong to the outermost store, so that no key ring and no wrapper sees what another one has read. A
forked child begins with empty ones. `ReadPrefetch` only decides what a read asks for in addition. What a unit
takes from `KnownEntries` is checked by its batch, or read again before anything of it leaves the unit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from weakref import ref

from keepstate._runner import fork_generation, reentrant_lock
from keepstate.engine.kernel.large_values import MANIFEST_BYTE
from keepstate.stores.protocol import Entry, Store

T = TypeVar("T")

_PLACES: Final = 512
_KEYS: Final = 16
"""Number of keys that one read asks for in addition."""
_VALUE_BYTES: Final = 4 << 10
"""Size of a value that is read ahead of time, or kept."""
_SPACES: Final = 256
"""Number of spaces of which entries are known."""
_ENTRIES: Final = 64
"""Number of entries that are known of one space."""
_ALONE: Final = 2
"""Number of batches in a row that met no other writer, after which entries are supposed again."""
_BELIEVED_S: Final = 60.0
"""The longest time for which the store's clock is extrapolated from this process's clock."""


class StoreCache:
    """The caches of one opened store, one of each kind."""

    def __init__(self) -> None:
        self.generation = fork_generation()
        self.parts: dict[type, Any] = {}

    def part(self, kind: type[T]) -> T:
        """Return the cache of a kind, made on the first call."""
        part = self.parts.get(kind)
        if part is None:
            part = self.parts.setdefault(kind, kind())
        return cast("T", part)


_caches: dict[int, tuple[ref[Store], StoreCache]] = {}
"""The caches of each store by its identity: stores that are equal may still have other keys."""


def cache_of(store: Store) -> StoreCache:
    """Return the caches of an opened store. A store that allows no weak references has none that last."""
    place = id(store)
    found = _caches.get(place)
    if found is not None and found[0]() is store and found[1].generation == fork_generation():
        return found[1]
    cache = StoreCache()
    try:
        _caches[place] = ref(store, lambda _: _caches.pop(place, None)), cache
    except TypeError:
        return cache
    return cache


Place: TypeAlias = tuple[str, str, bytes]
"""The space, purpose and first key of a unit of work."""


class ReadPrefetch:
    """The keys that units of work read one after the other.

    A unit of the same purpose that begins with the same key as the last two reads in one round trip what both
    of them went on to read. What a unit reads ahead of time and does not ask for has no effect on it.
    """

    def __init__(self) -> None:
        self._followed: dict[Place, tuple[Sequence[bytes], Sequence[bytes]]] = {}
        """The keys that the last unit read later, and those that the last two did."""

    def expected(self, place: Place) -> Sequence[bytes]:
        """Return the keys that a unit is likely to read after its first one."""
        last = self._followed.get(place)
        return () if last is None else last[1]

    def note(self, place: Place, followed: Sequence[bytes], found: Mapping[bytes, Entry | None]) -> None:
        """Note the keys that a unit has read after its first one."""
        last = self._followed.pop(place, None)
        if last is None and not followed:
            return
        small = [key for key in followed if (entry := found.get(key)) is None or _is_small(entry)][:_KEYS]
        before = () if last is None else last[0]
        self._followed[place] = small, [key for key in small if key in before]
        if len(self._followed) > _PLACES:
            try:
                del self._followed[next(iter(self._followed))]
            except (KeyError, RuntimeError, StopIteration):  # another thread has made room
                return


def _is_small(entry: Entry) -> bool:
    return len(entry.value) <= _VALUE_BYTES


class Supposition(NamedTuple):
    """Entries that a unit may suppose, and the time of its space.

    Attributes:
        entries: Entries by key.
        now_ms: The space's time; None if it was not heard of lately.
    """

    entries: Mapping[bytes, Entry | None]
    now_ms: int | None


class _KnownSpace:
    """The known entries of one space.

    Attributes:
        entries: The entries as the last batches of this process left them.
        losses: The number of losses of its history at the time.
        now_ms: The space's time of the last batch.
        at_s: The time of this process then.
        alone: The number of batches in a row that met no other writer, up to `_ALONE`.
    """

    __slots__ = ("alone", "at_s", "entries", "losses", "now_ms")

    def __init__(self, losses: int | None) -> None:
        self.entries: dict[bytes, Entry | None] = {}
        self.losses, self.now_ms, self.at_s, self.alone = losses, 0, 0.0, _ALONE


class KnownEntries:
    """Entries as the batches of this process left them, for units that may suppose that they still are.

    A unit checks each by its version, so a stale one causes a conflict. Entries that expire are not kept.
    Once a batch was refused, nothing is supposed of that space until two batches in a row have met no other
    writer.
    """

    def __init__(self) -> None:
        self._spaces: dict[str, _KnownSpace] = {}
        self._lock = reentrant_lock()

    def to_suppose(self, space: str, losses: int | None, now_s: float) -> Supposition | None:
        """Return what may be supposed of a space, or None for nothing.

        Args:
            space: The name of the space in the store.
            losses: The number of losses of its history that the store has noticed.
            now_s: The time of this process.
        """
        known = self._spaces.get(space)
        if known is None or known.alone < _ALONE or not known.entries:
            return None
        if known.losses != losses:
            self.forget(space)
            return None
        passed_s = now_s - known.at_s
        now_ms = known.now_ms + int(passed_s * 1000) if passed_s < _BELIEVED_S else None
        return Supposition(known.entries, now_ms)

    def learn(
        self,
        space: str,
        losses: int | None,
        entries: Mapping[bytes, tuple[Entry | None, Entry | None]],
        now_ms: int,
        now_s: float,
    ) -> None:
        """Keep entries of a batch that was applied: each as the batch found it, and as it left it.

        Args:
            space: The name of the space in the store.
            losses: The number of losses of its history from before the batch read.
            entries: The entries that it has read and checked.
            now_ms: The space's time at the batch.
            now_s: The time of this process.
        """
        with self._lock:
            known = self._spaces.get(space)
            if known is None or known.losses != losses:
                known = self._spaces[space] = _KnownSpace(losses)
                if len(self._spaces) > _SPACES:
                    del self._spaces[next(iter(self._spaces))]
            known.now_ms, known.at_s = now_ms, now_s
            now = known.entries.copy()  # because a unit that supposes still uses the one that it has
            met = known_before = False
            for key, (found, left) in entries.items():
                if key in now:
                    known_before = True
                    met = met or _version(now.pop(key)) != _version(found)
                now[key] = left
            if known_before:
                known.alone = 0 if met else min(known.alone + 1, _ALONE)
            while len(now) > _ENTRIES:
                del now[next(iter(now))]
            known.entries = now

    def drop(self, space: str, keys: Collection[bytes]) -> None:
        """Drop entries that a batch of this process has written without reading them."""
        known = self._spaces.get(space)
        if known is not None and not known.entries.keys().isdisjoint(keys):
            with self._lock:
                known.entries = {key: entry for key, entry in known.entries.items() if key not in keys}

    def refuse(self, space: str) -> None:
        """Note that a batch that was based on suppositions was rejected."""
        with self._lock:
            known = self._spaces.get(space)
            if known is not None:
                known.entries, known.alone = {}, 0

    def forget(self, space: str) -> None:
        """Drop all that is known of a space."""
        with self._lock:
            self._spaces.pop(space, None)


def _version(entry: Entry | None) -> int:
    return 0 if entry is None else entry.version


def is_worth_keeping(entry: Entry | None) -> bool:
    """Return whether an entry is small, complete and without a time to live."""
    return entry is None or (
        entry.expires_at_ms is None and _is_small(entry) and not entry.value.startswith(MANIFEST_BYTE)
    )


def drop_known(store: Store, space: str, keys: Collection[bytes]) -> None:
    """Drop entries that a batch of this process has replaced, and whose new values are not known."""
    found = _caches.get(id(store))
    known = None if found is None else found[1].parts.get(KnownEntries)
    if known is not None:
        known.drop(space, keys)
