"""Logs the start and the end of an outage once each, however many calls retry in between."""

from __future__ import annotations

import logging

from keepstate._clock import Clock

_log = logging.getLogger("keepstate.stores")


class OutageLog:
    """The present outage of a store, if there is one.

    Args:
        url: Names the store.
        for_s: Seconds for which a call is retried.
        clock: Measures the outage.
    """

    def __init__(self, url: str, for_s: float, clock: Clock) -> None:
        self._url, self._for_s, self._clock = url, for_s, clock
        self._since_s: float | None = None

    def record_failure(self, error: object) -> None:
        """Log that a call is about to be retried."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
            _log.warning("Calls are retried for up to %g s each: %s", self._for_s, error)
        else:
            _log.debug("A call is retried: %s", error)

    def record_answer(self) -> None:
        """Log that the store has answered, if an outage was logged."""
        since_s, self._since_s = self._since_s, None
        if since_s is not None:
            _log.info("%s answers again, after %.1f s", self._url, self._clock.monotonic_s() - since_s)
