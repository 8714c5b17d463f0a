"""Executions of tools: checked transitions, statistics, and the history, newest first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_duration_ms, check_name
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.binding import Namespace
from keepstate.managers.names import to_segment
from keepstate.managers.parameters import encode_canonical
from keepstate.managers.records import check_record
from keepstate.managers.tools import log
from keepstate.managers.tools.effects import ToolEffects
from keepstate.managers.tools.keys import count
from keepstate.managers.tools.records import (
    EXECUTION_STEPS,
    EffectStatus,
    ToolExecution,
    ToolExecutionStatus,
    count_transition,
)
from keepstate.managers.tools.retries import delete_retry
from keepstate.values import limits

_Status = ToolExecutionStatus
_BEGINNINGS: Final = (_Status.PENDING, _Status.RUNNING)
EXECUTION_S: Final = 86_400.0


class ToolExecutions(ToolEffects):
    """The executions of all tools."""

    async def start_execution(
        self, execution: ToolExecution, *, lease_s: float = EXECUTION_S
    ) -> ToolExecution:
        """Record that a tool is being used, and return the execution as stored.

        Start a failed or stale execution again to retry it. It keeps its position in the history, and counts
        once.

        Args:
            execution: `RUNNING`, or `PENDING` if it is to be started later.
            lease_s: Seconds without an end or a heartbeat after which a running execution is stale; by
                default a day.

        Raises:
            AlreadyExistsError: The execution is running, or pending already.
            TransitionError: The execution is completed or cancelled.
        """
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
            before, status, attempt = await log.find(namespace, execution.execution_id), None, 1
            if before is not None:
                status = before.execution.status
                if before.is_stale(now_ms):
                    status = _Status.TIMED_OUT
                    await count(namespace, count_transition(execution.tool_name, _Status.RUNNING, status))
                _check_restart(replace(before.execution, status=status), execution)
                attempt = before.execution.attempt + (status not in _BEGINNINGS)
            now = log.LoggedExecution(
                replace(execution, attempt=attempt),
                log.new_key(namespace, execution, now_ms) if before is None else before.key,
                since_ms=now_ms,
                until_ms=now_ms + lease_ms if execution.status is _Status.RUNNING else None,
            )
            await log.put(namespace, before, now)
            await count(namespace, count_transition(execution.tool_name, status, execution.status))
            return now.execution

        return await self._run_together(self._namespace_for("execution_id", execution.execution_id), work)

    async def heartbeat_execution(self, execution_id: str, *, lease_s: float = EXECUTION_S) -> None:
        """Extend the lease of an execution to `lease_s` seconds from now. `run` does this by itself.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(namespace: Namespace) -> None:
            before = await _require_execution(namespace, execution_id)
            if before.execution.status is not _Status.RUNNING:
                raise EXECUTION_STEPS.make_error(execution_id, before.execution.status, _Status.RUNNING)
            until_ms = to_milliseconds(await namespace.space.now()) + lease_ms
            await log.put(namespace, before, replace(before, until_ms=until_ms))

        await self._run_together(self._namespace_for("execution_id", execution_id), work)

    async def get_stale_executions(self) -> list[ToolExecution]:
        """Return the running executions whose leases have ended, the earliest end first.

        Their processes may have died. Start each again, end it with its outcome, or leave it to `cleanup`.
        """

        async def read(namespace: Namespace) -> list[tuple[str, bytes, ToolExecution]]:
            found: list[tuple[str, bytes, ToolExecution]] = []
            now_ms = to_milliseconds(await namespace.space.now())
            async for until, execution_id in log.find_stale(namespace, now_ms):
                logged = await log.find(namespace, execution_id)
                if logged is not None and logged.is_stale(now_ms):  # otherwise it has continued
                    found.append((until, execution_id.encode(), logged.execution))
            return found

        found = [each for page in await self._read_each(read) for each in page]
        return [execution for _, _, execution in sorted(found, key=lambda each: each[:2])]

    async def fail_execution(
        self,
        execution_id: str,
        error: object,
        *,
        duration_ms: float | None = None,
        timed_out: bool = False,
    ) -> ToolExecution:
        """Record that an execution failed or timed out, and return it; see `schedule_retry`.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running.
        """
        status = _Status.TIMED_OUT if timed_out else _Status.FAILED
        changes = {"error": format_error(error), "duration_ms": duration_ms}
        return (await self._end(execution_id, status, changes))[0]

    async def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Cancel an execution and its retries, and return it.

        A failed execution keeps its duration, and its error unless a reason is given.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is completed.
        """
        changes: dict[str, Any] = {} if reason is None else {"error": reason}
        return (await self._end(execution_id, _Status.CANCELLED, changes))[0]

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none with this id."""
        logged = await log.find(self._namespace_for("execution_id", execution_id), execution_id)
        return None if logged is None else logged.execution

    async def get_execution_history(
        self,
        tool_name: str,
        limit: int = 100,
        *,
        after: str | None = None,
        status: ToolExecutionStatus | None = None,
    ) -> list[ToolExecution]:
        """Return the executions of a tool, newest start first; for equal times, ordered by id.

        Args:
            tool_name: The tool.
            limit: Maximum number of executions.
            after: Id of the last execution of the previous page.
            status: Return only executions with this status.

        Raises:
            NotFoundError: The execution `after` does not exist.
        """
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

        pages = merge(*await self._read_each(read), key=lambda each: each[0])
        return [execution for _, execution in islice(pages, limit)]

    async def _log_key(self, execution_id: str) -> str:
        namespace = self._namespace_for("execution_id", execution_id)
        logged = await log.find(namespace, execution_id)
        if logged is None:
            raise NotFoundError(
                f"execution {execution_id!r} does not exist. Pass the last id of a page as `after`."
            )
        return logged.key.removeprefix(namespace.name_prefix("log", to_segment(logged.execution.tool_name)))

    async def _complete(
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
            await log.put(namespace, logged, replace(logged, execution=ended, until_ms=None))
            if EXECUTION_STEPS.is_final(status):
                await delete_retry(namespace, execution_id)
            await count(namespace, count_transition(ended.tool_name, before.status, status, took_ms))
            return ended, True

        return await self._run_together(self._namespace_for("execution_id", execution_id), work)

    # ---- removal

    async def delete_tool(self, tool_name: str) -> int:
        """Remove the executions, retries and statistics of a tool, and return the number of executions.

        Cached results are removed by `remove_cached_results`. Effects stay, so that none happens a second
        time.
        """
        tool = to_segment(check_name("tool_name", tool_name))
        await self._store_lookups()  # otherwise they would be added afterwards

        async def remove(namespace: Namespace) -> int:
            removed = 0
            async for execution in namespace.collection("log", tool).values():
                removed += await self._run_together(namespace, _make_removal(execution.execution_id))
            await namespace.delete("stats", tool)
            return removed

        return sum(await self._read_each(remove))

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove finished executions with their retries, and effects that certainly did not happen.

        Retries without attempts left are also removed if their executions were never started.

        Executions that were stale before the time count as timed out and are removed too. An effect that
        happened stays, because its name must never let it happen again.
        """
        removed = 0
        async for _, execution_id in log.find_stale(namespace, to_milliseconds(before)):
            removed += await self._run_together(namespace, _make_removal(execution_id, before))
        async for execution in namespace.collection("log").values():
            if execution.completed_at is not None and execution.completed_at < before:
                removed += await self._run_together(namespace, _make_removal(execution.execution_id, before))
        removed += await self._clean_retries(namespace, before)
        async for name, kept in namespace.collection("effect").items():
            if _is_not_done(kept, before):
                removed += await self._run_together(namespace, _make_effect_removal(name, before))
        return removed


def _make_removal(execution_id: str, before: datetime | None = None) -> Callable[[Namespace], Awaitable[int]]:
    """Return work that removes an execution, if it was finished or stale before a time, or in any case."""

    async def work(namespace: Namespace) -> int:
        logged = await log.find(namespace, execution_id)
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
        await log.remove(namespace, logged)
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
        document = namespace.name("effect", name)
        if not _is_not_done(await namespace.space.documents.get(document), before):
            return 0
        return int(await namespace.space.documents.delete(document))

    return work


async def _require_execution(namespace: Namespace, execution_id: str) -> log.LoggedExecution:
    logged = await log.find(namespace, execution_id)
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
