"""One space as a plain dict: the protocol written a second time, as simply as possible.

It shares no code with a store. The tests compare a store's answers with those of this model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from keepstate.stores.protocol import ABSENT, Batch, Change, Conflict, Delete, Entry, Write
from keepstate.values.key import stamp_suffix

Answer: TypeAlias = int | Conflict | None
"""A revision, a conflict, or None where the log no longer reaches back to a retry's first attempt."""


class ModelSpace:
    """One space as a dict, a list of changes and a dict of first answers.

    It never forgets the answer to a retry. A store may forget it after an hour.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.log: list[Change] = []
        self.answers: dict[bytes, int] = {}
        self.retried: dict[bytes, Answer] = {}
        self.revision = self.floor = self.now_ms = 0

    def live(self, key: bytes, at_ms: int | None = None) -> Entry | None:
        """Return the entry as a reader sees it at a time, or now."""
        entry, at_ms = self.entries.get(key), self.now_ms if at_ms is None else at_ms
        expired = entry is not None and entry.expires_at_ms is not None and entry.expires_at_ms <= at_ms
        return None if expired else entry

    def apply(self, batch: Batch) -> Answer:
        """Return the revision that the batch gets or finds, its conflict, or None if that cannot be known."""
        if batch.token is not None:
            if batch.token in self.answers:
                return self.answers[batch.token]
            if batch.token in self.retried:
                return self.retried[batch.token]
        is_refused, answer = self._judged(batch)
        if not is_refused and batch.writes:
            answer = self._written(batch)
        if batch.token is not None and batch.retry_of is not None and (is_refused or batch.writes):
            self.retried[batch.token] = answer
        return answer

    def _judged(self, batch: Batch) -> tuple[bool, Answer]:
        if batch.retry_of is not None and batch.retry_of < self.floor:
            return True, None
        if batch.at not in (None, self.revision):
            return True, Conflict(None, self.revision)
        if batch.alive_until_ms is not None and self.now_ms >= batch.alive_until_ms:
            return True, Conflict(None, self.revision)
        for check in batch.checks:
            found = self.live(check.key)
            version, created = (found.version, found.created) if found else (ABSENT, ABSENT)
            if check.version is not None and check.version != version:
                return True, Conflict(check.key, version)
            if check.created is not None and check.created != created:
                return True, Conflict(check.key, created)
        return False, self.revision

    def _written(self, batch: Batch) -> int:
        self.revision += 1
        for index, write in enumerate(batch.writes):
            self._write(write, index)
        if batch.token is not None:
            self.answers[batch.token] = self.revision
        return self.revision

    def _write(self, write: Write, index: int) -> None:
        if isinstance(write, Delete):
            if (old := self.entries.pop(write.key, None)) is not None:
                self._log(write.key, old, None)
            return
        key = write.key + stamp_suffix(self.revision, index) if write.stamp else write.key
        stood, old = self.entries.get(key), self.live(key)
        expires_at_ms = None if write.ttl_ms is None else self.now_ms + write.ttl_ms
        new = Entry(key, write.value, self.revision, old.created if old else self.revision, expires_at_ms)
        self.entries[key] = new
        self._log(key, stood, new, expired=stood is not None and old is None)

    def _log(self, key: bytes, old: Entry | None, new: Entry | None, *, expired: bool = False) -> None:
        if key[0] == 1:
            self.log.append(Change(self.revision, key, new is None))
        if key[0] == 2:
            self.log.append(
                Change(
                    self.revision,
                    key,
                    new is None,
                    old.value if old else None,
                    new.value if new else None,
                    expired,
                )
            )

    def sweep_like(self, changes: Sequence[Change], upto: int) -> None:
        """Follow the store's own removal of expired entries; any other change is not a sweep."""
        for change in changes:
            assert change.deleted, f"{change} has no writer"
            assert change.key in self.entries, f"{change} removes what is not there"
            assert self.live(change.key) is None, f"{change} removes what has not expired"
            self.log.append(change)
            del self.entries[change.key]
        self.revision = upto

    def drop(self) -> None:
        """Forget everything but the revision."""
        if self.revision > self.floor:
            self.revision += 1
            self.floor = self.revision
            self.entries, self.log, self.answers = {}, [], {}
