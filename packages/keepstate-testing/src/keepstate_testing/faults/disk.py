"""A disk beneath a store: all calls that change a file pass through it, and are recorded, refused or cut.

`DiskFiles` puts a disk below a file store, `vfs.beneath_sqlite` below SQLite. Both pass the same calls in the
same form, so one fault and one recorder serve both. Reads do not pass through it; `flip` makes damage.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from keepstate._files import FILE_MODE
from keepstate.stores.file.io import Files

Call: TypeAlias = Literal["open", "write", "sync", "truncate", "replace", "remove", "sync_folder"]


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A file was opened, and made if it was not there."""

    path: str
    is_new: bool


class Wrote(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bytes were written at a place."""

    path: str
    at: int
    data: bytes


class Cut(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A file was cut off, or made longer."""

    path: str
    size_bytes: int


class Synced(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Note that the content of a file was made durable."""

    path: str


class Replaced(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A file took the name of another."""

    path: str
    by: str


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A name was removed."""

    path: str


class FolderSynced(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The names in a folder were made durable."""

    path: str


Event: TypeAlias = Opened | Wrote | Cut | Synced | Replaced | Removed | FolderSynced
"""What the system did to a file; paths are absolute."""


class Disk:
    """A disk that executes every call; subclasses refuse or cut some."""

    def asked(self, call: Call, path: str, size_bytes: int = 0, at: int = 0) -> int:
        """Return how many bytes of a write to take; raises `OSError` to refuse the call."""
        return size_bytes

    def did(self, event: Event) -> None:
        """Receive a call that the system has executed."""


class FailingDisk(Disk):
    """A disk that fails chosen calls, and counts those that pass."""

    def __init__(self) -> None:
        self.passed: list[tuple[Call, str]] = []
        self.refused = 0
        self.room_bytes: int | None = None
        """How long each file may get."""
        self._faults: list[_Fault] = []

    def fail(
        self,
        call: Call,
        number: int = errno.EIO,
        *,
        nth: int = 1,
        times: int | None = 1,
        taken: int = 0,
        ends: str = "",
    ) -> None:
        """Fail a call from now on.

        Args:
            call: Which one.
            number: With what, as in `errno`.
            nth: At which of them, counted from 1.
            times: How often; None for until `mend`.
            taken: How many bytes a failing write takes first.
            ends: Only of files whose path ends so.
        """
        self._faults.append(_Fault(call, number, nth, times, taken, ends))

    def mend(self) -> None:
        """Fail nothing any more, and has room."""
        self._faults.clear()
        self.room_bytes = None

    def asked(self, call: Call, path: str, size_bytes: int = 0, at: int = 0) -> int:
        for fault in self._faults:
            if fault.strikes(call, path):
                self.refused += 1
                if 0 < fault.taken < size_bytes:
                    return fault.taken
                raise OSError(fault.number, os.strerror(fault.number), path)
        if call == "write" and self.room_bytes is not None and at + size_bytes > self.room_bytes:
            self.refused += 1
            if at >= self.room_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return self.room_bytes - at
        self.passed.append((call, path))
        return size_bytes


class _Fault:
    def __init__(self, call: Call, number: int, nth: int, times: int | None, taken: int, ends: str) -> None:
        self.number, self.taken = number, taken
        self._call, self._ends, self._before, self._left = call, ends, nth - 1, times

    def strikes(self, call: Call, path: str) -> bool:
        if call != self._call or not path.endswith(self._ends) or self._left == 0:
            return False
        if self._before:
            self._before -= 1
            return False
        if self._left is not None:
            self._left -= 1
        return True


class CuttingDisk(Disk):
    """Cuts files off beneath the process that has them open, as another program does.

    Attributes:
        cuts: Files that were cut off, each with its length before and after.
    """

    def __init__(self) -> None:
        self.cuts: list[tuple[str, int, int]] = []
        self._ordered: list[tuple[Call, str, float]] = []

    def cut(self, call: Call, ends: str, share: float) -> None:
        """Cut a file off at the next call.

        Args:
            call: Before which call.
            ends: Of which file: the end of its path.
            share: How much of it is left, from 0 to 1.
        """
        self._ordered.append((call, ends, share))

    def asked(self, call: Call, path: str, size_bytes: int = 0, at: int = 0) -> int:
        for ordered in [one for one in self._ordered if one[0] == call and path.endswith(one[1])]:
            self._ordered.remove(ordered)
            before = os.path.getsize(path)
            os.truncate(path, after := int(before * ordered[2]))
            self.cuts.append((path, before, after))
        return size_bytes


class DiskFiles(Files):
    """The file store's calls, by way of a disk.

    Args:
        disk: The disk that the calls pass through.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = FILE_MODE) -> int:
        self._disk.asked("open", path)
        is_new = not os.path.exists(path)
        descriptor = super().open(path, flags, mode)
        self._paths[descriptor] = path
        self._disk.did(Opened(path, is_new))
        if flags & os.O_TRUNC and not is_new:
            self._disk.did(Cut(path, 0))
        return descriptor

    def write(self, descriptor: int, data: memoryview, at: int) -> int:
        path = self._paths[descriptor]
        data = data[: self._disk.asked("write", path, len(data), at)]
        taken = super().write(descriptor, data, at)
        self._disk.did(Wrote(path, at, bytes(data[:taken])))
        return taken

    def sync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        self._disk.asked("sync", path)
        super().sync(descriptor)
        self._disk.did(Synced(path))

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        path = self._paths[descriptor]
        self._disk.asked("truncate", path)
        super().truncate(descriptor, size_bytes)
        self._disk.did(Cut(path, size_bytes))

    def replace(self, path: str, by: str) -> None:
        self._disk.asked("replace", path)
        super().replace(path, by)
        self._paths = {descriptor: path if of == by else of for descriptor, of in self._paths.items()}
        self._disk.did(Replaced(path, by))

    def remove(self, path: str) -> None:
        self._disk.asked("remove", path)
        super().remove(path)
        self._disk.did(Removed(path))

    def sync_folder(self, path: str) -> None:
        self._disk.asked("sync_folder", path)
        super().sync_folder(path)
        self._disk.did(FolderSynced(path))

    def close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        super().close(descriptor)


def flip(data: bytes, place: int, bit: int) -> bytes:
    """Return the bytes with one bit turned."""
    turned = bytearray(data)
    turned[place] ^= 1 << bit
    return bytes(turned)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
