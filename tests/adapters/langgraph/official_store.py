"""A plugin of pytest: what LangGraph's tests of its SQLite store take for that is a `KeepstateStore`."""

from __future__ import annotations

from typing import Any

from langgraph.store import sqlite
from langgraph.store.sqlite import aio, base

from keepstate.adapters.langgraph.opened import Opened
from keepstate.adapters.langgraph.store import KeepstateStore


class BlockingStore(KeepstateStore):
    @classmethod
    def from_conn_string(cls, url: Any, **options: Any) -> Any:
        where = "memory://" if url == ":memory:" else f"sqlite:///{url}.keepstate?durability=normal"
        return Opened(lambda: cls(where, **options))


class AsyncStore(BlockingStore):
    """Awaits what LangGraph's asynchronous store awaits and ours has another name for, or need not."""

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep_ttl()

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        return super().stop_ttl_sweeper(timeout)

    async def aclose(self) -> None:
        super().stop_ttl_sweeper()
        await self._homes.aclose()


for module in (sqlite, base):
    module.SqliteStore = BlockingStore  # type: ignore[attr-defined]
for module in (sqlite, aio):
    module.AsyncSqliteStore = AsyncStore  # type: ignore[attr-defined]
