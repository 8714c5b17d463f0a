"""A graph with a subgraph, a delta channel and a question to its user, for tests of what savers store."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

TURNS = 3


def _extend(before: list[str], writes: list[list[str]]) -> list[str]:
    return [*before, *(one for write in writes for one in write)]


class ConversationStore(MessagesState):
    """Messages, who is asked, and a log of which a checkpoint holds only what was added."""

    log: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=3)]
    user: set[str]


def graph(saver: Any) -> Any:
    """Return a graph with a subgraph, which asks its user at the end of each turn."""

    def model(state: ConversationStore) -> Any:
        return {"messages": [AIMessage(f"re: {state['messages'][-1].content}")], "user": {"ann"}}

    def ask(_state: ConversationStore) -> Any:
        return {"log": [str(interrupt({"right?": True}))]}

    inner = StateGraph(ConversationStore)
    inner.add_node("model", model)
    inner.add_edge(START, "model")
    outer = StateGraph(ConversationStore)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_node("ask", ask)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "ask")
    return outer.compile(checkpointer=saver)


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}, "metadata": {"user": "ann"}}


def turns(thread: str) -> list[Any]:
    """Return what is said in a thread: each second question is answered, the last is open."""
    said: list[Any] = []
    for turn in range(TURNS):
        said.append({"messages": [("user", f"{thread} says {turn}")], "log": [f"turn {turn}"]})
        said += [Command(resume=f"yes {turn}")] if turn % 2 else []
    return said


def talk(saver: Any, *threads: str) -> None:
    made = graph(saver)
    for thread in threads:
        for said in turns(thread):
            made.invoke(said, config(thread))


async def atalk(saver: Any, *threads: str) -> None:
    made = graph(saver)
    for thread in threads:
        for said in turns(thread):
            await made.ainvoke(said, config(thread))
