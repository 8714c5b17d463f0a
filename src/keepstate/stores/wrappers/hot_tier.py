"""The cache of entries in this process.

A view has entries of a space as of one revision, which stay true whatever is written later. The cache does
not know whether that revision is still the present one: the caller asks the cold store, or trusts a recent
answer for a while. A view is advanced with the keys that changed. Section `00` is not in the log, so its
entries are dropped then.
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
"""Approximate memory of an entry in addition to its key and value."""

_SPACES_KNOWN: Final = 65_536
_LONG_AGO_S: Final = float("-inf")


class KnownRevisions:
    """The highest revision of each space that the handles of one store in this process have seen.

    No handle reads an older revision than another one has written or seen. `epoch` counts how often the whole
    cache became doubtful; an answer to a question from before is not fresh then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revisions: dict[str, int] = {}
        self.epoch = 0

    def of(self, space: str) -> int:
        """Return the highest revision; 0 if unknown."""
        return self._revisions.get(space, 0)

    def record(self, space: str, revision: int) -> None:
        """Record a revision."""
        if revision <= self._revisions.get(space, 0):
            return
        with self._lock:
            self._revisions[space] = max(revision, self._revisions.get(space, 0))
            if len(self._revisions) > _SPACES_KNOWN:
                self._start_epoch()

    def forget(self) -> None:
        """Mark the answers to all requests until now as unverified."""
        with self._lock:
            self._start_epoch()

    def _start_epoch(self) -> None:
        self.epoch += 1
        self._revisions.clear()


class AskedAt(NamedTuple):
    """The time at which a read was sent; its answer is from that time or later."""

    epoch: int
    sent_s: float


class Held(NamedTuple):
    """Cached entries of the requested keys, as of a revision; None if nothing of the space is cached."""

    revision: int | None
    entries: dict[bytes, Entry | None]
    is_all: bool
    """True if nothing else of the space is cached."""


class _View:
    __slots__ = ("at_s", "entries", "epoch", "read_s", "now_ms", "revision")

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.entries: dict[bytes, Entry | None] = {}
        self.epoch = -1
        self.at_s = _LONG_AGO_S
        """A time at which, or after which, `revision` was the present one."""
        self.now_ms, self.read_s = 0, 0.0


class HotTier:
    """A bounded cache of entries; the least recently used ones are dropped first.

    Args:
        size_bytes: Maximum size.
        known: The revisions that all handles of the store have seen.
        clock: Measures the age of entries.
    """

    def __init__(self, size_bytes: int, known: KnownRevisions, clock: Clock) -> None:
        self._limit_bytes, self._known, self._clock = size_bytes, known, clock
        self._lock = threading.Lock()
        self._views: dict[str, _View] = {}
        self._order: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def asked_now(self) -> AskedAt:
        """Return the present time; call it before a question is sent."""
        return AskedAt(self._known.epoch, self._clock.monotonic_s())

    # ---- reading

    def fresh(
        self, space: str, keys: Sequence[bytes], within_s: float, at_ms: int | None = None
    ) -> Reading | None:
        """Return a reading that was present within the last `within_s` seconds, or None if that is unknown.

        With `at_ms` expiry is judged at that time. An absence is known only for the time at which it was
        read.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            view = self._views.get(space)
            if (
                view is None
                or view.at_s < now_s - within_s
                or view.epoch != self._known.epoch
                or view.revision < self._known.of(space)
            ):
                return None
            cached = view.entries
            now_ms = view.now_ms + int(1000 * (now_s - view.read_s))
            entries: list[Entry | None] = []
            for key in keys:
                if key not in cached:
                    return None
                entry = cached[key]
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
        """Return cached entries of any age; with `at_ms`, only entries that are also valid at that time."""
        with self._lock:
            view = self._views.get(space)
            if view is None:
                return Held(None, {}, is_all=True)
            found = {key: view.entries[key] for key in keys if key in view.entries}
            is_all = len(found) == len(view.entries)
            # An absence may be an expiry after the requested time.
            for key in [key for key in found if at_ms is not None and found[key] is None]:
                del found[key]
            for key in found:
                self._order.move_to_end((space, key))
            return Held(view.revision, found, is_all=is_all)

    # ---- writing

    def fill(
        self,
        space: str,
        revision: int,
        now_ms: int,
        found: Iterable[tuple[bytes, Entry | None]],
        asked: AskedAt,
    ) -> None:
        """Store entries that the cold store returned; entries of an older revision are dropped."""
        with self._lock:
            if asked.epoch != self._known.epoch:
                return
            view = self._views.get(space)
            if view is not None and view.revision > revision:
                return  # a later answer arrived first
            if view is not None and view.revision < revision:
                self._drop(space)
                view = None
            if view is None:
                view = self._views[space] = _View(revision)
            self._is_present(view, now_ms, asked)
            for key, entry in found:
                self._put(space, view, key, entry)
            self._shrink(space, view)

    def catch_up(self, space: str, after: int, upto: int, changed: Set[bytes], asked: AskedAt) -> None:
        """Advance the space's view to a revision, given the keys that changed since revision `after`."""
        with self._lock:
            view = self._views.get(space)
            if view is None or not after <= view.revision < upto or asked.epoch != self._known.epoch:
                return
            for key in [key for key in view.entries if key[0] == OBJECTS or key in changed]:
                self._remove(space, view, key)
            view.revision, view.at_s = upto, _LONG_AGO_S
            if not view.entries:
                del self._views[space]

    def apply(self, batch: Batch, applied: Applied, asked: AskedAt) -> None:
        """Apply the writes of an acknowledged batch."""
        self._known.record(batch.space, applied.revision)
        if not batch.writes or batch.token is not None:
            return  # the first batch with a token decides its outcome, and may be another one
        with self._lock:
            view = self._views.get(batch.space)
            if (
                view is None
                or view.revision != applied.revision - 1
                or view.epoch != self._known.epoch
                or asked.epoch != view.epoch
            ):
                return
            for index, write in enumerate(batch.writes):
                self._write(batch.space, view, write, index, applied)
            view.revision = applied.revision
            self._is_present(view, applied.now_ms, asked)
            self._shrink(batch.space, view)

    def expire(self, space: str) -> None:
        """Make a space's entries stale until they are verified again."""
        with self._lock:
            if (view := self._views.get(space)) is not None:
                view.at_s = _LONG_AGO_S

    def lose(self, space: str) -> None:
        """Drop a space whose history was lost or replaced."""
        self._known.forget()
        with self._lock:
            self._drop(space)

    # ---- under the lock

    def _is_present(self, view: _View, now_ms: int, asked: AskedAt) -> None:
        view.epoch, view.at_s = asked.epoch, max(view.at_s, asked.sent_s)
        if now_ms >= view.now_ms:
            view.now_ms, view.read_s = now_ms, self._clock.monotonic_s()

    def _write(self, space: str, view: _View, write: Write, index: int, applied: Applied) -> None:
        revision, now_ms = applied.revision, applied.now_ms
        if isinstance(write, Delete):
            self._put(space, view, write.key, None)
            return
        if write.stamp:
            key, created = write.key + stamp_suffix(revision, index), revision
        elif write.key in view.entries:
            key, old = write.key, view.entries[write.key]
            is_live = old is not None and (old.expires_at_ms is None or old.expires_at_ms > now_ms)
            created = old.created if old is not None and is_live else revision
        else:
            return  # its `created` is unknown here
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
