"""Bugs of stores in files, planted like those of `seeded_bugs`: cut off, with two names, on failing disks."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

from keepstate.stores.file import frames, store
from keepstate.stores.file.frames import Head
from keepstate.stores.file.journal import Journal
from keepstate.stores.sqlite.files import Files
from tests.crashes.seeded_bugs import Planted


@contextmanager
def journal_length_unread() -> Planted:
    """Acknowledge what was written behind the end of a journal that was cut off."""
    with patch.object(Journal, "_require_length", lambda self, size_bytes: None):
        yield


@contextmanager
def log_read_too_late() -> Planted:
    """Look at a write-ahead log only after the write that filled its gap."""
    with patch.object(Files, "begin", lambda self: None):
        yield


@contextmanager
def log_end_unread() -> Planted:
    """Compare lengths only, which are right again after a write behind the end of a log."""
    with patch.object(Files, "_last_frame", lambda self, index: b""):
        yield


@contextmanager
def second_name_opened() -> Planted:
    """Open a file under each of its names, with a lock each, and whatever its length has become."""
    with (
        patch.object(store, "require_single_name", lambda path: None),
        patch.object(Journal, "_require_length", lambda self, size_bytes: None),
    ):
        yield


@contextmanager
def failed_sync_tried_again() -> Planted:
    """Ask a disk once more after a failed sync, which the system then answer with a lie."""

    def sync(self: Journal) -> None:
        try:
            self._files.sync(self._descriptor)
        except OSError:
            self._files.sync(self._descriptor)

    with patch.object(Journal, "_sync", sync):
        yield


@contextmanager
def length_trusted() -> Planted:
    """Believe what a frame says of its length, whether its checksum holds or not."""

    def length(self: Head, frame_head: bytes, at: int) -> int | None:
        found = frames._FRAME_HEAD.match(frame_head)
        return None if found is None else int(found[1], 16)

    with patch.object(Head, "_length", length):
        yield
