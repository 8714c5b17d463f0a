"""Several processes that keep their graphs' state in one SQLite file, or on one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstate.adapters.langgraph import KeepstateSaver, KeepstateStore
from tests.adapters.langgraph.saving import config, values
from tests.processes import Program

ROOT = Path(__file__).parents[3]
TURNS = 8
MODULES = ["keepstate.adapters.langgraph", "langgraph.graph"]

WORKER = """
import sys
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from keepstate.adapters.langgraph import KeepstateSaver

url, name, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
with KeepstateSaver(url, author=name) as saver:
    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [AIMessage(f"{name}: {len(state['messages'])}")]})
    graph.add_edge(START, "say")
    app = graph.compile(checkpointer=saver)
    for turn in range(turns):
        for thread in (name, "shared"):
            config = {"configurable": {"thread_id": thread}}
            app.invoke({"messages": [HumanMessage(f"{name} {turn}")]}, config)
"""


@pytest.mark.slow
def test_processes_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    workers = [Program("-c", WORKER, url, name, TURNS, modules=MODULES) for name in ("a", "b")]

    ended = [worker.wait(100) for worker in workers]

    assert ended == [0, 0]
    with KeepstateSaver(url) as saver:
        for name in ("a", "b"):
            assert len(values(saver, config(name))["messages"]) == 2 * TURNS
        written = {
            message.content
            for found in saver.list(config("shared"))
            for message in found.checkpoint["channel_values"].get("messages", [])
        }
        assert {f"{name} {turn}" for name in ("a", "b") for turn in range(TURNS)} <= written


PUTTER = """
import sys
from keepstate.adapters.langgraph import KeepstateStore

def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]

url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with KeepstateStore(url, index={"dims": 2, "embed": embed, "fields": ["text"]}) as store:
    for number in range(count):
        store.put(("of", name), str(number), {"text": name * number, "n": number}, ttl=60)
        store.put(("all",), str(number), {"by": name, "n": number})
        store.delete(("of", name), str(number - 3))
        store.search((), filter={"n": {"$gte": number}}, query="text", limit=3)
"""


@pytest.mark.slow
def test_processes_share_the_items_of_a_store(shared_url: str) -> None:
    workers = [Program("-c", PUTTER, shared_url, name, 20, modules=MODULES) for name in ("a", "b")]

    ended = [worker.wait(100) for worker in workers]

    assert ended == [0, 0]
    with KeepstateStore(shared_url) as store:
        found = store.search((), limit=100)
        assert {item.key for item in found if item.namespace == ("all",)} == {str(n) for n in range(20)}
        for name in ("a", "b"):
            own = [item for item in found if item.namespace == ("of", name)]
            assert [item.value["n"] for item in own] == [19, 18, 17]
        assert {item.value["n"] for item in found if item.value.get("by")} == set(range(20))
        assert store.list_namespaces() == [("all",), ("of", "a"), ("of", "b")]
