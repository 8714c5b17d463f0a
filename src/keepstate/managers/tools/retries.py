"""Retries of executions: when each is to be tried again, in the order in which they are due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from keepstate.engine.kernel.times import check_duration_ms, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import InvalidError, TransitionError
from keepstate.managers.binding import Folder
from keepstate.managers.deadlines import backoff_s, present, store_ms
from keepstate.managers.names import ending
from keepstate.managers.records import admit_counts, admit_record
from keepstate.managers.tools import log
from keepstate.managers.tools.keys import ToolPlaces, ascending
from keepstate.managers.tools.records import EXECUTION_STEPS, RetryState, ToolExecutionStatus
from keepstate.values import limits


class ToolRetries(ToolPlaces):
    """The retries of all tools."""

    async def update_retry_state(self, retry_state: RetryState) -> None:
        """Say when an execution is to be tried again, in place of what was said before.

        It is due by the store's clock when `next_retry_at` would come by the caller's; without it, at once.
        The execution need not be known.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        retry = retry_state
        admit_record("retry_state", retry, RetryState)
        admit_counts(retry, "attempts", "max_attempts")
        if type(retry.backoff_factor) not in (int, float) or not retry.backoff_factor >= 1:
            raise InvalidError(f"`backoff_factor` is {retry.backoff_factor!r}; it is 1 or more")

        async def work(folder: Folder) -> None:
            await self._put_retry(folder, retry)

        await self._together(self._of("execution_id", retry.execution_id), work)

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
        """Count a failed attempt, says when to try again, and return that.

        The waits are `first_delay_s`, then `backoff_factor` times as long each, up to `longest_delay_s`.
        After `max_attempts` it is no longer pending.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        limits.admit_count("max_attempts", max_attempts)
        check_duration_ms("first_delay_s", first_delay_s)
        check_duration_ms("longest_delay_s", longest_delay_s)
        if type(backoff_factor) not in (int, float):
            raise InvalidError(f"`backoff_factor` is {backoff_factor!r}; give a number of 1 or more")

        async def work(folder: Folder) -> RetryState:
            kept = await folder.space.documents.get(folder.name("retry", execution_id))
            attempts = kept["value"].attempts + 1 if kept else 1
            wait_s = backoff_s(attempts, backoff_factor, first_s=first_delay_s, longest_s=longest_delay_s)
            retry = RetryState(
                execution_id,
                attempts=attempts,
                max_attempts=max_attempts,
                last_error=format_error(error),
                next_retry_at=present(self._clock) + timedelta(seconds=wait_s),
                backoff_factor=backoff_factor,
            )
            await self._put_retry(folder, retry)
            return retry

        return await self._together(self._of("execution_id", execution_id), work)

    async def get_retry_state(self, execution_id: str) -> RetryState | None:
        """Return when an execution is to be tried again, or None if nobody has said."""
        folder = self._of("execution_id", execution_id)
        kept = await folder.space.documents.get(folder.name("retry", execution_id))
        return None if kept is None else kept["value"]

    async def cancel_retry(self, execution_id: str) -> bool:
        """Forget that an execution is to be tried again, and return whether it was."""
        folder = self._of("execution_id", execution_id)
        return await self._together(folder, lambda inside: forget_retry(inside, execution_id))

    async def get_pending_retries(self, *, limit: int | None = None) -> list[RetryState]:
        """Return retries with attempts left, due or not, the one that is due first first.

        Args:
            limit: How many at the most; all, if it is not said.
        """
        if limit is not None:
            limits.admit_count("limit", limit)

        async def read(folder: Folder) -> list[tuple[str, bytes, RetryState]]:
            found: list[tuple[str, bytes, RetryState]] = []
            async for name, retry in folder.values("due"):
                found.append((name.partition("/")[0], retry.execution_id.encode(), retry))
                if len(found) == limit:
                    break
            return found

        found = [each for page in await self._in_each(read) for each in page]
        return [retry for _, _, retry in sorted(found, key=_due_first)[:limit]]

    async def _put_retry(self, folder: Folder, retry: RetryState) -> None:
        logged = await log.find(folder, retry.execution_id)
        if logged is not None and EXECUTION_STEPS.is_final(logged.execution.status):
            status = logged.execution.status.name
            raise TransitionError(
                f"execution {retry.execution_id!r} is {status}, and is not tried again; leave it",
                current=status,
                wanted=ToolExecutionStatus.RUNNING.name,
            )
        await forget_retry(folder, retry.execution_id)
        place, now = None, await folder.space.now()
        if retry.attempts < retry.max_attempts:
            due_ms = to_milliseconds(now)
            if retry.next_retry_at is not None:
                due_ms = store_ms(retry.next_retry_at, self._clock, now)
            place = folder.name("due", ascending(due_ms), ending(retry.execution_id))
            await folder.space.documents.put(place, retry)
        kept = {"value": retry, "due": place, "at_ms": to_milliseconds(now)}
        await folder.space.documents.put(folder.name("retry", retry.execution_id), kept)

    async def _clean_retries(self, folder: Folder, before: datetime) -> int:
        """Remove retries that had no attempts left before then, of executions that are not known."""
        removed = 0
        async for execution_id, kept in folder.values("retry"):
            if _was_spent(kept, before):
                removed += await self._together(folder, _removal(execution_id, before))
        return removed


def _was_spent(kept: dict[str, Any] | None, before: datetime) -> bool:
    return kept is not None and kept["due"] is None and kept.get("at_ms", 0) < to_milliseconds(before)


def _removal(execution_id: str, before: datetime) -> Callable[[Folder], Awaitable[int]]:
    """Return what removes a retry, unless somebody says anew when it is due, or its execution is known."""

    async def work(folder: Folder) -> int:
        kept = await folder.space.documents.get(folder.name("retry", execution_id))
        if not _was_spent(kept, before) or await log.find(folder, execution_id) is not None:
            return 0
        return int(await forget_retry(folder, execution_id))

    return work


def _due_first(found: tuple[str, bytes, Any]) -> tuple[str, bytes]:
    return found[:2]


async def forget_retry(folder: Folder, execution_id: str) -> bool:
    """Forget that an execution is to be tried again, and return whether it was."""
    kept = await folder.space.documents.get(folder.name("retry", execution_id))
    if kept is None:
        return False
    await folder.space.documents.delete(folder.name("retry", execution_id))
    if kept["due"] is not None:
        await folder.space.documents.delete(kept["due"])
    return True
