"""A replayed space: its required content after each revision, by the answers to batches.

Written from the protocol's text, independently of the stores: it is their yardstick.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from keepstate.stores.protocol import ABSENT, Change
from keepstate.values.key import OBJECTS, WITH_VALUES, stamp_suffix
from keepstate_testing.proof.operations import Attempt, Demand, Look, Saw, Wrote, checksum


class Logged(NamedTuple):
    """The change that the log must have for a write; no checksum for a deletion or without a value."""

    key: bytes
    deleted: bool
    checksum: int | None


class Replay:
    """The entries of one space, made again from its batches.

    Args:
        remembered: Keys of which every state is kept, for `states_from`.
    """

    def __init__(self, remembered: Collection[bytes] = ()) -> None:
        self.entries: dict[bytes, Saw] = {}
        self.states: dict[bytes, tuple[list[int], list[Saw | None]]] = {
            key: ([0], [None]) for key in remembered
        }
        self._keys: list[bytes] = []

    # ---- what it holds

    def live(self, key: bytes, now_ms: int) -> Saw | None:
        """Return an entry as a reader sees it at that time."""
        entry = self.entries.get(key)
        expired = entry is not None and entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms
        return None if expired else entry

    def failing(self, checks: Iterable[Demand], now_ms: int) -> Demand | None:
        """Return the first check that does not hold."""
        for check in checks:
            if not holds(check, self.live(check.key, now_ms)):
                return check
        return None

    def misseen(self, look: Look) -> str | None:
        """Return the first wrong entry of a read, or None."""
        for key, seen in look.found.items():
            visible = self.live(key, look.judged_ms)
            expected = visible is None if seen is None else visible is not None and is_same(visible, seen)
            if not expected:
                return f"{key!r} as {_shown(seen)}, where it was {_shown(self.entries.get(key))}"
        return self._overlooked(look)

    def _overlooked(self, look: Look) -> str | None:
        if look.span is None:
            return None
        for key in self._within(look.span.low, look.span.high):
            if key not in look.found and (entry := self.live(key, look.judged_ms)) is not None:
                return f"nothing under {key!r} where it was {_shown(entry)}"
        return None

    def _within(self, low: bytes, high: bytes | None) -> list[bytes]:
        end = len(self._keys) if high is None else bisect_left(self._keys, high)
        return self._keys[bisect_left(self._keys, low) : end]

    def states_from(self, key: bytes, revision: int) -> Iterator[tuple[int, Saw | None]]:
        """Yield the states of a remembered key from a revision on, each with the first revision it had."""
        revisions, states = self.states[key]
        place = bisect_right(revisions, revision) - 1
        yield revision, states[place]
        yield from zip(revisions[place + 1 :], states[place + 1 :], strict=True)

    # ---- how it changes

    def apply(self, attempt: Attempt, revision: int, now_ms: int) -> list[Logged]:
        """Apply a batch, and return its required log record."""
        logged: list[Logged] = []
        for index, write in enumerate(attempt.writes):
            key = write.key + stamp_suffix(revision, index) if write.stamp else write.key
            if write.checksum is None:
                if key not in self.entries:
                    continue
                self._set(key, None, revision)
            else:
                self._set(key, self._made(key, write, revision, now_ms), revision)
            if key[0] != OBJECTS:
                value = write.checksum if key[0] == WITH_VALUES else None
                logged.append(Logged(key, write.checksum is None, value))
        return logged

    def _made(self, key: bytes, write: Wrote, revision: int, now_ms: int) -> Saw:
        old = self.live(key, now_ms)
        created = revision if old is None else old.created
        expires_at_ms = None if write.ttl_ms is None else now_ms + write.ttl_ms
        return Saw(revision, created, expires_at_ms, write.checksum)

    def follow(self, change: Change) -> None:
        """Apply the log record of a revision that no batch explains."""
        if change.deleted:
            self._set(change.key, None, change.revision)
        else:
            value = None if change.new is None else checksum(change.new)
            self._set(change.key, Saw(change.revision, change.revision, None, value), change.revision)

    def _set(self, key: bytes, entry: Saw | None, revision: int) -> None:
        if key in self.states:
            revisions, states = self.states[key]
            revisions.append(revision)
            states.append(entry)
        if entry is None:
            if self.entries.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self.entries:
            insort(self._keys, key)
        self.entries[key] = entry


def holds(check: Demand, entry: Saw | None) -> bool:
    """Return whether a check holds for the visible entry."""
    if check.version is not None:
        return check.version == (entry.version if entry else ABSENT)
    return check.created == (entry.created if entry else ABSENT)


def is_same(expected: Saw, seen: Saw) -> bool:
    """Return whether two sights of an entry are the same; an unknown value equals any other."""
    if expected.checksum is None:
        return expected.version == seen.version
    return expected == seen


def told(change: Change) -> Logged:
    """Return the log record of a write."""
    return Logged(change.key, change.deleted, None if change.new is None else checksum(change.new))


def _shown(entry: Saw | None) -> str:
    if entry is None:
        return "absent"
    expiry = "" if entry.expires_at_ms is None else f", expires at {entry.expires_at_ms}"
    return f"version {entry.version} (created {entry.created}, checksum {entry.checksum}{expiry})"
