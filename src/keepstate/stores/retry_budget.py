"""How long one call goes on trying a store that does not answer."""

from __future__ import annotations

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.errors import OutcomeUnknownError, StoreUnavailableError
from keepstate.stores.protocol import Outcome

READ_ONLY_FOR_S = 4.0
"""How long a server that takes no writes is asked again."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


class RetryBudget:
    """Allows attempts until time is up, and none that would end after that if it took as long as the longest.

    Args:
        for_s: How long the whole call may take, in seconds; 0 allows one attempt.
        since_s: When the call began, on the monotonic clock; now, if not given.
    """

    def __init__(self, for_s: float, *, runner: Runner, clock: Clock, since_s: float | None = None) -> None:
        self._runner, self._clock = runner, clock
        self._since_s = clock.monotonic_s() if since_s is None else since_s
        self._until_s = self._since_s + for_s
        self._longest_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._read_only_until_s: float | None = None

    async def again(self, failure: object = None) -> bool:
        """Return after a pause, longer each time, that there may be another attempt, or at once that not.

        A server that was reached and takes no writes is asked for a few seconds only: it may be a failover.
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
    """Whether the store itself has said that it cannot tell any more; to ask again would not help."""
    return isinstance(outcome, OutcomeUnknownError) and outcome.token is not None


def is_unanswered(outcome: Outcome) -> bool:
    """Whether nobody has said what became of a batch."""
    return isinstance(outcome, OutcomeUnknownError) and outcome.token is None


def is_retryable(outcome: Outcome) -> bool:
    """Whether a batch may be sent again."""
    return isinstance(outcome, StoreUnavailableError) and not is_verdict(outcome)
