"""LangGraph's own checkpoints are brought in whole, whatever saver of its has stored them."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import ormsgpack
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from keepstate.adapters.langgraph import official
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.errors import InvalidError
from tests.adapters.langgraph.saving import checkpoint, put
from tests.cli.conftest import Keepstate
from tests.cli.talking import TURNS, atalk, config, graph, talk

ROOT = Path(__file__).parents[2]


@dataclass
class _Point:
    """Of a class that nobody has allowed."""

    x: int


WITH = Callable[[str], None]


def sqlite(path: str) -> None:
    with SqliteSaver.from_conn_string(path) as saver:
        talk(saver, "alice", "bob")


def sqlite_aio(path: str) -> None:
    async def fill() -> None:
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await atalk(saver, "alice", "bob")

    asyncio.run(fill())


def postgres(url: str) -> None:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        talk(saver, "alice", "bob")


def postgres_aio(url: str) -> None:
    async def fill() -> None:
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            await atalk(saver, "alice", "bob")

    asyncio.run(fill())


@pytest.fixture
def old(tmp_path: Path) -> str:
    sqlite(f"{tmp_path}/old.db")
    return f"sqlite:///{tmp_path}/old.db"


@pytest.mark.parametrize("fill", [sqlite, sqlite_aio, postgres, postgres_aio])
def test_what_a_saver_has_stored_is_brought_in_and_every_state_of_a_graph_is_the_same(
    keepstate: Keepstate, url: str, tmp_path: Path, request: pytest.FixtureRequest, fill: WITH
) -> None:
    is_file = fill in (sqlite, sqlite_aio)
    place: str = f"{tmp_path}/old.db" if is_file else request.getfixturevalue("postgres_url")
    fill(place)
    done = keepstate("langgraph", "import", "--from", f"sqlite:///{place}" if is_file else place, "--json")
    told = done.json()
    opening: Any = (SqliteSaver if is_file else PostgresSaver).from_conn_string(place)
    with opening as theirs, KeepstateSaver(url) as ours:
        states = {
            thread: [[*graph(saver).get_state_history(config(thread))] for saver in (theirs, ours)]
            for thread in ("alice", "bob")
        }
        latest = [graph(saver).get_state(config("bob"), subgraphs=True) for saver in (theirs, ours)]
        inner = {one.config["configurable"]["checkpoint_ns"] for one in ours.list(config("bob"))}
        answered = [graph(saver).invoke(Command(resume="yes"), config("alice")) for saver in (theirs, ours)]

    assert done.code == 0, done.err
    assert (told["threads"], told["different"], told["unread"]) == (2, [], [])
    assert told["added"] == told["compared"] == told["checkpoints"] >= 2 * TURNS * 4
    assert all(before == after != [] for before, after in states.values())
    assert latest[0] == latest[1]
    assert latest[1].tasks[0].interrupts[0].value == {"right?": True}
    assert latest[1].metadata["user"] == "ann" and latest[1].values["user"] == {"ann"}
    assert inner == {"", "inner"}
    assert answered[0] == answered[1]
    assert answered[1]["log"][-1] == "yes"


def test_a_thread_goes_on_after_it_was_brought_in_and_stays_as_it_is_when_it_is_brought_in_again(
    keepstate: Keepstate, old: str, url: str
) -> None:
    keepstate("langgraph", "import", "--from", old)
    with KeepstateSaver(url) as saver:
        made = graph(saver).invoke({"messages": [("user", "one more")]}, config("alice"))
    again = keepstate("langgraph", "import", "--from", old, "--json").json()
    with KeepstateSaver(url) as saver:
        state = graph(saver).get_state(config("alice"))

    assert (again["added"], again["different"]) == (0, [])
    assert state.values["messages"] == made["messages"]


def test_a_question_that_was_answered_after_it_was_brought_in_is_not_told_as_different(
    keepstate: Keepstate, old: str, url: str
) -> None:
    keepstate("langgraph", "import", "--from", old)
    with KeepstateSaver(url) as saver:
        graph(saver).invoke(Command(resume="yes"), config("alice"))
    again = keepstate("langgraph", "import", "--from", old, "--json")

    assert (again.code, again.json()["added"], again.json()["different"]) == (0, 0, [])


def test_checkpoints_are_as_old_as_they_were(keepstate: Keepstate, tmp_path: Path, url: str) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/aged.db") as saver:
        at = config("old")
        for step, ts in enumerate(("2020-01-01T00:00:00+00:00", "2021-01-01T00:00:00", "soon")):
            made: Any = {**checkpoint(step, n=step), "ts": ts}
            at = saver.put({"configurable": {"checkpoint_ns": "", **at["configurable"]}}, made, {}, {})
    keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/aged.db")
    log = keepstate("log", "thread/old", "--json").lines()
    pruned = keepstate("langgraph", "prune", "old", "--older-than", "520w", "--dry-run", "--json").json()
    both = keepstate("langgraph", "prune", "old", "--older-than", "52w", "--dry-run", "--json").json()

    assert [commit["created_at"][:10] for commit in log][1:] == ["2021-01-01", "2020-01-01"]
    assert log[0]["created_at"] > "2026"
    assert (pruned["checkpoints"], both["checkpoints"]) == (0, 2)


KILLED = """
import os, signal, sys
from keepstate.adapters.langgraph import importer, official

def tell(what, done, count):
    if done == 10:
        os.kill(os.getpid(), signal.SIGKILL)

with official.opened(sys.argv[1]) as source, importer.ImportingSaver(sys.argv[2]) as saver:
    importer.import_all(source, saver, source.named(), tell)
"""


def test_an_import_that_was_killed_goes_on_where_it_stopped(keepstate: Keepstate, old: str, url: str) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, old, url],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"},
        check=False,
    )
    with official.opened(old) as source, KeepstateSaver(url) as saver:
        names = source.named()
        begun = source.read(names[10])
        saver.put(_parent_of(begun), *_as_read(source, names[10]))  # and not its writes
    told = keepstate("langgraph", "import", "--from", old, "--json").json()
    again = keepstate("langgraph", "import", "--from", old).out

    assert killed.returncode == -signal.SIGKILL
    assert (told["present"], told["different"]) == (11, [])
    assert f"0 imported into {url}, {len(names)} already there; {len(names)} compared and equal" in again


def _parent_of(found: Any) -> Any:
    own = {key: value for key, value in found.config["configurable"].items() if key != "checkpoint_id"}
    return found.parent_config or {"configurable": own}


def _as_read(source: official.Official, name: official.CheckpointName) -> tuple[Any, Any, Any]:
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


def test_a_thread_that_cannot_be_read_ends_before_that_and_the_others_are_brought_in(
    keepstate: Keepstate, old: str, url: str, tmp_path: Path
) -> None:
    with official.opened(old) as source:
        first, *_, last = [name for name in source.named() if name.thread == "alice" and not name.namespace]
        of_bob = sum(name.thread == "bob" for name in source.named())
    with sqlite3.connect(tmp_path / "old.db") as connection:
        set_kind = "update checkpoints set type = ? where thread_id = 'alice' and checkpoint_id = ?"
        connection.execute(set_kind, ("pickle", last.id))
    connection.close()
    done = keepstate("langgraph", "import", "--from", old)
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute(set_kind, ("msgpack", last.id))
    connection.close()
    again = keepstate("langgraph", "import", "--from", old, "--json")
    with KeepstateSaver(url) as saver:
        found = [saver.get_tuple(name.config) for name in (first, last)]

    assert done.code == 1
    assert f"left out  {last} cannot be read: " in done.out.replace("\n", " ")
    assert "1 thread incomplete" in done.out
    assert (again.code, again.json()["unread"], again.json()["different"]) == (0, [], [])
    assert again.json()["present"] > of_bob
    assert None not in found


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

    assert done.code == 1
    assert "checkpoint 1 of thread 'odd' holds a" in done.out and "_Point" in done.out
    assert f"--allow {_Point.__module__}:_Point" in done.out


def _stores(path: str, thread: str, encoded: bytes) -> None:
    """Put bytes of somebody else's making into a database."""
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        given = ormsgpack.packb({"v": 4, "id": "1", "channel_values": {"x": 0}})
        row = (thread, "", "1", None, "msgpack", given.replace(b"\xa1x\x00", b"\xa1x" + encoded), b"{}")
        saver.conn.execute("insert into checkpoints values (?, ?, ?, ?, ?, ?, ?)", row)
        saver.conn.commit()


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (0, ("os", "mkdir", "harm")),
        (1, ("os", "mkdir", ["harm"])),
        (2, ("os", "mkdir", {"path": "harm"})),
        (3, ("pathlib", "Path", "harm", "mkdir")),
        (0, ("subprocess", "Popen", ["mkdir", "harm"])),
        (0, ("shutil; mkdir harm #", "x", "harm")),
    ],
)
@pytest.mark.parametrize("allow", [(), ("os:mkdir",), ("subprocess:Popen",), ("posix:mkdir",)])
def test_a_function_that_stored_bytes_name_is_never_called_nor_advised(
    keepstate: Keepstate,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: int,
    named: tuple[Any, ...],
    allow: tuple[str, ...],
) -> None:
    encoded = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(named)))
    _stores(f"{tmp_path}/evil.db", "evil", encoded)
    options = [word for one in allow for word in ("--allow", one)]
    done = keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/evil.db", *options)

    assert not (tmp_path / "harm").exists()
    assert done.code == (2 if allow else 1)
    assert "--allow" not in done.out + done.err
    assert "is allowed, but" in done.err if allow else "find out what wrote it" in done.out
    assert not caplog.records


@dataclass
class _Sulky:
    """Cannot be looked at once it sulks."""

    x: int

    def __getattribute__(self, name: str) -> Any:
        if SULKING and name in ("x", "__dict__"):
            raise ValueError("leave me alone")
        return super().__getattribute__(name)


SULKING: list[bool] = []


def test_a_thread_that_cannot_be_stored_ends_before_that_and_the_others_are_brought_in(
    keepstate: Keepstate, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ""
    with SqliteSaver.from_conn_string(f"{tmp_path}/odd.db") as saver:
        for thread in ("a", "odd", "written", "z"):
            at = put(saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, 0, n=1)
            if thread == "written":
                saver.put_writes(at, [("x", _Sulky(1))], "task")
            elif thread == "odd":
                bad = str(put(saver, at, 1, n=_Sulky(1)).get("configurable", {})["checkpoint_id"])
    monkeypatch.setattr(f"{__name__}.SULKING", [True])
    allow = f"{_Sulky.__module__}:_Sulky"
    done = keepstate(
        "langgraph", "import", "--from", f"sqlite:///{tmp_path}/odd.db", "--allow", allow, "--json"
    )
    told = done.json()
    with KeepstateSaver(url) as ours:
        brought = sorted(ours.threads())

    assert done.code == 1
    assert (told["added"], told["compared"], told["different"]) == (3, 3, [])
    assert f"checkpoint {bad} of thread 'odd'" in told["unread"][0]
    assert "of thread 'written'" in told["unread"][1]
    assert "leave me alone" in told["unread"][0]
    assert brought == ["a", "odd", "z"]


def test_of_two_that_are_read_at_once_only_the_one_with_the_class_is_refused(
    old: str, tmp_path: Path
) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/odd.db") as saver:
        at: Any = {"configurable": {"thread_id": "odd", "checkpoint_ns": ""}}
        saver.put(at, {**checkpoint(0, odd=_Point(1)), "id": "1"}, {}, {})
    with official.opened(f"sqlite:///{tmp_path}/odd.db") as odd, official.opened(old) as source:
        with pytest.raises(InvalidError, match="_Point"):
            odd.read(official.CheckpointName("odd", "", "1"))

        assert [source.read(name).checkpoint["id"] for name in source.named()[:3]]


def test_what_has_no_plain_answer_to_whether_it_is_equal_is_compared_too(
    keepstate: Keepstate, tmp_path: Path, url: str
) -> None:
    arrays = [numpy.array([1.0, 2.0]), numpy.array([1.0, 3.0])]
    told = [ToolMessage("seen", tool_call_id="c", artifact=array) for array in arrays]
    with SqliteSaver.from_conn_string(f"{tmp_path}/odd.db") as saver:
        put(saver, {"configurable": {"thread_id": "odd", "checkpoint_ns": ""}}, 0, b=arrays[0], a=told[:1])
    done = keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/odd.db", "--json").json()
    with official.opened(f"sqlite:///{tmp_path}/odd.db") as source:
        (name,) = source.named()
        checkpoint, metadata, versions = _as_read(source, name)
    other = {**checkpoint, "channel_values": {"a": told[1:], "b": arrays[0]}}
    with KeepstateSaver(url) as saver:
        saver.delete_thread("odd")
        saver.put({"configurable": {"thread_id": "odd"}}, other, metadata, versions)  # type: ignore[arg-type]
    again = keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/odd.db", "--json").json()

    assert (done["added"], done["compared"], done["different"], done["unread"]) == (1, 1, [], [])
    assert again["different"] == [f"{name} differs in its checkpoint"]


def test_a_checkpoint_under_the_id_of_another_is_not_brought_in(keepstate: Keepstate, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/odd.db") as saver:
        at: Any = {"configurable": {"thread_id": "odd", "checkpoint_ns": ""}}
        saver.put(at, {**checkpoint(0, n=1), "id": "1"}, {}, {})
        saver.conn.execute("update checkpoints set checkpoint_id = '2'")
        saver.conn.commit()
    done = keepstate("langgraph", "import", "--from", f"sqlite:///{tmp_path}/odd.db", "--json")

    assert done.json()["unread"] == ["checkpoint 2 of thread 'odd' holds another checkpoint, 1"]


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("sqlite:///absent.db", 1, "there is no file"),
        ("mysql://host/db", 2, "is not a database of LangGraph"),
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
    assert "goes on there" not in done.err


def test_a_keepstate_store_is_named_as_what_it_is(keepstate: Keepstate, url: str) -> None:
    with KeepstateSaver(url) as saver:
        put(saver, config("t"), 0, n=1)
    done = keepstate("langgraph", "import", "--from", url, "sqlite:///other.db")

    assert done.code == 1
    assert "is a keepstate store" in done.err and "setup()" not in done.err


@pytest.mark.parametrize("words", [("--thread", "nope"), ("memory://",)])
def test_an_import_that_has_not_begun_goes_on_nowhere(
    keepstate: Keepstate, old: str, words: tuple[str, ...]
) -> None:
    done = keepstate("langgraph", "import", "--from", old, *words)

    assert done.code != 0
    assert "goes on there" not in done.err


def test_an_import_says_which_store_it_was_brought_into(keepstate: Keepstate, old: str, url: str) -> None:
    assert f" imported into {url}, 0 already there" in keepstate("langgraph", "import", "--from", old).out
    assert keepstate("langgraph", "import", "--from", old, "--json").json()["store"] == url


def test_reading_writes_nothing_to_the_source(keepstate: Keepstate, old: str, tmp_path: Path) -> None:
    before = (tmp_path / "old.db").read_bytes()
    keepstate("langgraph", "import", "--from", old)

    assert (tmp_path / "old.db").read_bytes() == before
    with official.opened(old) as source, pytest.raises(sqlite3.OperationalError, match="readonly"):
        source._connection.execute("delete from checkpoints")
