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
    """Kept results of all tools."""

    def cache_result(self, entry: ToolCacheEntry) -> None:
        """Keep a result for `entry.ttl` seconds from now on, under the hash that stands in the entry."""
        finish(self._inner.cache_result(entry))

    def get_cached_result(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCacheEntry | None:
        """Return the kept result for equal parameters, or None if there is none; counts either.

        The entry is true also if its result is None.
        """
        return finish(self._inner.get_cached_result(tool_name, parameters))

    def remove_cached_results(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Forget the kept results of a tool, or that for equal parameters, and return how many."""
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
        return finish(
            self._inner.run(
                tool_name, parameters, function, ttl=ttl, lease_s=lease_s, execution_id=execution_id
            )
        )
