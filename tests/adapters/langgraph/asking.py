"""Graphs that interrupt, and the work of a worker on their answers, for tests of approvals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from keepstate import Approval
from keepstate.adapters.langgraph import KeepstateSaver, resume
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space

KIND = "langgraph.resume"
MODULES = ["keepstate.adapters.langgraph", "langgraph.graph"]


class State(TypedDict):
    """What was said, in order."""

    said: Annotated[list[str], operator.add]


def config(thread: str = "t") -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread}}


def asks(name: str, times: int = 1, before: Callable[[str], object] = str) -> Any:
    """Return a node that asks, and says what it was answered."""

    def run(state: State) -> dict[str, Any]:
        before(name)
        answers = [interrupt(f"{name}{'' if times == 1 else number}?") for number in range(times)]
        return {"said": [f"{name}: {answer}" for answer in answers]}

    return run


def one_asks(saver: KeepstateSaver, node: Any = None, end: Any = None) -> Any:
    """Return a graph with a node that asks, and one that ends it."""
    graph = StateGraph(State)
    graph.add_node("pay", node or asks("pay"))
    graph.add_node("end", end or (lambda state: {"said": ["end"]}))
    graph.add_edge(START, "pay")
    graph.add_edge("pay", "end")
    return graph.compile(checkpointer=saver)


def two_ask(saver: KeepstateSaver, before: Callable[[str], object] = str) -> Any:
    """Return a graph with two nodes that ask at the same time."""
    graph = StateGraph(State)
    for name in ("a", "b"):
        graph.add_node(name, asks(name, before=before))
        graph.add_edge(START, name)
    graph.add_node("end", lambda state: {"said": ["end"]})
    graph.add_edge(["a", "b"], "end")
    return graph.compile(checkpointer=saver)


def inner_asks(saver: KeepstateSaver) -> Any:
    """Return a graph whose subgraph asks twice."""
    inner = StateGraph(State)
    inner.add_node("ask", asks("inner", 2))
    inner.add_edge(START, "ask")
    return one_asks(saver, inner.compile())


def space_of(ks: Keepstate, thread: str = "t") -> Space:
    """Return the space of a thread."""
    return ks.space(f"thread/{thread}")


async def pending(space: Space) -> list[Approval]:
    """Return the pending approvals of a space, in the order of their questions.

    Nodes of one step run in threads, so any of them may ask first.
    """
    return sorted(await space.approvals.pending(), key=lambda each: str(each.question))


async def answer(space: Space, value: object = True, *, by: str = "ann") -> None:
    """Answer all pending approvals of a space."""
    for asked in await pending(space):
        await space.approvals.answer(asked.id, value, by=by, saw=asked.digest)


async def work(space: Space, graph: Any, **options: Any) -> list[str]:
    """Do what a worker does for all that was answered, and return the outcomes."""
    outcomes: list[str] = []
    while tasks := await space.queue.claim("worker", lease_s=60, count=1, kinds=[KIND]):
        done = await resume(graph, **options)(tasks[0])
        if tasks[0].ended_as is not None:
            outcomes.append(tasks[0].ended_as)
            break
        await tasks[0].complete(done)
        outcomes.append(done["outcome"])
    return outcomes


async def said(graph: Any, thread: str = "t") -> list[str]:
    """Return what the nodes of a thread have said."""
    return list((await graph.aget_state(config(thread))).values["said"])
