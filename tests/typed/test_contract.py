"""Typed state keeps its contract on every backend, in both modes."""

from __future__ import annotations

from tests.contracts.typed import AgentRunContract, KeyedStateContract, ProfileContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, KeyedStateContract, AgentRunContract, ProfileContract): ...


class TestFile(InFile, KeyedStateContract, AgentRunContract, ProfileContract): ...


class TestSQLite(InSQLite, KeyedStateContract, AgentRunContract, ProfileContract): ...


class TestRedis(InRedis, KeyedStateContract, AgentRunContract, ProfileContract): ...


class TestPostgres(InPostgres, KeyedStateContract, AgentRunContract, ProfileContract): ...
