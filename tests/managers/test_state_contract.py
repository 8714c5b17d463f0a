"""`StateManager` keeps its contract on every backend."""

from __future__ import annotations

from keepstate.testing.manager_contract import InPassedSpace, StateContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, StateContract): ...


class TestPassedSpace(InPassedSpace, InMemory, StateContract): ...


class TestFile(InFile, StateContract): ...


class TestSQLite(InSQLite, StateContract): ...


class TestRedis(InRedis, StateContract): ...


class TestPostgres(InPostgres, StateContract): ...
