"""`StoreBase` keeps promise 2 where answers get lost: no batch is lost, none is applied twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from keepstate._clock import SYSTEM_CLOCK
from keepstate._runner import Runner
from keepstate.errors import OutcomeUnknownError, StoreUnavailableError
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Reading
from keepstate.testing.store_contract import LosesReplies
from keepstate.testing.store_contract.batches import Batches
from keepstate.testing.store_contract.company import Company
from keepstate.testing.store_contract.tokens import Tokens


class FarMemory(MemoryStore):
    """A memory store behind a line that loses requests and replies on demand."""

    retries: ClassVar[bool] = True

    def __init__(self, *, name: str, runner: Runner) -> None:
        super().__init__(name=name, runner=runner, clock=SYSTEM_CLOCK)
        self.requests = self.replies = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await StoreBase.apply(self, batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        return await StoreBase.read(self, space, keys, at_ms=at_ms)

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        return await MemoryStore.read(self, space, keys, at_ms=at_ms)

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.requests:
            self.requests -= 1
            raise StoreUnavailableError("the request got lost", url=self.url)
        outcomes = await super()._apply(batches)
        if self.replies:
            self.replies -= 1
            raise OutcomeUnknownError("the reply got lost", url=self.url)
        return outcomes


class TestFarMemory(LosesReplies, Batches, Tokens, Company):
    def make_store(self, tmp_path: Path) -> FarMemory:
        return FarMemory(name=str(tmp_path), runner=self.runner())

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        assert isinstance(store, FarMemory)
        store.requests, store.replies = requests, replies
