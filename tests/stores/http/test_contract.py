"""The store over HTTP keeps the contract on SQLite and on PostgreSQL, also where answers get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import psycopg
import pytest
from keepstate_testing.faults import CutReply, CutRequest, Proxy, having
from keepstate_testing.store_abilities import NoticesLostFloors

from keepstate._runner import Mode
from keepstate.stores.base import StoreBase
from keepstate.stores.http.store import HttpStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract import LosesReplies, Persists, StoreContract
from tests.stores.forked import SharedAcrossForks
from tests.stores.http.serving import StoreServer


class HttpContract(Persists, SharedAcrossForks, StoreContract):
    servers: Iterator[StoreServer]

    @pytest.fixture(autouse=True)
    def loop_that_goes_on(self, mode: Mode) -> Iterator[None]:
        """Let the loop close the connections of a store that was dropped, as it does in a program."""
        yield
        if mode == "async":
            self.drive(asyncio.sleep(0.005))

    def make_store(self, tmp_path: Path) -> HttpStore:
        self.url = next(self.servers).url()
        return HttpStore(StoreUrl.parse(self.url), runner=self.runner())

    def store_url(self, store: StoreBase) -> str:
        return self.url


class TestHttpOnSqlite(HttpContract):
    """A test costs many round trips, so an ordinary run takes one mode here, and the other on PostgreSQL."""

    @pytest.fixture(params=[pytest.param("async", marks=pytest.mark.deep), "blocking"], autouse=True)
    def mode(self, request: pytest.FixtureRequest) -> Iterator[Mode]:
        yield from self.in_mode(request.param)

    @pytest.fixture(autouse=True)
    def server(self, sqlite_behind: StoreServer) -> None:
        self.servers = cycle([sqlite_behind])


class TestHttpOnPostgres(NoticesLostFloors, HttpContract):
    """Each further handle of a test is on another server of the same database."""

    @pytest.fixture(params=["async", pytest.param("blocking", marks=pytest.mark.deep)], autouse=True)
    def mode(self, request: pytest.FixtureRequest) -> Iterator[Mode]:
        yield from self.in_mode(request.param)

    @pytest.fixture(autouse=True)
    def server(self, postgres_behind: tuple[StoreServer, StoreServer, str]) -> None:
        *servers, self.rows_url = postgres_behind
        self.servers = cycle(servers)

    async def replace_floor(self, store: StoreBase, space: str) -> None:
        with psycopg.connect(self.rows_url, autocommit=True) as rows:
            rows.execute(
                "UPDATE keepstate.space SET floor_nonce = 'another!' WHERE name = %s", (space.encode(),)
            )


class HttpOverALossyLine(LosesReplies):
    line: Proxy
    server: StoreServer

    def make_store(self, tmp_path: Path) -> HttpStore:
        url = self.line.url(self.server.url())
        return HttpStore(StoreUrl.parse(url), runner=self.runner())

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        losses = [CutRequest()] * requests + [CutReply()] * replies
        self.line.spoil(*losses, chosen=having(b"/store/apply"))


class TestHttpOnSqliteOverALossyLine(HttpOverALossyLine):
    @pytest.fixture(autouse=True)
    def lossy_line(self, sqlite_behind: StoreServer) -> Iterator[None]:
        with Proxy(sqlite_behind.port) as self.line:
            self.server = sqlite_behind
            yield


class TestHttpOnPostgresOverALossyLine(HttpOverALossyLine):
    @pytest.fixture(autouse=True)
    def lossy_line(self, postgres_behind: tuple[StoreServer, StoreServer, str]) -> Iterator[None]:
        with Proxy(postgres_behind[0].port) as self.line:
            self.server = postgres_behind[0]
            yield
