"""Sessions, conversations and threads keep their contract on every backend."""

from __future__ import annotations

from keepstate.testing.session_contract import (
    ConversationContract,
    InPassedSpace,
    SessionContract,
    ThreadContract,
)
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class TestMemory(InMemory, SessionContract, ConversationContract, ThreadContract): ...


class TestPassedSpace(InPassedSpace, InMemory, SessionContract, ConversationContract, ThreadContract): ...


class TestFile(InFile, SessionContract, ConversationContract, ThreadContract): ...


class TestSQLite(InSQLite, SessionContract, ConversationContract, ThreadContract): ...


class TestRedis(InRedis, SessionContract, ConversationContract, ThreadContract): ...


class TestPostgres(InPostgres, SessionContract, ConversationContract, ThreadContract): ...
