"""Closes what was dropped while it was open, but never right there.

An object may be collected as garbage anywhere, also in the middle of a store's work, under a lock that
closing would wait for. So what was dropped is only noted, and closed with the next call of anybody, or at the
end of the process.
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
    """Have a handle closed some time after its owner is gone, unless `close` does so before."""
    _open.add(handle)
    finalize(owner, _dropped.append, handle).atexit = False


def close(handle: Keepstate) -> None:
    """Close a handle; twice is once."""
    if handle in _open:
        _open.discard(handle)
        if handle.runner.is_home():  # a forked child has nothing to close
            finish(handle.close())


def close_dropped() -> None:
    """Close what was dropped since it was last called."""
    while _dropped:
        close(_dropped.popleft())


@atexit.register
def _close_all() -> None:
    for handle in [*_open]:
        close(handle)
