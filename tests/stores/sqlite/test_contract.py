"""SQLite under the contract of all stores, with either durability, in both modes.

The durability changes when SQLite waits for the disk, and nothing else. With `full`, `make test` runs what
lasts and what processes share, and `make deep` the whole contract.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from keepstate_testing.store_abilities import ConfirmsLeaps, KeepsLeaps

from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.store_contract import Clocked, KeepsTime, SharedAcrossProcesses, StoreContract
from tests.stores.forked import SharedAcrossForks


class TestSqliteFull(Clocked, ConfirmsLeaps, KeepsLeaps, KeepsTime, SharedAcrossProcesses):
    def make_store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(tmp_path / "keepstate.db", runner=self.runner(), clock=self.clock)


@pytest.mark.deep
class TestWholeSqliteFull(TestSqliteFull, StoreContract): ...


class TestSqliteNormal(Clocked, ConfirmsLeaps, KeepsLeaps, KeepsTime, SharedAcrossForks, StoreContract):
    def make_store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(
            tmp_path / "keepstate.db", durability="normal", runner=self.runner(), clock=self.clock
        )
