"""Tools: executions, results, retries, effects, and statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar, Unpack, overload

from keepstate.engine.kernel.arguments import check_duration_ms, check_flag
from keepstate.managers.arguments import caller_now
from keepstate.managers.binding import ManagerStorage, Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.names import new_id
from keepstate.managers.records import parameters_hash
from keepstate.managers.tools.effects import Effects
from keepstate.managers.tools.executions import Executions
from keepstate.managers.tools.records import (
    RetryState,
    ToolCacheEntry,
    ToolEffect,
    ToolExecution,
    ToolExecutionStatus,
    ToolStats,
)
from keepstate.managers.tools.results import Results, Tool
from keepstate.managers.tools.spaces import ToolSpaces

T = TypeVar("T")

EFFECT: Final = "effect"
"""The default name of an effect, for executions with only one."""
EXECUTION_S: Final = 86_400.0


class ToolStateManager(Manager):
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

    _kind: ClassVar[str] = "tools"
    _records: bool = False
    _local: ClassVar[tuple[str, ...]] = (*Manager._local, "_spaces", "_executions", "_effects", "_results")
    cache_results: bool
    cache_ttl: float | None

    def __init__(
        self,
        *,
        cache_results: bool = False,
        cache_ttl: float | None = 3600,
        **storage: Unpack[ManagerStorage],
    ) -> None:
        super().__init__(**storage)
        if cache_ttl is not None:
            check_duration_ms("cache_ttl", cache_ttl)
        self.cache_results, self.cache_ttl = check_flag("cache_results", cache_results), cache_ttl

    def _init_local(self) -> None:
        super()._init_local()
        self._spaces = ToolSpaces(self._binding, self._run_together)
        self._executions, self._effects = Executions(self._spaces), Effects(self._spaces)
        self._results = Results(self._spaces, self._executions)

    # ---- executions

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
        return await self._executions.start(execution, lease_s=lease_s)

    async def heartbeat_execution(self, execution_id: str, *, lease_s: float = EXECUTION_S) -> None:
        """Extend the lease of an execution to `lease_s` seconds from now. `run` does this by itself.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running.
        """
        await self._executions.heartbeat(execution_id, lease_s=lease_s)

    async def get_stale_executions(self) -> list[ToolExecution]:
        """Return the running executions whose leases have ended, the earliest end first.

        Their processes may have died. Start each again, end it with its outcome, or leave it to `cleanup`.
        """
        return await self._executions.get_stale()

    async def complete_execution(
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
        execution, is_new = await self._executions.complete(execution_id, result, duration_ms)
        if self.cache_results:
            hash = parameters_hash(execution.tool_name, execution.parameters)
            entry = ToolCacheEntry(
                execution.tool_name, hash, result, caller_now(self._clock), ttl=self.cache_ttl
            )
            if is_new:
                await self.cache_result(entry)
            else:
                await self._results.cache_earlier(entry, execution.completed_at)
        return execution

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
        return await self._executions.fail(execution_id, error, duration_ms=duration_ms, timed_out=timed_out)

    async def cancel_execution(self, execution_id: str, reason: str | None = None) -> ToolExecution:
        """Cancel an execution and its retries, and return it.

        A failed execution keeps its duration, and its error unless a reason is given.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is completed.
        """
        return await self._executions.cancel(execution_id, reason)

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """Return an execution, or None if there is none with this id."""
        return await self._executions.get(execution_id)

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
        return await self._executions.get_history(tool_name, limit, after=after, status=status)

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return the statistics of a tool. The cost does not depend on the number of executions.

        Cache lookups of other managers appear in blocks of up to 64, or when those managers are closed.
        """
        return await self._spaces.read_stats(tool_name)

    async def delete_tool(self, tool_name: str) -> int:
        """Remove the executions, retries and statistics of a tool, and return the number of executions.

        Cached results are removed by `remove_cached_results`. Effects stay, so that none happens a second
        time.
        """
        return await self._executions.delete_tool(tool_name)

    # ---- retries

    async def update_retry_state(self, retry_state: RetryState) -> None:
        """Replace the retry schedule of an execution.

        The time `next_retry_at` of the caller's clock is converted to the store's clock. Without it, the
        retry is due at once. The execution need not exist.

        Raises:
            TransitionError: The execution is completed or cancelled.
        """
        await self._executions.update_retry(retry_state)

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
        return await self._executions.schedule_retry(
            execution_id,
            error,
            max_attempts=max_attempts,
            backoff_factor=backoff_factor,
            first_delay_s=first_delay_s,
            longest_delay_s=longest_delay_s,
        )

    async def get_retry_state(self, execution_id: str) -> RetryState | None:
        """Return the retry schedule of an execution, or None if there is none."""
        return await self._executions.get_retry(execution_id)

    async def cancel_retry(self, execution_id: str) -> bool:
        """Delete the retry schedule of an execution, and return whether it existed."""
        return await self._executions.cancel_retry(execution_id)

    async def get_pending_retries(self, *, limit: int | None = None) -> list[RetryState]:
        """Return retries with attempts left, due or not, ordered by due time.

        Args:
            limit: Maximum number of retries; by default all.
        """
        return await self._executions.get_pending_retries(limit)

    # ---- effects

    @overload
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], Awaitable[T]],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T: ...
    @overload
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], T],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T: ...
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], Awaitable[T] | T],
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
        self._binding.require_outside_transaction("doing something to the world")
        self._check_callback(function)
        return await self._effects.perform(execution_id, function, name, lease_s=lease_s, harmless=harmless)

    async def begin_effect(self, execution_id: str, name: str = EFFECT, *, lease_s: float = 60) -> ToolEffect:
        """Record that an effect is about to happen, and return the record. Only its receiver may act.

        Args:
            execution_id: The execution that causes it; use the same id in a retry.
            name: Name of the effect in the execution.
            lease_s: Seconds without a recorded end after which the effect is unknown to other processes.

        Raises:
            AlreadyExistsError: The effect happened, is in progress, or may have happened.
        """
        return await self._effects.begin(execution_id, name, lease_s=lease_s)

    async def end_effect(self, effect: ToolEffect, result: object = None) -> None:
        """Record that an effect happened, with its result. A late or repeated call is accepted.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
        """
        await self._effects.end(effect, result)

    async def refute_effect(self, effect: ToolEffect, error: object) -> None:
        """Record that an effect certainly did not happen, so that it can begin again.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
            TransitionError: The effect happened.
        """
        await self._effects.refute(effect, error)

    async def settle_effect(
        self, execution_id: str, name: str = EFFECT, *, is_done: bool, result: object = None
    ) -> ToolEffect:
        """Record whether an unknown effect happened, and return it.

        Raises:
            NotFoundError: The effect was never begun.
            TransitionError: The effect is not unknown.
        """
        return await self._effects.settle(execution_id, name, is_done=is_done, result=result)

    async def get_effect(self, execution_id: str, name: str = EFFECT) -> ToolEffect | None:
        """Return an effect, or None if it was never begun."""
        return await self._effects.get(execution_id, name)

    async def get_unknown_effects(self) -> list[ToolEffect]:
        """Return the effects for which it is unknown whether they happened, ordered by id."""
        return await self._effects.get_unknown()

    # ---- results

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Cache a result for `entry.ttl` seconds from now, under the hash in the entry."""
        await self._results.cache(entry)
        await self._after_write()

    async def get_cached_result(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCacheEntry | None:
        """Return the cached result for equal parameters, or None. Counts the hit or miss.

        The entry is true even if its result is None.
        """
        return await self._results.get(tool_name, parameters_hash(tool_name, parameters))

    async def remove_cached_results(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Remove the cached results of a tool, or the one for equal parameters, and return their number."""
        return await self._results.remove(tool_name, parameters)

    async def run(
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
        self._binding.require_outside_transaction("running a tool")
        self._check_callback(function)
        check_duration_ms("lease_s", lease_s)
        if ttl is not None:
            check_duration_ms("ttl", ttl)
        parameters_hash(tool_name, parameters)
        execution = ToolExecution(
            new_id(self._clock) if execution_id is None else execution_id,
            tool_name,
            started_at=caller_now(self._clock),
            parameters=dict(parameters),
        )
        is_cached = self.cache_results or ttl is not None
        ttl = self.cache_ttl if ttl is None else ttl
        return await self._results.run(execution, function, ttl=ttl, lease_s=lease_s, is_cached=is_cached)

    # ---- closing and cleaning

    async def close(self) -> None:
        """Store the counted lookups, and release the store."""
        try:
            await self._spaces.store_lookups()
        finally:
            await super().close()

    def _namespace(self, id: str) -> Namespace:
        return self._spaces.numbered(id)

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove finished executions with their retries, and effects that certainly did not happen.

        Retries without attempts left are also removed if their executions were never started.

        Executions that were stale before the time count as timed out and are removed too. An effect that
        happened stays, because its name must never let it happen again.
        """
        return await self._executions.clean(namespace, before)
