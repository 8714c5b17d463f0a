"""Executions of tools: each step checked and counted, the history newest first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.times import check_duration_ms, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.binding import Folder
from keepstate.managers.names import segment
from keepstate.managers.parameters import sameness
from keepstate.managers.records import admit_record
from keepstate.managers.tools import log
from keepstate.managers.tools.effects import ToolEffects
from keepstate.managers.tools.keys import count
from keepstate.managers.tools.records import (
    EXECUTION_STEPS,
    EffectStatus,
    ToolExecution,
    ToolExecutionStatus,
    step_counted,
)
from keepstate.managers.tools.retries import forget_retry
from keepstate.values import limits

_Status = ToolExecutionStatus
_BEGINNINGS: Final = (_Status.PENDING, _Status.RUNNING)
EXECUTION_S: Final = 86_400.0


class ToolExecutions(ToolEffects):
    """The executions of all tools."""

    async def start_execution(
        self, execution: ToolExecution, *, lease_s: float = EXECUTION_S
    ) -> ToolExecution:
        """Note that a tool is being used, and return it as it is kept.

        One that has failed, or is stale, is tried again by starting it again: it keeps its place in the
        history, and counts once.

        Args:
            execution: `RUNNING`, or `PENDING` if it is to be started later.
            lease_s: After so many seconds without an end or a heartbeat a running one is stale; a day, if it
                is not said.

        Raises:
            AlreadyExistsError: It is running, or pending already.
            TransitionError: It is completed or cancelled.
        """
        admit_record("execution", execution, ToolExecution)
        if execution.status not in _BEGINNINGS:
            raise InvalidError(
                f"`status` of execution {execution.execution_id!r} is {execution.status.name}; it begins as "
                "PENDING or RUNNING"
            )
        check_name("tool_name", execution.tool_name)
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(folder: Folder) -> ToolExecution:
            now_ms = to_milliseconds(await folder.space.now())
            before, status, attempt = await log.find(folder, execution.execution_id), None, 1
            if before is not None:
                status = before.execution.status
                if before.is_stale(now_ms):
                    status = _Status.TIMED_OUT
                    await count(folder, step_counted(execution.tool_name, _Status.RUNNING, status))
                _admit_restart(replace(before.execution, status=status), execution)
                attempt = before.execution.attempt + (status not in _BEGINNINGS)
            now = log.Logged(
                replace(execution, attempt=attempt),
                log.new_place(folder, execution, now_ms) if before is None else before.place,
                since_ms=now_ms,
                until_ms=now_ms + lease_ms if execution.status is _Status.RUNNING else None,
            )
            await log.put(folder, before, now)
            await count(folder, step_counted(execution.tool_name, status, execution.status))
            return now.execution

        return await self._together(self._of("execution_id", execution.execution_id), work)

    async def heartbeat_execution(self, execution_id: str, *, lease_s: float = EXECUTION_S) -> None:
        """Say that somebody is at an execution for `lease_s` seconds from now on; `run` does so by itself.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(folder: Folder) -> None:
            before = await _need(folder, execution_id)
            if before.execution.status is not _Status.RUNNING:
                raise EXECUTION_STEPS.refused(execution_id, before.execution.status, _Status.RUNNING)
            until_ms = to_milliseconds(await folder.space.now()) + lease_ms
            await log.put(folder, before, replace(before, until_ms=until_ms))

        await self._together(self._of("execution_id", execution_id), work)

    async def get_stale_executions(self) -> list[ToolExecution]:
        """Return the executions that run and at which nobody is any more, the one longest ago first.

        Their processes may have died. Each can be started again, ended as it came out, or left to `cleanup`.
        """

        async def read(folder: Folder) -> list[tuple[str, bytes, ToolExecution]]:
            found: list[tuple[str, bytes, ToolExecution]] = []
            now_ms = to_milliseconds(await folder.space.now())
            async for until, execution_id in log.stale(folder, now_ms):
                logged = await log.find(folder, execution_id)
                if logged is not None and logged.is_stale(now_ms):  # else it has gone on meanwhile
                    found.append((until, execution_id.encode(), logged.execution))
            return found

        found = [each for page in await self._in_each(read) for each in page]
        return [execution for _, _, execution in sorted(found, key=lambda each: each[:2])]

    async def fail_execution(
        self,
        execution_id: str,
        error: object,
        *,
        duration_ms: float | None = None,
        timed_out: bool = False,
    ) -> ToolExecution:
        """Note that an execution failed, or ran out of time, and return it; see `schedule_retry`.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running.
        """
        status = _Status.TIMED_OUT if timed_out else _Status.FAILED
        changes = {"error": format_error(error), "duration_ms": duration_ms}
        return (await self._end(execution_id, status, changes))[0]

    async def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Note that an execution was given up, also one that was to be tried again, and return it.

        One that had failed keeps how long it took, and why it failed unless a reason is given.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is completed.
        """
        changes: dict[str, Any] = {} if reason is None else {"error": reason}
        return (await self._end(execution_id, _Status.CANCELLED, changes))[0]

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none of this id."""
        logged = await log.find(self._of("execution_id", execution_id), execution_id)
        return None if logged is None else logged.execution

    async def get_execution_history(
        self,
        tool_name: str,
        limit: int = 100,
        *,
        after: str | None = None,
        status: ToolExecutionStatus | None = None,
    ) -> list[ToolExecution]:
        """Return the executions of a tool, the one that was started last first; of equal times, by id.

        Args:
            tool_name: Which tool.
            limit: How many at the most.
            after: The id of the execution to go on behind: the last one of the page before.
            status: Only those that stand so.

        Raises:
            NotFoundError: There is no execution `after`.
        """
        limits.admit_count("limit", limit)
        if status is not None:
            admit_record("status", status, ToolExecutionStatus)
        tool = segment(check_name("tool_name", tool_name))
        behind = None if after is None else await self._place_in_log(after)

        async def read(folder: Folder) -> list[tuple[bytes, ToolExecution]]:
            found: list[tuple[bytes, ToolExecution]] = []
            async for name, execution in folder.values("log", tool, after=behind):
                if status in (None, execution.status):
                    found.append((name.encode(), execution))
                    if len(found) == limit:
                        break
            return found

        pages = merge(*await self._in_each(read), key=lambda each: each[0])
        return [execution for _, execution in islice(pages, limit)]

    async def _place_in_log(self, execution_id: str) -> str:
        folder = self._of("execution_id", execution_id)
        logged = await log.find(folder, execution_id)
        if logged is None:
            raise NotFoundError(f"there is no execution {execution_id!r} to go on behind")
        return logged.place.removeprefix(folder.beginning("log", segment(logged.execution.tool_name)))

    async def _complete(
        self, execution_id: str, result: object, duration_ms: float | None
    ) -> tuple[ToolExecution, bool]:
        """Return the completed execution, and whether it was not completed before."""
        changes = {"result": result, "error": None, "duration_ms": duration_ms}
        return await self._end(execution_id, _Status.COMPLETED, changes)

    async def _end(
        self, execution_id: str, status: ToolExecutionStatus, changes: dict[str, Any]
    ) -> tuple[ToolExecution, bool]:
        duration_ms = changes.get("duration_ms")
        if duration_ms is not None and (type(duration_ms) not in (int, float) or not duration_ms >= 0):
            raise InvalidError(f"`duration_ms` is {duration_ms!r}; it is a number of milliseconds, 0 or more")

        async def work(folder: Folder) -> tuple[ToolExecution, bool]:
            logged = await _need(folder, execution_id)
            before = logged.execution
            if before.status is status:
                _admit_again(before, changes)
                return before, False
            EXECUTION_STEPS.check(execution_id, before.status, status)
            now = await folder.space.now()
            took_ms = duration_ms
            if took_ms is None:
                is_running = before.status is _Status.RUNNING
                took_ms = max(0, to_milliseconds(now) - logged.since_ms) if is_running else before.duration_ms
            ended = replace(
                before, **{**changes, "duration_ms": took_ms, "completed_at": now, "status": status}
            )
            await log.put(folder, logged, replace(logged, execution=ended, until_ms=None))
            if EXECUTION_STEPS.is_final(status):
                await forget_retry(folder, execution_id)
            await count(folder, step_counted(ended.tool_name, before.status, status, took_ms))
            return ended, True

        return await self._together(self._of("execution_id", execution_id), work)

    # ---- letting go

    async def delete_tool(self, tool_name: str) -> int:
        """Remove the executions of a tool with their retries, and its sums; returns how many executions.

        Its kept results go by `remove_cached_results`. Effects stay: none is done a second time.
        """
        tool = segment(check_name("tool_name", tool_name))
        await self._note_lookups()  # else they would be counted afterwards

        async def remove(folder: Folder) -> int:
            removed = 0
            async for _, execution in folder.values("log", tool):
                removed += await self._together(folder, _removal(execution.execution_id))
            await folder.space.documents.delete(folder.name("stats", tool))
            return removed

        return sum(await self._in_each(remove))

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove executions that are over, with their retries, and effects that were certainly not done.

        Of executions that were never started, retries with no attempts left go too.

        Those that have been stale since then are over, too, and count as timed out. An effect that was done
        stays: its name must never let it be done again.
        """
        removed = 0
        async for _, execution_id in log.stale(folder, to_milliseconds(before)):
            removed += await self._together(folder, _removal(execution_id, before))
        async for _, execution in folder.values("log"):
            if execution.completed_at is not None and execution.completed_at < before:
                removed += await self._together(folder, _removal(execution.execution_id, before))
        removed += await self._clean_retries(folder, before)
        async for name, kept in folder.values("effect"):
            if _was_not_done(kept, before):
                removed += await self._together(folder, _removal_of_effect(name, before))
        return removed


def _removal(execution_id: str, before: datetime | None = None) -> Callable[[Folder], Awaitable[int]]:
    """Return what removes an execution, if it has been over or stale since then, or in any case."""

    async def work(folder: Folder) -> int:
        logged = await log.find(folder, execution_id)
        if logged is None:
            return 0
        execution = logged.execution
        if before is not None:
            if logged.is_stale(to_milliseconds(before)):
                await count(folder, step_counted(execution.tool_name, _Status.RUNNING, _Status.TIMED_OUT))
            elif execution.completed_at is None or execution.completed_at >= before:
                return 0
        await log.remove(folder, logged)
        await forget_retry(folder, execution_id)
        return 1

    return work


def _was_not_done(kept: dict[str, Any] | None, before: datetime) -> bool:
    return (
        kept is not None and kept["value"].status is EffectStatus.NOT_DONE and kept["value"].ended_at < before
    )


def _removal_of_effect(name: str, before: datetime) -> Callable[[Folder], Awaitable[int]]:
    """Return what removes an effect, unless somebody has begun it again."""

    async def work(folder: Folder) -> int:
        place = folder.name("effect", name)
        if not _was_not_done(await folder.space.documents.get(place), before):
            return 0
        return int(await folder.space.documents.delete(place))

    return work


async def _need(folder: Folder, execution_id: str) -> log.Logged:
    logged = await log.find(folder, execution_id)
    if logged is None:
        raise NotFoundError(f"execution {execution_id!r} was never started; start_execution notes it")
    return logged


def _admit_restart(before: ToolExecution, execution: ToolExecution) -> None:
    what = f"execution {before.execution_id!r}"
    if before.tool_name != execution.tool_name:
        raise InvalidError(f"{what} is of tool {before.tool_name!r}, not {execution.tool_name!r}")
    if before.status is execution.status:
        raise AlreadyExistsError(f"{what} is {before.status.name} already; give each execution its own id")
    EXECUTION_STEPS.check(before.execution_id, before.status, execution.status)


def _admit_again(before: ToolExecution, changes: dict[str, Any]) -> None:
    """Let an execution end the same way again with an equal result, which does nothing."""
    if "result" in changes and sameness(before.result) != sameness(changes["result"]):
        raise TransitionError(
            f"execution {before.execution_id!r} is completed already, with another result",
            current=before.status.name,
            wanted=before.status.name,
        )
