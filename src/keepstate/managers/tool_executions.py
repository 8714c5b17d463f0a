"""Executions of tools: each step checked and counted, the history newest first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from keepstate.engine.admission import admit_text
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.deadlines import milliseconds_of
from keepstate.managers.naming import quoted
from keepstate.managers.parameters import sameness
from keepstate.managers.place import Folder
from keepstate.managers.records import admit_record
from keepstate.managers.tool_effects import ToolEffects
from keepstate.managers.tool_places import count, inverted
from keepstate.managers.tool_records import (
    EXECUTION_STEPS,
    EffectStatus,
    ToolExecution,
    ToolExecutionStatus,
    step_counted,
)
from keepstate.managers.tool_retries import forget_retry
from keepstate.values import limits

_BEGINNINGS = (ToolExecutionStatus.PENDING, ToolExecutionStatus.RUNNING)


class ToolExecutions(ToolEffects):
    """The executions of all tools."""

    async def start_execution(self, execution: ToolExecution) -> ToolExecution:
        """Notes that a tool is being used, and returns it as it is kept.

        One that has failed is tried again by starting it again: it keeps its place in the history, and counts
        once.

        Args:
            execution: `RUNNING`, or `PENDING` if it is to be started later.

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
        tool = quoted(admit_text("tool_name", execution.tool_name))

        async def work(folder: Folder) -> ToolExecution:
            now_ms = milliseconds_of(await folder.space.now())
            place, before = await _find(folder, execution.execution_id)
            if before is None:
                place = folder.name("log", tool, inverted(now_ms), execution.execution_id)
            else:
                _admit_restart(before, execution)
            attempt = 1 if before is None else before.attempt + (before.status not in _BEGINNINGS)
            kept = replace(execution, attempt=attempt)
            await _put(folder, place, kept, since_ms=now_ms)
            await count(folder, step_counted(kept.tool_name, before.status if before else None, kept.status))
            return kept

        return await self._together(self._of("execution_id", execution.execution_id), work)

    async def fail_execution(
        self,
        execution_id: str,
        error: object,
        *,
        duration_ms: float | None = None,
        timed_out: bool = False,
    ) -> ToolExecution:
        """Notes that an execution failed, or ran out of time, and returns it; see `schedule_retry`.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running.
        """
        told = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        status = ToolExecutionStatus.TIMED_OUT if timed_out else ToolExecutionStatus.FAILED
        changes = {"error": told[: limits.ERROR_BYTES], "duration_ms": duration_ms}
        return (await self._end(execution_id, status, changes))[0]

    async def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Notes that an execution was given up, also one that was to be tried again, and returns it.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is completed.
        """
        return (await self._end(execution_id, ToolExecutionStatus.CANCELLED, {"error": reason}))[0]

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Returns an execution, or None if there is none of this id."""
        return (await _find(self._of("execution_id", execution_id), execution_id))[1]

    async def get_execution_history(
        self,
        tool_name: str,
        limit: int = 100,
        *,
        after: str | None = None,
        status: ToolExecutionStatus | None = None,
    ) -> list[ToolExecution]:
        """Returns the executions of a tool, the one that was started last first; of equal times, by id.

        Args:
            tool_name: Which tool.
            limit: How many at the most.
            after: The id of the execution to go on behind: the last one of the page before.
            status: Only those that stand so.

        Raises:
            NotFoundError: There is no execution `after`.
        """
        limits.admit_count("limit", limit)
        tool = quoted(admit_text("tool_name", tool_name))
        behind = None if after is None else await self._place_in_log(after)

        async def read(folder: Folder) -> list[tuple[str, bytes, ToolExecution]]:
            found: list[tuple[str, bytes, ToolExecution]] = []
            async for name, execution in folder.values("log", tool, after=behind):
                if status in (None, execution.status):
                    found.append((name.partition("/")[0], execution.execution_id.encode(), execution))
                    if len(found) == limit:
                        break
            return found

        pages = sorted(
            (each for page in await self._in_each(read) for each in page), key=lambda each: each[:2]
        )
        return [execution for _, _, execution in islice(pages, limit)]

    async def _place_in_log(self, execution_id: str) -> str:
        folder = self._of("execution_id", execution_id)
        place, execution = await _find(folder, execution_id)
        if execution is None:
            raise NotFoundError(f"there is no execution {execution_id!r} to go on behind")
        return place.removeprefix(folder.name("log", quoted(execution.tool_name), ""))

    async def _complete(
        self, execution_id: str, result: object, duration_ms: float | None
    ) -> tuple[ToolExecution, bool]:
        """Returns the completed execution, and whether it was not completed before."""
        changes = {"result": result, "error": None, "duration_ms": duration_ms}
        return await self._end(execution_id, ToolExecutionStatus.COMPLETED, changes)

    async def _end(
        self, execution_id: str, status: ToolExecutionStatus, changes: dict[str, Any]
    ) -> tuple[ToolExecution, bool]:
        duration_ms = changes.get("duration_ms")
        if duration_ms is not None and (type(duration_ms) not in (int, float) or not duration_ms >= 0):
            raise InvalidError(f"`duration_ms` is {duration_ms!r}; it is a number of milliseconds, 0 or more")

        async def work(folder: Folder) -> tuple[ToolExecution, bool]:
            place, before = await _find(folder, execution_id)
            if before is None:
                raise NotFoundError(f"execution {execution_id!r} was never started; start_execution notes it")
            if before.status is status:
                _admit_again(before, changes)
                return before, False
            EXECUTION_STEPS.check(execution_id, before.status, status)
            now = await folder.space.now()
            took_ms = duration_ms
            if took_ms is None and before.status is ToolExecutionStatus.RUNNING:
                took_ms = max(0, milliseconds_of(now) - await _since_ms(folder, execution_id))
            ended = replace(
                before, **{**changes, "duration_ms": took_ms, "completed_at": now, "status": status}
            )
            await folder.space.documents.put(place, ended)
            if status in (ToolExecutionStatus.COMPLETED, ToolExecutionStatus.CANCELLED):
                await forget_retry(folder, execution_id)
            await count(folder, step_counted(ended.tool_name, before.status, status, took_ms))
            return ended, True

        return await self._together(self._of("execution_id", execution_id), work)

    # ---- cleaning up

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Removes executions that are over, with their retries, and effects that were certainly not done.

        One that was done stays: its name must never let it be done again.
        """
        removed = 0
        async for _, execution in folder.values("log"):
            if execution.completed_at is not None and execution.completed_at < before:
                removed += await self._together(folder, _removal(execution.execution_id, before))
        async for name, kept in folder.values("effect"):
            effect = kept["value"]
            if effect.status is EffectStatus.NOT_DONE and effect.ended_at < before:
                removed += await folder.space.documents.delete(folder.name("effect", name))
        return removed


def _removal(execution_id: str, before: datetime) -> Callable[[Folder], Awaitable[int]]:
    async def work(folder: Folder) -> int:
        place, execution = await _find(folder, execution_id)
        if execution is None or execution.completed_at is None or execution.completed_at >= before:
            return 0
        await folder.space.documents.delete(place)
        await folder.space.documents.delete(folder.name("run", execution_id))
        await forget_retry(folder, execution_id)
        return 1

    return work


def _admit_restart(before: ToolExecution, execution: ToolExecution) -> None:
    what = f"execution {before.execution_id!r}"
    if before.tool_name != execution.tool_name:
        raise InvalidError(f"{what} is of tool {before.tool_name!r}, not {execution.tool_name!r}")
    if before.status is execution.status:
        raise AlreadyExistsError(f"{what} is {before.status.name} already; give each execution its own id")
    EXECUTION_STEPS.check(before.execution_id, before.status, execution.status)


def _admit_again(before: ToolExecution, changes: dict[str, Any]) -> None:
    """Lets an execution end the same way again with an equal result, which does nothing."""
    if "result" in changes and sameness(before.result) != sameness(changes["result"]):
        raise TransitionError(
            f"execution {before.execution_id!r} is completed already, with another result",
            current=before.status.name,
            wanted=before.status.name,
        )


async def _find(folder: Folder, execution_id: str) -> tuple[str, ToolExecution | None]:
    """Returns where an execution stands in the log, and itself."""
    known = await folder.space.documents.get(folder.name("run", execution_id))
    if known is None:
        return "", None
    execution: ToolExecution | None = await folder.space.documents.get(known["place"])
    return known["place"], execution


async def _since_ms(folder: Folder, execution_id: str) -> int:
    since_ms: int = (await folder.space.documents.get(folder.name("run", execution_id)))["since_ms"]
    return since_ms


async def _put(folder: Folder, place: str, execution: ToolExecution, *, since_ms: int) -> None:
    known = {"place": place, "since_ms": since_ms}
    await folder.space.documents.put(folder.name("run", execution.execution_id), known)
    await folder.space.documents.put(place, execution)
