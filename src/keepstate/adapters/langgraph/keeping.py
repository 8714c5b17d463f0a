"""What a saver has at hand between its calls, whatever colour they are."""

from __future__ import annotations

from keepstate.adapters.langgraph.records import space_of
from keepstate.adapters.langgraph.serde import Values
from keepstate.adapters.langgraph.taking import Standings
from keepstate.engine.admission import admit_space
from keepstate.engine.history.ledger import Ledger, Records
from keepstate.engine.history.objects import Kept, SharedObjects
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.scope import SpaceScope
from keepstate.engine.unit import Unit


class Keeper:
    """Values, and what was read and stored lately.

    Args:
        values: What encodes and decodes.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.standings = Standings()
        self._records, self._objects = Records(), SharedObjects()

    def with_values(self, values: Values) -> Keeper:
        """Returns the same, with other values."""
        other = Keeper(values)
        other.standings = self.standings
        other._records, other._objects = self._records, self._objects
        return other

    def scope(self, handle: Keepstate, thread: str) -> SpaceScope:
        """Returns where a thread's work is done."""
        name = admit_space("name", space_of(thread), handle.tenant_id)
        return SpaceScope(handle, name, handle.author)

    def ledger(self, scope: SpaceScope, unit: Unit) -> Ledger:
        """Returns the history of a thread, as one unit of work sees it."""
        kept = Kept(self._objects, scope.stored_name)
        return Ledger(unit, self._records, kept, self.values.codec)
