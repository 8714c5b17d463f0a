"""The scripts give the same answers to the same batches as the state machine that says the rules plainest."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Check, Delete, Put, Write
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl

STEPS = 300
KEYS = [bytes([section]) + name for section in (0, 1, 2) for name in (b"a", b"b", b"ab", b"a\x00", b"\xff")]
TOKENS = [None, None, b"t1", b"t2", b"t3\x00\xff"]


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    store = finish(MemoryStore(runner=ThreadRunner()).open())
    yield store
    finish(store.close())


@pytest.fixture
def redis(redis_url: str) -> Iterator[RedisStore]:
    store = finish(RedisStore(StoreUrl.parse(redis_url), runner=ThreadRunner()).open())
    yield store
    finish(store.close())


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_judged_alike(seed: int, memory: MemoryStore, redis: RedisStore) -> None:
    dice = random.Random(seed)
    some_expired = False
    for _ in range(STEPS):
        revision = finish(memory.read("s", ())).revision
        # A flush whose last batch is refused may leave the sweeping to the next: one alone where it shows.
        batches = [
            random_batch(dice, revision) for _ in range(1 if some_expired else dice.choice((1, 1, 1, 2, 5)))
        ]

        expected, found = finish(memory.apply(batches)), finish(redis.apply(batches))

        assert [told(outcome) for outcome in found] == [told(outcome) for outcome in expected], batches
        some_expired = some_expired and finish(memory.read("s", ())).revision == revision
        if dice.random() < 0.05:
            expire_one(dice, memory, redis)
            some_expired = True
        if dice.random() < 0.02:
            finish(memory.drop("s"))
            finish(redis.drop("s"))
        assert observed(redis) == observed(memory)


def random_batch(dice: random.Random, revision: int) -> Batch:
    writes: dict[bytes, Write] = {}
    for _ in range(dice.randrange(4)):
        key = dice.choice(KEYS)
        value = dice.randbytes(dice.randrange(4))
        ttl_ms = dice.choice((None, None, 3_600_000, 7_200_000))
        kind = dice.random()
        writes[key] = Delete(key) if kind < 0.3 else Put(key, value, ttl_ms=ttl_ms, stamp=kind > 0.85)
    checks = []
    for _ in range(dice.choice((0, 0, 1, 2))):
        number = dice.choice((0, dice.randrange(revision + 1), revision))
        by_version = dice.random() < 0.6
        checks.append(
            Check(dice.choice(KEYS), number if by_version else None, None if by_version else number)
        )
    token = dice.choice(TOKENS)
    return Batch(
        "s",
        list(writes.values()),
        checks if dice.random() < 0.5 else (),
        at=dice.choice((None, None, None, revision)),
        token=token,
        retry_of=dice.choice((None, dice.randrange(revision + 1))) if token else None,
    )


def expire_one(dice: random.Random, *stores: StoreBase) -> None:
    """Let an entry expire that then is judged, written over, deleted or swept by what follows."""
    key = dice.choice(KEYS)
    for store in stores:
        (done,) = finish(store.apply([Batch("s", [Put(key, b"short", ttl_ms=1)])]))
        assert isinstance(done, Applied)
        while finish(store.read("s", ())).now_ms <= done.now_ms:
            time.sleep(0.001)


def observed(store: StoreBase) -> Any:
    reading = finish(store.read("s", KEYS))
    floor = finish(store.changes("s", reading.revision)).floor
    return timeless(
        [
            reading.revision,
            reading.entries,
            [finish(store.scan("s", bytes([section]))) for section in (0, 1, 2)],
            finish(store.scan("s", b"\x01a", limit=2, reverse=True)),
            finish(store.changes("s", max(floor, reading.revision - 20))),
            finish(store.spaces()),
        ]
    )


def told(outcome: object) -> Any:
    if isinstance(outcome, Applied):
        return outcome.revision
    return type(outcome) if isinstance(outcome, Exception) else outcome


def timeless(value: Any) -> Any:
    """Return plain data in which an expiry is only there or not, without present times and nonces.

    The two stores have clocks and dice of their own.
    """
    plain = msgspec.to_builtins(value)

    def without(part: Any) -> Any:
        if isinstance(part, dict):
            shown = {k: v for k, v in part.items() if k not in ("now_ms", "nonce", "nonces")}
            return {k: bool(v) if k == "expires_at_ms" else without(v) for k, v in shown.items()}
        return [without(one) for one in part] if isinstance(part, list) else part

    return without(plain)
