"""The memory store keeps the contract."""

from __future__ import annotations

from pathlib import Path

from keepstate.stores.memory import MemoryStore
from keepstate.testing.store_contract import Clocked, Persists, Shared, StoreContract


class TestMemory(Clocked, Persists, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
