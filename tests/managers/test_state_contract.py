"""`StateManager` and subscriptions keep their contracts on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, StateContract, SubscriptionContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, StateContract, SubscriptionContract): ...


class TestPassedSpace(InPassedSpace, InMemory, StateContract, SubscriptionContract): ...


class TestFile(InFile, StateContract, SubscriptionContract): ...


class TestSQLite(InSQLite, StateContract, SubscriptionContract): ...


class TestRedis(InRedis, StateContract, SubscriptionContract): ...


class TestPostgres(InPostgres, StateContract, SubscriptionContract): ...
