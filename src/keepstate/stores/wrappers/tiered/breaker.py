"""Keeps what fails out of the way: after a failure nobody asks it for a while, longer each time."""

from __future__ import annotations

import logging
import threading
from typing import Final

from keepstate._clock import Clock

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0

_log = logging.getLogger("keepstate.stores")


class Breaker:
    """Says whether to ask what may be failing; for any number of threads.

    Args:
        name: What it is, in the log: once when it begins to fail, and once when it answers again.
        clock: Tells when a pause is over.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._until_s = 0.0
        self._is_tried = False

    @property
    def is_closed(self) -> bool:
        """Return whether it has answered when it was last asked."""
        return not self._pause_s

    def allows(self) -> bool:
        """Return whether to ask now; when a pause is over, one caller may, and the others a pause later."""
        if not self._pause_s:
            return True
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._until_s:
                return False
            self._until_s = now_s + self._pause_s
            self._is_tried = True
            return True

    def failed(self, error: Exception) -> None:
        """Take note of a failure: many who asked at once may tell of the same one."""
        with self._lock:
            first = not self._pause_s
            if not first and not self._is_tried:
                return
            self._is_tried = False
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            self._until_s = self._clock.monotonic_s() + self._pause_s
        if first:
            _log.warning("%s fails, and is left out until it answers again: %s", self._name, error)

    def worked(self) -> None:
        """Take note of an answer."""
        if not self._pause_s:
            return
        with self._lock:
            was_open, self._pause_s, self._is_tried = bool(self._pause_s), 0.0, False
        if was_open:
            _log.info("%s answers again", self._name)
