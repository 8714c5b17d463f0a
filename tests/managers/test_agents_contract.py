"""`AgentStateStore` and `AgentRecoveryManager` keep their contracts on every backend."""

from __future__ import annotations

from tests.contracts.managers import AgentContract, InPassedSpace, RecoveryContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, AgentContract, RecoveryContract): ...


class TestPassedSpace(InPassedSpace, InMemory, AgentContract, RecoveryContract): ...


class TestFile(InFile, AgentContract, RecoveryContract): ...


class TestSQLite(InSQLite, AgentContract, RecoveryContract): ...


class TestRedis(InRedis, AgentContract, RecoveryContract): ...


class TestPostgres(InPostgres, AgentContract, RecoveryContract): ...
