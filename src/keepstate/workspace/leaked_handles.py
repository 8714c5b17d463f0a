"""Closes leaked handles later, never inside a finalizer.

The garbage collector may run anywhere, also inside a store that holds a lock that closing needs. Therefore a
finalizer only records the handle. The next call on any handle closes it, or the end of the process.
"""

from __future__ import annotations

import atexit
from collections import deque
from typing import Final
from weakref import finalize

from keepstate._finish import finish
from keepstate.engine.space.keepstate import Keepstate

_open: Final = set[Keepstate]()
_dropped: Final = deque[Keepstate]()


def close_with(owner: object, handle: Keepstate) -> None:
    """Close a handle some time after its owner is collected, unless `close` did so before."""
    _open.add(handle)
    finalize(owner, _dropped.append, handle).atexit = False


def close(handle: Keepstate) -> None:
    """Close a handle. A second call does nothing."""
    if handle in _open:
        _open.discard(handle)
        if handle.runner.is_home():  # a forked child has nothing to close
            finish(handle.close())


def close_dropped() -> None:
    """Close the handles that were recorded since the last call."""
    while _dropped:
        close(_dropped.popleft())


@atexit.register
def _close_all() -> None:
    for handle in [*_open]:
        close(handle)
