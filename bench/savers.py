"""LangGraph's checkpointers: ours and its own, each called as its own loop calls it."""

from __future__ import annotations

import random
import string
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psycopg.rows
from psycopg_pool import AsyncConnectionPool

from keepstate.adapters.langgraph.saver import KeepstateSaver

OURS, SQLITE, MEMORY, POSTGRES = "keepstate", "SqliteSaver", "InMemorySaver", "PostgresSaver"
TEXT_BYTES = 500

_LETTERS = string.ascii_letters + string.digits + " ."


def texts(count: int, size: int = TEXT_BYTES, *, seed: int = 1) -> Iterator[str]:
    """Yield texts that hardly compress: 6 bits a letter."""
    dice = random.Random(seed)
    return ("".join(dice.choices(_LETTERS, k=size)) for _ in range(count))


@contextmanager
def opened(name: str, where: str) -> Iterator[Any]:
    """Yield a saver, and close what it has opened.

    Args:
        name: Which one.
        where: A folder, for those that keep files; the URL of a server.
    """
    if name == OURS:
        with KeepstateSaver(_url(where)) as saver:
            yield saver
    elif name == MEMORY:
        yield import_module("langgraph.checkpoint.memory").InMemorySaver()
    else:
        package = import_module(f"langgraph.checkpoint.{'sqlite' if name == SQLITE else 'postgres'}")
        with getattr(package, name).from_conn_string(
            f"{where}/theirs.db" if name == SQLITE else where
        ) as saver:
            saver.setup()
            if name == SQLITE:
                saver.conn.execute("pragma synchronous = normal")
            yield saver


def _url(where: str) -> str:
    return where if "://" in where else f"sqlite:///{where}/ours.db?durability=normal"


def file_bytes(folder: str) -> int:
    """Return how much is in the files of a folder, logs and all."""
    return sum(path.stat().st_size for path in Path(folder).iterdir())


class Took(NamedTuple):
    """What a checkpoint took: time, and time of the processor in all threads of this process."""

    seconds: float
    cpu_s: float

    @classmethod
    def since(cls, seconds: float, cpu_s: float, *, checkpoints: int = 1) -> Took:
        """Return what one of some checkpoints took since a moment of `perf_counter` and of `process_time`."""
        return cls((time.perf_counter() - seconds) / checkpoints, (time.process_time() - cpu_s) / checkpoints)


class Conversation:
    """One thread that grows by a message a turn: one checkpoint each, and nothing in between.

    Attributes:
        config: Names its latest checkpoint.
    """

    def __init__(self, saver: Any, thread: str = "conversation") -> None:
        self.saver = saver
        self._thread = {"thread_id": thread, "checkpoint_ns": ""}
        self.config: Any = {"configurable": dict(self._thread)}
        self._new_id = import_module("langgraph.checkpoint.base.id").uuid6
        self._human = import_module("langchain_core.messages").HumanMessage
        self._messages: list[Any] = []
        self._version: Any = None

    def moved(self, saver: Any) -> None:
        """Go on with a saver that was opened anew."""
        self.saver = saver

    @property
    def newest(self) -> Any:
        """Return what asks for the latest checkpoint."""
        return {"configurable": dict(self._thread)}

    def turn(self, text: str) -> tuple[Any, Any, Any, Any]:
        """Return the arguments of the next `put`."""
        step = len(self._messages)
        self._messages = [*self._messages, self._human(text, id=f"{step:08}")]
        self._version = self.saver.get_next_version(self._version, None)
        versions = {"messages": self._version}
        checkpoint = {
            "v": 4,
            "id": str(self._new_id(clock_seq=step)),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {"messages": self._messages},
            "channel_versions": versions,
            "versions_seen": {"model": versions},
            "updated_channels": ["messages"],
        }
        return self.config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions

    def put(self, text: str) -> Took:
        """Store the next checkpoint, and return what that took."""
        turn = self.turn(text)
        cpu, begun = time.process_time(), time.perf_counter()
        self.config = self.saver.put(*turn)
        return Took.since(begun, cpu)

    async def aput(self, text: str) -> None:
        """Store the next checkpoint."""
        self.config = await self.saver.aput(*self.turn(text))


@asynccontextmanager
async def opened_async(name: str, where: str) -> AsyncIterator[Any]:
    """Yield the asynchronous saver of the same name; see `opened`."""
    if name == OURS:
        async with KeepstateSaver(_url(where)) as saver:
            yield saver
    elif name == SQLITE:
        package = import_module("langgraph.checkpoint.sqlite.aio")
        async with package.AsyncSqliteSaver.from_conn_string(f"{where}/theirs.db") as saver:
            await saver.setup()
            await saver.conn.execute("pragma synchronous = normal")
            yield saver
    else:
        package = import_module("langgraph.checkpoint.postgres.aio")
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": psycopg.rows.dict_row}
        async with AsyncConnectionPool(where, kwargs=options, max_size=8) as pool:
            saver = package.AsyncPostgresSaver(pool)
            await saver.setup()
            yield saver
