"""On servers each colour has connections of its own, and both see the same data."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import keepstate
from keepstate import sync
from keepstate.sync import of

SERVERS = ("postgres_url", "redis_url")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_the_twin_of_a_handle_on_a_server_reads_and_hears_what_the_other_writes(url: str) -> None:
    async def used() -> list[object]:
        async with keepstate.open(url) as ks:
            space, twin = ks.space("s"), of(ks).space("s")
            await space.documents.put("k", 1)
            twin.documents.update("k", lambda value: value + 1)
            with twin.documents.watch(timeout_s=0.5) as changes:
                await space.documents.put("k", 3)
                return [await space.documents.get("k"), next(changes).old]

    assert asyncio.run(used()) == [3, 2]


def test_threads_share_a_handle_on_a_server(url: str) -> None:
    with sync.open(url) as ks, ThreadPoolExecutor(16) as threads:
        documents = ks.space("s").documents
        list(threads.map(lambda _: documents.update("count", lambda count: count + 1, default=0), range(320)))

        assert documents.get("count") == 320
