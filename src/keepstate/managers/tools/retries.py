"""Retries of executions, in the order of their due times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from keepstate.engine.kernel.arguments import check_duration_ms
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import InvalidError, TransitionError
from keepstate.managers.binding import Namespace
from keepstate.managers.deadlines import backoff_s, caller_now, to_store_ms
from keepstate.managers.names import to_last_segment
from keepstate.managers.records import check_record, require_counts
from keepstate.managers.tools import log
from keepstate.managers.tools.keys import ToolSpaces, to_ascending
from keepstate.managers.tools.records import EXECUTION_STEPS, RetryState, ToolExecutionStatus
from keepstate.values import limits


class ToolRetries(ToolSpaces):
    """The retries of all tools."""

    async def update_retry_state(self, retry_state: RetryState) -> None:
        """Replace the retry schedule of an execution.

        The time `next_retry_at` of the caller's clock is converted to the store's clock. Without it, the
        retry is due at once. The execution need not exist.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        retry = retry_state
        check_record("retry_state", retry, RetryState)
        require_counts(retry, "attempts", "max_attempts")
        if type(retry.backoff_factor) not in (int, float) or not retry.backoff_factor >= 1:
            raise InvalidError(f"`backoff_factor` is {retry.backoff_factor!r}. Pass a number of 1 or more.")

        async def work(namespace: Namespace) -> None:
            await self._put_retry(namespace, retry)

        await self._run_together(self._namespace_for("execution_id", retry.execution_id), work)

    async def schedule_retry(
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
        limits.admit_count("max_attempts", max_attempts)
        check_duration_ms("first_delay_s", first_delay_s)
        check_duration_ms("longest_delay_s", longest_delay_s)
        if type(backoff_factor) not in (int, float):
            raise InvalidError(f"`backoff_factor` is {backoff_factor!r}. Pass a number of 1 or more.")

        async def work(namespace: Namespace) -> RetryState:
            kept = await namespace.get("retry", execution_id)
            attempts = kept["value"].attempts + 1 if kept else 1
            wait_s = backoff_s(attempts, backoff_factor, first_s=first_delay_s, longest_s=longest_delay_s)
            retry = RetryState(
                execution_id,
                attempts=attempts,
                max_attempts=max_attempts,
                last_error=format_error(error),
                next_retry_at=caller_now(self._clock) + timedelta(seconds=wait_s),
                backoff_factor=backoff_factor,
            )
            await self._put_retry(namespace, retry)
            return retry

        return await self._run_together(self._namespace_for("execution_id", execution_id), work)

    async def get_retry_state(self, execution_id: str) -> RetryState | None:
        """Return the retry schedule of an execution, or None if there is none."""
        namespace = self._namespace_for("execution_id", execution_id)
        kept = await namespace.get("retry", execution_id)
        return None if kept is None else kept["value"]

    async def cancel_retry(self, execution_id: str) -> bool:
        """Delete the retry schedule of an execution, and return whether it existed."""
        namespace = self._namespace_for("execution_id", execution_id)
        return await self._run_together(namespace, lambda inside: delete_retry(inside, execution_id))

    async def get_pending_retries(self, *, limit: int | None = None) -> list[RetryState]:
        """Return retries with attempts left, due or not, ordered by due time.

        Args:
            limit: Maximum number of retries; by default all.
        """
        if limit is not None:
            limits.admit_count("limit", limit)

        async def read(namespace: Namespace) -> list[tuple[str, bytes, RetryState]]:
            found: list[tuple[str, bytes, RetryState]] = []
            async for name, retry in namespace.collection("due").items():
                found.append((name.partition("/")[0], retry.execution_id.encode(), retry))
                if len(found) == limit:
                    break
            return found

        found = [each for page in await self._read_each(read) for each in page]
        return [retry for _, _, retry in sorted(found, key=_due_order)[:limit]]

    async def _put_retry(self, namespace: Namespace, retry: RetryState) -> None:
        logged = await log.find(namespace, retry.execution_id)
        if logged is not None and EXECUTION_STEPS.is_final(logged.execution.status):
            status = logged.execution.status.name
            raise TransitionError(
                f"execution {retry.execution_id!r} is {status} and cannot be retried",
                current=status,
                wanted=ToolExecutionStatus.RUNNING.name,
            )
        await delete_retry(namespace, retry.execution_id)
        due_key, now = None, await namespace.space.now()
        if retry.attempts < retry.max_attempts:
            due_ms = to_milliseconds(now)
            if retry.next_retry_at is not None:
                due_ms = to_store_ms(retry.next_retry_at, self._clock, now)
            due_key = namespace.name("due", to_ascending(due_ms), to_last_segment(retry.execution_id))
            await namespace.space.documents.put(due_key, retry)
        kept = {"value": retry, "due": due_key, "at_ms": to_milliseconds(now)}
        await namespace.put(kept, "retry", retry.execution_id)

    async def _clean_retries(self, namespace: Namespace, before: datetime) -> int:
        """Remove schedules of unknown executions that had no attempts left before a time."""
        removed = 0
        async for execution_id, kept in namespace.collection("retry").items():
            if _is_spent(kept, before):
                removed += await self._run_together(namespace, _make_removal(execution_id, before))
        return removed


def _is_spent(kept: dict[str, Any] | None, before: datetime) -> bool:
    return kept is not None and kept["due"] is None and kept.get("at_ms", 0) < to_milliseconds(before)


def _make_removal(execution_id: str, before: datetime) -> Callable[[Namespace], Awaitable[int]]:
    """Return work that removes a spent schedule, unless it was renewed or its execution exists."""

    async def work(namespace: Namespace) -> int:
        kept = await namespace.get("retry", execution_id)
        if not _is_spent(kept, before) or await log.find(namespace, execution_id) is not None:
            return 0
        return int(await delete_retry(namespace, execution_id))

    return work


def _due_order(found: tuple[str, bytes, Any]) -> tuple[str, bytes]:
    return found[:2]


async def delete_retry(namespace: Namespace, execution_id: str) -> bool:
    """Delete the retry schedule of an execution, and return whether it existed."""
    kept = await namespace.get("retry", execution_id)
    if kept is None:
        return False
    await namespace.delete("retry", execution_id)
    if kept["due"] is not None:
        await namespace.space.documents.delete(kept["due"])
    return True
