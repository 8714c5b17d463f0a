"""Detects commits by polling: reading SQLite's counter of other connections' commits takes 2 us."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator
from contextlib import contextmanager

import apsw

from keepstate.stores.sqlite import failures
from keepstate.stores.sqlite.queries import revision_of
from keepstate.stores.sqlite.statements import execute_on


class Poller:
    """A connection that compares the present state with that of its last poll."""

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
        """Return the spaces with a new revision since the last call, and those not passed then."""
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
        """Close the connection after the poll under way."""
        with self._lock:
            self._connection.close()

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Block polls until `resume`, and return whether none is under way."""
        self._is_held = self._lock.acquire(timeout=timeout_s)
        return self._is_held

    def resume(self) -> None:
        """Undo `pause`."""
        if self._is_held:
            self._lock.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Return the connection, in a forked child."""
        return [self._connection]
