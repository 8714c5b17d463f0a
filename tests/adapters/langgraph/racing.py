"""Two runs of one graph on one thread at the same time, for tests of what becomes of their messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import ConflictError
from tests.adapters.langgraph.saving import config

NAMES = ("a", "b")
ITEMS = {f"{name} {what}" for name in NAMES for what in ("asks", "said", "again")}
"""What two runs of the graph add to the messages: three each."""

Graph = CompiledStateGraph[Any, Any, Any, Any]


def chatting(saver: KeepstateSaver, wait: Callable[[], object]) -> Graph:
    """Return a graph of two nodes, the first of which waits before it adds to the messages."""

    def say(state: MessagesState) -> dict[str, Any]:
        name = str(state["messages"][-1].content).partition(" ")[0]
        wait()
        return {"messages": [AIMessage(f"{name} said")]}

    def again(state: MessagesState) -> dict[str, Any]:
        name = str(state["messages"][-1].content).partition(" ")[0]
        return {"messages": [AIMessage(f"{name} again")]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_node("again", again)
    graph.add_edge(START, "say")
    graph.add_edge("say", "again")
    return graph.compile(checkpointer=saver)


def both(saver: KeepstateSaver, durability: Any = "sync") -> list[str]:
    """Run a graph twice at once on one thread, so that both are in it; returns which were refused."""
    gate = threading.Barrier(2)

    def wait() -> None:
        with suppress(threading.BrokenBarrierError):  # the other one was refused before it came here
            gate.wait(60)

    app, refused = chatting(saver, wait), list[str]()

    def run(name: str) -> None:
        try:
            app.invoke({"messages": [("user", f"{name} asks")]}, config(), durability=durability)
        except ConflictError:
            gate.abort()
            refused.append(name)

    workers = [threading.Thread(target=run, args=(name,)) for name in NAMES]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return refused


def contents(messages: list[Any]) -> list[str]:
    """Return what messages say."""
    return [message.content for message in messages]
