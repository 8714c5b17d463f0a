"""Blocking twins of `keepstate.managers.tools.retries`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import retries as managers
from keepstate.managers.tools.records import RetryState
from keepstate.sync.managers.tools_keys import ToolSpaces

Inner = TypeVar("Inner", bound=managers.ToolRetries)


class ToolRetries(ToolSpaces[Inner]):
    """The retries of all tools."""

    def update_retry_state(self, retry_state: RetryState) -> None:
        """Replace the retry schedule of an execution.

        The time `next_retry_at` of the caller's clock is converted to the store's clock. Without it, the
        retry is due at once. The execution need not exist.

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
        """Count a failed attempt, and return the schedule of the next one.

        The delays are `first_delay_s`, then each `backoff_factor` times the last, up to `longest_delay_s`.
        After `max_attempts` no retry is pending.

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
        """Return the retry schedule of an execution, or None if there is none."""
        return finish(self._inner.get_retry_state(execution_id))

    def cancel_retry(self, execution_id: str) -> bool:
        """Delete the retry schedule of an execution, and return whether it existed."""
        return finish(self._inner.cancel_retry(execution_id))

    def get_pending_retries(self, *, limit: int | None = None) -> list[RetryState]:
        """Return retries with attempts left, due or not, ordered by due time.

        Args:
            limit: Maximum number of retries; by default all.
        """
        return finish(self._inner.get_pending_retries(limit=limit))
