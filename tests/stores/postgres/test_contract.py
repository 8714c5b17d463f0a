"""The PostgreSQL store keeps the contract, also where answers get lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.base import StoreBase
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.options import read_options
from keepstate.stores.protocol import Batch, Outcome
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract import LosesReplies, Persists, SharedAcrossProcesses, StoreContract


class LossyStore(PostgresStore):
    """Loses the requests and replies that a test tells it to."""

    requests = replies = 0

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.requests:
            self.requests -= 1
            raise OutcomeUnknownError(f"{self.url} hung up", url=self.url)
        outcomes = await super()._apply(batches)
        if self.replies:
            self.replies -= 1
            raise OutcomeUnknownError(f"{self.url} hung up", url=self.url)
        return outcomes


class TestPostgres(LosesReplies, Persists, SharedAcrossProcesses, StoreContract):
    _url: str

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        self._url = postgres_url

    def make_store(self, tmp_path: Path) -> PostgresStore:
        url = StoreUrl.parse(self._url)
        return LossyStore(url, read_options(url), runner=self.runner())

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        assert isinstance(store, LossyStore)
        store.requests, store.replies = requests, replies
