"""Servers of stores that several tests share, because each test works on spaces of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from keepstate_testing.servers import Postgres

from tests.stores.http.serving import StoreServer, sqlite_url


@pytest.fixture(scope="package")
def sqlite_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server with SQLite behind it."""
    with StoreServer(sqlite_url(tmp_path_factory.mktemp("http"))) as server:
        yield server


@pytest.fixture(scope="package")
def postgres_behind(postgres_server: Postgres) -> Iterator[tuple[StoreServer, StoreServer, str]]:
    """Two servers with one PostgreSQL database behind them, and its URL."""
    url = postgres_server.create_database()
    with StoreServer(url) as first, StoreServer(url) as second:
        yield first, second, url
    postgres_server.drop_database(url)
