"""The memory store keeps the contract, and behaves as a plain dict does."""

from __future__ import annotations

from pathlib import Path

from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from keepstate.testing.models import StoreMachine
from keepstate.testing.store_contract import Clocked, Persists, Shared, StoreContract


class TestMemory(Clocked, Persists, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)


class MemoryMachine(StoreMachine):
    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> MemoryStore:
        return MemoryStore(runner=runner, clock=clock)


TestMemoryMachine = MemoryMachine.TestCase
