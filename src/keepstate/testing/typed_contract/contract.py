"""All that a `KeyedState` does, as one contract."""

from __future__ import annotations

from keepstate.testing.typed_contract.batches import BatchContract
from keepstate.testing.typed_contract.plugins import PluginContract
from keepstate.testing.typed_contract.whole import WholeStateContract


class KeyedStateContract(BatchContract, PluginContract, WholeStateContract):
    """Batches, plugins, and the whole state."""
