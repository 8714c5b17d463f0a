"""`OrchestrationStateManager` keeps its contract on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, TeamContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, TeamContract): ...


class TestPassedSpace(InPassedSpace, InMemory, TeamContract): ...


class TestFile(InFile, TeamContract): ...


class TestSQLite(InSQLite, TeamContract): ...


class TestRedis(InRedis, TeamContract): ...


class TestPostgres(InPostgres, TeamContract): ...
