"""Conversations of many sessions at once, written by four processes, while others follow some of them.

Each turn is a question and an answer. Afterwards every conversation is read again: nothing may be missing,
and nothing out of order. The followers, in a process of their own, must have heard the same.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.pool import Pool
from tempfile import TemporaryDirectory
from typing import Final

from keepstate_testing.servers import Postgres

import keepstate
from bench.harness import Table
from keepstate import Session, sync

PROCESSES: Final = 4
SESSIONS: Final = 1_000
TURNS: Final = 50
FOLLOWED: Final = 100
MOST_MEDIAN_MS: Final = 40.0
"""Four processes share two cores with the followers."""


def chats(table: Table) -> None:
    """Add the time of an append on SQLite and PostgreSQL."""
    with TemporaryDirectory() as folder:
        _measure(table, "SQLite", f"sqlite:///{folder}/chats.db")
    with Postgres() as server:
        _measure(table, "PostgreSQL", server.url)


def _measure(table: Table, store: str, url: str) -> None:
    sessions = table.scaled(SESSIONS, least=8)
    turns = table.scaled(TURNS, least=5)
    followed = min(FOLLOWED, sessions)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.chats"])
    with context.Pool(PROCESSES + 1) as pool:
        following = pool.apply_async(follow_all, (url, followed, 2 * turns))
        told = _talk(pool, url, sessions, turns)
        heard = following.get()
        wrong = sum(pool.starmap(_wrong, [(url, number, turns) for number in range(sessions)], chunksize=16))
        pool.close()
        pool.join()
    assert wrong == 0, f"{wrong} conversations are incomplete or out of order"
    assert heard == followed, f"{followed - heard} followers heard something else"
    times = [each * 1e3 for each in told]
    name = f"append, {sessions:,} sessions of {turns} turns, {PROCESSES} processes, {followed} followers"
    table.limit(f"{name}, {store}", MOST_MEDIAN_MS, "ms", times)


def _talk(pool: Pool, url: str, sessions: int, turns: int) -> list[float]:
    """Let each process speak in every fourth session, and return the seconds of all appends."""
    jobs = [(url, range(number, sessions, PROCESSES), turns) for number in range(PROCESSES)]
    return [seconds for told in pool.starmap(talk, jobs, chunksize=1) for seconds in told]


def talk(url: str, numbers: range, turns: int) -> list[float]:
    """Speak in sessions, turn by turn in each of them, and return the seconds of each append."""
    times: list[float] = []
    with sync.open(url) as ks:
        talks = [sync.Session(_id(number), user_id="ann", persistence=ks).conversation for number in numbers]
        for turn in range(turns):
            for conversation in talks:
                for role, said in (("user", f"question {turn}"), ("assistant", f"answer {turn}")):
                    begun = time.perf_counter()
                    conversation.append({"role": role, "content": said}, id=f"{role} {turn}")
                    times.append(time.perf_counter() - begun)
    return times


def follow_all(url: str, count: int, messages: int) -> int:
    """Follow sessions until each has all its messages, and return how many heard them in order."""

    async def main() -> int:
        async with keepstate.open(url) as ks:
            return sum(await asyncio.gather(*(_follow(ks, number, messages) for number in range(count))))

    return asyncio.run(main())


async def _follow(ks: keepstate.Keepstate, number: int, messages: int) -> bool:
    conversation = Session(_id(number), user_id="ann", persistence=ks).conversation
    heard: list[str] = []
    async for change in conversation.follow():
        heard.append(change.text)
        if len(heard) == messages:
            break
    return heard == _expected(messages // 2)


def _wrong(url: str, number: int, turns: int) -> int:
    with sync.open(url) as ks:
        conversation = sync.Session(_id(number), user_id="ann", persistence=ks).conversation
        return [message["content"] for message in conversation.messages()] != _expected(turns)


def _expected(turns: int) -> list[str]:
    return [f"{what} {turn}" for turn in range(turns) for what in ("question", "answer")]


def _id(number: int) -> str:
    return f"chat-{number}"
