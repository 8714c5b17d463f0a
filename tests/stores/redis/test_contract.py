"""Redis, Valkey and a cluster under the contract of all stores, in both modes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import cast

import pytest
from keepstate_testing.faults import CutReply, CutRequest, Proxy, having
from keepstate_testing.servers import Redis
from keepstate_testing.store_abilities import ConfirmsServersClock, NoticesLostFloors

from keepstate._clock import Clock
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import NONCE_BYTES
from keepstate.stores.redis import RedisStore
from keepstate.stores.redis.encoding import STATE_FIELD
from keepstate.stores.redis.wire import pack
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract import LosesReplies, Persists, StoreContract
from tests.stores.forked import SharedAcrossForks


class RedisContract(ConfirmsServersClock, NoticesLostFloors, Persists, SharedAcrossForks, StoreContract):
    url: str

    def make_store(self, tmp_path: Path) -> RedisStore:
        return RedisStore(StoreUrl.parse(self.url), runner=self.runner())

    def make_store_by(self, clock: Clock) -> RedisStore:
        return RedisStore(StoreUrl.parse(self.url), runner=self.runner(), clock=clock)

    async def set_time(self, store: StoreBase, space: str, ms: int) -> None:
        await self._set(store, space, struct.calcsize(f">BQ{NONCE_BYTES}sQ"), ms.to_bytes(8))

    async def replace_floor(self, store: StoreBase, space: str) -> None:
        await self._set(store, space, struct.calcsize(f">BQ{NONCE_BYTES}sQQQQQ"), b"another!")

    async def _set(self, store: StoreBase, space: str, at: int, field: bytes) -> None:
        """Write one field of a space's state."""
        assert isinstance(store, RedisStore)
        where = store._keys_of(space)
        found = await store._client.ask(where.slot, pack((b"HGET", where.keys[0], STATE_FIELD)), 1)
        assert found is not None
        stored = cast("bytes", found[0])
        stored = stored[:at] + field + stored[at + len(field) :]
        await store._client.ask(where.slot, pack((b"HSET", where.keys[0], STATE_FIELD, stored)), 1)


class TestRedis(RedisContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url


class TestValkey(RedisContract):
    @pytest.fixture(autouse=True)
    def server(self, valkey_url: str) -> None:
        self.url = valkey_url


class TestRedisCluster(RedisContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_cluster_url: str) -> None:
        self.url = redis_cluster_url


class TestRedisOverALossyLine(LosesReplies):
    @pytest.fixture(autouse=True)
    def server(self, line: Proxy, redis_server: Redis) -> None:
        self.line, self.url = line, line.url(redis_server.url)

    def make_store(self, tmp_path: Path) -> RedisStore:
        return RedisStore(StoreUrl.parse(self.url), runner=self.runner())

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        losses = [CutRequest()] * requests + [CutReply()] * replies
        self.line.spoil(*losses, chosen=having(b"EVALSHA"))
