"""Stores that say how they were asked."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.stores.memory import MemoryStore
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Batch, Changes, Entry, Put, Reading, Store


class CountedMemory(MemoryStore):
    """Notes of each read how many keys it asked for, and of each look into the log where it began."""

    asked: list[int]
    looked: list[int]

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.asked = [*getattr(self, "asked", []), len(keys)]
        return await super().read(space, keys, at_ms=at_ms)

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        self.looked = [*getattr(self, "looked", []), after]
        return await super()._changes(space, after, limit)


class CountedPostgres(PostgresStore):
    """Notes of each read how many keys it asked for."""

    asked: list[int]

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        self.asked = [*getattr(self, "asked", []), len(keys)]
        return await super()._read(space, keys, at_ms)


async def put(store: Store, key: bytes, value: bytes, *, ttl_ms: int | None = None) -> None:
    (outcome,) = await store.apply([Batch("s", [Put(key, value, ttl_ms)])])
    assert not isinstance(outcome, Exception)


async def values(store: Store, *keys: bytes) -> list[bytes | None]:
    return [value_of(entry) for entry in (await store.read("s", keys)).entries]


def value_of(entry: Entry | None) -> bytes | None:
    return None if entry is None else entry.value
