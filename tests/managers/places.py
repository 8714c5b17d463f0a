"""The stores on which every manager has to work.

Managers reach a store through the engine only, and the store contract proves each backend in both modes. So
managers run in both modes on memory and SQLite, and in one mode elsewhere: async on Redis, blocking on
PostgreSQL, so that each mode meets a server.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstate._runner import Mode
from tests.contracts.managers import ManagerStage


class InMemory(ManagerStage):
    def make_url(self, tmp_path: Path) -> str:
        return f"memory://{uuid.uuid4().hex}"


class InBlockingMode(ManagerStage):
    @pytest.fixture(params=["blocking"], autouse=True)
    def mode(self, request: pytest.FixtureRequest) -> Iterator[Mode]:
        yield from self.in_mode(request.param)


class InAsyncMode(ManagerStage):
    @pytest.fixture(params=["async"], autouse=True)
    def mode(self, request: pytest.FixtureRequest) -> Iterator[Mode]:
        yield from self.in_mode(request.param)


class InFile(InBlockingMode):
    def make_url(self, tmp_path: Path) -> str:
        return f"file:///{tmp_path}/state/"


class InSQLite(ManagerStage):
    def make_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/state.db?durability=normal"


class OnServer(ManagerStage):
    """A server that is emptied before each test."""

    server_url: str

    def make_url(self, tmp_path: Path) -> str:
        return self.server_url


class InRedis(OnServer, InAsyncMode):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.server_url = redis_url


class InPostgres(OnServer, InBlockingMode):
    @pytest.fixture(autouse=True)
    def server(self, postgres_url: str) -> None:
        self.server_url = postgres_url
