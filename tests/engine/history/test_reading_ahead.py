"""A long line of commits takes few round trips."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

import keepstate
from keepstate import Keepstate
from keepstate._runner import TaskRunner
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Page, Reading

COMMITS = 400


class CountedStore(MemoryStore):
    """Counts how often it is asked."""

    asked = 0

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.asked += 1
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        self.asked += 1
        return await super().scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)


@asynccontextmanager
async def counted() -> AsyncGenerator[tuple[CountedStore, Keepstate]]:
    """Yield a store that counts, and a handle on it; the space `a` has a long history."""
    store = CountedStore(runner=TaskRunner())
    await store.open()
    async with Keepstate(PassedStore(store, "async")) as ks:
        for n in range(COMMITS):
            await ks.space("a").history.append("messages", n)
        yield store, ks
    await store.close()


async def test_a_long_log_takes_few_round_trips() -> None:
    async with counted() as (store, ks):
        store.asked = 0
        numbers = [commit.number async for commit in ks.space("a").history.log()]

        assert numbers == list(range(COMMITS, 0, -1))
        assert store.asked < 200
        store.asked = 0
        assert [commit.number async for commit in ks.space("a").history.log(limit=10)] == numbers[:10]
        assert store.asked < 20


async def test_a_place_far_back_takes_few_round_trips() -> None:
    async with counted() as (store, ks):
        store.asked = 0

        assert len((await ks.space("a").history.checkout("main#7"))["messages"]) == 7
        assert store.asked < 200


@pytest.mark.parametrize("keep_last", [5])
async def test_what_is_pruned_while_a_log_is_read_is_told(keep_last: int) -> None:
    async with counted() as (_, ks):
        history = ks.space("a").history
        log = history.log()
        first = [await anext(log) for _ in range(10)]
        await history.prune(keep_last=keep_last)

        assert [commit.number for commit in first] == list(range(COMMITS, COMMITS - 10, -1))
        with pytest.raises(keepstate.PrunedError):
            async for _ in log:
                pass
