"""Kept results of tools, and one execution for all who ask for the same at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from keepstate._runner import Signal
from keepstate.engine.kernel.arguments import check_name, check_text
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.queue.lease import Lease
from keepstate.errors import (
    ConflictError,
    KeepstateError,
    LeaseLostError,
)
from keepstate.managers.binding import Folder
from keepstate.managers.deadlines import present
from keepstate.managers.names import new_id, segment
from keepstate.managers.parameters import parameters_hash
from keepstate.managers.records import admit_record
from keepstate.managers.shield import noted, shielded
from keepstate.managers.tools.executions import ToolExecutions
from keepstate.managers.tools.keys import cache_place, parameters_name
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution
from keepstate.managers.tools.single_flight import Flights
from keepstate.values import codec

_UNCACHED_S: Final = 5.0
"""How long a result is kept for those who wait for it where results are not cached."""
_LONGEST_WAIT_S: Final = 3600.0

Tool = Callable[[dict[str, Any]], Awaitable[Any] | Any]


class ToolResults(ToolExecutions):
    """Kept results of all tools."""

    cache_results: bool
    cache_ttl: float | None
    _flights: Flights[tuple[str, str], ToolCacheEntry]

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Keep a result for `entry.ttl` seconds from now on, under the hash that stands in the entry."""
        admit_record("entry", entry, ToolCacheEntry)
        check_text("parameters_hash", entry.parameters_hash)
        if entry.ttl is not None:
            check_duration_ms("ttl", entry.ttl)
        folder = await self._cached_in(entry.tool_name, entry.parameters_hash)
        await folder.space.documents.put(await _place(folder, entry), entry, ttl_s=entry.ttl)
        await self._wrote()

    async def _cache_late(self, entry: ToolCacheEntry, ended_at: datetime | None) -> None:
        """Keep what an execution came to then, unless something is kept there, or its time is over."""

        async def work(folder: Folder) -> None:
            if await self._cached(folder, entry.tool_name, entry.parameters_hash) is not None:
                return
            left_s = entry.ttl
            if left_s is not None and ended_at is not None:
                left_s -= (await folder.space.now() - ended_at).total_seconds()
            if left_s is None or left_s > 0:
                late = replace(entry, created_at=ended_at, ttl=left_s)
                await folder.space.documents.put(await _place(folder, late), late, ttl_s=left_s)

        await self._together(await self._cached_in(entry.tool_name, entry.parameters_hash), work)

    async def get_cached_result(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCacheEntry | None:
        """Return the kept result for equal parameters, or None if there is none; counts either.

        The entry is true also if its result is None.
        """
        hash = parameters_hash(tool_name, parameters)
        folder = await self._cached_in(tool_name, hash)
        entry = await self._cached(folder, tool_name, hash)
        await self._looked(folder, tool_name, is_hit=entry is not None)
        return entry

    async def remove_cached_results(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Forget the kept results of a tool, or that for equal parameters, and return how many."""
        check_name("tool_name", tool_name)
        if parameters is not None:
            hash = parameters_hash(tool_name, parameters)
            folder = await self._cached_in(tool_name, hash)
            return int(await folder.space.documents.delete(await cache_place(folder, tool_name, hash)))

        async def remove(folder: Folder) -> int:
            prefix = escape_pattern(folder.beginning("cache", segment(tool_name)))
            names = [name async for name in folder.space.documents.keys(prefix + "*")]
            return sum([await folder.space.documents.delete(name) for name in names])

        return sum(await self._in_each(remove))

    async def _cached(self, folder: Folder, tool_name: str, hash: str) -> ToolCacheEntry | None:
        name = await cache_place(folder, tool_name, hash)
        entry: ToolCacheEntry | None = await folder.space.documents.get(name)
        return entry

    async def _version(self, folder: Folder, tool_name: str, hash: str) -> int:
        entry = await folder.space.documents.entry(await cache_place(folder, tool_name, hash))
        return 0 if entry is None else entry.version

    # ---- one execution for all who ask

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
        """Return the result of a tool for these parameters: kept, or from one execution for all who ask.

        Whoever asks for the same meanwhile, in this process or another, waits for that execution. What it
        raises is raised for all who wait in this process; others then try themselves. If the process that is
        at it dies, another one begins when its lease is over. The execution stands in the history: failed if
        the tool raised, timed out if that was a `TimeoutError`, cancelled if who is at it was cancelled.

        Args:
            tool_name: Which tool.
            parameters: What it is given.
            function: The tool; it gets a copy of the parameters, whatever is in them.
            ttl: For how many seconds the result is kept; without it `cache_ttl`, or, where results are not
                cached, just for those who wait.
            lease_s: For how many seconds others wait for a process that is not heard of; then its execution
                is stale.
            execution_id: Its id in the history; without it, a new one.
        """
        self._place.require_outside_transaction("running a tool")
        self._refuse_coroutine(function)
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
            started_at=present(self._clock),
            parameters=dict(parameters),
        )

        async def lead() -> ToolCacheEntry:
            known = await self.get_cached_result(tool_name, parameters) if is_cached else None
            return known or await self._led(execution, hash, function, ttl, lease_s, is_cached=is_cached)

        entry = await self._flights.join((tool_name, hash), lead)
        own: ToolCacheEntry = codec.decode(codec.encode(entry))
        return own

    async def _led(
        self,
        execution: ToolExecution,
        hash: str,
        function: Tool,
        ttl: float | None,
        lease_s: float,
        *,
        is_cached: bool,
    ) -> ToolCacheEntry:
        folder = await self._cached_in(execution.tool_name, hash)
        # Uncached, a result is for those only who were waiting when it came: a mail sent before is another.
        before = None if is_cached else await self._version(folder, execution.tool_name, hash)
        lease = await self._leading(folder, execution.tool_name, hash, lease_s)
        beat = partial(self._beat, lease, execution.execution_id)
        beating = self._runner.start(beat, f"lease of {execution.tool_name}")
        try:
            if is_cached or await self._version(folder, execution.tool_name, hash) != before:
                known = await self._cached(folder, execution.tool_name, hash)
                if known is not None:  # by who had the lease before
                    return known
            result = await self._executed(execution, function, lease_s)
            entry = ToolCacheEntry(execution.tool_name, hash, result, present(self._clock), ttl)
            return await self._kept(folder, entry, lease)
        finally:
            try:
                await beating.stop()
            finally:
                with suppress(KeepstateError):  # it ends by itself, and must not hide what the tool came to
                    await lease.release()

    async def _leading(self, folder: Folder, tool_name: str, hash: str, lease_s: float) -> Lease:
        asked = await parameters_name(folder, tool_name, hash)
        name = folder.label(f"flight/{segment(tool_name)}/{asked}")
        while True:
            try:
                return await folder.space.leases.acquire(name, lease_s, wait_s=_LONGEST_WAIT_S)
            except LeaseLostError:
                raise
            except ConflictError:
                continue

    async def _beat(self, lease: Lease, execution_id: str, signal: Signal) -> None:
        """Hold on to a lease and an execution until it is told to end, or has lost the lease."""
        while not await signal.wait(lease.ttl_s / 3):
            try:
                await lease.renew()
                await self.heartbeat_execution(execution_id, lease_s=lease.ttl_s)
            except LeaseLostError:
                return
            except KeepstateError:
                continue  # it has not begun yet, or has ended; or the next one may reach the store

    async def _executed(self, execution: ToolExecution, function: Tool, lease_s: float) -> Any:
        is_begun = False

        async def begin() -> None:
            nonlocal is_begun
            await self.start_execution(execution, lease_s=lease_s)
            is_begun = True

        try:
            await shielded(self._runner, begin)
            result = await call_function(function, codec.decode(codec.encode(execution.parameters)))
            codec.encode(result)  # what cannot be kept is a failure of the tool
        except BaseException as error:
            if is_begun:
                id = execution.execution_id
                await noted(self._runner, f"execution {id!r}", partial(self._broken_off, id, error))
            raise
        await shielded(self._runner, lambda: self._complete(execution.execution_id, result, None))
        return result

    async def _broken_off(self, execution_id: str, error: BaseException) -> None:
        if isinstance(error, Exception):
            await self.fail_execution(execution_id, error, timed_out=isinstance(error, TimeoutError))
        else:
            await self.cancel_execution(execution_id, f"{type(error).__name__} in who was at it")

    async def _kept(self, folder: Folder, entry: ToolCacheEntry, lease: Lease) -> ToolCacheEntry:
        async def keep(inside: Folder) -> None:
            await inside.space.documents.put(await _place(inside, entry), entry, ttl_s=entry.ttl)

        try:
            await self._together(folder, keep, lease=lease)
        except LeaseLostError:  # it took so long that another began; the first result that is kept counts
            return await self._cached(folder, entry.tool_name, entry.parameters_hash) or entry
        return entry


async def _place(folder: Folder, entry: ToolCacheEntry) -> str:
    return await cache_place(folder, entry.tool_name, entry.parameters_hash)
