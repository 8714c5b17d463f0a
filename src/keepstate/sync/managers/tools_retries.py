"""Blocking twins of `keepstate.managers.tools.retries`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import retries as managers
from keepstate.managers.tools.records import RetryState
from keepstate.sync.managers.tools_keys import ToolPlaces

Inner = TypeVar("Inner", bound=managers.ToolRetries)


class ToolRetries(ToolPlaces[Inner]):
    """The retries of all tools."""

    def update_retry_state(self, retry_state: RetryState) -> None:
        """Say when an execution is to be tried again, in place of what was said before.

        It is due by the store's clock when `next_retry_at` would come by the caller's; without it, at once.
        The execution need not be known.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        finish(self._inner.update_retry_state(retry_state))

    def schedule_retry(
        self,
        execution_id: str,
        error: object,
        *,
        max_attempts: int = 5,
        backoff_factor: float = 2.0,
        first_delay_s: float = 1.0,
        longest_delay_s: float = 300.0,
    ) -> RetryState:
        """Count a failed attempt, says when to try again, and return that.

        The waits are `first_delay_s`, then `backoff_factor` times as long each, up to `longest_delay_s`.
        After `max_attempts` it is no longer pending.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        return finish(
            self._inner.schedule_retry(
                execution_id,
                error,
                max_attempts=max_attempts,
                backoff_factor=backoff_factor,
                first_delay_s=first_delay_s,
                longest_delay_s=longest_delay_s,
            )
        )

    def get_retry_state(self, execution_id: str) -> RetryState | None:
        """Return when an execution is to be tried again, or None if nobody has said."""
        return finish(self._inner.get_retry_state(execution_id))

    def cancel_retry(self, execution_id: str) -> bool:
        """Forget that an execution is to be tried again, and return whether it was."""
        return finish(self._inner.cancel_retry(execution_id))

    def get_pending_retries(self, *, limit: int | None = None) -> list[RetryState]:
        """Return retries with attempts left, due or not, the one that is due first first.

        Args:
            limit: How many at the most; all, if it is not said.
        """
        return finish(self._inner.get_pending_retries(limit=limit))
