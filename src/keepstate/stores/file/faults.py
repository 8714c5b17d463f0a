"""Every error of the operating system as one of keepstate's: the only place that knows both."""

from __future__ import annotations

import errno
from typing import Final

from keepstate.errors import StorageError, StoreFullError, StoreUnavailableError
from keepstate.stores.local_files import is_forbidden

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def storage_error(error: OSError, path: str) -> StorageError:
    """Return what an error means to the caller, for whom nothing was written."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFullError(
            f"there is no room for {path} ({reason}); nothing was written: free space on its disk"
        )
    if is_forbidden(error):
        return StorageError(
            f"{path} cannot be written to ({reason}); nothing was written: make it and its folder writable"
        )
    return StoreUnavailableError(f"{path} failed ({reason}); nothing was written: try again")
