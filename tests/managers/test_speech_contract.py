"""`SpeechStateManager` keeps its contract on every backend."""

from __future__ import annotations

from tests.contracts.managers import InPassedSpace, SpeechContract
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, SpeechContract): ...


class TestPassedSpace(InPassedSpace, InMemory, SpeechContract): ...


class TestFile(InFile, SpeechContract): ...


class TestSQLite(InSQLite, SpeechContract): ...


class TestRedis(InRedis, SpeechContract): ...


class TestPostgres(InPostgres, SpeechContract): ...
