"""LangGraph's development server with our saver, as the page says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

import keepstate.sync
from tests.adapters.langgraph.sdists import installed

PACKAGES = (
    "langgraph-cli", "langgraph-api", "langgraph-runtime-inmem", "blockbuster", "cloudpickle", "croniter",
    "forbiddenfruit", "grpcio", "grpcio-health-checking", "grpcio-tools", "httptools", "jsonschema-rs",
    "opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-common",
    "opentelemetry-exporter-prometheus", "opentelemetry-proto", "opentelemetry-sdk",
    "opentelemetry-semantic-conventions", "prometheus-client", "protobuf", "python-dateutil", "structlog",
    "uvloop", "watchfiles",
)  # fmt: skip
"""What the server needs besides what is installed."""
AGENT = """
from langgraph.graph import START, MessagesState, StateGraph
builder = StateGraph(MessagesState)
builder.add_node("answer", lambda state: {"messages": [("ai", f"{len(state['messages'])} messages")]})
builder.add_edge(START, "answer")
graph = builder.compile()
"""
CHECKPOINTER = """
from keepstate.adapters.langgraph import KeepstateSaver
def create():
    return KeepstateSaver.from_conn_string("sqlite:///agents.db")
"""
CONFIG = {
    "dependencies": ["."],
    "graphs": {"agent": "./agent.py:graph"},
    "checkpointer": {"path": "./checkpointer.py:create"},
}
SOURCE = Path(__file__).parents[3] / "src"


@pytest.mark.theirs
@pytest.mark.timeout(400)
def test_the_development_server_keeps_its_threads_in_our_saver(tmp_path: Path) -> None:
    packages = installed(tmp_path / "packages", *PACKAGES)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "checkpointer.py").write_text(CHECKPOINTER)
    (tmp_path / "langgraph.json").write_text(json.dumps(CONFIG))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
    paths = os.pathsep.join(map(str, (packages, SOURCE)))
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as server,
    ):
        try:
            _wait_for(url, server, tmp_path / "log")
            thread = _call(f"{url}/threads", {})["thread_id"]
            said = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hi"}]}}
            answers = [_call(f"{url}/threads/{thread}/runs/wait", said)["messages"][-1] for _ in range(2)]
            copied = _call(f"{url}/threads/{thread}/copy", {})["thread_id"]
        finally:
            server.terminate()

    assert [answer["content"] for answer in answers] == ["1 messages", "3 messages"]
    assert "Using custom checkpointer: KeepstateSaver" in (tmp_path / "log").read_text()
    assert "missing" not in (tmp_path / "log").read_text()
    with keepstate.sync.open(f"sqlite:///{tmp_path}/agents.db") as ks:
        assert sorted(ks.spaces()) == sorted((f"thread/{thread}", f"thread/{copied}"))
        assert ks.space(f"thread/{thread}").history.stats().commits == 6


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < until_s:
        try:
            _call(f"{url}/ok")
            return
        except (URLError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-4_000:])


def _call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"})
    with urlopen(request, timeout=60) as response:
        return json.load(response)
