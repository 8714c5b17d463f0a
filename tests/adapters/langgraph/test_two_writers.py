"""Two runs on one thread at once: what either adds is there, or its run was told that it is not."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from keepstate.adapters.langgraph import KeepstateSaver, KeepstateStore
from keepstate.errors import ConflictError
from tests.adapters.langgraph.racing import ITEMS, NAMES, both, chatting, contents
from tests.adapters.langgraph.saving import config, values
from tests.processes import Program

ROOT = Path(__file__).parents[3]
TURNS = 6


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_of_two_runs_at_once_one_is_refused_and_none_of_six_messages_is_lost(
    any_url: str, durability: str
) -> None:
    with KeepstateSaver(any_url, on_conflict="raise") as saver:
        (refused,) = both(saver, durability)
        after = set(contents(values(saver, config())["messages"]))
        chatting(saver, lambda: None).invoke({"messages": [("user", f"{refused} asks")]}, config())
        left = contents(values(saver, config())["messages"])

    assert {item for item in ITEMS if not item.startswith(refused)} <= after
    assert set(left) == ITEMS


def test_of_two_runs_that_fork_each_message_can_still_be_read(any_url: str) -> None:
    with KeepstateSaver(any_url) as saver:
        refused = both(saver)
        written = {
            content
            for found in saver.list(config())
            for content in contents(found.checkpoint["channel_values"].get("messages", []))
        }

    assert refused == []
    assert written == ITEMS


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "keepstate.adapters.langgraph"]


def test_a_thread_that_forks_by_accident_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with KeepstateSaver("memory://") as saver:
        both(saver)
        both(saver)

        [told] = warned(caplog)
        assert told.startswith("thread 't': two runs have continued one checkpoint")
        assert "on_conflict='raise'" in told


def test_a_fork_on_purpose_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with KeepstateSaver("memory://") as saver:
        app = counting(saver)
        for turn in ("one", "two"):
            app.invoke({"messages": [("user", turn)]}, config())
        first = next(s for s in app.get_state_history(config()) if len(s.values["messages"]) == 2)
        app.invoke(None, first.config)
        app.invoke({"messages": [("user", "again")]}, first.config)
        app.update_state(first.config, {"messages": [("user", "changed")]})
        saver.copy_thread("t", "copy")
        app.invoke({"messages": [("user", "on")]}, config("copy"))

    assert warned(caplog) == []


def test_a_saver_that_refuses_forks_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        assert len(both(saver)) == 1

    assert warned(caplog) == []


WORKER = """
import sys
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import ConflictError
from tests.adapters.langgraph.racing import chatting
from tests.adapters.langgraph.saving import config

def wait():
    print("in", flush=True)
    sys.stdin.readline()

url, name = sys.argv[1:]
with KeepstateSaver(url, on_conflict="raise") as saver:
    app = chatting(saver, wait)
    for _ in range(9):
        try:
            app.invoke({"messages": [("user", f"{name} asks")]}, config())
            break
        except ConflictError:
            print("refused", flush=True)
"""


@pytest.mark.slow
def test_of_two_processes_none_loses_a_message(shared_url: str) -> None:
    workers = [
        Program(
            *("-c", WORKER, shared_url, name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            modules=["tests.adapters.langgraph.racing"],
        )
        for name in NAMES
    ]

    for worker in workers:  # now each is in the graph, or was refused
        assert worker.stdout is not None
        assert worker.stdout.readline() in ("in\n", "refused\n")
    told = "".join(worker.communicate("\n" * 9, 60)[0] for worker in workers)

    assert [worker.returncode for worker in workers] == [0, 0]
    with KeepstateSaver(shared_url) as saver:
        assert set(contents(values(saver, config())["messages"])) == ITEMS
    assert "in" in told


def counting(saver: KeepstateSaver) -> Any:
    """Return a graph that answers each message with how many there are."""
    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [AIMessage(str(len(state["messages"])))]})
    graph.add_edge(START, "say")
    return graph.compile(checkpointer=saver)


def test_both_modes_of_one_saver_see_what_the_other_has_just_done(any_url: str) -> None:
    async def talk() -> None:
        async with KeepstateSaver(any_url) as saver:
            app = counting(saver)
            for turn in range(TURNS):
                await app.ainvoke({"messages": [("user", f"{turn}")]}, config())
                app.invoke({"messages": [("user", f"{turn}")]}, config())
            last, same = await app.aget_state(config()), app.get_state(config())

        assert contents(last.values["messages"])[1::2] == [str(n) for n in range(1, 4 * TURNS, 2)]
        assert last == same

    asyncio.run(talk())


@pytest.mark.slow
def test_both_modes_of_one_saver_at_once_see_one_order(any_url: str) -> None:
    def blocking(app: Any) -> None:
        for turn in range(TURNS):
            while True:
                try:
                    app.invoke({"messages": [("user", f"blocking {turn}")]}, config())
                    break
                except ConflictError:
                    continue

    async def talk() -> None:
        async with KeepstateSaver(any_url, on_conflict="raise") as saver:
            app = counting(saver)
            other = threading.Thread(target=blocking, args=(app,))
            other.start()
            for turn in range(TURNS):
                while True:
                    try:
                        await app.ainvoke({"messages": [("user", f"waiting {turn}")]}, config())
                        break
                    except ConflictError:
                        continue
            await asyncio.to_thread(other.join)
            lines = [
                contents(found.checkpoint["channel_values"].get("messages", []))
                async for found in saver.alist(config())
            ]

        last = lines[0]
        for name in ("blocking", "waiting"):
            turns = list(dict.fromkeys(said for said in last if said.startswith(name)))
            assert turns == [f"{name} {turn}" for turn in range(TURNS)]
        assert all(last[: len(line)] == line for line in lines)

    asyncio.run(talk())


def test_behind_a_pooler_that_gives_out_transactions_nothing_is_lost(pooled_url: str) -> None:
    with KeepstateSaver(pooled_url, on_conflict="raise") as saver:
        (refused,) = both(saver)
        chatting(saver, lambda: None).invoke({"messages": [("user", f"{refused} asks")]}, config())

        assert set(contents(values(saver, config())["messages"])) == ITEMS


def test_behind_a_pooler_a_store_keeps_all_that_threads_and_tasks_put(pooled_url: str) -> None:
    async def put(store: KeepstateStore, name: str) -> None:
        for number in range(10):
            await store.aput(("users", name), str(number), {"n": number}, ttl=60)

    async def many() -> None:
        async with KeepstateStore(pooled_url) as store:
            worker = threading.Thread(
                target=lambda: [store.put(("users", "t"), str(n), {"n": n}) for n in range(10)]
            )
            worker.start()
            await asyncio.gather(*(put(store, f"{n}") for n in range(5)))
            await asyncio.to_thread(worker.join)

            found = await store.asearch(("users",), filter={"n": {"$gte": 5}}, limit=100)

            assert len(found) == 6 * 5
            assert len(await store.alist_namespaces(prefix=("users",))) == 6

    asyncio.run(many())
