"""Hears of commits by asking: a counter that SQLite keeps tells in 2 us whether anybody else committed."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator
from contextlib import contextmanager

import apsw

from keepstate.stores.sqlite import failures
from keepstate.stores.sqlite.queries import revision_of
from keepstate.stores.sqlite.statements import execute_on


class Poller:
    """A connection that compares what it sees with what it saw last."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._connection, self._path = connection, path
        self._execute = execute_on(connection)
        self._lock = threading.Lock()
        self._version = -1
        self._revisions: dict[str, int] = {}

    def has_moved(self) -> bool:
        """Return whether any connection committed since the last call; True the first time."""
        with self._looking():
            version: int = self._execute("PRAGMA data_version").get
            moved, self._version = version != self._version, version
        return moved

    def changed(self, spaces: Collection[str]) -> list[str]:
        """Return the spaces that took a revision since the last call, or were not asked for then."""
        with self._looking():
            self._execute("BEGIN")
            now = {space: revision_of(self._execute, space) for space in spaces}
            self._execute("COMMIT")
            before, self._revisions = self._revisions, now
        return [space for space, revision in now.items() if before.get(space) != revision]

    @contextmanager
    def _looking(self) -> Generator[None]:
        with self._lock:
            try:
                yield
            except apsw.Error as error:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                raise failures.storage_error(error, self._path) from error

    def close(self) -> None:
        """Close the connection, after the look that is under way."""
        with self._lock:
            self._connection.close()

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Keep lookers waiting until `resume`, and return whether none is at it."""
        self._is_held = self._lock.acquire(timeout=timeout_s)
        return self._is_held

    def resume(self) -> None:
        """End `pause`."""
        if self._is_held:
            self._lock.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Return the connection, in a forked child."""
        return [self._connection]
