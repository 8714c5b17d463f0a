"""A tiered store keeps the contract of all stores, whatever is cold, and with a cache between processes.

The whole contract runs over memory and over three tiers. The other kinds repeat it in `make deep` only,
because no code of the tiers knows what is cold.
"""

from __future__ import annotations

from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

import pytest
from keepstate_testing.store_abilities import KeepsLeaps

from keepstate import EncryptedStore, KeyRing, TieredStore
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.redis import RedisStore
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.clocks import ManualClock
from keepstate.testing.models import StoreMachine
from keepstate.testing.store_contract import (
    Clocked,
    KeepsTime,
    Persists,
    Shared,
    SharedAcrossProcesses,
    StoreContract,
)
from tests.processes import PROCESSES, Program
from tests.stores.wrappers.encrypted.test_contract import Sealed


def as_base(store: Any) -> StoreBase:
    """Return it as the contract's own type, of which it has all that the contract asks for."""
    made: StoreBase = store
    return made


class TestTieredMemory(Clocked, KeepsLeaps, KeepsTime, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> StoreBase:
        cold = MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
        return as_base(TieredStore(cold=cold, clock=self.clock))


@pytest.mark.deep
class TestForgetfulMemory(Clocked, KeepsTime, Shared, StoreContract):
    """It remembers two or three entries, so that hardly anything is found whole."""

    def make_store(self, tmp_path: Path) -> StoreBase:
        cold = MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
        return as_base(TieredStore(cold=cold, hot_bytes=1200, clock=self.clock))


@pytest.mark.deep
class TestStaleMemory(Clocked, KeepsTime, StoreContract):
    """What one handle writes it reads, also where it asks nobody for a minute."""

    def make_store(self, tmp_path: Path) -> StoreBase:
        cold = MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
        return as_base(TieredStore(cold=cold, max_staleness_s=60, clock=self.clock))


@pytest.mark.deep
class TestEncryptedTiers(Sealed, Clocked, KeepsTime, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> StoreBase:
        cold = MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
        return as_base(EncryptedStore(TieredStore(cold=cold, clock=self.clock), KeyRing(bytes(range(32)))))


class TieredMachine(StoreMachine):
    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> StoreBase:
        return as_base(TieredStore(cold=MemoryStore(runner=runner, clock=clock), hot_bytes=4000, clock=clock))


class StaleMachine(StoreMachine):
    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> StoreBase:
        cold = MemoryStore(runner=runner, clock=clock)
        return as_base(TieredStore(cold=cold, max_staleness_s=1e6, clock=clock))


TestTieredMachine = TieredMachine.TestCase
TestStaleMachine = StaleMachine.TestCase


class Workers(SharedAcrossProcesses):
    """Other processes have tiers too."""

    options = ""

    def start_process(self, store: StoreBase, space: str, times: int) -> Program:
        worker = PROCESSES / "increment_tiered.py"
        url = f"tiered+{self.store_url(store)}{self.options}"
        return Program(worker, url, space, times, stdout=PIPE, stderr=PIPE)


class TestTieredSqlite(Clocked, KeepsTime, Workers):
    def make_store(self, tmp_path: Path) -> StoreBase:
        path = tmp_path / "keepstate.db"
        cold = SqliteStore(path, durability="normal", runner=self.runner(), clock=self.clock)
        return as_base(TieredStore(cold=cold, clock=self.clock))


@pytest.mark.deep
class TestWholeTieredSqlite(TestTieredSqlite, StoreContract): ...


class TestThreeTiers(Persists, Workers, StoreContract):
    """Memory and Valkey in front of PostgreSQL."""

    @pytest.fixture(autouse=True)
    def servers(self, postgres_url: str, valkey_url: str) -> None:
        self.cold, self.warm = postgres_url, f"{valkey_url}?timeout_s=5"
        self.options = f"?warm={quote(self.warm, safe='')}"

    def make_store(self, tmp_path: Path) -> StoreBase:
        runner = self.runner()
        cold = PostgresStore.from_url(StoreUrl.parse(self.cold), runner=runner)
        warm = RedisStore(StoreUrl.parse(self.warm), runner=type(runner)())
        return as_base(TieredStore(cold=cold, warm=warm))
