"""One SQLite file that this process has open, for all its async and blocking handles.

The first handle opens it, and the last one closes it. A fork waits until no call is under way. The child then
closes its copies of the connections, which does not affect the parent, and opens the file again if it needs
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakMethod

import apsw

from keepstate._clock import Clock
from keepstate.errors import ClosedError
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import failures
from keepstate.stores.sqlite.commit_watch import Poller
from keepstate.stores.sqlite.connection import connect
from keepstate.stores.sqlite.files import Identity
from keepstate.stores.sqlite.flush import Flush
from keepstate.stores.sqlite.readers import Readers
from keepstate.stores.sqlite.statements import Execute
from keepstate.stores.sqlite.writer import Writer

T = TypeVar("T")


class Database:
    """The writer, readers and listeners of one file, which the constructor opens.

    Args:
        path: Absolute, without symbolic links.
        durability: The failures that an acknowledged write survives.
        wait_s: Seconds to wait for other processes' locks.
    """

    def __init__(self, path: str, durability: Durability, wait_s: float) -> None:
        self.path, self.durability, self._wait_s = path, durability, wait_s
        self.users = 0
        self._listeners: tuple[WeakMethod[Callable[[str], None]], ...] = ()
        self._joining = threading.Lock()
        self._is_closed = False
        try:
            self._writer = Writer(path, durability, wait_s)
        except apsw.Error as error:
            raise failures.storage_error(error, path) from error
        self.latest_ms, self.second_clock = self._writer.latest_ms, self._writer.second_clock
        self._files = self._writer.files
        self._readers = Readers(self._reader)
        self._pollers: list[Poller] = []

    def _reader(self) -> apsw.Connection:
        return connect(self.path, self.durability, self._wait_s, only_reads=True)

    @property
    def identity(self) -> Identity | None:
        """Return the identity of the file, which is independent of its name."""
        return self._files.identity

    def join(self, listener: Callable[[str], None]) -> None:
        """Notify a handle of every change from now on, for as long as it lives."""
        with self._joining:
            self._listeners = (*(other for other in self._listeners if other()), WeakMethod(listener))

    def leave(self, listener: Callable[[str], None]) -> None:
        """Stop notifying a handle."""
        with self._joining:
            self._listeners = tuple(other for other in self._listeners if other() != listener)

    def hint(self, space: str) -> None:
        """Notify every handle of the process that a space changed."""
        for reference in self._listeners:
            if (listener := reference()) is not None:
                listener(space)

    def write(self, work: Callable[[Flush], T], clock: Clock) -> T:
        """Run `work`, and return its result after the commit; raises the errors of `Writer.write`."""
        return self._writer.write(work, clock)

    def read(self, work: Callable[[Execute], T]) -> T:
        """Run `work` on one snapshot, and return its result.

        Raises:
            CorruptError: The file is damaged, or was replaced while it was open.
        """
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed. Open the store again.")
        if self._files.moved is not None:
            self._files.require_unchanged()
        try:
            return self._readers.read(work)
        except apsw.Error as error:
            raise failures.storage_error(error, self.path) from error

    def poller(self) -> Poller:
        """Return a new poller; the caller closes it with `close_poller`."""
        with self._joining:
            try:
                poller = Poller(self._reader(), self.path)
            except apsw.Error as error:
                raise failures.storage_error(error, self.path) from error
            self._pollers.append(poller)
            return poller

    def close_poller(self, poller: Poller) -> None:
        """Close a poller."""
        with self._joining:
            self._pollers.remove(poller)
            poller.close()

    def close(self, *, moves_log: bool = True) -> None:
        """Close the file, after moving its write-ahead log into it unless another process reads it."""
        self._is_closed = True
        self._readers.close()
        self._writer.close(moves_log=moves_log)

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Block all calls until `resume`, and return whether none is under way."""
        self._joining.acquire()
        held = [part.pause(timeout_s) for part in self._parts()]
        return all(held)

    def resume(self) -> None:
        """Undo `pause`."""
        for part in self._parts():
            part.resume()
        self._joining.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Release, in a forked child, the parent's resources; return the connections."""
        self._is_closed = True
        return [connection for part in self._parts() for connection in part.leave_to_parent()]

    def _parts(self) -> list[Writer | Readers | Poller]:
        return [self._writer, self._readers, *self._pollers]
