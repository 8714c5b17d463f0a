"""Readers that reconnect at random while writers are killed: all see the same, and each half reply says so.

What a reader sees follows from the changes alone. It goes on behind the position of the last change that it
took, from another handle, as a page does that has lost its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import pytest

import keepstate
from keepstate import ChatChange, Session
from keepstate.sessions.conversation import Conversation
from tests.contracts.sessions.conversations import said
from tests.contracts.sessions.replies import Screen
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program
from tests.processes.say_replies import SESSION
from tests.tally import Tally, first_seed

HANDLES = 4
PIECES = 120
"""The number of pieces of a whole reply."""
WHOLE = "".join(f"{number} " for number in range(PIECES))
END = said("the end")


@dataclass
class Reader:
    """A reader that loses its connection at random.

    Attributes:
        screen: What it sees.
        deltas: The number of deltas that it was told.
        reconnections: The number of its reconnections.
    """

    random: Random
    screen: Screen = field(default_factory=Screen)
    deltas: int = 0
    reconnections: int = 0
    position: str | None = None

    async def read(self, handles: list[keepstate.Keepstate]) -> None:
        """Read until the end is said."""
        while True:
            talk = Session(SESSION, persistence=self.random.choice(handles)).conversation
            follower = cast("AsyncGenerator[ChatChange]", talk.follow(after=self.position))
            left = self.random.randrange(1, 120)
            async with aclosing(follower):
                async for change in follower:
                    self.screen.apply(change)
                    self.position, self.deltas, left = change.position, self.deltas + 1, left - 1
                    if change.text == END["content"]:
                        return
                    if left == 0:
                        break
            self.reconnections += 1


async def kill_writers(talk: Conversation, url: str, random: Random, deltas: int) -> int:
    """Let writers say replies, and kill each one in the middle, until so many pieces are in messages."""
    kills, said_so_far, after = 0, 0, -1
    writer = Program(PROCESSES / "say_replies.py", url, "writer-0", PIECES)
    try:
        while said_so_far < deltas:
            await asyncio.sleep(random.uniform(0.5, 3.0))
            for entry in await talk.page(after=max(after, 0), limit=1_000):
                after, said_so_far = entry.number, said_so_far + len(entry.message["content"].split())
            writer.kill()
            writer.wait()
            kills += 1
            writer = Program(PROCESSES / "say_replies.py", url, f"writer-{kills}", PIECES)
    finally:
        writer.kill()
        writer.wait()
    return kills + 1


async def run(
    url: str, readers: list[Reader], random: Random, deltas: int
) -> tuple[int, list[keepstate.Entry]]:
    """Return the number of kills, and the entries at the end."""
    handles = [keepstate.open(url) for _ in range(HANDLES)]
    try:
        talk = Session(SESSION, persistence=handles[0]).conversation
        await talk.append(said("the beginning"))
        reading = [asyncio.create_task(reader.read(handles)) for reader in readers]
        kills = await kill_writers(talk, url, random, deltas)
        while await talk.stop(by="nobody is left"):
            pass
        await talk.append(END)
        await asyncio.gather(*reading)
        entries = list(await talk.page(limit=100_000))
        return kills, entries
    finally:
        for handle in handles:
            await handle.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("deltas", "count"),
    [
        pytest.param(400, 6, id="short", marks=[pytest.mark.slow, pytest.mark.timeout(120)]),
        pytest.param(10_000, 50, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(1500)]),
    ],
)
def test_all_readers_see_the_same_and_each_half_reply_says_so(
    kind: str, deltas: int, count: int, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, random = url_of(kind, request, tmp_path), Random(first_seed())
    readers = [Reader(Random(random.random())) for _ in range(count)]

    kills, entries = asyncio.run(run(url, readers, random, deltas))

    seen = {entry.number: (entry.status, entry.message["content"]) for entry in entries}
    assert all(reader.screen.messages == seen and reader.screen.saying is None for reader in readers)
    replies = [status_and_text for number, status_and_text in seen.items() if 0 < number < len(seen) - 1]
    assert all(WHOLE.startswith(text) for _, text in replies)
    assert all(text == WHOLE for status, text in replies if status == "done")
    halves = [status for status, text in replies if text != WHOLE]
    assert halves.count("stopped") <= 1 and {*halves} <= {"failed", "stopped"}
    assert len(halves) <= kills and sum(reader.reconnections for reader in readers) > count
    print(f"{kind}: {len(replies)} replies, {len(halves)} halves, {kills} kills, {deltas} pieces")
    tally(f"{NAMES[kind]}: followed replies", operations=len(replies), worker_kills=kills, lost=0)


NAMES = {"sqlite": "SQLite, full", "postgres": "PostgreSQL"}
