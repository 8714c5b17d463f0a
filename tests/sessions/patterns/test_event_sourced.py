"""Event-sourced: all that happened is kept, and the state is made of it. More: tests/engine."""

from __future__ import annotations

import asyncio
from typing import Any

from keepstate import Event, EventStream, Projection, Transaction
from keepstate.engine.space.keepstate import Keepstate
from tests.sessions.patterns.agent import Agent, Message


def apply_event(state: dict[str, Any], event: Event) -> dict[str, Any]:
    return {"conversation": [*state["conversation"], event.data], "last": event.type}


class EventSourcedAgent(Agent):
    """The published agent: `load_events`, `rebuild_state`, `append_event`."""

    def __init__(self, session_id: str, ks: Keepstate) -> None:
        super().__init__(self)
        self.events = EventStream(ks.space(f"session/{session_id}"), "messages")

    async def append(self, message: Message, /) -> None:
        await self.events.append(message, type="message")

    async def rebuild_state(self) -> dict[str, Any]:
        return await self.events.fold(apply_event, {"conversation": [], "last": None}, cache_every=3)

    async def get_context(self) -> list[Message]:
        conversation: list[Message] = (await self.rebuild_state())["conversation"]
        return conversation


async def test_the_state_is_rebuilt_from_the_events_by_whoever_asks(ks: Keepstate) -> None:
    for turn in range(1, 6):
        assert await EventSourcedAgent("s", ks).process("Hello") == f"I know {turn} of your messages."

    agent = EventSourcedAgent("s", ks)
    events = await agent.events.read()
    replayed: dict[str, Any] = {"conversation": []}
    for event in events:
        replayed = apply_event(replayed, event)
    assert await agent.rebuild_state() == replayed and len(events) == 10
    assert {event.type for event in events} == {"message@1"}


async def test_each_moment_is_audited_and_replayed(ks: Keepstate) -> None:
    agent = EventSourcedAgent("s", ks)
    for text in ("Book a flight to NYC", "Next Monday", "In the evening"):
        await agent.process(text)

    for number, event in enumerate(await agent.events.read(), start=1):
        then = await agent.events.at(event.number).fold(apply_event, {"conversation": []})
        assert len(then["conversation"]) == number
        assert then["conversation"][-1] == event.data


async def test_two_who_answer_at_once_and_send_again_lose_and_double_nothing(ks: Keepstate) -> None:
    stream = EventStream(ks.space("session/s"), "messages")

    async def send(number: int) -> None:
        for _ in range(2):  # the answer got lost: it is sent again
            await stream.append({"n": number}, id=f"request-{number}", type="message")

    await asyncio.gather(*(send(number) for number in range(6)))

    assert sorted([event.data["n"] for event in await stream.read()]) == list(range(6))


async def test_documents_that_are_made_of_events_count_each_once_and_can_be_made_again(ks: Keepstate) -> None:
    agent = EventSourcedAgent("s", ks)
    for _ in range(4):
        await agent.process("Hello")

    async def count(tx: Transaction, event: Event) -> None:
        await tx.documents.update(f"count/{event.data['role']}", lambda n: n + 1, default=0)

    counts = Projection(agent.events, "counts", count, documents="count/*")
    await asyncio.gather(counts.run(), counts.run())
    documents = ks.space("session/s").documents
    assert [await documents.get(f"count/{role}") for role in ("user", "assistant")] == [4, 4]
    await counts.rebuild()
    assert [await documents.get(f"count/{role}") for role in ("user", "assistant")] == [4, 4]
