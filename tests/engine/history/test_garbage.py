"""A collector beside writers loses nothing that a branch or tag leads to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.engine import layout
from keepstate.engine.history.history import History
from keepstate.engine.keepstate import Keepstate
from keepstate.errors import NotFoundError, PrunedError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Page
from tests.engine.history.conftest import history_of

TURNS = 40


async def write(history: History, name: str, dice: random.Random) -> dict[str, Any]:
    """Commits to its own branch and to `main`, makes and deletes branches and tags; returns its state."""
    draft = await history.begin(name)
    for turn in range(TURNS):
        draft["turn"] = turn
        items = draft.setdefault("items", [])
        match dice.randrange(7):
            case 0:
                items[:] = [dice.randbytes(3_000) for _ in range(dice.choice((1, 10, 1_200)))]
            case 1 | 2:
                items.append(f"{name} {turn} " * 40)
            case 3 if items:
                items.pop(0)
            case _:
                draft["same"] = ["x" * 3_000, "y" * 3_000, dice.randrange(3)]
        await draft.commit(f"{name} {turn}")
        await history.append(name, turn)
        match dice.randrange(5):
            case 0:
                await history.branch(f"{name}-{turn}", name)
                await history.delete_branch(f"{name}-{turn}")
            case 1:
                with suppress(PrunedError, NotFoundError):
                    await history.tag(f"{name}-{turn}", f"{name}~{dice.randrange(turn + 1)}")
            case 2:
                with suppress(PrunedError):
                    await history.branch(f"fork-{name}-{turn}", f"{name}#{dice.randrange(1, turn + 2)}")
            case 3 if turn:
                await history.delete_tag(f"{name}-{dice.randrange(turn)}")
            case _:
                pass
    return dict(draft)


class HookedStore(MemoryStore):
    """A store that lets something happen just before tags are looked at."""

    hook: Callable[[], Awaitable[object]] | None = None

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        if prefix == layout.TAGS and self.hook is not None:
            hook, self.hook = self.hook, None
            await hook()
        return await super().scan(space, prefix, **options)


async def test_what_moves_from_a_tag_to_a_branch_under_the_collector_is_kept(
    opened: list[Keepstate],
) -> None:
    store = HookedStore()
    opened.append(keepstate.open(store))
    await store.open()
    history = history_of(opened[-1].space("run/1"))
    await history.commit({"n": 0})
    await history.commit({"messages": ["x" * 3_000, "y" * 3_000]}, branch="side")
    await history.tag("only", "side")
    await history.delete_branch("side")

    async def move() -> None:
        await history.branch("again", "only")
        await history.delete_tag("only")

    store.hook = move
    removed = await history.collect()

    assert (removed, store.hook) == (0, None)
    assert dict(await history.checkout("again")) == {"messages": ["x" * 3_000, "y" * 3_000]}
    await store.close()


async def collect(history: History, done: asyncio.Event, dice: random.Random) -> int:
    rounds = 0
    while not done.is_set():
        if dice.random() < 0.3:
            await history.prune(keep_last=TURNS // 2, keep_tagged=True)
        else:
            await history.collect()
        rounds += 1
        await asyncio.sleep(0)
    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_collector_beside_four_writers_loses_nothing(
    kind: str, tmp_path: Path, opened: list[Keepstate]
) -> None:
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"sqlite:///{tmp_path}/a.db?durability=normal"
    opened.append(keepstate.open(url))
    space = opened[-1].space("run/1")
    done = asyncio.Event()
    names = [f"w{number}" for number in range(4)]
    collector = asyncio.create_task(collect(history_of(space), done, random.Random(9)))
    try:
        states = await asyncio.gather(
            *(write(history_of(space), name, random.Random(name)) for name in names)
        )
    finally:
        done.set()
    rounds = await collector

    history = history_of(space)
    assert rounds > 1
    for name, state in zip(names, states, strict=True):
        assert dict(await history.checkout(name)) == state
    assert sorted([(name, turn) for name in names for turn in (await history.checkout())[name]]) == [
        (name, turn) for name in names for turn in range(TURNS)
    ]
    assert (await history.verify()).problems == ()
    async for branch in history.branches():
        await history.checkout(branch)
    async for tag in history.tags():
        await history.checkout(tag)
    with pytest.raises(NotFoundError):
        await history.checkout("w0-none")
