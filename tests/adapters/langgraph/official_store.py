"""A plugin of pytest: what LangGraph's tests of its stores take for these is a `KeepstateStore`.

Loaded by name, in a process of its own, where the folder of their tests is the working folder.
`KEEPSTATE_URL` says which store: each database of theirs is a tenant of its own in it.
`KEEPSTATE_POSTGRES` is the PostgreSQL in which their tests make databases, whether they are used or not.
A test that is repeated for how PostgreSQL is reached, or how it keeps vectors, is run once; the one that
begins 60,000 calls at once is left out: ours are not combined, and take minutes on a server.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from typing import Any

import pytest

from keepstate.adapters.langgraph.on_store import Done
from keepstate.adapters.langgraph.store import KeepstateStore
from keepstate.adapters.loop_handles import Opened

THEIRS = {
    "langgraph.store.memory": {"InMemoryStore": "MemoryStore"},
    "langgraph.store.sqlite": {"SqliteStore": "BlockingStore", "AsyncSqliteStore": "AsyncStore"},
    "langgraph.store.sqlite.base": {"SqliteStore": "BlockingStore"},
    "langgraph.store.sqlite.aio": {"AsyncSqliteStore": "AsyncStore"},
    "langgraph.store.postgres": {"PostgresStore": "BlockingStore", "AsyncPostgresStore": "AsyncStore"},
}
"""Where their classes are found, and what stands there instead."""
_OPTIONS = ("index", "ttl")
_ONLY_THEIRS = ("pipe", "pool", "halfvec")
_MINUTES = "test_large_batches_async["


class MemoryStore(KeepstateStore):
    """A store that has nothing yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(os.environ["KEEPSTATE_URL"], tenant=secrets.token_hex(8), **options)


class NoTables:
    """Drops tables that are not there; of what else is asked in SQL there is nothing."""

    def execute(self, statement: str, *_: object) -> Any:
        if not statement.startswith("DROP TABLE IF EXISTS"):
            raise NotImplementedError(f"no table to ask: {statement}")
        return Done()


class BlockingStore(KeepstateStore):
    """A store by the name of their database; of how they reach it nothing is taken."""

    MIGRATIONS: tuple[str, ...] = ()
    VECTOR_MIGRATIONS: tuple[str, ...] = ()

    @contextmanager
    def _cursor(self, **_: object) -> Iterator[NoTables]:
        yield NoTables()

    @classmethod
    def from_conn_string(cls, url: Any, **options: Any) -> Any:
        name = secrets.token_hex(8) if url == ":memory:" else sha256(str(url).encode()).hexdigest()[:16]
        taken = {option: options[option] for option in _OPTIONS if option in options}
        return Opened(lambda: cls(os.environ["KEEPSTATE_URL"], tenant=name, **taken))


class AsyncStore(BlockingStore):
    """Awaits what LangGraph's asynchronous stores await and ours has another name for, or need not."""

    @asynccontextmanager
    async def _cursor(self, **_: object) -> AsyncIterator[NoTables]:  # type: ignore[override]
        yield NoTables()

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep_ttl()

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        return super().stop_ttl_sweeper(timeout)

    async def aclose(self) -> None:
        super().stop_ttl_sweeper()
        await self._handles.aclose()


for module, names in THEIRS.items():
    with suppress(ImportError):
        for name, ours in names.items():
            setattr(import_module(module), name, globals()[ours])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tell their tests where a PostgreSQL is."""
    del session
    theirs: Any = sys.modules.get("tests.conftest")
    if theirs is not None and hasattr(theirs, "DEFAULT_URI"):
        theirs.DEFAULT_URI = os.environ["KEEPSTATE_POSTGRES"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what would be the same once more."""
    again = [item for item in items if any(word in item.name.partition("[")[2] for word in _ONLY_THEIRS)]
    if os.environ["KEEPSTATE_POSTGRES"]:
        again += [item for item in items if item.name.startswith(_MINUTES)]
    items[:] = [item for item in items if item not in again]
    config.hook.pytest_deselected(items=again)
