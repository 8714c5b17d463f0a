"""The places in which every manager has to work."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.contracts.managers import ManagerStage


class InMemory(ManagerStage):
    def make_url(self, tmp_path: Path) -> str:
        return f"memory://{uuid.uuid4().hex}"


class InFile(ManagerStage):
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


class InRedis(OnServer):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.server_url = redis_url


class InPostgres(OnServer):
    @pytest.fixture(autouse=True)
    def server(self, postgres_url: str) -> None:
        self.server_url = postgres_url
