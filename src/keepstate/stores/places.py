"""What may stand where a store of one file is opened."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from keepstate.errors import InvalidError

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_forbidden(error: OSError) -> bool:
    """Whether the system lets this process not write there: to try again is no use."""
    return error.errno in _FORBIDDEN


def refuse_irregular(path: str) -> None:
    """Raises `InvalidError` for a device, a pipe or a socket, which keep nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # nothing is there yet, or what opens it says why it cannot
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidError(f"{path} is a device, a pipe or a socket, which keeps nothing; name a file")
