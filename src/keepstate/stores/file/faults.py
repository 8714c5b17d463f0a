"""Translation of the operating system's errors to keepstate's; no other module does it."""

from __future__ import annotations

import errno
from typing import Final

from keepstate.errors import StorageError, StoreFullError, StoreUnavailableError
from keepstate.stores.local_files import is_forbidden

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def storage_error(error: OSError, path: str) -> StorageError:
    """Return the error for a failed write of which nothing is in the file."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFullError(
            f"There is no room for {path} ({reason}). Nothing was written. Free space on its disk."
        )
    if is_forbidden(error):
        return StorageError(
            f"{path} cannot be written to ({reason}). Nothing was written. Make the file and its folder "
            f"writable."
        )
    return StoreUnavailableError(f"{path} failed ({reason}). Nothing was written. Try again.")
