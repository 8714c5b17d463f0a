"""An encrypted store keeps the contract of all stores, over memory, SQLite and Redis, in both modes.

The whole contract runs over memory; what lasts and what processes share, over SQLite and Redis too.
`make deep` runs the whole contract over all three.
"""

from __future__ import annotations

from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest
from keepstate_testing.store_abilities import KeepsLeaps

from keepstate import EncryptedStore, KeyRing
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Store
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
from keepstate.testing.store_contract.sizes import SizesOfParts
from tests.processes import PROCESSES, Program

KEY = bytes(range(32))


def encrypted(store: StoreBase) -> Any:
    """Return it as the contract's own type, of which it has all that the contract asks for."""
    return EncryptedStore(store, KeyRing(KEY))


class Sealed(SizesOfParts):
    """What a wrapped store counts are sealed values."""

    def stored_by(self, store: Store) -> Store:
        return cast("EncryptedStore", store)._store


class TestEncryptedMemory(Sealed, Clocked, KeepsLeaps, KeepsTime, Shared, StoreContract):
    def make_store(self, tmp_path: Path) -> StoreBase:
        store = MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
        made: StoreBase = encrypted(store)
        return made


class EncryptedMachine(StoreMachine):
    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> StoreBase:
        made: StoreBase = encrypted(MemoryStore(runner=runner, clock=clock))
        return made


TestEncryptedMachine = EncryptedMachine.TestCase


class Workers(SharedAcrossProcesses):
    """Other processes need the key beside the URL."""

    def start_process(self, store: StoreBase, space: str, times: int) -> Program:
        worker = PROCESSES / "increment_encrypted.py"
        return Program(worker, self.store_url(store), space, times, KEY.hex(), stdout=PIPE, stderr=PIPE)


class TestEncryptedSqlite(Clocked, KeepsTime, Workers):
    def make_store(self, tmp_path: Path) -> StoreBase:
        path = tmp_path / "keepstate.db"
        made: StoreBase = encrypted(
            SqliteStore(path, durability="normal", runner=self.runner(), clock=self.clock)
        )
        return made


@pytest.mark.deep
class TestWholeEncryptedSqlite(Sealed, TestEncryptedSqlite, StoreContract): ...


class TestEncryptedRedis(Persists, Workers):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, tmp_path: Path) -> StoreBase:
        made: StoreBase = encrypted(RedisStore(StoreUrl.parse(self.url), runner=self.runner()))
        return made


@pytest.mark.deep
class TestWholeEncryptedRedis(Sealed, TestEncryptedRedis, StoreContract): ...
