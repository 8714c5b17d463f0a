"""The caches of a saver between its calls, async or blocking."""

from __future__ import annotations

from keepstate.adapters.langgraph.channel_diff import Standings
from keepstate.adapters.langgraph.records import space_of
from keepstate.adapters.langgraph.serde import Values
from keepstate.engine.history.objects import ObjectCache
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.arguments import check_space_name
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate


class Keeper:
    """Values, and what was read and stored lately.

    Args:
        values: What encodes and decodes.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.summaries = Standings()
        self._records, self._objects = Records(), ObjectCache()

    def with_values(self, values: Values) -> Keeper:
        """Return the same, with other values."""
        other = Keeper(values)
        other.summaries = self.summaries
        other._records, other._objects = self._records, self._objects
        return other

    def executor(self, handle: Keepstate, thread: str) -> SpaceExecutor:
        """Return where a thread's work is done."""
        name = check_space_name("name", space_of(thread), handle.tenant_id)
        return SpaceExecutor(handle, name, handle.author)

    def session(self, executor: SpaceExecutor, unit: Unit) -> HistorySession:
        """Return the history of a thread, as one unit of work sees it."""
        return HistorySession(unit, self._records, self._objects, self.values.codec)
