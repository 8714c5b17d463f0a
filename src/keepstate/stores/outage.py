"""What the log tells of a store that does not answer: once that it began, and once that it is over."""

from __future__ import annotations

import logging

from keepstate._clock import Clock

_log = logging.getLogger("keepstate.stores")


class OutageLog:
    """The time in which a store does not answer, however many calls ask again meanwhile.

    Args:
        url: Names the store.
        for_s: How long a call asks again, in seconds.
        clock: Tells how long it lasted.
    """

    def __init__(self, url: str, for_s: float, clock: Clock) -> None:
        self._url, self._for_s, self._clock = url, for_s, clock
        self._since_s: float | None = None

    def goes_on(self, error: object) -> None:
        """Tell that a call is about to ask again."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
            _log.warning("calls are repeated for up to %g s each: %s", self._for_s, error)
        else:
            _log.debug("a call is repeated: %s", error)

    def ends(self) -> None:
        """Tell that the store has answered, if that is news."""
        since_s, self._since_s = self._since_s, None
        if since_s is not None:
            _log.info("%s answers again, after %.1f s", self._url, self._clock.monotonic_s() - since_s)
