"""Cached results of tools, and one shared execution for concurrent equal calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from keepstate._runner import Signal
from keepstate.engine.kernel.arguments import check_duration_ms, check_name, check_text
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.queue.lease import Lease
from keepstate.errors import (
    ConflictError,
    KeepstateError,
    LeaseLostError,
)
from keepstate.managers.binding import Namespace
from keepstate.managers.deadlines import caller_now
from keepstate.managers.names import new_id, to_segment
from keepstate.managers.parameters import parameters_hash
from keepstate.managers.records import check_record
from keepstate.managers.shield import record_failure, run_shielded
from keepstate.managers.tools.executions import ToolExecutions
from keepstate.managers.tools.keys import cache_key, hash_name
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution
from keepstate.managers.tools.single_flight import SingleFlight
from keepstate.values import codec

_UNCACHED_S: Final = 5.0
"""Seconds for which a result is stored for waiting callers if results are not cached."""
_LONGEST_WAIT_S: Final = 3600.0

Tool = Callable[[dict[str, Any]], Awaitable[Any] | Any]


class ToolResults(ToolExecutions):
    """The cached results of all tools."""

    cache_results: bool
    cache_ttl: float | None
    _flights: SingleFlight[tuple[str, str], ToolCacheEntry]

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Cache a result for `entry.ttl` seconds from now, under the hash in the entry."""
        check_record("entry", entry, ToolCacheEntry)
        check_text("parameters_hash", entry.parameters_hash)
        if entry.ttl is not None:
            check_duration_ms("ttl", entry.ttl)
        namespace = await self._cache_namespace(entry.tool_name, entry.parameters_hash)
        await namespace.space.documents.put(await _entry_key(namespace, entry), entry, ttl_s=entry.ttl)
        await self._after_write()

    async def _cache_earlier(self, entry: ToolCacheEntry, ended_at: datetime | None) -> None:
        """Cache the result of an earlier execution, unless one is cached already or its time is over."""

        async def work(namespace: Namespace) -> None:
            if await self._read_cached(namespace, entry.tool_name, entry.parameters_hash) is not None:
                return
            left_s = entry.ttl
            if left_s is not None and ended_at is not None:
                left_s -= (await namespace.space.now() - ended_at).total_seconds()
            if left_s is None or left_s > 0:
                late = replace(entry, created_at=ended_at, ttl=left_s)
                await namespace.space.documents.put(await _entry_key(namespace, late), late, ttl_s=left_s)

        await self._run_together(await self._cache_namespace(entry.tool_name, entry.parameters_hash), work)

    async def get_cached_result(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCacheEntry | None:
        """Return the cached result for equal parameters, or None. Counts the hit or miss.

        The entry is true even if its result is None.
        """
        hash = parameters_hash(tool_name, parameters)
        namespace = await self._cache_namespace(tool_name, hash)
        entry = await self._read_cached(namespace, tool_name, hash)
        await self._count_lookup(namespace, tool_name, is_hit=entry is not None)
        return entry

    async def remove_cached_results(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Remove the cached results of a tool, or the one for equal parameters, and return their number."""
        check_name("tool_name", tool_name)
        if parameters is not None:
            hash = parameters_hash(tool_name, parameters)
            namespace = await self._cache_namespace(tool_name, hash)
            return int(await namespace.space.documents.delete(await cache_key(namespace, tool_name, hash)))

        async def remove(namespace: Namespace) -> int:
            prefix = escape_pattern(namespace.name_prefix("cache", to_segment(tool_name)))
            names = [name async for name in namespace.space.documents.keys(prefix + "*")]
            return sum([await namespace.space.documents.delete(name) for name in names])

        return sum(await self._read_each(remove))

    async def _read_cached(self, namespace: Namespace, tool_name: str, hash: str) -> ToolCacheEntry | None:
        name = await cache_key(namespace, tool_name, hash)
        entry: ToolCacheEntry | None = await namespace.space.documents.get(name)
        return entry

    async def _version(self, namespace: Namespace, tool_name: str, hash: str) -> int:
        entry = await namespace.space.documents.entry(await cache_key(namespace, tool_name, hash))
        return 0 if entry is None else entry.version

    # ---- one execution for concurrent equal calls

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
        is_cached = self.cache_results or ttl is not None
        if ttl is None:
            ttl = self.cache_ttl if self.cache_results else _UNCACHED_S
        hash = parameters_hash(tool_name, parameters)
        execution = ToolExecution(
            new_id(self._clock) if execution_id is None else execution_id,
            tool_name,
            started_at=caller_now(self._clock),
            parameters=dict(parameters),
        )

        async def lead() -> ToolCacheEntry:
            known = await self.get_cached_result(tool_name, parameters) if is_cached else None
            return known or await self._lead(execution, hash, function, ttl, lease_s, is_cached=is_cached)

        entry = await self._flights.join((tool_name, hash), lead)
        own: ToolCacheEntry = codec.decode(codec.encode(entry))
        return own

    async def _lead(
        self,
        execution: ToolExecution,
        hash: str,
        function: Tool,
        ttl: float | None,
        lease_s: float,
        *,
        is_cached: bool,
    ) -> ToolCacheEntry:
        namespace = await self._cache_namespace(execution.tool_name, hash)
        # Without a cache, a result is only for callers that already waited: an earlier e-mail is another one.
        before = None if is_cached else await self._version(namespace, execution.tool_name, hash)
        lease = await self._acquire_lead(namespace, execution.tool_name, hash, lease_s)
        beat = partial(self._beat, lease, execution.execution_id)
        beating = self._runner.start(beat, f"lease of {execution.tool_name}")
        try:
            if is_cached or await self._version(namespace, execution.tool_name, hash) != before:
                known = await self._read_cached(namespace, execution.tool_name, hash)
                if known is not None:  # from the last lease holder
                    return known
            result = await self._execute(execution, function, lease_s)
            entry = ToolCacheEntry(execution.tool_name, hash, result, caller_now(self._clock), ttl)
            return await self._keep_result(namespace, entry, lease)
        finally:
            try:
                await beating.stop()
            finally:
                with suppress(KeepstateError):  # the lease expires by itself, and must not hide the outcome
                    await lease.release()

    async def _acquire_lead(self, namespace: Namespace, tool_name: str, hash: str, lease_s: float) -> Lease:
        hashed = await hash_name(namespace, tool_name, hash)
        name = namespace.label(f"flight/{to_segment(tool_name)}/{hashed}")
        while True:
            try:
                return await namespace.space.leases.acquire(name, lease_s, wait_s=_LONGEST_WAIT_S)
            except LeaseLostError:
                raise
            except ConflictError:
                continue

    async def _beat(self, lease: Lease, execution_id: str, signal: Signal) -> None:
        """Renew a lease and an execution until the signal is set or the lease is lost."""
        while not await signal.wait(lease.ttl_s / 3):
            try:
                await lease.renew()
                await self.heartbeat_execution(execution_id, lease_s=lease.ttl_s)
            except LeaseLostError:
                return
            except KeepstateError:
                continue  # not begun yet, or ended; or the next heartbeat may reach the store

    async def _execute(self, execution: ToolExecution, function: Tool, lease_s: float) -> Any:
        is_begun = False

        async def begin() -> None:
            nonlocal is_begun
            await self.start_execution(execution, lease_s=lease_s)
            is_begun = True

        try:
            await run_shielded(self._runner, begin)
            result = await call_function(function, codec.decode(codec.encode(execution.parameters)))
            codec.encode(result)  # a result that cannot be stored is a failure of the tool
        except BaseException as error:
            if is_begun:
                id = execution.execution_id
                await record_failure(
                    self._runner, f"execution {id!r}", partial(self._record_abort, id, error)
                )
            raise
        await run_shielded(self._runner, lambda: self._complete(execution.execution_id, result, None))
        return result

    async def _record_abort(self, execution_id: str, error: BaseException) -> None:
        if isinstance(error, Exception):
            await self.fail_execution(execution_id, error, timed_out=isinstance(error, TimeoutError))
        else:
            await self.cancel_execution(execution_id, f"{type(error).__name__} in its caller")

    async def _keep_result(self, namespace: Namespace, entry: ToolCacheEntry, lease: Lease) -> ToolCacheEntry:
        async def keep(inside: Namespace) -> None:
            await inside.space.documents.put(await _entry_key(inside, entry), entry, ttl_s=entry.ttl)

        try:
            await self._run_together(namespace, keep, lease=lease)
        except LeaseLostError:  # another process began in the meantime; the first stored result counts
            return await self._read_cached(namespace, entry.tool_name, entry.parameters_hash) or entry
        return entry


async def _entry_key(namespace: Namespace, entry: ToolCacheEntry) -> str:
    return await cache_key(namespace, entry.tool_name, entry.parameters_hash)
