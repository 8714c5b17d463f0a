"""Our side of each comparison: the store's own protocol, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.harness import AsyncSide, Item, Side
from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.errors import KeepstateError
from keepstate.opening import store_class
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Put, Store
from keepstate.stores.urls import StoreUrl

SPACE = "bench"
TASKS = 64


def opened(url: str) -> StoreBase:
    """Return the store of a URL, for blocking use."""
    parsed = StoreUrl.parse(url)
    return finish(store_class(parsed.scheme).from_url(parsed, runner=ThreadRunner()).open())


async def opened_async(url: str) -> StoreBase:
    """Return the store of a URL, for use in this loop."""
    parsed = StoreUrl.parse(url)
    return await store_class(parsed.scheme).from_url(parsed, runner=TaskRunner()).open()


def puts(store: Store) -> Side:
    """Return a side that writes one value for each key."""

    def side(items: Sequence[Item]) -> None:
        for key, value in items:
            finish(store.apply([Batch(SPACE, [Put(key, value)])]))

    return side


def gets(store: Store) -> Side:
    """Return a side that reads one value for each key."""

    def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            finish(store.read(SPACE, [key]))

    return side


def async_puts(store: StoreBase) -> AsyncSide:
    """Return a side that writes one value for each key, one after the other."""

    async def side(items: Sequence[Item]) -> None:
        for key, value in items:
            await store.apply([Batch(SPACE, [Put(key, value)])])

    return side


def async_gets(store: StoreBase) -> AsyncSide:
    """Return a side that reads one value for each key, one after the other."""

    async def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            await store.read(SPACE, [key])

    return side


def crowd(store: StoreBase, *, spaces: int) -> AsyncSide:
    """Return a side of 64 tasks that write side by side into so many spaces."""

    async def worker(items: Sequence[Item], space: str) -> None:
        for key, value in items:
            (outcome,) = await store.apply([Batch(space, [Put(key, value)])])
            if not isinstance(outcome, Applied):
                raise KeepstateError(f"a write of the bench came to {outcome!r}")

    async def side(items: Sequence[Item]) -> None:
        await asyncio.gather(
            *(worker(items[task::TASKS], f"{SPACE}/{task % spaces}") for task in range(TASKS))
        )

    return side
