"""The chunks of a reply in turned time: at the default, they are stored together, and at most 0.1 s late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeAlias, TypeVar
from unittest.mock import patch

import pytest
from keepstate_testing.simulation.clocks import ProcessClock, WallClock
from keepstate_testing.simulation.loop import VirtualLoop

import keepstate
from keepstate import Conversation, Session
from keepstate._runner import TaskRunner
from keepstate.sessions.replies import ReplyStream
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome

LATEST_S = 0.1
T = TypeVar("T")
Stored: TypeAlias = list[tuple[float, str]]
"""Deltas, each with its time."""
Said: TypeAlias = tuple[Stored, Stored, int]
"""The chunks that were written, the deltas that were stored, and the number of batches meanwhile."""


class Timed(MemoryStore):
    """Counts the batches that it is given."""

    batches = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.batches += len(batches)
        return await super().apply(batches)


def run_in_turned_time(work: Callable[[Timed, Conversation], Awaitable[T]]) -> T:
    """Run work on a conversation in a loop that never waits: its time jumps to the next timer."""

    async def main() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = ProcessClock(WallClock(loop), loop, Random(0))
        store = Timed(runner=TaskRunner(), clock=clock)
        await store.open()
        async with keepstate.open(store) as ks:
            conversation = Session("talk", persistence=ks).conversation
            await conversation.append({"role": "user", "content": "Hello"})
            answer = await work(store, conversation)
        await store.close()
        return answer

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
        return runner.run(main())


async def say(store: Timed, conversation: Conversation, pauses_s: Sequence[float]) -> Said:
    """Write a chunk after each pause."""
    loop, append = asyncio.get_running_loop(), ReplyStream.append
    written, stored = Stored(), Stored()

    async def append_and_note(stream: ReplyStream, last: int, text: str) -> int:
        number = await append(stream, last, text)
        stored.append((loop.time(), text))
        return number

    with patch.object(ReplyStream, "append", append_and_note):
        async with conversation.reply() as reply:
            before = store.batches
            for number, pause_s in enumerate(pauses_s):
                await asyncio.sleep(pause_s)
                written.append((loop.time(), f"{number} "))
                await reply.write(written[-1][1])
            await asyncio.sleep(2 * LATEST_S)
            batches = store.batches - before
    return written, stored, batches


def lateness_s(written: Stored, stored: Stored) -> float:
    """Return the longest time from the writing of a chunk until it was stored."""
    assert "".join(text for _, text in stored) == "".join(text for _, text in written)
    latest_s, end, upto = 0.0, 0, 0
    deltas = iter(stored)
    stored_s = 0.0
    for written_s, text in written:
        end += len(text)
        while upto < end:
            stored_s, delta = next(deltas)
            upto += len(delta)
        latest_s = max(latest_s, stored_s - written_s)
    return latest_s


def test_chunks_of_a_tenth_of_a_second_are_stored_in_one_batch() -> None:
    async def work(store: Timed, conversation: Conversation) -> Said:
        return await say(store, conversation, [0.001] * 90)

    written, stored, batches = run_in_turned_time(work)

    assert (len(written), len(stored), batches) == (90, 1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_no_chunk_is_stored_later_than_a_tenth_of_a_second(seed: int) -> None:
    random = Random(seed)
    pauses_s = [random.choice((0, 0, 0.0005, 0.01, 0.03, 0.099, 0.1, 0.4)) for _ in range(200)]

    async def work(store: Timed, conversation: Conversation) -> Said:
        return await say(store, conversation, pauses_s)

    written, stored, _ = run_in_turned_time(work)

    assert lateness_s(written, stored) <= LATEST_S + 1e-6
    assert len(stored) <= sum(pauses_s) / LATEST_S + 3
