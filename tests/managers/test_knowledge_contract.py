"""`KnowledgeStateManager` keeps its contract on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, KnowledgeContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, KnowledgeContract): ...


class TestPassedSpace(InPassedSpace, InMemory, KnowledgeContract): ...


class TestFile(InFile, KnowledgeContract): ...


class TestSQLite(InSQLite, KnowledgeContract): ...


class TestRedis(InRedis, KnowledgeContract): ...


class TestPostgres(InPostgres, KnowledgeContract): ...
