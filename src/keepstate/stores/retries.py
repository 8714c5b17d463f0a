"""The retries of calls that a server did not answer: their budget, and the last revisions seen.

A call is retried for a limited time. The log gets the start and the end of an outage once each, however many
calls retry in between.
"""

from __future__ import annotations

import logging

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.errors import OutcomeUnknownError, StoreUnavailableError
from keepstate.stores.protocol import Outcome

RETRY_FOR_S = 30.0
"""Seconds for which a batch with an unknown outcome, or a call to an unavailable store, is retried."""

READ_ONLY_FOR_S = 4.0
"""Seconds for which a call to a read-only server is retried."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


_log = logging.getLogger("keepstate.stores")
_SPACES_REMEMBERED = 65_536


class RetryBudget:
    """Permits another attempt only if it would end before the deadline, if as slow as the slowest so far.

    Args:
        for_s: Seconds that the whole call may take; 0 allows one attempt.
        since_s: Start of the call on the monotonic clock; by default now.
    """

    def __init__(self, for_s: float, *, runner: Runner, clock: Clock, since_s: float | None = None) -> None:
        self._runner, self._clock = runner, clock
        self._since_s = clock.monotonic_s() if since_s is None else since_s
        self._until_s = self._since_s + for_s
        self._longest_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._read_only_until_s: float | None = None

    async def wait_for_retry(self, failure: object = None) -> bool:
        """Return True after a pause if another attempt is allowed, otherwise False at once.

        The pauses get longer. A server that is read-only is retried for a few seconds only, because that may
        be a failover.
        """
        now_s = self._clock.monotonic_s()
        if isinstance(failure, StoreUnavailableError) and failure.is_read_only:
            self._read_only_until_s = self._read_only_until_s or now_s + READ_ONLY_FOR_S
        else:
            self._read_only_until_s = None
        self._longest_s = max(self._longest_s, now_s - self._since_s)
        pause_s = self._pause_s * (0.5 + self._clock.spread())
        until_s = min(self._until_s, self._read_only_until_s or self._until_s)
        if now_s + pause_s + self._longest_s >= until_s:
            return False
        await self._runner.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._since_s = self._clock.monotonic_s()
        return True


def is_verdict(outcome: Outcome) -> bool:
    """Return whether the store itself answered that the outcome is no longer known: a retry is useless."""
    return isinstance(outcome, OutcomeUnknownError) and outcome.token is not None


def is_unanswered(outcome: Outcome) -> bool:
    """Return whether the outcome of a batch is still open."""
    return isinstance(outcome, OutcomeUnknownError) and outcome.token is None


def is_retryable(outcome: Outcome) -> bool:
    """Return whether a batch may be retried."""
    return isinstance(outcome, StoreUnavailableError) and not is_verdict(outcome)


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


class SeenRevisions(dict[str, int]):
    """The highest revision seen of each space. The oldest spaces are forgotten beyond 65,536.

    An unanswered batch can only be above this revision in the log.
    """

    def record(self, space: str, revision: int) -> None:
        """Remember a revision if it is higher than the known one."""
        if revision <= self.get(space, -1):
            return
        self[space] = revision
        if len(self) > _SPACES_REMEMBERED:
            del self[next(iter(self))]
