"""LangGraph's own checkpoints are brought in whole, and old ones are let go of, from the command line."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from keepstate.adapters.langgraph import official, taking_over
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.errors import InvalidError
from tests.cli.conftest import Keepstate

TURNS = 3


@dataclass
class _Point:
    """Of a class that nobody has allowed."""

    x: int


def graph(saver: Any) -> Any:
    """Returns a graph with a subgraph, which asks its user at the end of each turn."""

    def model(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"re: {state['messages'][-1].content}")]}

    def ask(_state: MessagesState) -> Any:
        interrupt({"right?": True})

    inner = StateGraph(MessagesState)
    inner.add_node("model", model)
    inner.add_edge(START, "model")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_node("ask", ask)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "ask")
    return outer.compile(checkpointer=saver)


def talk(saver: Any, *threads: str) -> None:
    made = graph(saver)
    for thread in threads:
        for turn in range(TURNS):
            config = {"configurable": {"thread_id": thread}, "metadata": {"user": "ann"}}
            made.invoke({"messages": [("user", f"{thread} says {turn}")]}, config)


@pytest.fixture
def old(tmp_path: Path) -> str:
    with SqliteSaver.from_conn_string(f"{tmp_path}/old.db") as saver:
        talk(saver, "alice", "bob")
    return f"sqlite:///{tmp_path}/old.db"


def test_all_that_sqlite_has_is_brought_in_and_compared(keepstate: Keepstate, old: str, url: str) -> None:
    done = keepstate("langgraph", "import", "--from", old, "--json")
    told = done.json()
    with KeepstateSaver(url) as saver:
        state = graph(saver).get_state({"configurable": {"thread_id": "alice"}})

    assert done.code == 0
    assert told["threads"] == 2 and told["different"] == []
    assert told["added"] == told["compared"] == told["checkpoints"] >= 2 * TURNS * 4
    assert [message.content for message in state.values["messages"]][-2:] == [
        "alice says 2",
        "re: alice says 2",
    ]
    assert state.tasks[0].interrupts[0].value == {"right?": True}
    assert state.metadata["user"] == "ann"


def test_all_that_postgresql_has_is_brought_in(keepstate: Keepstate, postgres_url: str) -> None:
    with PostgresSaver.from_conn_string(postgres_url) as saver:
        saver.setup()
        talk(saver, "alice")
    done = keepstate("langgraph", "import", "--from", postgres_url, "--json")

    assert done.code == 0
    assert done.json()["compared"] == done.json()["checkpoints"] >= TURNS * 4


def test_an_import_that_was_killed_goes_on_where_it_stopped(keepstate: Keepstate, old: str, url: str) -> None:
    def killed(_what: str, done: int, _count: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with official.opened(old) as source, KeepstateSaver(url) as saver:
        names = source.named()
        with pytest.raises(KeyboardInterrupt):
            taking_over.take_over(source, saver, names, killed)
        begun = source.read(names[10])
        saver.put(_parent_of(begun), *_as_read(source, names[10]))  # and not its writes
    told = keepstate("langgraph", "import", "--from", old, "--json").json()
    again = keepstate("langgraph", "import", "--from", old).out

    assert (told["present"], told["different"]) == (11, [])
    assert f"0 brought in, {len(names)} there already; {len(names)} compared and the same" in again


def _parent_of(found: Any) -> Any:
    own = {key: value for key, value in found.config["configurable"].items() if key != "checkpoint_id"}
    return found.parent_config or {"configurable": own}


def _as_read(source: official.Official, name: official.Named) -> tuple[Any, Any, Any]:
    found = source.read(name)
    return found.checkpoint, found.metadata, found.checkpoint["channel_versions"]


def test_what_came_out_different_is_told(keepstate: Keepstate, old: str, url: str) -> None:
    with official.opened(old) as source, KeepstateSaver(url) as saver:
        name = next(name for name in source.named() if name.thread == "bob" and not name.namespace)
        checkpoint, metadata, versions = _as_read(source, name)
        other = {**checkpoint, "channel_values": {"messages": ["something else"]}}
        saver.put({"configurable": {"thread_id": "bob"}}, other, metadata, versions)  # type: ignore[arg-type]
    done = keepstate("langgraph", "import", "--from", old, "--thread", "bob")

    assert done.code == 5
    assert f"different  {name} differs in its checkpoint" in done.out
    assert "1 different" in done.out


def test_a_class_that_nobody_allowed_is_named_and_nothing_of_it_made(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/odd.db") as saver:
        saver.setup()
        kind, value = saver.serde.dumps_typed({"v": 4, "id": "1", "channel_values": {"odd": _Point(1)}})
        row = ("odd", "", "1", None, kind, value, b"{}")
        saver.conn.execute("insert into checkpoints values (?, ?, ?, ?, ?, ?, ?)", row)
        saver.conn.commit()
    done = keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/odd.db")

    assert done.code == 2
    assert "checkpoint 1 of thread 'odd' holds a" in done.err and "_Point" in done.err
    assert "--allow" in done.err


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("sqlite:///absent.db", 1, "there is no file"),
        ("mysql://host/db", 2, "is no database of LangGraph's"),
        ("sqlite:///empty.db", 1, "has no checkpoints"),
    ],
)
def test_a_source_that_is_none_is_refused(
    keepstate: Keepstate, tmp_path: Path, source: str, code: int, words: str
) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    done = keepstate("langgraph", "import", "--from", source)

    assert done.code == code
    assert words in done.err


def test_reading_writes_nothing_to_the_source(keepstate: Keepstate, old: str, tmp_path: Path) -> None:
    before = (tmp_path / "old.db").read_bytes()
    keepstate("langgraph", "import", "--from", old)

    assert (tmp_path / "old.db").read_bytes() == before
    with official.opened(old) as source, pytest.raises(sqlite3.OperationalError, match="readonly"):
        source._connection.execute("delete from checkpoints")


def test_pruning_says_before_what_it_does_then(keepstate: Keepstate, url: str) -> None:
    with KeepstateSaver(url) as saver:
        talk(saver, "alice", "bob")
    planned = keepstate("langgraph", "prune", "alice", "--keep-last", "2", "--dry-run", "--json").json()
    done = keepstate("langgraph", "prune", "alice", "--keep-last", "2", "--json").json()
    rest = keepstate("langgraph", "prune", "--every", "--keep-last", "2").out
    with KeepstateSaver(url) as saver:
        left = [one.metadata["step"] for one in saver.list({"configurable": {"thread_id": "alice"}})]
        state = graph(saver).get_state({"configurable": {"thread_id": "alice"}})

    assert planned["threads"] == done["threads"] and done["checkpoints"] > 0
    assert (planned["dry_run"], done["dry_run"]) == (True, False)
    assert "alice" not in rest and "of 1 thread let go of" in rest
    assert len(left) == 4
    assert len(state.values["messages"]) == 2 * TURNS


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("alice",), 2),
        (("--keep-last", "1"), 2),
        (("alice", "--every", "--keep-last", "1"), 2),
        (("nobody", "--keep-last", "1"), 1),
        (("alice", "--older-than", "soon"), 2),
    ],
)
def test_pruning_that_says_not_what_is_refused(
    keepstate: Keepstate, url: str, words: tuple[str, ...], code: int
) -> None:
    with KeepstateSaver(url) as saver:
        talk(saver, "alice")

    assert keepstate("langgraph", "prune", *words).code == code


def test_checkpoints_of_a_moment_and_older_are_let_go_of(keepstate: Keepstate, url: str) -> None:
    with KeepstateSaver(url) as saver:
        talk(saver, "alice")

    assert "0 checkpoints" in keepstate("langgraph", "prune", "--every", "--older-than", "1h").out
    with pytest.raises(InvalidError), KeepstateSaver(url) as saver:
        saver.prune("alice", keep_last=1)
