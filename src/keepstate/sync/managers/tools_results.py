"""Blocking twins of `keepstate.managers.tools.results`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import results as managers
from keepstate.managers.tools.records import ToolCacheEntry
from keepstate.managers.tools.results import Tool
from keepstate.sync.managers.tools_executions import ToolExecutions

Inner = TypeVar("Inner", bound=managers.ToolResults)


class ToolResults(ToolExecutions[Inner]):
    """The cached results of all tools."""

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
