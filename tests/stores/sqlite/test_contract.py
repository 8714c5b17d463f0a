"""SQLite under the contract of all stores, with either durability, in both colours."""

from __future__ import annotations

from pathlib import Path

from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.store_contract import (
    Clocked,
    ConfirmsLeaps,
    KeepsLeaps,
    KeepsTime,
    SharedAcrossProcesses,
    StoreContract,
)


class TestSqliteFull(Clocked, ConfirmsLeaps, KeepsLeaps, KeepsTime, SharedAcrossProcesses, StoreContract):
    def make_store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(tmp_path / "keepstate.db", runner=self.runner(), clock=self.clock)


class TestSqliteNormal(Clocked, ConfirmsLeaps, KeepsLeaps, KeepsTime, SharedAcrossProcesses, StoreContract):
    def make_store(self, tmp_path: Path) -> SqliteStore:
        return SqliteStore(
            tmp_path / "keepstate.db", durability="normal", runner=self.runner(), clock=self.clock
        )
