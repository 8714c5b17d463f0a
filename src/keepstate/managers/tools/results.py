"""Cached results of tools, and one shared execution for concurrent equal calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_duration_ms, check_name, check_text
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.queue.lease import Lease
from keepstate.errors import ConflictError, LeaseLostError, NotFoundError, TransitionError
from keepstate.managers.arguments import caller_now
from keepstate.managers.binding import Namespace
from keepstate.managers.names import to_segment
from keepstate.managers.records import check_record, parameters_hash
from keepstate.managers.tools.executions import Executions
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution
from keepstate.managers.tools.shared_calls import SingleFlight, record_failure, run_shielded
from keepstate.managers.tools.spaces import ToolSpaces, cache_key
from keepstate.values import codec

_UNCACHED_S: Final = 5.0
"""Seconds for which a result is stored for waiting callers if results are not cached."""
_LONGEST_WAIT_S: Final = 3600.0

Tool = Callable[[dict[str, Any]], Awaitable[Any] | Any]


class Results:
    """The cached results of one manager, and its calls in progress."""

    def __init__(self, spaces: ToolSpaces, executions: Executions) -> None:
        self._spaces, self._executions = spaces, executions
        self._flights: SingleFlight[tuple[str, str], ToolCacheEntry] = SingleFlight(spaces.runner)

    async def cache(self, entry: ToolCacheEntry) -> None:
        """Cache a result for `entry.ttl` seconds from now, under the hash in the entry."""
        check_record("entry", entry, ToolCacheEntry)
        check_text("parameters_hash", entry.parameters_hash)
        if entry.ttl is not None:
            check_duration_ms("ttl", entry.ttl)
        namespace, name = await self._slot(entry.tool_name, entry.parameters_hash)
        await namespace.space.documents.put(name, entry, ttl_s=entry.ttl)

    async def cache_earlier(self, entry: ToolCacheEntry, ended_at: datetime | None) -> None:
        """Cache the result of an earlier execution, unless one is cached already or its time is over."""
        slot, name = await self._slot(entry.tool_name, entry.parameters_hash)

        async def work(namespace: Namespace) -> None:
            if await _read(namespace, name) is not None:
                return
            left_s = entry.ttl
            if left_s is not None and ended_at is not None:
                left_s -= (await namespace.space.now() - ended_at).total_seconds()
            if left_s is None or left_s > 0:
                late = replace(entry, created_at=ended_at, ttl=left_s)
                await namespace.space.documents.put(name, late, ttl_s=left_s)

        await self._spaces.change(slot, work)

    async def get(self, tool_name: str, hash: str) -> ToolCacheEntry | None:
        """Return the cached result for the hash of parameters, or None. Counts the hit or miss."""
        namespace, name = await self._slot(tool_name, hash)
        entry = await _read(namespace, name)
        await self._spaces.count_lookup(namespace, tool_name, is_hit=entry is not None)
        return entry

    async def remove(self, tool_name: str, parameters: Mapping[str, Any] | None) -> int:
        """Remove the cached results of a tool, or the one for equal parameters, and return their number."""
        check_name("tool_name", tool_name)
        if parameters is not None:
            namespace, name = await self._slot(tool_name, parameters_hash(tool_name, parameters))
            return int(await namespace.space.documents.delete(name))

        async def remove(namespace: Namespace) -> int:
            cached = namespace.collection("cache", to_segment(tool_name))
            return sum([await cached.delete(id) for id in [id async for id in cached.ids()]])

        return sum(await self._spaces.read_each(remove))

    async def _slot(self, tool_name: str, hash: str) -> tuple[Namespace, str]:
        """Return the namespace and the name of the document of a cached result."""
        namespace = await self._spaces.of_result(tool_name, hash)
        return namespace, await cache_key(namespace, tool_name, hash)

    # ---- one execution for concurrent equal calls

    async def run(
        self, execution: ToolExecution, function: Tool, *, ttl: float | None, lease_s: float, is_cached: bool
    ) -> ToolCacheEntry:
        """Return the result of a tool: cached, or from one execution for all callers."""
        tool_name, hash = execution.tool_name, parameters_hash(execution.tool_name, execution.parameters)

        async def lead() -> ToolCacheEntry:
            known = await self.get(tool_name, hash) if is_cached else None
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
        namespace, name = await self._slot(execution.tool_name, hash)
        # Without a cache, a result is only for callers that already waited: an earlier e-mail is another one.
        before = None if is_cached else await _version(namespace, name)
        lease = await _acquire_lead(namespace, name, lease_s)
        async with lease.kept_alive(partial(self._keep_running, execution.execution_id, lease_s)):
            if is_cached or await _version(namespace, name) != before:
                known = await _read(namespace, name)
                if known is not None:  # from the last lease holder
                    return known
            result = await self._execute(execution, function, lease_s)
            ttl = ttl if is_cached else _UNCACHED_S
            entry = ToolCacheEntry(execution.tool_name, hash, result, caller_now(self._spaces.clock), ttl)

            async def keep(inside: Namespace) -> None:
                await inside.space.documents.put(name, entry, ttl_s=entry.ttl)

            try:
                await self._spaces.change(namespace, keep, lease=lease)
            except LeaseLostError:  # another process began in the meantime; the first stored result counts
                return await _read(namespace, name) or entry
            return entry

    async def _keep_running(self, execution_id: str, lease_s: float) -> None:
        with suppress(NotFoundError, TransitionError):  # not begun yet, or ended
            await self._executions.heartbeat(execution_id, lease_s=lease_s)

    async def _execute(self, execution: ToolExecution, function: Tool, lease_s: float) -> Any:
        id, is_begun = execution.execution_id, False

        async def begin() -> None:
            nonlocal is_begun
            await self._executions.start(execution, lease_s=lease_s)
            is_begun = True

        try:
            await run_shielded(self._spaces.runner, begin)
            result = await call_function(function, codec.decode(codec.encode(execution.parameters)))
            codec.encode(result)  # a result that cannot be stored is a failure of the tool
        except BaseException as error:
            if is_begun:
                abort = partial(self._record_abort, id, error)
                await record_failure(self._spaces.runner, f"execution {id!r}", abort)
            raise
        await run_shielded(self._spaces.runner, lambda: self._executions.complete(id, result, None))
        return result

    async def _record_abort(self, execution_id: str, error: BaseException) -> None:
        if isinstance(error, Exception):
            await self._executions.fail(execution_id, error, timed_out=isinstance(error, TimeoutError))
        else:
            await self._executions.cancel(execution_id, f"{type(error).__name__} in its caller")


async def _acquire_lead(namespace: Namespace, name: str, lease_s: float) -> Lease:
    label = namespace.label(f"flight/{name.removeprefix(namespace.name_prefix('cache'))}")
    while True:
        try:
            return await namespace.space.leases.acquire(label, lease_s, wait_s=_LONGEST_WAIT_S)
        except LeaseLostError:
            raise
        except ConflictError:
            continue


async def _read(namespace: Namespace, name: str) -> ToolCacheEntry | None:
    entry: ToolCacheEntry | None = await namespace.space.documents.get(name)
    return entry


async def _version(namespace: Namespace, name: str) -> int:
    entry = await namespace.space.documents.entry(name)
    return 0 if entry is None else entry.version
