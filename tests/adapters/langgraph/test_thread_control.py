"""What people do to a thread without its graph, over HTTP: read its interrupts, answer one, and fork it."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

import keepstate
from keepstate.adapters.langgraph import KeepstateSaver, resume
from keepstate.engine.space.keepstate import Keepstate
from tests.adapters.langgraph.asking import (
    State,
    asks,
    config,
    one_asks,
    pending,
    said,
    space_of,
    two_ask,
    work,
)
from tests.server.conftest import Served, served
from tests.server.test_operations import ok, problem

AT = {"space": "thread/t"}


@dataclass
class Offer:
    """An object of a class that the server does not know."""

    hotel: str
    price: int


class Trip(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], operator.add]
    city: str
    offer: Offer
    booked: str


def trip(saver: Any, runs: list[str] | None = None) -> Any:
    """Return a graph: search → pick → book, or the end if nothing is left to book."""
    ran = [] if runs is None else runs

    def search(state: Trip) -> Any:
        ran.append("search")
        return {"offer": Offer("Harbour", 95), "messages": [AIMessage(f"Found one in {state['city']}.")]}

    def pick(state: Trip) -> Any:
        ran.append("pick")
        return {"messages": [AIMessage(f"{state['offer'].hotel} in {state['city']}?")]}

    def book(state: Trip) -> Any:
        ran.append("book")
        return {"booked": f"{state['city']} {state['offer'].price}"}

    graph = StateGraph(Trip)
    for name, node in {"search": search, "pick": pick, "book": book}.items():
        graph.add_node(name, node)
    graph.add_edge(START, "search")
    graph.add_edge("search", "pick")
    graph.add_conditional_edges("pick", lambda state: "book" if state["city"] else END, ["book", END])
    graph.add_edge("book", END)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def opened(tmp_path: Path, **options: Any) -> AsyncGenerator[tuple[Served, Keepstate, KeepstateSaver]]:
    """Yield a server, and a program with a saver on the same store."""
    url = f"sqlite:///{tmp_path}/state.db"
    async with (
        served(url) as door,
        keepstate.open(url, author="app") as ks,
        KeepstateSaver(ks, allow=[Offer], **options) as saver,
    ):
        yield door, ks, saver


async def moment(graph: Any, following: str) -> Any:
    """Return the earliest checkpoint of the thread from which a node comes next."""
    found = [each async for each in graph.aget_state_history(config()) if each.next == (following,)]
    return found[-1]


async def commit_of(ks: Keepstate, checkpoint: str) -> str:
    """Return the commit of a checkpoint."""
    (found,) = [each.id async for each in space_of(ks).history.log() if each.message.endswith(checkpoint)]
    return found


def edit(*path: Any, **change: Any) -> dict[str, Any]:
    return {"path": [*path], **change}


async def fork(
    client: httpx.AsyncClient, checkpoint: str, *edits: dict[str, Any], **more: Any
) -> httpx.Response:
    """Fork the thread."""
    body = {"checkpoint": checkpoint, "edits": [*edits], **more}
    return await client.post("/v1/thread/fork", params=AT, json=body)


async def interrupts(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return the pending interrupts of the thread."""
    found = await ok(await client.get("/v1/thread/interrupts", params=AT))
    return list(found["items"])


async def give(client: httpx.AsyncClient, asked: dict[str, Any], value: object) -> httpx.Response:
    """Answer an interrupt."""
    body = {"checkpoint": asked["checkpoint"], "interrupt": asked["id"], "value": value}
    return await client.post("/v1/thread/answer", params=AT, json=body)


async def test_the_framework_goes_on_from_a_fork_with_an_edited_state(tmp_path: Path) -> None:
    runs = list[str]()
    async with opened(tmp_path) as (door, ks, saver):
        graph, client = trip(saver, runs), await door.caller()
        await graph.ainvoke({"messages": [HumanMessage("Go")], "city": "Bergen"}, config())
        past = await moment(graph, "pick")
        before = [
            each.config["configurable"]["checkpoint_id"] async for each in graph.aget_state_history(config())
        ]

        at = past.config["configurable"]["checkpoint_id"]
        where = {**AT, "ref": await commit_of(ks, at), "path": '["offer"]'}
        offer = (await ok(await client.get("/v1/history/state", params=where)))["value"]
        assert offer["price"] == 95 and "Offer@" in offer["@type"]

        dear = edit("offer", value={**offer, "price": 400})
        made = await ok(await fork(client, at, edit("city", value="Oslo"), edit("messages", keep=1), dear))

        state = await graph.aget_state(config())
        assert state.config["configurable"]["checkpoint_id"] == made["checkpoint"] and made["task"] is None
        assert state.parent_config == past.config
        assert (state.next, state.metadata["source"]) == (("pick",), "update")
        assert state.metadata["step"] == past.metadata["step"] + 1
        assert state.values["city"] == "Oslo" and state.values["offer"] == Offer("Harbour", 400)
        assert [type(each) for each in state.values["messages"]] == [HumanMessage]
        after = [
            each.config["configurable"]["checkpoint_id"] async for each in graph.aget_state_history(config())
        ]
        assert after == [made["checkpoint"], *before]
        old, new = [await saver.aget_tuple(each) for each in (past.config, state.config)]
        assert old is not None and new is not None
        versions = [each.checkpoint["channel_versions"] for each in (old, new)]
        changed = {name for name, version in versions[1].items() if version != versions[0][name]}
        assert changed == {"city", "messages", "offer"} and versions[1]["city"] > max(versions[0].values())
        runs.clear()
        final = await graph.ainvoke(None, config())
        assert runs == ["pick", "book"] and final["booked"] == "Oslo 400"
        assert [each.content for each in final["messages"]] == ["Go", "Harbour in Oslo?"]
        history = space_of(ks).history
        branches = {each.name async for each in history.branches()}
        assert "langgraph-edit" not in branches and any(name.startswith("fork/") for name in branches)
        commit = await history.find(made["commit"])
        assert (commit.author, commit.message.split(", ")[0]) == ("ann", "update")
        assert (await graph.aget_state(past.config)).values["city"] == "Bergen"


async def test_a_worker_goes_on_from_a_fork_once(tmp_path: Path) -> None:
    runs = list[str]()
    async with opened(tmp_path) as (door, ks, saver):
        graph, client, space = trip(saver, runs), await door.caller(), space_of(ks)
        await graph.ainvoke({"messages": [], "city": "Bergen"}, config())
        past = (await moment(graph, "book")).config["configurable"]["checkpoint_id"]
        runs.clear()

        first = await ok(await fork(client, past, edit("city", value="Oslo"), runs=True))
        second = await ok(await fork(client, past, edit("city", value="Turku"), runs=True))

        assert sorted(await work(space, graph)) == ["gone on", "resumed"]
        assert runs == ["book"] and (await graph.aget_state(config())).values["booked"] == "Turku 95"
        assert (await space.queue.result(first["task"]))["outcome"] == "gone on"
        assert (await space.queue.result(second["task"]))["outcome"] == "resumed"
        await saver.adelete_thread("t")
        assert [each async for each in ks.spaces("thread/")] == []


async def test_a_run_of_a_fork_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    runs, fails = list[str](), [False, True]

    def pays(state: State) -> Any:
        runs.append("pay")
        return {"said": ["paid"]}

    def breaks(state: State) -> Any:
        runs.append("end")
        if fails.pop():
            raise RuntimeError("killed")
        return {"said": ["end"]}

    async with opened(tmp_path) as (door, ks, saver):
        client, space = await door.caller(), space_of(ks)
        graph, broken = one_asks(saver, pays, lambda _: {"said": []}), one_asks(saver, pays, breaks)
        await graph.ainvoke({"said": []}, config())
        past = (await moment(graph, "pay")).config["configurable"]["checkpoint_id"]
        runs.clear()
        await ok(await fork(client, past, edit("said", value=["edited"]), runs=True))
        [task] = await space.queue.claim("worker", lease_s=60)
        with pytest.raises(RuntimeError, match="killed"):
            await resume(broken)(task)
        await task.fail("killed", retry_in_s=0)

        assert await work(space, broken) == ["resumed"]
        assert runs == ["pay", "end", "end"] and await said(graph) == ["edited", "paid", "end"]


async def test_a_fork_that_cannot_be_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (door, ks, saver):
        graph, client = trip(saver), await door.caller()
        await graph.ainvoke({"messages": [], "city": "Bergen"}, config())
        past = (await moment(graph, "pick")).config["configurable"]["checkpoint_id"]
        revision = await space_of(ks).revision()

        refused = [
            await fork(client, past, edit("branch:to:book", value=None)),
            await fork(client, past),
            await fork(client, past, edit("city", value={"@type": "datetime", "value": "tomorrow"})),
            await fork(client, past, edit("nothing", "here", value=1)),
            await fork(client, "1f1e", edit("city", value="Oslo")),
        ]

        assert [each.status_code for each in refused] == [422, 422, 422, 404, 404]
        assert "written by LangGraph itself" in refused[0].json()["detail"]
        assert await space_of(ks).revision() == revision


async def test_a_thread_that_a_serializer_stored_is_refused(tmp_path: Path) -> None:
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    async with opened(tmp_path, serde=serde) as (door, _, saver):
        graph, client = one_asks(saver), await door.caller()
        await graph.ainvoke({"said": []}, config())
        at = (await graph.aget_state(config())).config["configurable"]["checkpoint_id"]

        assert problem(await fork(client, at, edit("said", value=[]))) == (501, "unsupported")
        assert problem(await client.get("/v1/thread/interrupts", params=AT)) == (501, "unsupported")


async def test_an_interrupt_of_a_saver_that_does_not_ask_is_answered_by_a_task(tmp_path: Path) -> None:
    async with opened(tmp_path) as (door, ks, saver):
        graph, client, space = one_asks(saver), await door.caller(rights=["read", "answer"]), space_of(ks)
        await graph.ainvoke({"said": []}, config())
        [asked] = await interrupts(client)
        assert (asked["value"], asked["approval"], asked["task"]) == ("pay?", None, None)

        task = (await ok(await give(client, asked, {"amount": 7})))["task"]
        assert problem(await give(client, asked, "again")) == (409, "already_exists")
        [waits] = await interrupts(client)
        put = await space.queue.get(task, payload=True)
        assert waits["task"] == task and put is not None and put.payload["by"] == "ann"

        await space.queue.cancel(task)
        await ok(await give(client, asked, "yes"))
        assert await work(space, graph) == ["resumed"]
        assert await said(graph) == ["pay: yes", "end"] and await interrupts(client) == []
        assert problem(await give(client, asked, "late")) == (404, "not_found")


async def test_of_two_interrupts_each_takes_its_own_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as (door, ks, saver):
        graph, client, space = two_ask(saver), await door.caller(), space_of(ks)
        await graph.ainvoke({"said": []}, config())
        first, second = sorted(await interrupts(client), key=lambda each: str(each["value"]))

        await ok(await give(client, second, 2))
        assert await work(space, graph) == ["resumed"]
        assert [each["id"] for each in await interrupts(client)] == [first["id"]]
        await ok(await give(client, first, 1))
        assert await work(space, graph) == ["resumed"]

        assert await said(graph) == ["a: 1", "b: 2", "end"]


async def test_an_interrupt_that_an_approval_asks_for_is_answered_there(tmp_path: Path) -> None:
    async with opened(tmp_path, approvals=True) as (door, ks, saver):
        graph, client = one_asks(saver, asks("pay", 2)), await door.caller()
        await graph.ainvoke({"said": []}, config())
        [asked], [approval] = await interrupts(client), await pending(space_of(ks))

        assert asked["approval"] == approval.id
        assert problem(await give(client, asked, True)) == (409, "conflict")
        past = (await moment(graph, "pay")).config["configurable"]["checkpoint_id"]
        await ok(await fork(client, past, edit("said", value=["edited"])))

        left = await space_of(ks).approvals.get(approval.id)
        assert left is not None and (left.state, left.reason) == ("withdrawn", "the thread has gone on")
        await graph.ainvoke(None, config())
        assert len(await pending(space_of(ks))) == 1
