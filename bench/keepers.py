"""Those who keep a state after each change: keepstate's history, and what it is compared with."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg
import redis

import keepstate
from bench.changes import APPEND, Change, State
from bench.others import Saver, kvgit_worktree
from keepstate.sync.draft import Draft


class Keeper(ABC):
    """Somebody who keeps a state.

    Attributes:
        name: Who.
        is_heavy: Whether each change costs what there is, so that a few of them say enough.
    """

    name: str
    is_heavy = True

    def __init__(self, change: Change, size: int) -> None:
        self._change, self._size = change, size
        self._dice = random.Random(1)
        self.state: State = change.state(size)
        self.keep(self.state, list(self.state))

    def turn(self) -> None:
        """Change the state, and keep it."""
        self.keep(self.state, [self._change.edit(self.state, self._dice, self._size)])

    @abstractmethod
    def keep(self, state: State, changed: list[str]) -> None:
        """Keep the state, of which some keys have changed."""

    @abstractmethod
    def stored_bytes(self) -> int:
        """Return how much is kept by now, keys included."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


class Ours(Keeper):
    """keepstate: appends by `append`, other changes in a draft that stays open, as one agent's does."""

    name = "keepstate"
    is_heavy = False

    def __init__(self, url: str, change: Change, size: int) -> None:
        self._ks = keepstate.sync.open(url)
        self._history = self._ks.space(f"{change.name} {size}").history
        self._draft: Draft | None = None
        super().__init__(change, size)
        self.state = {}
        if change is not APPEND:
            self._draft = self._history.begin(load=len(change.sizes) > 1)

    def turn(self) -> None:
        if self._draft is None:
            appended: State = {"messages": []}
            self._change.edit(appended, self._dice, self._size)
            self._history.append("messages", *appended["messages"])
        else:
            self._change.edit(self._draft, self._dice, self._size)
            self._draft.commit()

    def keep(self, state: State, changed: list[str]) -> None:
        self._history.commit(state)

    def stored_bytes(self) -> int:
        return self._history.stats().size_bytes

    def close(self) -> None:
        self._ks.close()


class Kvgit(Keeper):
    """kvgit: one value a key, which is stored whole when it changes."""

    name = "kvgit"

    def __init__(self, folder: Path | None, change: Change, size: int) -> None:
        self._folder, self._tree = folder, kvgit_worktree(folder)
        super().__init__(change, size)

    def keep(self, state: State, changed: list[str]) -> None:
        for key in changed:
            self._tree[key] = state[key]
        self._tree.commit()

    def stored_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._tree.repo.store.items())

    def close(self) -> None:
        self._tree.repo.close()


class LangGraph(Keeper):
    """LangGraph's SqliteSaver: all channels, in each checkpoint."""

    name = "SqliteSaver"

    def __init__(self, path: Path, change: Change, size: int) -> None:
        self._saver = Saver(path)
        super().__init__(change, size)

    def keep(self, state: State, changed: list[str]) -> None:
        self._saver.put(state, changed)

    def stored_bytes(self) -> int:
        return self._saver.stored_bytes()

    def close(self) -> None:
        self._saver.close()


class Snapshot(Keeper):
    """The whole state as MessagePack, once a commit, by the store's own driver."""

    name = "snapshot"

    def __init__(self, change: Change, size: int) -> None:
        self._number = self._bytes = 0
        super().__init__(change, size)

    def keep(self, state: State, changed: list[str]) -> None:
        encoded = msgspec.msgpack.encode(state)
        self._number += 1
        self._bytes += len(encoded)
        self.put(self._number, encoded)

    @abstractmethod
    def put(self, number: int, encoded: bytes) -> None:
        """Store one snapshot."""

    def stored_bytes(self) -> int:
        return self._bytes


class MemorySnapshot(Snapshot):
    """Snapshots in a dict."""

    def __init__(self, change: Change, size: int) -> None:
        self._kept: dict[int, bytes] = {}
        super().__init__(change, size)

    def put(self, number: int, encoded: bytes) -> None:
        self._kept[number] = encoded

    def close(self) -> None:
        self._kept.clear()


class SqliteSnapshot(Snapshot):
    """Snapshots in a table of SQLite, which syncs as `normal` does."""

    def __init__(self, path: Path, change: Change, size: int) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = normal")
        self._connection.execute("create table snapshots (number integer primary key, state blob)")
        super().__init__(change, size)

    def put(self, number: int, encoded: bytes) -> None:
        self._connection.execute("insert into snapshots values (?, ?)", (number, encoded))

    def close(self) -> None:
        self._connection.close()


class RedisSnapshot(Snapshot):
    """Snapshots under keys of Redis."""

    def __init__(self, url: str, change: Change, size: int) -> None:
        self._client: Any = redis.Redis.from_url(url)
        super().__init__(change, size)

    def put(self, number: int, encoded: bytes) -> None:
        self._client.set(f"snapshot {number}", encoded)

    def close(self) -> None:
        self._client.close()


class PostgresSnapshot(Snapshot):
    """Snapshots in a table of PostgreSQL."""

    def __init__(self, url: str, change: Change, size: int) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("drop table if exists snapshots")
        self._connection.execute("create table snapshots (number integer primary key, state bytea)")
        super().__init__(change, size)

    def put(self, number: int, encoded: bytes) -> None:
        self._connection.execute("insert into snapshots values (%s, %s)", (number, encoded))

    def close(self) -> None:
        self._connection.close()
