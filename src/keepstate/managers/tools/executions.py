"""Executions of tools: checked transitions, retries in the order of their due times, and the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_duration_ms, check_name
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.arguments import caller_now, require_counts, to_store_ms
from keepstate.managers.binding import Namespace
from keepstate.managers.names import to_last_segment, to_segment
from keepstate.managers.records import check_record, encode_canonical
from keepstate.managers.tools.records import (
    EXECUTION_STEPS,
    EffectStatus,
    RetryState,
    ToolExecution,
    ToolExecutionStatus,
    count_transition,
)
from keepstate.managers.tools.spaces import (
    LoggedExecution,
    ToolSpaces,
    count,
    find_execution,
    find_stale,
    new_log_key,
    put_execution,
    remove_execution,
    to_ascending,
)
from keepstate.values import limits

_Status = ToolExecutionStatus
_BEGINNINGS: Final = (_Status.PENDING, _Status.RUNNING)


class Executions:
    """The executions of one manager, and their retries."""

    def __init__(self, spaces: ToolSpaces) -> None:
        self._spaces = spaces

    async def start(self, execution: ToolExecution, *, lease_s: float) -> ToolExecution:
        """Record that a tool is being used, and return the execution as stored."""
        check_record("execution", execution, ToolExecution)
        if execution.status not in _BEGINNINGS:
            raise InvalidError(
                f"execution {execution.execution_id!r} is {execution.status.name}. Start it with the status "
                "PENDING or RUNNING."
            )
        check_name("tool_name", execution.tool_name)
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(namespace: Namespace) -> ToolExecution:
            now_ms = to_milliseconds(await namespace.space.now())
            before, status, attempt = await find_execution(namespace, execution.execution_id), None, 1
            if before is not None:
                status = before.execution.status
                if before.is_stale(now_ms):
                    status = _Status.TIMED_OUT
                    await count(namespace, count_transition(execution.tool_name, _Status.RUNNING, status))
                _check_restart(replace(before.execution, status=status), execution)
                attempt = before.execution.attempt + (status not in _BEGINNINGS)
            now = LoggedExecution(
                replace(execution, attempt=attempt),
                new_log_key(namespace, execution, now_ms) if before is None else before.key,
                since_ms=now_ms,
                until_ms=now_ms + lease_ms if execution.status is _Status.RUNNING else None,
            )
            await put_execution(namespace, before, now)
            await count(namespace, count_transition(execution.tool_name, status, execution.status))
            return now.execution

        return await self._spaces.change(self._spaces.of(execution.execution_id), work)

    async def heartbeat(self, execution_id: str, *, lease_s: float) -> None:
        """Extend the lease of an execution to `lease_s` seconds from now. `run` does this by itself."""
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(namespace: Namespace) -> None:
            before = await _require_execution(namespace, execution_id)
            if before.execution.status is not _Status.RUNNING:
                raise EXECUTION_STEPS.make_error(execution_id, before.execution.status, _Status.RUNNING)
            until_ms = to_milliseconds(await namespace.space.now()) + lease_ms
            await put_execution(namespace, before, replace(before, until_ms=until_ms))

        await self._spaces.change(self._spaces.of(execution_id), work)

    async def get_stale(self) -> list[ToolExecution]:
        """Return the running executions whose leases have ended, the earliest end first."""

        async def read(namespace: Namespace) -> list[tuple[str, bytes, ToolExecution]]:
            found: list[tuple[str, bytes, ToolExecution]] = []
            now_ms = to_milliseconds(await namespace.space.now())
            async for until, execution_id in find_stale(namespace, now_ms):
                logged = await find_execution(namespace, execution_id)
                if logged is not None and logged.is_stale(now_ms):  # otherwise it has continued
                    found.append((until, execution_id.encode(), logged.execution))
            return found

        found = [each for page in await self._spaces.read_each(read) for each in page]
        return [execution for _, _, execution in sorted(found, key=lambda each: each[:2])]

    async def fail(
        self, execution_id: str, error: object, *, duration_ms: float | None = None, timed_out: bool = False
    ) -> ToolExecution:
        """Record that an execution failed or timed out, and return it; see `schedule_retry`."""
        status = _Status.TIMED_OUT if timed_out else _Status.FAILED
        changes = {"error": format_error(error), "duration_ms": duration_ms}
        return (await self._end(execution_id, status, changes))[0]

    async def cancel(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Cancel an execution and its retries, and return it."""
        changes: dict[str, Any] = {} if reason is None else {"error": reason}
        return (await self._end(execution_id, _Status.CANCELLED, changes))[0]

    async def get(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none with this id."""
        logged = await find_execution(self._spaces.of(execution_id), execution_id)
        return None if logged is None else logged.execution

    async def get_history(
        self, tool_name: str, limit: int, *, after: str | None, status: ToolExecutionStatus | None
    ) -> list[ToolExecution]:
        """Return the executions of a tool, newest start first; for equal times, ordered by id."""
        limits.admit_count("limit", limit)
        if status is not None:
            check_record("status", status, ToolExecutionStatus)
        tool = to_segment(check_name("tool_name", tool_name))
        behind = None if after is None else await self._log_key(after)

        async def read(namespace: Namespace) -> list[tuple[bytes, ToolExecution]]:
            found: list[tuple[bytes, ToolExecution]] = []
            async for name, execution in namespace.collection("log", tool).items(behind):
                if status in (None, execution.status):
                    found.append((name.encode(), execution))
                    if len(found) == limit:
                        break
            return found

        pages = merge(*await self._spaces.read_each(read), key=lambda each: each[0])
        return [execution for _, execution in islice(pages, limit)]

    async def _log_key(self, execution_id: str) -> str:
        namespace = self._spaces.of(execution_id)
        logged = await find_execution(namespace, execution_id)
        if logged is None:
            raise NotFoundError(
                f"execution {execution_id!r} does not exist. Pass the last id of a page as `after`."
            )
        return logged.key.removeprefix(namespace.name_prefix("log", to_segment(logged.execution.tool_name)))

    async def complete(
        self, execution_id: str, result: object, duration_ms: float | None
    ) -> tuple[ToolExecution, bool]:
        """Return the completed execution, and whether this call completed it."""
        changes = {"result": result, "error": None, "duration_ms": duration_ms}
        return await self._end(execution_id, _Status.COMPLETED, changes)

    async def _end(
        self, execution_id: str, status: ToolExecutionStatus, changes: dict[str, Any]
    ) -> tuple[ToolExecution, bool]:
        duration_ms = changes.get("duration_ms")
        if duration_ms is not None and (type(duration_ms) not in (int, float) or not duration_ms >= 0):
            raise InvalidError(f"`duration_ms` is {duration_ms!r}. Pass a number of milliseconds, 0 or more.")

        async def work(namespace: Namespace) -> tuple[ToolExecution, bool]:
            logged = await _require_execution(namespace, execution_id)
            before = logged.execution
            if before.status is status:
                _check_repeated(before, changes)
                return before, False
            EXECUTION_STEPS.check(execution_id, before.status, status)
            now = await namespace.space.now()
            took_ms = duration_ms
            if took_ms is None:
                is_running = before.status is _Status.RUNNING
                took_ms = max(0, to_milliseconds(now) - logged.since_ms) if is_running else before.duration_ms
            ended = replace(
                before, **{**changes, "duration_ms": took_ms, "completed_at": now, "status": status}
            )
            await put_execution(namespace, logged, replace(logged, execution=ended, until_ms=None))
            if EXECUTION_STEPS.is_final(status):
                await delete_retry(namespace, execution_id)
            await count(namespace, count_transition(ended.tool_name, before.status, status, took_ms))
            return ended, True

        return await self._spaces.change(self._spaces.of(execution_id), work)

    # ---- retries

    async def update_retry(self, retry: RetryState) -> None:
        """Replace the retry schedule of an execution."""
        check_record("retry_state", retry, RetryState)
        require_counts(retry, "attempts", "max_attempts")
        if type(retry.backoff_factor) not in (int, float) or not retry.backoff_factor >= 1:
            raise InvalidError(f"`backoff_factor` is {retry.backoff_factor!r}. Pass a number of 1 or more.")

        async def work(namespace: Namespace) -> None:
            await self._put_retry(namespace, retry)

        await self._spaces.change(self._spaces.of(retry.execution_id), work)

    async def schedule_retry(
        self,
        execution_id: str,
        error: object,
        *,
        max_attempts: int,
        backoff_factor: float,
        first_delay_s: float,
        longest_delay_s: float,
    ) -> RetryState:
        """Count a failed attempt, and return the schedule of the next one."""
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
                next_retry_at=caller_now(self._spaces.clock) + timedelta(seconds=wait_s),
                backoff_factor=backoff_factor,
            )
            await self._put_retry(namespace, retry)
            return retry

        return await self._spaces.change(self._spaces.of(execution_id), work)

    async def get_retry(self, execution_id: str) -> RetryState | None:
        """Return the retry schedule of an execution, or None if there is none."""
        kept = await self._spaces.of(execution_id).get("retry", execution_id)
        return None if kept is None else kept["value"]

    async def cancel_retry(self, execution_id: str) -> bool:
        """Delete the retry schedule of an execution, and return whether it existed."""
        work = partial(delete_retry, execution_id=execution_id)
        return await self._spaces.change(self._spaces.of(execution_id), work)

    async def get_pending_retries(self, limit: int | None) -> list[RetryState]:
        """Return retries with attempts left, due or not, ordered by due time."""
        if limit is not None:
            limits.admit_count("limit", limit)

        async def read(namespace: Namespace) -> list[tuple[str, bytes, RetryState]]:
            found: list[tuple[str, bytes, RetryState]] = []
            async for name, retry in namespace.collection("due").items():
                found.append((name.partition("/")[0], retry.execution_id.encode(), retry))
                if len(found) == limit:
                    break
            return found

        found = [each for page in await self._spaces.read_each(read) for each in page]
        return [retry for _, _, retry in sorted(found, key=lambda each: each[:2])[:limit]]

    async def _put_retry(self, namespace: Namespace, retry: RetryState) -> None:
        logged = await find_execution(namespace, retry.execution_id)
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
                due_ms = to_store_ms(retry.next_retry_at, self._spaces.clock, now)
            due_key = namespace.name("due", to_ascending(due_ms), to_last_segment(retry.execution_id))
            await namespace.space.documents.put(due_key, retry)
        kept = {"value": retry, "due": due_key, "at_ms": to_milliseconds(now)}
        await namespace.put(kept, "retry", retry.execution_id)

    # ---- removal

    async def delete_tool(self, tool_name: str) -> int:
        """Remove the executions, retries and statistics of a tool, and return the number of executions."""
        tool = to_segment(check_name("tool_name", tool_name))
        await self._spaces.store_lookups()  # otherwise they would be added afterwards

        async def remove(namespace: Namespace) -> int:
            removed = 0
            async for execution in namespace.collection("log", tool).values():
                removed += await self._spaces.change(namespace, _make_removal(execution.execution_id))
            await namespace.delete("stats", tool)
            return removed

        return sum(await self._spaces.read_each(remove))

    async def clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove finished executions with their retries, and effects that certainly did not happen."""
        removed = 0
        async for _, execution_id in find_stale(namespace, to_milliseconds(before)):
            removed += await self._spaces.change(namespace, _make_removal(execution_id, before))
        async for execution in namespace.collection("log").values():
            if execution.completed_at is not None and execution.completed_at < before:
                removed += await self._spaces.change(namespace, _make_removal(execution.execution_id, before))
        removed += await self._clean_retries(namespace, before)
        async for name, kept in namespace.collection("effect").items():
            if _is_not_done(kept, before):
                removed += await self._spaces.change(namespace, _make_effect_removal(name, before))
        return removed

    async def _clean_retries(self, namespace: Namespace, before: datetime) -> int:
        """Remove schedules of unknown executions that had no attempts left before a time."""
        removed = 0
        async for execution_id, kept in namespace.collection("retry").items():
            if _is_spent(kept, before):
                removed += await self._spaces.change(namespace, _make_retry_removal(execution_id, before))
        return removed


def _make_removal(execution_id: str, before: datetime | None = None) -> Callable[[Namespace], Awaitable[int]]:
    """Return work that removes an execution, if it was finished or stale before a time, or in any case."""

    async def work(namespace: Namespace) -> int:
        logged = await find_execution(namespace, execution_id)
        if logged is None:
            return 0
        execution = logged.execution
        if before is not None:
            if logged.is_stale(to_milliseconds(before)):
                await count(
                    namespace, count_transition(execution.tool_name, _Status.RUNNING, _Status.TIMED_OUT)
                )
            elif execution.completed_at is None or execution.completed_at >= before:
                return 0
        await remove_execution(namespace, logged)
        await delete_retry(namespace, execution_id)
        return 1

    return work


def _is_not_done(kept: dict[str, Any] | None, before: datetime) -> bool:
    return (
        kept is not None and kept["value"].status is EffectStatus.NOT_DONE and kept["value"].ended_at < before
    )


def _make_effect_removal(name: str, before: datetime) -> Callable[[Namespace], Awaitable[int]]:
    """Return work that removes an effect, unless it has begun again."""

    async def work(namespace: Namespace) -> int:
        if not _is_not_done(await namespace.get("effect", name), before):
            return 0
        return int(await namespace.delete("effect", name))

    return work


async def _require_execution(namespace: Namespace, execution_id: str) -> LoggedExecution:
    logged = await find_execution(namespace, execution_id)
    if logged is None:
        raise NotFoundError(f"execution {execution_id!r} was never started. Call start_execution() first.")
    return logged


def _check_restart(before: ToolExecution, execution: ToolExecution) -> None:
    what = f"execution {before.execution_id!r}"
    if before.tool_name != execution.tool_name:
        raise InvalidError(f"{what} belongs to tool {before.tool_name!r}, not {execution.tool_name!r}")
    if before.status is execution.status:
        raise AlreadyExistsError(f"{what} is {before.status.name} already. Give each execution its own id.")
    EXECUTION_STEPS.check(before.execution_id, before.status, execution.status)


def _check_repeated(before: ToolExecution, changes: dict[str, Any]) -> None:
    """Accept a repeated end with an equal result, which does nothing."""
    if "result" in changes and encode_canonical(before.result) != encode_canonical(changes["result"]):
        raise TransitionError(
            f"execution {before.execution_id!r} is completed already, with another result",
            current=before.status.name,
            wanted=before.status.name,
        )


def _is_spent(kept: dict[str, Any] | None, before: datetime) -> bool:
    return kept is not None and kept["due"] is None and kept.get("at_ms", 0) < to_milliseconds(before)


def _make_retry_removal(execution_id: str, before: datetime) -> Callable[[Namespace], Awaitable[int]]:
    """Return work that removes a spent schedule, unless it was renewed or its execution exists."""

    async def work(namespace: Namespace) -> int:
        kept = await namespace.get("retry", execution_id)
        if not _is_spent(kept, before) or await find_execution(namespace, execution_id) is not None:
            return 0
        return int(await delete_retry(namespace, execution_id))

    return work


async def delete_retry(namespace: Namespace, execution_id: str) -> bool:
    """Delete the retry schedule of an execution, and return whether it existed."""
    kept = await namespace.get("retry", execution_id)
    if kept is None:
        return False
    await namespace.delete("retry", execution_id)
    if kept["due"] is not None:
        await namespace.space.documents.delete(kept["due"])
    return True


def backoff_s(attempts: int, factor: float, *, first_s: float, longest_s: float) -> float:
    """Return the delay after some attempts: first, first * factor, first * factor², … up to the longest.

    Raises:
        InvalidError: The factor is below 1, or a time is not positive.
    """
    if factor < 1 or first_s <= 0 or longest_s < first_s:
        raise InvalidError(
            f"a backoff of {first_s!r} s, times {factor!r}, up to {longest_s!r} s does not grow. "
            "Pass a factor of 1 or more, and times above 0."
        )
    try:
        return min(longest_s, first_s * factor ** max(0, attempts - 1))
    except OverflowError:
        return longest_s
