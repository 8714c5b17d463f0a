"""`KeepstateEventStore` keeps the contract of adapters, and a client of MCP resumes its own stream alone."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import pytest
import uvicorn
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp_types import (
    CallToolResult,
    JSONRPCNotification,
    JSONRPCResponse,
    ListToolsResult,
    TextContent,
    Tool,
)
from starlette.applications import Starlette
from starlette.routing import Mount

from keepstate.adapters.mcp_events import KeepstateEventStore, ResumableSessions
from keepstate.errors import InvalidError
from keepstate.testing.adapter_contract import AdapterContract


def note(items: Any) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="note", params={"items": items})


async def replay(events: EventStore, after: str) -> tuple[str | None, list[EventMessage]]:
    seen: list[EventMessage] = []

    async def send(event: EventMessage) -> None:
        await asyncio.sleep(0)  # as a client that reads from a socket
        seen.append(event)

    return await events.replay_events_after(after, send), seen


class TestEventStore(AdapterContract):
    """A conversation is a session with one stream, and a call of the framework stores one message."""

    @cached_property
    def begins(self) -> dict[tuple[str | None, str], list[str]]:
        """The events in front of the items of each session: one of each writer."""
        return defaultdict(list)

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateEventStore:
        return KeepstateEventStore(url)

    def item(self, n: int) -> Any:
        return {"n": n}

    def rich_item(self) -> Any:
        return {"text": "ünï\n🦜\x00", "of": [1.5, None, True, 2**60, {}]}

    async def add(self, adapter: KeepstateEventStore, id: str, items: Sequence[Any]) -> None:
        await self.add_owned(adapter, None, id, items)

    async def read(self, adapter: KeepstateEventStore, id: str) -> list[Any]:
        return await self.read_owned(adapter, None, id)

    async def clear(self, adapter: KeepstateEventStore, id: str) -> None:
        await adapter.session(id).clear()
        del self.begins[None, id]

    async def add_owned(
        self, adapter: KeepstateEventStore, owner: str | None, id: str, items: Sequence[Any]
    ) -> None:
        events = adapter.session(id, owner=owner)
        if not self.begins[owner, id]:
            self.begins[owner, id].append(await events.store_event(id, None))
        await events.store_event(id, note(list(items)))

    async def read_owned(self, adapter: KeepstateEventStore, owner: str | None, id: str) -> list[Any]:
        begins = self.begins[owner, id]
        if not begins:
            return []
        first = min(begins, key=lambda event_id: int(event_id.split("/")[1]))
        stream, seen = await replay(adapter.session(id, owner=owner), first)
        assert stream in (id, None)
        return [item for event in seen for item in event.message.params["items"]]  # type: ignore[union-attr, index]

    async def erase(self, adapter: KeepstateEventStore, owner: str) -> None:
        assert (await adapter.erase(owner)).spaces == 2


async def test_a_replay_has_the_later_messages_of_one_stream_in_order(any_url: str) -> None:
    async with KeepstateEventStore.from_url(any_url) as store:
        first = await store.store_event("1", None)
        ids = []
        for n in range(600):
            ids.append(await store.store_event("1", note(n)))
            if n % 100 == 0:
                await store.store_event("2", note("other"))
        answer = JSONRPCResponse(jsonrpc="2.0", id=1, result={"done": True})
        ids.append(await store.store_event("1", answer))

        stream, seen = await replay(store, first)
        assert stream == "1"
        assert [event.message for event in seen] == [*map(note, range(600)), answer]
        assert [event.event_id for event in seen] == ids
        assert await replay(store, ids[-2]) == ("1", [EventMessage(answer, ids[-1])])
        assert await replay(store, ids[-1]) == ("1", [])


async def test_ids_that_the_session_did_not_give_find_nothing(any_url: str) -> None:
    async with KeepstateEventStore.from_url(any_url) as store:
        own, other = store.session("a"), store.session("b")
        await other.store_event("1", note("of b"))
        first = await own.store_event("1", None)
        await own.store_event("1", note("of a"))
        _, number, mark = first.split("/")

        assert (await replay(own, first))[0] == "1"
        forged = [f"{int(number) + 1_000_000}", "0", "9" * 20, "-1", "1.0", "", "1" * 500, "١"]
        for id in (
            *(f"1/{n}/{mark}" for n in forged),
            f"2/{number}/{mark}",
            f"{'x' * 500}/1/{mark}",
            "\ud83d/1",
            "",
        ):
            assert await replay(own, id) == (None, []), id
        assert await replay(other, first) == (None, []), "the id of another session"
        assert await replay(store, first) == (None, [])


async def test_old_streams_are_swept(any_url: str) -> None:
    async with KeepstateEventStore.from_url(any_url, ttl_s=1.5) as store:
        old = await store.store_event("old", note(1))
        await store.session("s").store_event("old", None)
        await asyncio.sleep(1.6)
        young = await store.store_event("young", note(1))

        assert await store.sweep() == 2
        assert await replay(store, old) == (None, [])
        assert (await replay(store, young))[0] == "young"
        assert await store.sweep() == 0
        again = await store.store_event("old", note(2))
        assert await replay(store, again) == ("old", [])
    async with KeepstateEventStore.from_url(any_url) as store:
        assert await store.sweep() == 0


def server_of(name: str) -> Server[Any]:
    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="count", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        own = params.arguments["for"]
        for n in range(3):
            await context.session.report_progress(n, message=f"{own} {n}")
            if n == 0:
                await context.close_sse_stream()  # the client has to come back, after the other messages
        return CallToolResult(content=[TextContent(type="text", text=f"done for {own}")])

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def serving(manager: Any) -> AsyncIterator[str]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Mount("/mcp", app=manager.handle_request)], lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp/"
    finally:
        server.should_exit = True
        await running


@pytest.mark.slow
async def test_clients_that_lose_their_connection_get_the_messages_of_their_own_session(any_url: str) -> None:
    async def call(url: str, own: str) -> tuple[list[str], str]:
        heard: list[str] = []

        async def progress(at: float, total: float | None, message: str | None) -> None:
            heard.append(str(message))

        async with (
            streamable_http_client(url) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            result = await session.call_tool("count", {"for": own}, progress_callback=progress)
            return heard, result.content[0].text  # type: ignore[union-attr]

    async with KeepstateEventStore.from_url(any_url) as store:
        manager = ResumableSessions(server_of("counts"), event_store=store, retry_interval=400)
        async with serving(manager) as url:
            answers = await asyncio.wait_for(asyncio.gather(*(call(url, own) for own in "ab")), 60)

    for own, (heard, text) in zip("ab", answers, strict=True):
        assert heard == [f"{own} {n}" for n in range(3)]
        assert text == f"done for {own}"


def test_sessions_need_a_store_of_their_own_kind() -> None:
    with pytest.raises(InvalidError, match="give a KeepstateEventStore"):
        ResumableSessions(server_of("counts"), event_store=None)
