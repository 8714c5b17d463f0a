"""Blocking twins of `keepstate.managers.tools.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

from keepstate._finish import finish
from keepstate.managers.tools import manager as managers
from keepstate.managers.tools.manager import EFFECT, EXECUTION_S
from keepstate.managers.tools.records import (
    RetryState,
    ToolCacheEntry,
    ToolEffect,
    ToolExecution,
    ToolExecutionStatus,
    ToolStats,
)
from keepstate.managers.tools.results import Tool
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options

T = TypeVar("T")


class ToolStateManager(Manager[managers.ToolStateManager]):
    """The use of tools, in 16 spaces `tools/<n>`.

    Attributes:
        cache_results: Whether the results of completed executions are cached.
        cache_ttl: Seconds for which they are cached; None for ever. Ignored if they are not cached.

    Args:
        persistence: Storage of the data; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores the data, in place of a store.
        cache_results: Whether to cache results. Leave it off if a tool has effects, or if its result depends
            on more than its parameters.
        cache_ttl: Seconds for which results are cached; None for ever.
    """

    def __init__(
        self,
        *,
        cache_results: bool = False,
        cache_ttl: float | None = 3600,
        **storage: Unpack[ManagerStorage],
    ) -> None:
        super().__init__(
            managers.ToolStateManager(
                cache_results=cache_results, cache_ttl=cache_ttl, **inner_options(storage)
            )
        )

    @property
    def cache_results(self) -> bool:
        """Whether the results of completed executions are cached."""
        return self._inner.cache_results

    @property
    def cache_ttl(self) -> float | None:
        """Seconds for which they are cached; None for ever. Ignored if they are not cached."""
        return self._inner.cache_ttl

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

    def complete_execution(
        self, execution_id: str, result: object = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Record the result of an execution, and return it. Again with an equal result does nothing.

        With `cache_results`, the result is also cached for equal parameters. If caching failed, repeating the
        call caches it for the rest of its time.

        Args:
            execution_id: The execution.
            result: The tool's return value; None is a result too.
            duration_ms: Duration in milliseconds; by default it is measured with the store's clock.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running, or completed with another result.
        """
        return finish(self._inner.complete_execution(execution_id, result, duration_ms))

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

    def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return the statistics of a tool. The cost does not depend on the number of executions.

        Cache lookups of other managers appear in blocks of up to 64, or when those managers are closed.
        """
        return finish(self._inner.get_tool_stats(tool_name))

    def delete_tool(self, tool_name: str) -> int:
        """Remove the executions, retries and statistics of a tool, and return the number of executions.

        Cached results are removed by `remove_cached_results`. Effects stay, so that none happens a second
        time.
        """
        return finish(self._inner.delete_tool(tool_name))

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

    def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], T],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T:
        """Cause an effect at most once, and return its result, from this call or an earlier one.

        Args:
            execution_id: The execution that causes it; use the same id in a retry.
            function: Causes the effect.
            name: Name of the effect in the execution.
            lease_s: Seconds without a recorded end after which the effect is unknown to other processes.
            harmless: Exceptions of the function that prove that nothing happened, so that the effect can be
                tried again. After any other exception it is unknown.

        Raises:
            ConflictError: The effect is in progress.
            InvalidError: The effect happened, but its result could not be stored. Later calls raise this
                again.
            TransitionError: It is unknown whether the effect happened. Check, then call `settle_effect`.
        """
        return finish(
            self._inner.perform_effect(execution_id, function, name=name, lease_s=lease_s, harmless=harmless)
        )

    def begin_effect(self, execution_id: str, name: str = EFFECT, *, lease_s: float = 60) -> ToolEffect:
        """Record that an effect is about to happen, and return the record. Only its receiver may act.

        Args:
            execution_id: The execution that causes it; use the same id in a retry.
            name: Name of the effect in the execution.
            lease_s: Seconds without a recorded end after which the effect is unknown to other processes.

        Raises:
            AlreadyExistsError: The effect happened, is in progress, or may have happened.
        """
        return finish(self._inner.begin_effect(execution_id, name, lease_s=lease_s))

    def end_effect(self, effect: ToolEffect, result: object = None) -> None:
        """Record that an effect happened, with its result. A late or repeated call is accepted.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
        """
        finish(self._inner.end_effect(effect, result))

    def refute_effect(self, effect: ToolEffect, error: object) -> None:
        """Record that an effect certainly did not happen, so that it can begin again.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
            TransitionError: The effect happened.
        """
        finish(self._inner.refute_effect(effect, error))

    def settle_effect(
        self, execution_id: str, name: str = EFFECT, *, is_done: bool, result: object = None
    ) -> ToolEffect:
        """Record whether an unknown effect happened, and return it.

        Raises:
            NotFoundError: The effect was never begun.
            TransitionError: The effect is not unknown.
        """
        return finish(self._inner.settle_effect(execution_id, name, is_done=is_done, result=result))

    def get_effect(self, execution_id: str, name: str = EFFECT) -> ToolEffect | None:
        """Return an effect, or None if it was never begun."""
        return finish(self._inner.get_effect(execution_id, name))

    def get_unknown_effects(self) -> list[ToolEffect]:
        """Return the effects for which it is unknown whether they happened, ordered by id."""
        return finish(self._inner.get_unknown_effects())

    def cache_result(self, entry: ToolCacheEntry) -> None:
        """Cache a result for `entry.ttl` seconds from now, under the hash in the entry."""
        finish(self._inner.cache_result(entry))

    def get_cached_result(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCacheEntry | None:
        """Return the cached result for equal parameters, or None. Counts the hit or miss.

        The entry is true even if its result is None.
        """
        return finish(self._inner.get_cached_result(tool_name, parameters))

    def remove_cached_results(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Remove the cached results of a tool, or the one for equal parameters, and return their number."""
        return finish(self._inner.remove_cached_results(tool_name, parameters))

    def run(
        self,
        tool_name: str,
        parameters: Mapping[str, Any],
        function: Tool,
        *,
        ttl: float | None = None,
        lease_s: float = 30,
        execution_id: str | None = None,
    ) -> ToolCacheEntry:
        """Return the result of a tool for these parameters: cached, or from one execution for all callers.

        Concurrent calls with equal parameters, in this process or another, wait for that execution. Its
        exception is raised for all callers that wait in this process; other processes then try themselves. If
        the executing process dies, another begins when its lease is over. The execution is in the history:
        failed if the tool raised, timed out for a `TimeoutError`, cancelled if its caller was cancelled.

        Args:
            tool_name: The tool.
            parameters: Parameters of the tool.
            function: The tool. It gets a copy of the parameters.
            ttl: Seconds for which the result is cached; by default `cache_ttl`. If results are not cached, it
                is stored only for the waiting callers.
            lease_s: Seconds that other processes wait for a process without a heartbeat; after that its
                execution is stale.
            execution_id: Id of the execution in the history; by default a new one.
        """
        return finish(
            self._inner.run(
                tool_name, parameters, function, ttl=ttl, lease_s=lease_s, execution_id=execution_id
            )
        )

    def close(self) -> None:
        """Store the counted lookups, and release the store."""
        finish(self._inner.close())
