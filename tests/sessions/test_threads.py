"""Threads where it is hard: one is removed by several, and made anew meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import keepstate
from keepstate import Threads
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import NotFoundError
from keepstate.sessions import threads as source
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold the first who removes a thread when it has listed what to remove: says so, and wait."""
    listed, go_on = asyncio.Event(), asyncio.Event()
    list_names = source._ThreadDocuments._some_names

    async def held(folder: source._ThreadDocuments) -> list[str]:
        names = await list_names(folder)
        if not listed.is_set():
            listed.set()
            await go_on.wait()
        return names

    monkeypatch.setattr(source._ThreadDocuments, "_some_names", held)
    return listed, go_on


async def test_who_removes_a_thread_slowly_takes_nothing_of_one_that_was_made_anew(
    ks: Keepstate, listing: tuple[asyncio.Event, asyncio.Event]
) -> None:
    listed, go_on = listing
    threads, others = Threads(persistence=ks), Threads(persistence=ks)
    said = [{"role": "user", "content": f"old {n}", "id": f"m{n}"} for n in range(3)]
    await threads.create("t", messages=said)
    removing = asyncio.create_task(threads.delete("t"))
    await listed.wait()
    anew = [{"role": "user", "content": f"new {n}", "id": f"m{n}"} for n in range(3)]
    await others.create("t", messages=anew)
    go_on.set()

    assert await removing
    page = await others.messages.list("t", order="asc")
    assert [message.content for message in page.data] == ["new 0", "new 1", "new 2"]


async def test_what_a_killed_remover_left_is_removed_by_the_next(
    ks: Keepstate, listing: tuple[asyncio.Event, asyncio.Event]
) -> None:
    listed, _ = listing
    threads = Threads(persistence=ks)
    await threads.create("t", messages=[{"role": "user", "content": str(n)} for n in range(700 // 3)])
    killed = asyncio.create_task(threads.delete("t"))
    await listed.wait()
    killed.cancel()

    with pytest.raises(NotFoundError):
        await threads.retrieve("t")
    assert not await threads.delete("t")
    assert [name async for name in ks.space("thread/t").documents.keys("*")] == []


async def test_a_page_where_nearly_all_was_deleted_takes_few_round_trips() -> None:
    told: list[Measurement] = []
    async with keepstate.open("memory://") as ks:
        inner: Any = ks.store
        threads = Threads(persistence=MeasuredStore(inner, told.append))
        said = [{"role": "user", "content": str(n), "id": f"m{n}"} for n in range(200)]
        await threads.create("t", messages=said)
        for n in range(200):
            if n not in (0, 1, 120):
                await threads.messages.delete("t", f"m{n}")

        told.clear()
        last = await threads.messages.list("t", limit=1)
        page = await threads.messages.list("t", limit=2, after="m120")
        reads = [each for each in told if each.operation == "read"]

    assert ([each.id for each in last.data], last.has_more) == (["m120"], True)
    assert ([each.id for each in page.data], page.has_more) == (["m1", "m0"], False)
    assert len(reads) < 30
