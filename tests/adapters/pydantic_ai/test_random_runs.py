"""A store of conversations equals Pydantic AI's own in memory, in random runs on every backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.conversation_store import InMemoryConversationStore

from keepstate.adapters import pydantic_values
from keepstate.adapters.pydantic_ai import KeepstateConversationStore, lines
from keepstate.engine.space.keepstate import Keepstate
from tests.adapters.conftest import BACKENDS, url_of
from tests.adapters.pydantic_ai.talking import STEPS, RandomRun

RUNS = 200
SMALL = {"_READ_AT_ONCE": 5, "_DELETED_AT_ONCE": 2, "REACH": 2}
"""Every other run has limits that its few messages exceed."""


async def documents(store: KeepstateConversationStore, prefix: str) -> int:
    async def count(ks: Keepstate) -> int:
        space = ks.space("pydantic/main")
        return len([name async for name in space.documents.keys(prefix=prefix)])

    return await store.call(count)


async def check_run(url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in SMALL.items() if seed % 2 else ():
        monkeypatch.setattr(lines, name, number)
    if seed % 2:
        monkeypatch.setattr(pydantic_values, "AT_ONCE", 3)
    theirs = InMemoryConversationStore()
    async with KeepstateConversationStore.from_url(url) as ours:
        mine, its = RandomRun(ours, seed), RandomRun(theirs, seed)
        for number in range(STEPS):
            (done, answer), (_, expected) = await mine.step(), await its.step()
            assert answer == expected, f"step {number} of run {seed}: {done}"
            if done.startswith("delete"):
                assert await documents(ours, "entry/") == len(theirs._entries), f"step {number}: {done}"
        for record in await theirs.list_conversations():
            await theirs.delete(record.conversation_id)
            await ours.delete(record.conversation_id)
            assert await documents(ours, "message/") == len(theirs._entries)

        assert await documents(ours, "") == 0


@pytest.mark.parametrize("seed", range(RUNS))
async def test_a_run_in_memory(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_run(f"memory://{tmp_path.name}", seed, monkeypatch)


@pytest.mark.parametrize("seed", range(4))
async def test_a_run_on_each_backend(seed: int, any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_run(any_url, RUNS + seed, monkeypatch)


@pytest.mark.deep
@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("some", range(0, RUNS, 10))
async def test_all_runs_on_each_backend(
    some: int,
    backend: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = url_of(backend, request, tmp_path)
    for seed in range(some, some + 10):
        with monkeypatch.context() as patch:
            await check_run(url, seed, patch)
