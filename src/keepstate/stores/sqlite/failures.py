"""Translation of SQLite's errors to keepstate's; no other module does it."""

from __future__ import annotations

import errno
from typing import Final

import apsw

from keepstate.errors import CorruptError, StorageError, StoreFullError, StoreUnavailableError

_LIMITS: Final = frozenset({errno.EFBIG, errno.EDQUOT})
_FOREIGN: Final = "a row or table that a keepstate database has is missing"


def storage_error(error: apsw.Error, path: str) -> StorageError:
    """Return the error for a failed statement whose transaction was not applied."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailableError(
            f"Another program has kept {path} locked ({error}). Nothing was written. Try again."
        )
    if isinstance(error, apsw.FullError) or is_full(error):
        return full_error(error, path)
    if isinstance(error, apsw.NotADBError):
        return CorruptError(
            f"{path} is not a database ({error}). Use another file, or restore a backup.", place=path
        )
    if is_damage(error):
        return CorruptError(
            f"{path} is damaged: a page does not match its checksum, because a bit changed or another "
            "program wrote to the file. Restore it from a backup.",
            place=path,
        )
    if isinstance(error, apsw.CorruptError | apsw.FormatError):
        return CorruptError(f"{path} is damaged ({error}). Restore it from a backup.", place=path)
    if isinstance(error, apsw.SQLError | apsw.ConstraintError | apsw.MismatchError):
        return CorruptError(f"{path} is damaged ({_FOREIGN}: {error}). Restore it from a backup.", place=path)
    if isinstance(error, apsw.CantOpenError):
        return StoreUnavailableError(
            f"{path} cannot be opened ({error}). Nothing was written. Check its permissions."
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return StorageError(
            f"{path} cannot be written to ({error}). Nothing was written. Make the file and its folder "
            f"writable."
        )
    return StorageError(
        f"{path} failed ({type(error).__name__}: {error}). Nothing was written. Check the disk."
    )


def full_error(error: apsw.Error, path: str) -> StoreFullError:
    """Return the error for a write for which there was not enough room."""
    return StoreFullError(
        f"There is no room for {path} ({error}). Nothing was written. Free space on its disk."
    )


def lacks_room(error: apsw.Error, system_errno: int) -> bool:
    """Return whether a write, not a sync, failed at a limit of the process or the user."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE and system_errno in _LIMITS


def is_full(error: apsw.Error) -> bool:
    """Return whether an I/O error means that there was not enough room for the shared memory file."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE


def is_io_failure(error: apsw.Error) -> bool:
    """Return whether the disk failed. Its content is then unknown until the file is opened again."""
    return isinstance(error, apsw.IOError) and not is_full(error) and not is_damage(error)


def is_damage(error: apsw.Error) -> bool:
    """Return whether an I/O error means that a page does not match its checksum."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
