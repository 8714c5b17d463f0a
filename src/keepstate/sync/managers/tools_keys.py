"""Blocking twins of `keepstate.managers.tools.keys`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import keys as managers
from keepstate.managers.tools.records import ToolStats
from keepstate.sync.managers.manager import Manager

Inner = TypeVar("Inner", bound=managers.ToolPlaces)


class ToolPlaces(Manager[Inner]):
    """The 16 spaces of tools, and the sums in them."""

    def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return what became of a tool's executions; costs the same however many there were.

        Lookups of other managers in the cache show here within 64 of them, or once they are closed.
        """
        return finish(self._inner.get_tool_stats(tool_name))
