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
        return finish(self._inner.start_execution(execution, lease_s=lease_s))

    def heartbeat_execution(self, execution_id: str, *, lease_s: float = EXECUTION_S) -> None:
        """Extend the lease of an execution to `lease_s` seconds from now. `run` does this by itself.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running.
        """
        finish(self._inner.heartbeat_execution(execution_id, lease_s=lease_s))

    def get_stale_executions(self) -> list[ToolExecution]:
        """Return the running executions whose leases have ended, the earliest end first.

        Their processes may have died. Start each again, end it with its outcome, or leave it to `cleanup`.
        """
        return finish(self._inner.get_stale_executions())

    def fail_execution(
        self, execution_id: str, error: object, *, duration_ms: float | None = None, timed_out: bool = False
    ) -> ToolExecution:
        """Record that an execution failed or timed out, and return it; see `schedule_retry`.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running.
        """
        return finish(
            self._inner.fail_execution(execution_id, error, duration_ms=duration_ms, timed_out=timed_out)
        )

    def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Cancel an execution and its retries, and return it.

        A failed execution keeps its duration, and its error unless a reason is given.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is completed.
        """
        return finish(self._inner.cancel_execution(execution_id, reason))

    def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none with this id."""
        return finish(self._inner.get_execution(execution_id))

    def get_execution_history(
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
        return finish(self._inner.get_execution_history(tool_name, limit, after=after, status=status))

    def delete_tool(self, tool_name: str) -> int:
        """Remove the executions, retries and statistics of a tool, and return the number of executions.

        Cached results are removed by `remove_cached_results`. Effects stay, so that none happens a second
        time.
        """
        return finish(self._inner.delete_tool(tool_name))
