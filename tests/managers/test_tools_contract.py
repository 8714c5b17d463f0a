"""`ToolStateManager` keeps its contract on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, ToolContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, ToolContract): ...


class TestPassedSpace(InPassedSpace, InMemory, ToolContract): ...


class TestFile(InFile, ToolContract): ...


class TestSQLite(InSQLite, ToolContract): ...


class TestRedis(InRedis, ToolContract): ...


class TestPostgres(InPostgres, ToolContract): ...
