"""How a run ends or begins is told, also where the store is away before its lease can be released."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import keepstate
from keepstate import AgentRun, KeepstateError, StateError, StoreUnavailableError
from tests.contracts.managers.trouble import TroubledStore


@asynccontextmanager
async def troubled_run(**options: Any) -> AsyncGenerator[tuple[TroubledStore, AgentRun]]:
    async with keepstate.open("memory://") as ks:
        inner: Any = ks.store
        store = TroubledStore(inner)
        async with AgentRun(persistence=store, **options) as run:
            yield store, run


async def test_a_run_that_has_finished_says_so() -> None:
    async with troubled_run() as (store, run):
        await run.start_run("t", "r1")
        store.batches_left = 1
        record = await run.finish_run()
        store.batches_left = None

        assert record.status == "finished"
        with pytest.raises(StateError, match="No run is active"):
            await run.finish_run()


async def test_why_a_run_cannot_begin_is_told() -> None:
    async with troubled_run() as (store, run):
        for run_id in ("r1", "r2"):
            await run.start_run("t", run_id)
            await run.finish_run()
        store.batches_left = 1

        with pytest.raises(StateError, match="'r1' of thread 't' cannot be resumed"):
            await run.start_run("t", "r1", resume=True)


async def test_a_run_that_could_not_begin_leaves_room_for_another() -> None:
    async with troubled_run() as (store, run):
        store.takes_nothing = True
        with pytest.raises(StoreUnavailableError):
            await run.start_run("t", "r1")
        store.takes_nothing = False

        assert (await run.start_run("t", "r2")).run_id == "r2"


async def test_a_run_that_begins_while_its_object_is_closed_is_not_held() -> None:
    async with troubled_run() as (store, run):
        store.meanwhile = run.close
        with pytest.raises(StateError, match="closed while run 'r1' began"):
            await run.start_run("t", "r1")

        async with AgentRun(persistence=store) as other:
            record = await other.start_run("t", "r1")

    assert record.status == "running"


async def test_a_run_that_is_finished_twice_at_once_ends_no_other() -> None:
    async with troubled_run() as (store, run):
        await run.start_run("t", "r1")

        async def finishes_and_begins() -> None:
            await run.finish_run()
            await run.start_run("t", "r2")

        store.meanwhile = finishes_and_begins
        with pytest.raises(KeepstateError):
            await run.finish_run()

        assert run.record.run_id == "r2"
