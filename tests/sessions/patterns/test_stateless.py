"""Stateless: each call is independent, and everything is in the message."""

from __future__ import annotations

import asyncio

from keepstate import Session, Sessions
from keepstate.engine.space.keepstate import Keepstate
from tests.sessions.patterns.agent import Agent


async def call(ks: Keepstate, number: int) -> str:
    session = Session(f"call-{number}", persistence=ks)
    try:
        return await Agent(session.conversation).process("Book a flight to NYC")
    finally:
        await session.end()


async def test_no_call_knows_of_another_also_at_once(ks: Keepstate) -> None:
    assert set(await asyncio.gather(*(call(ks, number) for number in range(5)))) == {
        "I know 1 of your messages."
    }
    assert await call(ks, 0) == "I know 1 of your messages."


async def test_what_calls_leave_is_swept(ks: Keepstate) -> None:
    for number in range(3):
        await call(ks, number)
    sessions = Sessions(persistence=ks)

    assert await sessions.ids() == []
    assert await sessions.sweep() > 0
    names = [name async for name in ks.space("session/call-0").documents.keys("*")]
    assert names == ["lives"]


async def test_memory_that_nobody_else_sees_keeps_nothing_between_calls() -> None:
    for _ in range(2):
        async with Session("call", persistence="memory://") as session:
            assert await Agent(session.conversation).process("Hello") == "I know 1 of your messages."
