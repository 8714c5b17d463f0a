"""The PostgreSQL store keeps the contract, also where answers get lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from keepstate_testing.faults import CutReply, CutRequest, Proxy, having
from keepstate_testing.servers import Postgres
from keepstate_testing.store_abilities import ConfirmsServersClock, NoticesLostFloors

from keepstate._clock import Clock
from keepstate.stores.base import StoreBase
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.options import read_options
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract import LosesReplies, Persists, StoreContract
from tests.stores.forked import SharedAcrossForks


class TestPostgres(ConfirmsServersClock, NoticesLostFloors, Persists, SharedAcrossForks, StoreContract):
    _url: str

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        self._url = postgres_url

    def make_store(self, tmp_path: Path) -> PostgresStore:
        return PostgresStore.from_url(StoreUrl.parse(self._url), runner=self.runner())

    def make_store_by(self, clock: Clock) -> PostgresStore:
        url = StoreUrl.parse(self._url)
        return PostgresStore(url, read_options(url), runner=self.runner(), clock=clock)

    async def set_time(self, store: StoreBase, space: str, ms: int) -> None:
        with psycopg.connect(self._url, autocommit=True) as rows:
            rows.execute("UPDATE keepstate.space SET clock_ms = %s WHERE name = %s", (ms, space.encode()))

    async def replace_floor(self, store: StoreBase, space: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as rows:
            rows.execute(
                "UPDATE keepstate.space SET floor_nonce = 'another!' WHERE name = %s", (space.encode(),)
            )


class TestPostgresOverALossyLine(LosesReplies):
    @pytest.fixture(autouse=True)
    def database(self, postgres_server: Postgres, postgres_url: str) -> Iterator[None]:
        with Proxy(postgres_server.port) as self.line:
            self.url = self.line.url(postgres_url)
            yield

    def make_store(self, tmp_path: Path) -> PostgresStore:
        return PostgresStore.from_url(StoreUrl.parse(self.url), runner=self.runner())

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        losses = [CutRequest()] * requests + [CutReply()] * replies
        self.line.spoil(*losses, chosen=having(b"_apply\0", b"_put\0"))
