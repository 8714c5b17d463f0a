"""Tick schedules and finish their tasks by a clock that is turned, and be killed at a random batch.

Arguments: the URL of a store, a seed, and the time at which to end, in milliseconds since 1970. The clock
begins at the time of the space, so a process continues where the last one was killed. The time of a space on
a server is the server's or that of the last change, whichever is later, so that of the change is turned too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, cast
from unittest.mock import patch

import psycopg

import keepstate
from keepstate._clock import SystemClock
from keepstate.stores.protocol import NONCE_BYTES, Batch, Outcome, Store
from keepstate.stores.redis import RedisStore
from keepstate.stores.redis.encoding import STATE_FIELD
from keepstate.stores.redis.wire import pack
from keepstate.testing.clocks import ManualClock

SPACE = "ticking"
HOUR_MS = 3_600_000
LONGEST_TURN_H = 24
MOST_BATCHES = 40
MOST_AMID_S = 0.003
LEASE_S = 60
LOOKS_AGAIN_MS = 2_000
"""A schedule with queued ticks is looked at each second."""
_REDIS_TIME = struct.calcsize(f">BQ{NONCE_BYTES}sQ")


class Turned:
    """The clock of this process and of its store.

    Args:
        url: The URL of the store.
        clock: The clock.
        stack: Restores the system's clock, and closes the connection to the server.
    """

    def __init__(self, url: str, clock: ManualClock, stack: ExitStack) -> None:
        self._clock = clock
        self._rows: psycopg.Connection[Any] | None = None
        if url.startswith("postgres"):
            self._rows = stack.enter_context(psycopg.connect(url, autocommit=True))
        stack.enter_context(patch.object(SystemClock, "now_ms", lambda _: clock.now_ms()))
        stack.enter_context(patch.object(SystemClock, "touched_ms", lambda _, file: clock.touched_ms(file)))

    async def turn(self, store: Store, ms: int) -> None:
        """Advance the clock, and the time of the space with it."""
        self._clock.advance(ms)
        now_ms = self._clock.now_ms()
        if self._rows is not None:
            set_time = "UPDATE keepstate.space SET clock_ms = %s WHERE name = %s"
            self._rows.execute(set_time, (now_ms, SPACE.encode()))
        elif isinstance(store, RedisStore):
            await _set_time(store, now_ms)


async def _set_time(store: RedisStore, ms: int) -> None:
    """Write the time into the state of the space."""
    where = store._keys_of(SPACE)  # pyright: ignore[reportPrivateUsage]
    ask = store._client.ask  # pyright: ignore[reportPrivateUsage]
    found = await ask(where.slot, pack((b"HGET", where.keys[0], STATE_FIELD)), 1)
    assert found is not None
    state = cast("bytes", found[0])
    state = state[:_REDIS_TIME] + ms.to_bytes(8) + state[_REDIS_TIME + 8 :]
    await ask(where.slot, pack((b"HSET", where.keys[0], STATE_FIELD, state)), 1)


def die_at_a_batch(store: Store, chance: Random) -> None:
    """Kill this process before, amid or after a random batch of the store."""
    left, where = chance.randrange(1, MOST_BATCHES), chance.choice(("before", "amid", "after"))
    right = store.apply

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        nonlocal left
        left -= 1
        if left:
            return await right(batches)
        if where != "before":
            applied = asyncio.ensure_future(right(batches))
            await asyncio.wait([applied], timeout=None if where == "after" else chance.random() * MOST_AMID_S)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process went on")

    cast("Any", store).apply = apply


async def work(url: str, seed: int, end_ms: int) -> None:
    """Turn the clock by hours, and complete tasks in a batch that notes their ids, until the end."""
    chance = Random(seed)
    async with keepstate.open(url) as ks:
        now_ms = (await (await ks.opened()).read(SPACE, [])).now_ms
    clock = ManualClock(now_ms)
    with ExitStack() as stack:
        turned = Turned(url, clock, stack)
        async with keepstate.open(url) as ks:
            space, store = ks.space(SPACE), await ks.opened()
            die_at_a_batch(store, chance)
            while clock.now_ms() < end_ms:
                await turned.turn(store, chance.randrange(1, LONGEST_TURN_H) * HOUR_MS)
                while claimed := await space.queue.claim("worker", lease_s=LEASE_S, count=10):
                    async with space.transaction() as tx:
                        for task in claimed:
                            await tx.events.append(task.id)
                            await tx.queue.complete(task)
                    await turned.turn(store, LOOKS_AGAIN_MS)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
