"""The command `make-room`: a reserve of disk that lets a store on a full disk be cleaned.

A deletion is a write, so on a full disk nothing can be deleted. The reserve is a file next to the store that
is filled while there is room. Deleting the file gives its room to the writes that clean up. It has random
bytes, because file systems that compress would keep no room for others. No store reads or writes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from keepstate._clock import SYSTEM_CLOCK
from keepstate._files import make_file, open_own, sync_folder
from keepstate.cli import exits
from keepstate.cli.session import FILES, PLAIN, Session, check_url, require_file
from keepstate.errors import InvalidError, NotFoundError, StorageError, UnsupportedError
from keepstate.stores.file.io import storage_error
from keepstate.stores.file.store import JOURNAL
from keepstate.stores.urls import StoreUrl

_END: Final = "-reserve"
_MIB: Final = 1 << 20
_MOST_MIB: Final = 1 << 20


async def make_room(
    *,
    reserve: Annotated[
        int | None, Parameter(help="Fill a reserve file of N MiB instead, while the disk has room.")
    ] = None,
    session: Session = PLAIN,
) -> int:
    """Delete the reserve file next to the store, so that a full disk has room for deletions.

    Fill the file before the disk is full, with --reserve. On a full disk, first stop what writes.
    """
    session.reject_tenant()
    path = reserve_path(check_url(session.chosen_url()))
    again = session.command("make-room", "--reserve", "64")
    if reserve is None:
        size_bytes = release(path, again)
        text = f"{size_bytes:,} bytes free; delete what you do not need, then fill it again: {again}"
        session.write({"file": str(path), "freed": size_bytes, "reserved": 0}, text)
    else:
        if not 1 <= reserve <= _MOST_MIB:
            raise InvalidError(f"--reserve {reserve} is not 1 to {_MOST_MIB:,} MiB")
        fill(path, reserve * _MIB)
        text = (
            f"{reserve * _MIB:,} bytes kept in {path}; when the disk is full: {session.command('make-room')}"
        )
        session.write({"file": str(path), "freed": 0, "reserved": reserve * _MIB}, text)
    return exits.OK


def reserve_path(url: StoreUrl) -> Path:
    """Return the reserve file of a store in a file, which must exist.

    Raises:
        NotFoundError: The store does not exist.
        UnsupportedError: The store is not in a file of this machine.
    """
    return Path(f"{store_file(url)}{_END}")


def store_file(url: StoreUrl) -> Path:
    """Return the file of a store, which must exist.

    Raises:
        NotFoundError: The store does not exist.
        UnsupportedError: The store is not in a file of this machine.
    """
    if url.backend not in FILES:
        raise UnsupportedError(
            f"{url} is not a file of this machine, so it has no reserve file; make room on the disk of its "
            "server"
        )
    require_file(url)
    path = Path(url.path)
    if path.is_dir():
        path /= JOURNAL
    return Path(os.path.realpath(path))


def reserved_bytes(path: Path) -> int:
    """Return the size of a reserve file; 0 without one."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def fill(path: Path, size_bytes: int) -> None:
    """Fill a reserve file, or bring it to another size. If there is too little room, it keeps its size.

    Raises:
        InvalidError: The file is a link, or has a second name.
        StorageError: It cannot be written to.
        StoreFullError: There is too little room.
    """
    before = reserved_bytes(path)
    try:
        try:
            descriptor = make_file(str(path))
        except FileExistsError:
            descriptor = open_own(str(path), os.O_WRONLY)
        try:
            _write_up_to(descriptor, size_bytes)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        finally:
            os.close(descriptor)
        sync_folder(str(path.parent))
    except OSError as error:
        if before == 0:
            path.unlink(missing_ok=True)
        raise storage_error(error, str(path)) from error


def _write_up_to(descriptor: int, size_bytes: int) -> None:
    os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, size_bytes))
    at = os.lseek(descriptor, 0, os.SEEK_END)
    while at < size_bytes:
        at += os.write(descriptor, SYSTEM_CLOCK.random_bytes(min(_MIB, size_bytes - at)))
    os.fsync(descriptor)


def release(path: Path, remedy: str) -> int:
    """Delete a reserve file, and return its size.

    Raises:
        InvalidError: The file is a link, or has a second name, so deleting it would free nothing.
        NotFoundError: It does not exist.
        StorageError: It cannot be deleted.
    """
    try:
        descriptor = open_own(str(path), os.O_RDONLY)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no reserve file {path}; make room by other means, and fill one while the disk has "
            f"room: {remedy}"
        ) from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        path.unlink()
        sync_folder(str(path.parent))
        return size_bytes
    except OSError as error:
        raise StorageError(f"{path} cannot be deleted ({error.strerror}). Delete it by hand.") from error
    finally:
        os.close(descriptor)
