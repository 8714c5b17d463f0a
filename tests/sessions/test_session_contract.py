"""Sessions, conversations, threads and machines keep their contract on every backend."""

from __future__ import annotations

from tests.contracts.sessions import (
    ConversationContract,
    EntryContract,
    InPassedSpace,
    MachineContract,
    ReplyContract,
    SessionContract,
    ThreadContract,
    UsageContract,
)
from tests.managers.places import InFile, InMemory, InPostgres, InRedis, InSQLite


class _Contract(
    SessionContract,
    ConversationContract,
    EntryContract,
    ReplyContract,
    ThreadContract,
    MachineContract,
    UsageContract,
): ...


class TestMemory(InMemory, _Contract): ...


class TestPassedSpace(InPassedSpace, InMemory, _Contract): ...


class TestFile(InFile, _Contract): ...


class TestSQLite(InSQLite, _Contract): ...


class TestRedis(InRedis, _Contract): ...


class TestPostgres(InPostgres, _Contract): ...
