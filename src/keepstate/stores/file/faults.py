"""Every error of the operating system as one of keepstate's: the only place that knows both."""

from __future__ import annotations

import errno
from typing import Final

from keepstate.errors import StorageError, StoreFullError, StoreUnavailableError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def storage_error(error: OSError, path: str) -> StorageError:
    """Returns what an error means to the caller, for whom nothing was written."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFullError(
            f"there is no room for {path} ({reason}); nothing was written: free space on its disk"
        )
    if error.errno in _FORBIDDEN:
        return StorageError(
            f"{path} cannot be written to ({reason}); nothing was written: make it and its folder writable"
        )
    return StoreUnavailableError(f"{path} failed ({reason}); nothing was written: try again")
