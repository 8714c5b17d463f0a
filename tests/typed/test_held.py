"""How a run ends or begins is told, also where the store is away before its lease can be released."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import keepstate
from keepstate import AgentRun, StateError
from keepstate.testing.manager_contract.trouble import TroubledStore


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
        with pytest.raises(StateError, match="no run goes on"):
            await run.finish_run()


async def test_why_a_run_cannot_begin_is_told() -> None:
    async with troubled_run() as (store, run):
        for run_id in ("r1", "r2"):
            await run.start_run("t", run_id)
            await run.finish_run()
        store.batches_left = 1

        with pytest.raises(StateError, match="'r1' of thread 't' cannot be resumed"):
            await run.start_run("t", "r1", resume=True)
