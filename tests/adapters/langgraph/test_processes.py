"""Several processes that keep their graphs' state in one SQLite file, or on one server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepstate.adapters.langgraph import KeepstateSaver
from tests.adapters.langgraph.saving import config, values

ROOT = Path(__file__).parents[3]
TURNS = 8

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
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, name, str(TURNS)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        for name in ("a", "b")
    ]

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
