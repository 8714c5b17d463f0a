"""The UI adapters of Pydantic AI load and save their conversations in a keepstate store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.ui import UIAdapter
from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from keepstate.adapters.pydantic_ai import KeepstateConversationStore
from tests.adapters.pydantic_ai.talking import said

ADAPTERS = {"vercel": VercelAIAdapter, "ag-ui": AGUIAdapter}


async def count(messages: list[ModelMessage], info: AgentInfo) -> Any:
    """Answer with the number of messages that the model was shown."""
    yield f"saw {len(messages)}"


def body(kind: str, text: str) -> dict[str, Any]:
    """Return the request of a client for its new message."""
    if kind == "vercel":
        message = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}]}
        return {"trigger": "submit-message", "id": "c", "messages": [message]}
    message = {"id": text, "role": "user", "content": text}
    return {
        "threadId": "c",
        "runId": text,
        "state": {},
        "messages": [message],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }


def application(kind: str, store: KeepstateConversationStore) -> Starlette:
    """Return a server of one agent, whose clients name themselves in a header."""
    agent = Agent(FunctionModel(stream_function=count))
    adapter: type[UIAdapter[Any, Any, Any, Any, Any]] = ADAPTERS[kind]

    async def chat(request: Request) -> Response:
        return await adapter.dispatch_request(
            request,
            agent=agent,
            conversation_store=store,
            conversation_scope=request.headers["user"],
        )

    return Starlette(routes=[Route("/chat", chat, methods=["POST"])])


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_chat_goes_on_from_the_stored_conversation(kind: str, any_url: str) -> None:
    with (
        KeepstateConversationStore.from_url(any_url) as store,
        TestClient(application(kind, store)) as client,
    ):
        answers = [
            client.post("/chat", json=body(kind, text), headers={"user": "ann"}).text
            for text in ("hello", "and then?", "and now?")
        ]
        foreign = client.post("/chat", json=body(kind, "mine!"), headers={"user": "bob"})

        assert [f"saw {n}" in answer for n, answer in zip((1, 3, 5), answers, strict=True)] == [True] * 3
        assert "conversation" in answers[0].lower()
        assert foreign.status_code == 404
        talk = asyncio.run(store.load("c", scope="ann"))
        assert talk is not None
        assert len(talk.messages) == 6
        assert talk.usage.requests == 3


@pytest.mark.parametrize("kind", ADAPTERS)
def test_entries_that_a_client_is_told_of_can_be_read(kind: str) -> None:
    with (
        KeepstateConversationStore.from_url("memory://told") as store,
        TestClient(application(kind, store)) as client,
    ):
        answer = client.post("/chat", json=body(kind, "hello"), headers={"user": "ann"}).text

        entries = asyncio.run(store.load_entries("c"))
        assert entries is not None
        assert all(json.dumps(entry.id) in answer for entry in entries)
        assert asyncio.run(store.read_entry(entries[1].id)) == entries[1]


def test_a_run_that_waits_for_approval_goes_on_in_another_process(shared_url: str) -> None:
    """A stored conversation carries the deferred requests of its last run, its usage and its revision."""
    agent = Agent(
        FunctionModel(lambda messages, info: call_once(messages)), output_type=[str, DeferredToolRequests]
    )
    paid: list[int] = []

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    async def ask() -> None:
        async with KeepstateConversationStore.from_url(shared_url) as store:
            await store.save(await agent.run("pay 5", conversation_id="c"))

    async def answer() -> str:
        async with KeepstateConversationStore.from_url(shared_url) as store:
            talk = await store.load("c")
            assert talk is not None
            assert talk.deferred_tool_requests is not None
            results = talk.deferred_tool_requests.build_results(approve_all=True)
            result = await agent.run(conversation=talk, deferred_tool_results=results)
            await store.save(result)
            again = await store.load("c")
            assert again is not None
            assert (again.deferred_tool_requests, again.usage.requests) == (None, 2)
            return str(result.output)

    asyncio.run(ask())
    assert (asyncio.run(answer()), paid) == ("done", [5])


def call_once(messages: list[ModelMessage]) -> ModelResponse:
    """Call the tool first, and say that it is done after that."""
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 5})])
    return ModelResponse(parts=[TextPart("done")])


async def test_a_run_that_trims_its_history_keeps_what_is_stored(any_url: str) -> None:
    async with KeepstateConversationStore.from_url(any_url) as store:
        agent = Agent(
            FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(f"saw {len(messages)}")]))
        )
        await store.save(await agent.run("one", conversation_id="c"))
        for _ in range(3):
            talk = await store.load("c", limit=2)
            result = await agent.run("more", conversation=talk)
            assert result.output == "saw 3"
            await store.save(result)

        whole = await store.load("c")
        assert whole is not None
        assert len(whole.messages) == 8
        assert said(1) not in whole.messages
