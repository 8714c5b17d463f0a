"""What this process remembers of its spaces.

A view tells what its space held at one revision, and that stays true whatever is written later. Whether the
revision is still the present one is for others to say: who asked the cold store, or, for a while after, the
clock. A view moves along when it is told all that changed; section `00` stands in no log, so its entries
stay behind.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

from keepstate._clock import Clock
from keepstate.stores.protocol import Applied, Batch, Delete, Entry, Reading, Write
from keepstate.values.key import OBJECTS, stamp_suffix

ENTRY_OVERHEAD_BYTES: Final = 400
"""What an entry weighs beside its key and value, about."""

_SPACES_TOLD: Final = 65_536
_LONG_AGO_S: Final = float("-inf")


class Told:
    """The highest revision of each space that the handles of one store in this process were told of.

    What one of them has written or seen, none reads behind. `epoch` counts how often all that was
    remembered became doubtful: then nothing is fresh that was asked for before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revisions: dict[str, int] = {}
        self.epoch = 0

    def of(self, space: str) -> int:
        """Return the highest revision; 0 where nothing was told."""
        return self._revisions.get(space, 0)

    def record(self, space: str, revision: int) -> None:
        """Take note of a revision."""
        if revision <= self._revisions.get(space, 0):
            return
        with self._lock:
            self._revisions[space] = max(revision, self._revisions.get(space, 0))
            if len(self._revisions) > _SPACES_TOLD:
                self._begin_anew()

    def forget(self) -> None:
        """Make all that was asked for until now doubtful."""
        with self._lock:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.epoch += 1
        self._revisions.clear()


class Moment(NamedTuple):
    """When a question was sent: the answer is of that time or later."""

    epoch: int
    sent_s: float


class Held(NamedTuple):
    """What is remembered of the keys asked for, and of which revision; None where nothing is of the space."""

    revision: int | None
    entries: dict[bytes, Entry | None]
    is_all: bool
    """Whether nothing else is remembered of the space."""


class _View:
    __slots__ = ("at_s", "entries", "epoch", "heard_s", "now_ms", "revision")

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.entries: dict[bytes, Entry | None] = {}
        self.epoch = -1
        self.at_s = _LONG_AGO_S
        """A time at which, or later, `revision` was the present one."""
        self.now_ms, self.heard_s = 0, 0.0


class HotTier:
    """Remembers entries until they are too many bytes; what nobody has asked for the longest gives way.

    Args:
        size_bytes: How many.
        told: What all handles of the store were told.
        clock: Tells how long ago something was verified.
    """

    def __init__(self, size_bytes: int, told: Told, clock: Clock) -> None:
        self._limit_bytes, self._told, self._clock = size_bytes, told, clock
        self._lock = threading.Lock()
        self._views: dict[str, _View] = {}
        self._order: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def moment(self) -> Moment:
        """Return the present moment, to be taken before a question is sent."""
        return Moment(self._told.epoch, self._clock.monotonic_s())

    # ---- asking

    def fresh(
        self, space: str, keys: Sequence[bytes], within_s: float, at_ms: int | None = None
    ) -> Reading | None:
        """Return a reading that was the present one within this time, or None where that is not known.

        With `at_ms` expiry is judged then. An absence is of the time at which it was told, so it is not known
        of another time.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            view = self._views.get(space)
            if (
                view is None
                or view.at_s < now_s - within_s
                or view.epoch != self._told.epoch
                or view.revision < self._told.of(space)
            ):
                return None
            known = view.entries
            now_ms = view.now_ms + int(1000 * (now_s - view.heard_s))
            entries: list[Entry | None] = []
            for key in keys:
                if key not in known:
                    return None
                entry = known[key]
                if entry is None and at_ms is not None:
                    return None
                if entry is not None and entry.expires_at_ms is not None:
                    # Two clocks are compared, each cut to milliseconds.
                    if entry.expires_at_ms <= max(now_ms + 1, at_ms or 0):
                        return None
                entries.append(entry)
                self._order.move_to_end((space, key))
            return Reading(entries, view.revision, now_ms)

    def held(self, space: str, keys: Sequence[bytes], at_ms: int | None = None) -> Held:
        """Return what is remembered, however old; with `at_ms` only what holds at that time too."""
        with self._lock:
            view = self._views.get(space)
            if view is None:
                return Held(None, {}, is_all=True)
            found = {key: view.entries[key] for key in keys if key in view.entries}
            is_all = len(found) == len(view.entries)
            # An absence may be an expiry, later than the time that is asked for.
            for key in [key for key in found if at_ms is not None and found[key] is None]:
                del found[key]
            for key in found:
                self._order.move_to_end((space, key))
            return Held(view.revision, found, is_all=is_all)

    # ---- being told

    def fill(
        self,
        space: str,
        revision: int,
        now_ms: int,
        found: Iterable[tuple[bytes, Entry | None]],
        moment: Moment,
    ) -> None:
        """Take in what the cold store told of the present; what was known of an older revision goes."""
        with self._lock:
            if moment.epoch != self._told.epoch:
                return
            view = self._views.get(space)
            if view is not None and view.revision > revision:
                return  # answers overtake one another
            if view is not None and view.revision < revision:
                self._drop(space)
                view = None
            if view is None:
                view = self._views[space] = _View(revision)
            self._is_present(view, now_ms, moment)
            for key, entry in found:
                self._put(space, view, key, entry)
            self._shrink(space, view)

    def catch_up(self, space: str, after: int, upto: int, changed: Set[bytes], moment: Moment) -> None:
        """Move the space's view along to a revision, given the keys that have changed since another."""
        with self._lock:
            view = self._views.get(space)
            if view is None or not after <= view.revision < upto or moment.epoch != self._told.epoch:
                return
            for key in [key for key in view.entries if key[0] == OBJECTS or key in changed]:
                self._remove(space, view, key)
            view.revision, view.at_s = upto, _LONG_AGO_S
            if not view.entries:
                del self._views[space]

    def took(self, batch: Batch, applied: Applied, moment: Moment) -> None:
        """Take in what a batch has changed."""
        self._told.record(batch.space, applied.revision)
        if not batch.writes or batch.token is not None:
            return  # a token is answered by the batch that had it first, which may be another
        with self._lock:
            view = self._views.get(batch.space)
            if (
                view is None
                or view.revision != applied.revision - 1
                or view.epoch != self._told.epoch
                or moment.epoch != view.epoch
            ):
                return
            for index, write in enumerate(batch.writes):
                self._write(batch.space, view, write, index, applied)
            view.revision = applied.revision
            self._is_present(view, applied.now_ms, moment)
            self._shrink(batch.space, view)

    def expire(self, space: str) -> None:
        """Let nothing of a space be fresh that was not verified since."""
        with self._lock:
            if (view := self._views.get(space)) is not None:
                view.at_s = _LONG_AGO_S

    def lose(self, space: str) -> None:
        """Forget a space whose revisions no longer mean what they did."""
        self._told.forget()
        with self._lock:
            self._drop(space)

    # ---- under the lock

    def _is_present(self, view: _View, now_ms: int, moment: Moment) -> None:
        view.epoch, view.at_s = moment.epoch, max(view.at_s, moment.sent_s)
        if now_ms >= view.now_ms:
            view.now_ms, view.heard_s = now_ms, self._clock.monotonic_s()

    def _write(self, space: str, view: _View, write: Write, index: int, applied: Applied) -> None:
        revision, now_ms = applied.revision, applied.now_ms
        if isinstance(write, Delete):
            self._put(space, view, write.key, None)
            return
        if write.stamp:
            key, created = write.key + stamp_suffix(revision, index), revision
        elif write.key in view.entries:
            key, old = write.key, view.entries[write.key]
            is_there = old is not None and (old.expires_at_ms is None or old.expires_at_ms > now_ms)
            created = old.created if old is not None and is_there else revision
        else:
            return  # when it was created is not known here
        expires_at_ms = None if write.ttl_ms is None else now_ms + write.ttl_ms
        self._put(space, view, key, Entry(key, write.value, revision, created, expires_at_ms))

    def _put(self, space: str, view: _View, key: bytes, entry: Entry | None) -> None:
        place = space, key
        self.size_bytes -= self._order.pop(place, 0)
        size = ENTRY_OVERHEAD_BYTES + len(key) + (0 if entry is None else len(entry.value))
        self._order[place] = size
        self.size_bytes += size
        view.entries[key] = entry

    def _remove(self, space: str, view: _View, key: bytes) -> None:
        del view.entries[key]
        self.size_bytes -= self._order.pop((space, key))

    def _drop(self, space: str) -> None:
        view = self._views.pop(space, None)
        if view is not None:
            for key in list(view.entries):
                self._remove(space, view, key)

    def _shrink(self, present: str, view: _View) -> None:
        while self.size_bytes > self._limit_bytes:
            space, key = next(iter(self._order))
            oldest = self._views[space]
            self._remove(space, oldest, key)
            if not oldest.entries:
                del self._views[space]
        if not view.entries and self._views.get(present) is view:
            del self._views[present]
