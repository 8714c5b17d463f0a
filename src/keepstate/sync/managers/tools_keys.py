"""Blocking twins of `keepstate.managers.tools.keys`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import keys as managers
from keepstate.managers.tools.records import ToolStats
from keepstate.sync.managers.manager import Manager

Inner = TypeVar("Inner", bound=managers.ToolSpaces)


class ToolSpaces(Manager[Inner]):
    """The 16 spaces of tools, and the sums in them."""

    def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return the statistics of a tool. The cost does not depend on the number of executions.

        Cache lookups of other managers appear in blocks of up to 64, or when those managers are closed.
        """
        return finish(self._inner.get_tool_stats(tool_name))
