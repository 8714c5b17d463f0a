"""In memory: fast, of one process, and gone with it. An agent that begins so moves to any store later."""

from __future__ import annotations

import subprocess
import sys
import uuid

from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate
from tests.sessions.patterns.agent import Agent


class StatefulAgent(Agent):
    """The published agent, whose `self.state` is a session of this process."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.conversation)
        self.state = session

    async def work_on(self, task: str) -> None:
        await self.state.task.put({"goal": task, "status": "in_progress"})
        await self.state.update({"seen": task})


async def test_memory_with_a_name_is_of_this_process_alone() -> None:
    name = f"memory://{uuid.uuid4().hex}"
    async with Session("s", persistence=name) as first, Session("s", persistence=name) as other:
        assert await StatefulAgent(first).process("Book a flight") == "I know 1 of your messages."
        assert await StatefulAgent(other).process("Next Monday") == "I know 2 of your messages."

    asking = (
        f"from keepstate.sync import Session; print(Session('s', persistence={name!r}).conversation.count())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", asking], check=True, capture_output=True, text=True)
    assert elsewhere.stdout == "0\n"


async def test_the_same_agent_works_wherever_its_state_is(ks: Keepstate) -> None:
    agent = StatefulAgent(Session("s", persistence=ks))
    assert await agent.process("Book a flight to NYC") == "I know 1 of your messages."
    await agent.work_on("book")
    assert await agent.process("Next Monday") == "I know 2 of your messages."

    assert [message["role"] async for message in agent.state.conversation.messages()] == [
        "user",
        "assistant",
    ] * 2
    assert (await agent.state.task.get()).goal == "book"
    assert await agent.state.get_state() == {"seen": "book"}


async def test_two_agents_of_one_process_share_nothing(ks: Keepstate) -> None:
    first, other = (StatefulAgent(Session(id, persistence=ks)) for id in ("1", "2"))
    await first.process("Book a flight")
    await first.work_on("book")

    assert await other.process("Hello") == "I know 1 of your messages."
    assert (await other.state.task.get()).goal == "" and await other.state.get_state() == {}
