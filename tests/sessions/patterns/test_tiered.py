"""Tiered: recent state near, all of it safe. More: stores/wrappers/tiered, crashes/test_tiered.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate
from keepstate import Session, TieredStore
from keepstate.engine.space.keepstate import Keepstate
from tests.engine.conftest import EVERYWHERE, url_of
from tests.sessions.patterns.agent import Agent


@pytest.fixture(params=EVERYWHERE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def tiered(url: str, opened: list[Keepstate]) -> Keepstate:
    """A handle that remembers what it has read and written last, over the store of the test."""
    opened.append(keepstate.open(f"tiered+{url}{'&' if '?' in url else '?'}hot_bytes=1000000"))
    return opened[-1]


async def test_a_context_has_what_is_recent_the_session_and_the_user_together(tiered: Keepstate) -> None:
    session = Session("s", user_id="u", persistence=tiered)
    await Agent(session.conversation).process("Book a flight")
    await session.task.put({"goal": "book"})
    await session.user.remember("past_bookings", "NYC")

    context = await session.get_context()
    assert [message["role"] for message in context.recent] == ["user", "assistant"]
    assert context.session["task"]["goal"] == "book"
    assert context.user["history"] == {"past_bookings": ["NYC"]}


async def test_what_is_near_is_what_is_safe(tiered: Keepstate, url: str, opened: list[Keepstate]) -> None:
    assert isinstance(await tiered.opened(), TieredStore)
    plain = keepstate.open(url)
    opened.append(plain)
    near, safe = Session("s", persistence=tiered), Session("s", persistence=plain)
    for turn in range(1, 4):
        assert await Agent(near.conversation).process("Hello") == f"I know {2 * turn - 1} of your messages."
        assert await Agent(safe.conversation).process("Hello") == f"I know {2 * turn} of your messages."

    assert await near.conversation.get_context() == await safe.conversation.get_context()
