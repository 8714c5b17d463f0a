"""Blocking twins of `keepstate.managers.tools.executions`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import executions as managers
from keepstate.managers.tools.executions import EXECUTION_S
from keepstate.managers.tools.records import ToolExecution, ToolExecutionStatus
from keepstate.sync.managers.tools_effects import ToolEffects

Inner = TypeVar("Inner", bound=managers.ToolExecutions)


class ToolExecutions(ToolEffects[Inner]):
    """The executions of all tools."""

    def start_execution(self, execution: ToolExecution, *, lease_s: float = EXECUTION_S) -> ToolExecution:
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
        return finish(self._inner.start_execution(execution, lease_s=lease_s))

    def heartbeat_execution(self, execution_id: str, *, lease_s: float = EXECUTION_S) -> None:
        """Say that somebody is at an execution for `lease_s` seconds from now on; `run` does so by itself.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running.
        """
        finish(self._inner.heartbeat_execution(execution_id, lease_s=lease_s))

    def get_stale_executions(self) -> list[ToolExecution]:
        """Return the executions that run and at which nobody is any more, the one longest ago first.

        Their processes may have died. Each can be started again, ended as it came out, or left to `cleanup`.
        """
        return finish(self._inner.get_stale_executions())

    def fail_execution(
        self, execution_id: str, error: object, *, duration_ms: float | None = None, timed_out: bool = False
    ) -> ToolExecution:
        """Note that an execution failed, or ran out of time, and return it; see `schedule_retry`.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running.
        """
        return finish(
            self._inner.fail_execution(execution_id, error, duration_ms=duration_ms, timed_out=timed_out)
        )

    def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Note that an execution was given up, also one that was to be tried again, and return it.

        One that had failed keeps how long it took, and why it failed unless a reason is given.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is completed.
        """
        return finish(self._inner.cancel_execution(execution_id, reason))

    def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none of this id."""
        return finish(self._inner.get_execution(execution_id))

    def get_execution_history(
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
        return finish(self._inner.get_execution_history(tool_name, limit, after=after, status=status))

    def delete_tool(self, tool_name: str) -> int:
        """Remove the executions of a tool with their retries, and its sums; returns how many executions.

        Its kept results go by `remove_cached_results`. Effects stay: none is done a second time.
        """
        return finish(self._inner.delete_tool(tool_name))
