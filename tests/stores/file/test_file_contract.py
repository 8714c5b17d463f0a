"""The file store keeps the contract in both formats, and behaves as a plain dict does.

The formats differ in how a record is written and read. With JSON, `make test` runs what lasts and the
comparison with a dict, and `make deep` the whole contract.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import settings
from keepstate_testing.store_abilities import ConfirmsLeaps, KeepsLeaps

from keepstate._runner import ThreadRunner
from keepstate.stores.file import FileStore
from keepstate.testing.clocks import ManualClock
from keepstate.testing.models import StoreMachine
from keepstate.testing.store_contract import Clocked, KeepsTime, Shared, StoreContract


class FileContract(Clocked, ConfirmsLeaps, KeepsLeaps, KeepsTime, Shared):
    format: Literal["json", "msgpack"]

    def make_store(self, tmp_path: Path) -> FileStore:
        path = tmp_path / "keepstate.journal"
        return FileStore(path, format=self.format, runner=self.runner(), clock=self.clock)


class TestMsgpack(FileContract, StoreContract):
    format = "msgpack"


class TestJson(FileContract):
    format = "json"


@pytest.mark.deep
class TestWholeJson(TestJson, StoreContract): ...


class FileMachine(StoreMachine):
    persists = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> FileStore:
        return FileStore(f"{self.folder.name}/", format="json-zstd", runner=runner, clock=clock)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestFileMachine = pytest.mark.searched(FileMachine.TestCase)
TestFileMachine.settings = settings(max_examples=settings().max_examples // 4)  # each step may be a sync
