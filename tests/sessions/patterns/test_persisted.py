"""Persisted: loaded before each answer and saved behind it, it survives restarts and works across servers."""

from __future__ import annotations

import asyncio

import keepstate
from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate
from tests.sessions.patterns.agent import Agent


class PersistentAgent:
    """The published agent: `load_state`, `process`, `save_state`; it keeps nothing itself."""

    def __init__(self, session_id: str, ks: Keepstate) -> None:
        self.session = Session(session_id, persistence=ks)

    async def process(self, user_input: str) -> str:
        response = await Agent(self.session.conversation).process(user_input)
        await self.session.update(lambda state: {**state, "turns": state.get("turns", 0) + 1})
        return response


async def test_an_agent_goes_on_where_another_process_would_have_left_off(
    url: str, opened: list[Keepstate]
) -> None:
    opened.append(keepstate.open(url))  # keeps a store in memory alive meanwhile
    await opened[0]
    for turn in range(1, 4):
        async with keepstate.open(url) as ks:
            assert await PersistentAgent("s", ks).process("Hello") == f"I know {turn} of your messages."

    assert await Session("s", persistence=opened[0]).get_state() == {"turns": 3}


async def test_two_servers_that_answer_one_session_at_once_lose_nothing(
    url: str, opened: list[Keepstate]
) -> None:
    opened += [keepstate.open(url), keepstate.open(url)]
    await asyncio.gather(*(PersistentAgent("s", ks).process(str(n)) for n in range(4) for ks in opened))

    session = Session("s", persistence=opened[0])
    assert await session.get_state() == {"turns": 8}
    assert await session.conversation.count() == 16
    assert sorted(
        [each["content"] async for each in session.conversation.messages() if each["role"] == "user"]
    ) == sorted(str(n) for n in range(4) for _ in opened)
