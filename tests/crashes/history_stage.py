"""Writers and collectors of one history in one loop: mixed up by many small pauses, or at chosen moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

import keepstate
from keepstate._runner import TaskRunner
from keepstate.engine.history import retention
from keepstate.engine.history.history import History
from keepstate.engine.kernel import layout
from keepstate.errors import NotFoundError
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Changes, Outcome, Page, Reading
from keepstate.testing.clocks import ManualClock
from keepstate.values import limits
from tests.crashes.history_company import BLOCKS, Collected, Told, Writer, collect_once, judge
from tests.engine.conftest import TurnedKeepstate, TurnedSource

SPACE = "run/1"
NAMES = ("w0", "w1", "w2")
BATCH_WRITES = 40
"""Batches are small here, so that much goes ahead of them."""


class PausingStore(MemoryStore):
    """A store that lets others go first before it does anything, and tells of few branches at once."""

    def __init__(self, dice: Random, heap: MemoryHeap, clock: ManualClock) -> None:
        super().__init__(runner=TaskRunner(), clock=clock, heap=heap)
        self._dice = dice

    async def _pause(self) -> None:
        for _ in range(self._dice.choice((0, 0, 1, 1, 2, 5, 15))):
            await asyncio.sleep(0)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        await self._pause()
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        await self._pause()
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, *, limit: int = 256, **options: Any) -> Page:
        await self._pause()
        few = 2 if prefix in (layout.BRANCHES, layout.TAGS) else 40
        return await super().scan(space, prefix, limit=min(limit, few), **options)

    async def changes(self, space: str, after: int, **options: Any) -> Changes:
        await self._pause()
        return await super().changes(space, after, **options)


async def play(seed: int, turns: int) -> tuple[list[str], Collected, list[Told]]:
    """Let three writers do so many turns each beside two collectors; returns what a judge finds."""
    with (
        patch.object(limits, "BATCH_WRITES", BATCH_WRITES),
        patch.object(retention, "_BY_BATCH", BATCH_WRITES // 2),
    ):
        return await _played(seed, turns)


async def _played(seed: int, turns: int) -> tuple[list[str], Collected, list[Told]]:
    dice, collected, done = Random(seed), Collected(), asyncio.Event()
    heap, clock, handles = MemoryHeap(), ManualClock(), list[TurnedKeepstate]()
    for _ in range(len(NAMES) + 3):  # each with a store of its own, as in processes that take no turns
        source = TurnedSource(PausingStore(dice, heap, clock))
        await source.opened()
        handles.append(TurnedKeepstate(source))
    for number, handle in enumerate(handles):
        handle.turned = ManualClock(seed=number)

    def history(number: int, name: str = SPACE) -> History:
        return handles[number].space(name).history

    async def collector(number: int) -> None:
        while not (done.is_set() or collected.faults):
            await collect_once(history(number), dice, collected)
            await asyncio.sleep(0)

    async def writes(writer: Writer) -> None:
        for _ in range(turns):
            await writer.turn()

    try:
        writers = [
            Writer(
                history(number),
                name,
                [other for other in NAMES if other != name],
                dice,
                lambda to, number=number: history(number, to),
                large=BATCH_WRITES + 10,
                large_every=8,
            )
            for number, name in enumerate(NAMES)
        ]
        collectors = [asyncio.ensure_future(collector(len(NAMES) + number)) for number in range(2)]
        await asyncio.gather(*map(writes, writers))
        done.set()
        await asyncio.gather(*collectors)
        told = [writer.told for writer in writers]
        findings = await judge(history(-1), told, lambda to: history(-1, to))
        return [*findings, *collected.faults], collected, told
    finally:
        done.set()
        for handle in handles:
            await handle.close()


class InterruptedStore(MemoryStore):
    """A store that lets something happen before or after a part of a history is read, once."""

    def __init__(self) -> None:
        super().__init__(runner=TaskRunner())
        self.part = layout.TAGS
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after: Callable[[], Awaitable[object]] | None = None

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        if prefix != self.part:
            return await super().scan(space, prefix, **options)
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        page = await super().scan(space, prefix, **options)
        if self.after is not None:
            after, self.after = self.after, None
            await after()
        return page


@asynccontextmanager
async def interrupted() -> AsyncGenerator[tuple[InterruptedStore, History, History]]:
    """A history on such a store, by two handles."""
    store = InterruptedStore()
    await store.open()
    try:
        async with keepstate.open(store) as one, keepstate.open(store) as other:
            yield store, one.space(SPACE).history, other.space(SPACE).history
    finally:
        await store.close()


async def moved_while_names_are_read() -> tuple[str, ...]:
    """A commit goes from a tag, which is not read yet, to a branch, where that was read already."""
    async with interrupted() as (store, history, other):
        await history.commit({"n": 0})
        await history.commit({"blocks": BLOCKS[:2]}, branch="side")
        await history.tag("only", "side")
        await history.delete_branch("side")

        async def move() -> None:
            await other.branch("again", "only")
            await other.delete_tag("only")

        store.before = move
        await history.collect()
        assert store.before is None
        return (await history.verify()).problems


async def named_when_names_are_read() -> tuple[str, ...]:
    """An old commit gets a name when all were read, and is let go of by one who has not seen that."""
    async with interrupted() as (store, history, other):
        for number in range(6):
            await history.commit({"n": number, "blocks": BLOCKS[number : number + 2]})

        async def prune_and_name() -> None:
            store.after = lambda: other.branch("again", "main#2")
            await other.prune(keep_last=1)

        store.after = prune_and_name
        await history.collect()
        assert store.after is None
        return (await history.verify()).problems


async def named_while_it_is_let_go_of() -> tuple[str, ...]:
    """A commit that has lost its parents gets a name while it is let go of itself."""
    async with interrupted() as (store, history, other):
        for number in range(6):
            await history.commit({"n": number, "blocks": BLOCKS[number : number + 2]})
        await history.prune(keep_last=3)
        store.after = lambda: other.branch("again", "main#4")
        await history.prune(keep_last=1)
        assert store.after is None
        return (await history.verify()).problems


async def named_though_nothing_led_to_it() -> tuple[str, ...]:
    """A commit that nothing leads to is to get a name by its id, when all names were read."""
    async with interrupted() as (store, history, other):
        await history.commit({"n": 0})
        commit = await history.commit({"blocks": BLOCKS[:2]}, branch="side")
        await history.delete_branch("side")

        async def name() -> None:
            with suppress(NotFoundError):
                await other.branch("again", commit.id)

        store.after = name
        await history.collect()
        assert store.after is None
        return (await history.verify()).problems


async def written_again_while_it_is_collected() -> tuple[str, ...]:
    """What has been found to be garbage is put once more before it is deleted."""
    async with interrupted() as (store, history, other):
        await history.commit({"n": 0})
        await history.commit({"blocks": BLOCKS[:2]}, branch="side")
        await history.delete_branch("side")
        store.part, store.after = layout.STATES, lambda: other.commit({"blocks": BLOCKS[:2]}, branch="again")
        await history.collect()
        assert store.after is None
        return (await history.verify()).problems


STORIES: tuple[Callable[[], Coroutine[None, None, tuple[str, ...]]], ...] = (
    moved_while_names_are_read,
    named_when_names_are_read,
    named_while_it_is_let_go_of,
    named_though_nothing_led_to_it,
    written_again_while_it_is_collected,
)
"""Each returns what is then missing or damaged."""
