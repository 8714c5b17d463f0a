"""What may stand where a store of one file is opened."""

from __future__ import annotations

import os
import stat

from keepstate.errors import InvalidError


def refuse_irregular(path: str) -> None:
    """Raises `InvalidError` for a device, a pipe or a socket, which keep nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # nothing is there yet, or what opens it says why it cannot
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidError(f"{path} is a device, a pipe or a socket, which keeps nothing; name a file")
