"""Every error of SQLite as one of keepstate's: the only place that knows both."""

from __future__ import annotations

import errno
from typing import Final

import apsw

from keepstate.errors import CorruptError, StorageError, StoreFullError, StoreUnavailableError

_LIMITS: Final = frozenset({errno.EFBIG, errno.EDQUOT})
_FOREIGN: Final = "a row or table that a keepstate database has is missing"


def storage_error(error: apsw.Error, path: str) -> StorageError:
    """Return what an error of a statement means to the caller; nothing of its transaction was applied."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailableError(
            f"another program has kept {path} locked ({error}); nothing was written: try again"
        )
    if isinstance(error, apsw.FullError) or is_full(error):
        return full_error(error, path)
    if isinstance(error, apsw.NotADBError):
        return CorruptError(
            f"{path} is no database ({error}): give another file, or restore a backup", place=path
        )
    if is_damage(error):
        return CorruptError(
            f"{path} is damaged (a page is not what its checksum says: a bit changed, or another program "
            "wrote to the file): restore it from a backup",
            place=path,
        )
    if isinstance(error, apsw.CorruptError | apsw.FormatError):
        return CorruptError(f"{path} is damaged ({error}): restore it from a backup", place=path)
    if isinstance(error, apsw.SQLError | apsw.ConstraintError | apsw.MismatchError):
        return CorruptError(f"{path} is damaged ({_FOREIGN}: {error}): restore it from a backup", place=path)
    if isinstance(error, apsw.CantOpenError):
        return StoreUnavailableError(
            f"{path} cannot be opened ({error}); nothing was written: see its permissions"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return StorageError(
            f"{path} cannot be written to ({error}); nothing was written: make it and its folder writable"
        )
    return StorageError(f"{path} failed ({type(error).__name__}: {error}); nothing was written")


def full_error(error: apsw.Error, path: str) -> StoreFullError:
    """Return the error of a write for which there was no room."""
    return StoreFullError(
        f"there is no room for {path} ({error}); nothing was written: free space on its disk"
    )


def lacks_room(error: apsw.Error, system_errno: int) -> bool:
    """Return whether a write, and no sync, failed at a limit of the process or the user."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE and system_errno in _LIMITS


def is_full(error: apsw.Error) -> bool:
    """Return whether an I/O error says that no room was left for the file of shared memory."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE


def is_io_failure(error: apsw.Error) -> bool:
    """Return whether the disk failed: what it holds is then unknown until the file is opened anew."""
    return isinstance(error, apsw.IOError) and not is_full(error) and not is_damage(error)


def is_damage(error: apsw.Error) -> bool:
    """Return whether an I/O error says that a page is not what its checksum says."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
