"""Disks that fail on demand, below a file store."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.file import FileStore
from keepstate.stores.file.io import Files
from keepstate.stores.protocol import Applied, Batch, Outcome, Put, Write

SPACE = "space"
A, B = b"\x01a", b"\x02b"


class FailingFiles(Files):
    """The operating system's calls, of which the named ones fail; it counts what it makes durable."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.end: int | None = None
        """How long a file may get."""
        self.syncs = 0

    def _fail(self, call: str) -> None:
        if (number := self.failing.get(call)) is not None:
            raise OSError(number, os.strerror(number))

    def write(self, descriptor: int, data: memoryview, at: int) -> int:
        self._fail("write")
        if self.end is not None:
            data = data[: max(self.end - at, 0)]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data, at)

    def sync(self, descriptor: int) -> None:
        self._fail("sync")
        self.syncs += 1
        super().sync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._fail("truncate")
        super().truncate(descriptor, size_bytes)

    def replace(self, path: str, by: str) -> None:
        self._fail("replace")
        super().replace(path, by)

    def remove(self, path: str) -> None:
        self._fail("remove")
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self._fail("sync_folder")
        super().sync_folder(path)


class SlowFiles(Files):
    """A disk that makes nothing durable before it is told to."""

    def __init__(self) -> None:
        self.is_slow = False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def sync(self, descriptor: int) -> None:
        if self.is_slow:
            self.reached.set()
            assert self.go_on.wait(60)
        super().sync(descriptor)


def opened(path: Path, files: Files | None = None, format: str | None = None) -> FileStore:
    """Open a blocking handle."""
    more = {} if files is None else {"files": files}
    return finish(FileStore(path, format=format, runner=ThreadRunner(), **more).open())  # type: ignore[arg-type]


def put(store: FileStore, *writes: Write) -> int:
    """Apply one batch and return its revision."""
    outcome = outcome_of(store, *writes)
    assert isinstance(outcome, Applied), outcome
    return outcome.revision


def outcome_of(store: FileStore, *writes: Write) -> Outcome:
    """Apply one batch."""
    return finish(store.apply([Batch(SPACE, list(writes))]))[0]


def values(store: FileStore) -> list[bytes | None]:
    """Read A and B."""
    return [None if entry is None else entry.value for entry in finish(store.read(SPACE, [A, B])).entries]


def revision(store: FileStore) -> int:
    """Read the space's revision."""
    return finish(store.read(SPACE, [])).revision


def filled(path: Path, batches: int = 5, format: str | None = None) -> bytes:
    """Make a journal of so many revisions and return its bytes."""
    store = opened(path, format=format)
    for i in range(batches):
        put(store, Put(A, b"%d" % i), Put(B, b"value %d" % i))
    finish(store.close())
    return path.read_bytes()
