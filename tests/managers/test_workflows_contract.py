"""`WorkflowStateManager` keeps its contract on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, WorkflowContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, WorkflowContract): ...


class TestPassedSpace(InPassedSpace, InMemory, WorkflowContract): ...


class TestFile(InFile, WorkflowContract): ...


class TestSQLite(InSQLite, WorkflowContract): ...


class TestRedis(InRedis, WorkflowContract): ...


class TestPostgres(InPostgres, WorkflowContract): ...
