"""Our side of each comparison: public calls on documents, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from bench.harness import AsyncSide, Item, Side
from keepstate import Documents, Keepstate, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.opening import store_class
from keepstate.stores.base import StoreBase
from keepstate.stores.urls import StoreUrl

SPACE = "bench"
CROWD = 64


def opened(url: str) -> StoreBase:
    """Return the store of a URL, for blocking use, where its own operations are what is measured."""
    parsed = StoreUrl.parse(url)
    return finish(store_class(parsed.scheme).from_url(parsed, runner=ThreadRunner()).open())


def puts(documents: sync.Documents) -> Side:
    """Return a side that puts one document for each key."""

    def side(items: Sequence[Item]) -> None:
        for key, value in items:
            documents.put(key, value)

    return side


def gets(documents: sync.Documents) -> Side:
    """Return a side that gets one document for each key."""

    def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            documents.get(key)

    return side


def async_puts(documents: Documents) -> AsyncSide:
    """Return a side that puts one document for each key, one after the other."""

    async def side(items: Sequence[Item]) -> None:
        for key, value in items:
            await documents.put(key, value)

    return side


def async_gets(documents: Documents) -> AsyncSide:
    """Return a side that gets one document for each key, one after the other."""

    async def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            await documents.get(key)

    return side


def tasks(ks: Keepstate, *, spaces: int = 1) -> AsyncSide:
    """Return a side of 64 tasks that put documents at once, into this number of spaces."""

    async def worker(items: Sequence[Item], space: str) -> None:
        documents = ks.space(space).documents
        for key, value in items:
            await documents.put(key, value)

    async def side(items: Sequence[Item]) -> None:
        await asyncio.gather(
            *(worker(items[number::CROWD], f"{SPACE}/{number % spaces}") for number in range(CROWD))
        )

    return side


def threads(ks: sync.Keepstate, pool: Executor) -> Side:
    """Return a side of 64 threads of a pool that put documents at once, into one space."""
    documents = ks.space(f"{SPACE}/0").documents

    def side(items: Sequence[Item]) -> None:
        list(pool.map(puts(documents), [items[number::CROWD] for number in range(CROWD)]))

    return side
