"""All that a `KeyedState` does, as one contract."""

from __future__ import annotations

from tests.contracts.typed.batches import BatchContract
from tests.contracts.typed.plugins import PluginContract
from tests.contracts.typed.whole import WholeStateContract


class KeyedStateContract(BatchContract, PluginContract, WholeStateContract):
    """Batches, plugins, and the whole state."""
