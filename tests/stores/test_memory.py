"""The memory store keeps the contract, and behaves as a plain dict does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from keepstate_testing.store_abilities import KeepsLeaps

from keepstate import InvalidError, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import ABSENT, Batch, Check, Put
from keepstate.testing.clocks import ManualClock
from keepstate.testing.models import StoreMachine
from keepstate.testing.store_contract import Clocked, KeepsTime, Shared, StoreContract


class TestMemory(Clocked, KeepsLeaps, KeepsTime, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)


class MemoryMachine(StoreMachine):
    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> MemoryStore:
        return MemoryStore(runner=runner, clock=clock)


TestMemoryMachine = pytest.mark.searched(MemoryMachine.TestCase)


def test_a_store_is_told_its_mode_by_name() -> None:
    store = finish(MemoryStore(runner="blocking").open())
    with sync.open(store) as ks:
        ks.space("run/1").documents.put("a", 1)

        assert ks.space("run/1").documents.get("a") == 1
    finish(store.close())


def test_what_writes_nothing_leaves_no_space_behind() -> None:
    heap = MemoryHeap()
    store = finish(MemoryStore(runner="blocking", heap=heap).open())
    refused, asking = [Check(b"\x01k", version=1)], [Check(b"\x01k", version=ABSENT)]

    finish(store.apply([Batch("one", [Put(b"\x01k", b"")], refused)]))
    finish(store.apply([Batch(name, (), asking) for name in ("two", "three")]))

    assert not heap.spaces
    finish(store.close())


@pytest.mark.parametrize("wrong", ["sync", ""])
def test_what_is_no_mode_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidError, match="is not a mode; a handle is `async` or `blocking`"):
        MemoryStore(runner=wrong)
