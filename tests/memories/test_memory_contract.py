"""Memories keep their contract on every backend."""

from __future__ import annotations

from tests.contracts.managers.stage import InPassedSpace
from tests.contracts.memories import MemoryContract
from tests.managers.places import InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, MemoryContract): ...


class TestPassedSpace(InPassedSpace, InMemory, MemoryContract): ...


class TestSQLite(InSQLite, MemoryContract): ...


class TestRedis(InRedis, MemoryContract): ...


class TestPostgres(InPostgres, MemoryContract): ...
