"""Threads of LangGraph's own savers, brought over at their first use."""

from __future__ import annotations

import asyncio
import copy
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import keepstate.sync
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.adapters.langgraph.migration import SPACE
from keepstate.adapters.langgraph.records import space_of
from keepstate.errors import InvalidError
from tests.processes import Program


@dataclass
class Plan:
    steps: list[str]


class State(TypedDict, total=False):
    said: Annotated[list[str], lambda old, new: old + new]
    plan: Plan
    paid: bool


def graph_on(saver: Any, *, asks: bool = False) -> Any:
    def work(state: State) -> State:
        return {"said": [f"{len(state['said'])} said"], "plan": Plan(list(state["said"]))}

    def pay(state: State) -> State:
        return {"paid": interrupt("pay?")}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    if asks:
        builder.add_node("pay", pay)
        builder.add_edge("work", "pay")
    return builder.compile(checkpointer=saver)


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def facts(graph: Any, thread: str) -> list[Any]:
    """Return all that a graph tells of the checkpoints of a thread."""
    return [
        (
            one.values,
            one.next,
            one.metadata,
            one.created_at,
            one.config["configurable"],
            (one.parent_config or {}).get("configurable"),
            [(task.id, task.name, task.error, task.interrupts, task.result) for task in one.tasks],
        )
        for one in graph.get_state_history(on(thread))
    ]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a database of LangGraph's saver with two threads, one of which waits for an answer."""
    place = tmp_path / "old.db"
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(Plan.__module__, "Plan")])
    with sqlite3.connect(place, check_same_thread=False) as connection:
        saver = SqliteSaver(connection, serde=serde)
        for n in range(3):
            graph_on(saver).invoke({"said": [f"hello {n}"]}, on("ann"))
        graph_on(saver, asks=True).invoke({"said": ["hello"]}, on("bob/1"))
    connection.close()
    return place


@pytest.fixture
def told(old: Path) -> Iterator[Any]:
    """Yield what the old saver tells of the first thread, and a new saver in its place."""
    with sqlite3.connect(old, check_same_thread=False) as connection:
        serde = JsonPlusSerializer(allowed_msgpack_modules=[(Plan.__module__, "Plan")])
        yield facts(graph_on(SqliteSaver(connection, serde=serde)), "ann")
    connection.close()


def new_saver(store: Any, old: Path, **options: Any) -> KeepstateSaver:
    return KeepstateSaver(store, migrate_from=f"sqlite:///{old}", **{"allow": [Plan], **options})


def test_a_thread_is_brought_over_at_its_first_use_with_all_that_it_has(old: Path, told: list[Any]) -> None:
    before = old.read_bytes()
    with keepstate.sync.open("memory://") as ks:
        saver = new_saver(ks, old)
        graph = graph_on(saver)

        assert facts(graph, "ann") == told
        assert list(saver.threads()) == ["ann"]
        made = [commit.created_at for commit in ks.space("thread/ann").history.log()]
        stated = [datetime.fromisoformat(one[3]) for one in told]
        assert all(
            abs(ours - theirs) < timedelta(milliseconds=1) for ours, theirs in zip(made, stated, strict=True)
        )
        graph.invoke({"said": ["and on"]}, on("ann"))
        assert len(graph.get_state(on("ann")).values["said"]) == 8
        assert facts(graph, "ann")[3:] == told
        assert graph.get_state(on("nobody")).values == {}
        assert ks.space(SPACE).documents.get("thread/ann")["checkpoints"] == len(told)

        again = graph_on(new_saver(ks, old))  # a process that does not know it yet
        assert len(again.get_state(on("ann")).values["said"]) == 8
        assert ks.space("thread/ann").history.stats().commits == len(told) + 3
    assert old.read_bytes() == before


def test_an_interrupted_thread_is_resumed_after_it(old: Path) -> None:
    with keepstate.sync.open("memory://") as ks:
        graph = graph_on(new_saver(ks, old, approvals=True), asks=True)
        assert graph.get_state(on("bob/1")).next == ("pay",)
        assert ks.space(space_of("bob/1")).approvals.pending() == []  # whoever resumes it answers
        done = graph.invoke(Command(resume=True), on("bob/1"))

        assert done["paid"] is True
        assert done["said"] == ["hello", "1 said"]


def test_processes_that_use_a_thread_at_once_bring_it_over_once(
    old: Path, told: list[Any], tmp_path: Path
) -> None:
    url, found = f"sqlite:///{tmp_path}/new.db?durability=normal", list[Any]()

    def use() -> None:
        with new_saver(url, old) as saver:
            found.append(facts(graph_on(saver), "ann"))

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()

    assert found == [told] * 4
    with keepstate.sync.open(url) as ks:
        assert ks.space("thread/ann").history.stats().commits == len(told)


def test_a_deleted_thread_does_not_come_back(old: Path) -> None:
    with keepstate.sync.open("memory://") as ks:
        for saver in (new_saver(ks, old), new_saver(ks, old)):
            saver.delete_thread("ann")  # the first has never used it
            assert saver.get_tuple(on("ann")) is None
        saver.copy_thread("bob/1", "carl")
        saver.delete_thread("bob/1")
        assert new_saver(ks, old).get_tuple(on("bob/1")) is None
        assert saver.get_tuple(on("carl")) is not None


def test_a_thread_that_cannot_be_read_stays_where_it_was(old: Path, told: list[Any]) -> None:
    with keepstate.sync.open("memory://") as ks:
        saver = new_saver(ks, old, allow=[])
        for _ in range(2):
            with pytest.raises(InvalidError, match=r"thread 'ann' cannot be brought over.*Plan"):
                saver.get_tuple(on("ann"))
            with pytest.raises(InvalidError, match="cannot be brought over"):
                list(saver.list(on("ann")))
        assert facts(graph_on(new_saver(ks, old)), "ann") == told


class Unstorable(InMemorySaver):
    """A saver whose newest checkpoint has a value that no other process could read."""

    def list(self, *args: Any, **options: Any) -> Iterator[Any]:
        found = copy.deepcopy([*super().list(*args, **options)])
        found[0].checkpoint["channel_values"]["plan"] = iter(())
        return iter(found)


@pytest.mark.filterwarnings("ignore::keepstate.adapters.langgraph.classes.NotAllowedWarning")
def test_a_migration_that_failed_midway_is_completed_by_the_next_use() -> None:
    source = Unstorable()
    graph_on(source).invoke({"said": ["a"]}, on("ann"))
    with keepstate.sync.open("memory://") as ks:
        saver = KeepstateSaver(ks, migrate_from=source, allow=[Plan])
        with pytest.raises(InvalidError, match="'ann' cannot be brought over"):
            saver.get_tuple(on("ann"))
        assert ks.space("thread/ann").history.stats().commits == 2

        source.__class__ = InMemorySaver  # type: ignore[assignment]
        assert facts(graph_on(saver), "ann") == facts(graph_on(source), "ann")


async def test_asynchronous_savers_and_stores(tmp_path: Path, any_url: str) -> None:
    async with AsyncSqliteSaver.from_conn_string(f"{tmp_path}/old.db") as source:
        source.serde = JsonPlusSerializer(allowed_msgpack_modules=[(Plan.__module__, "Plan")])
        await graph_on(source).ainvoke({"said": ["a"]}, on("ann"))
        async with KeepstateSaver(any_url, migrate_from=source, allow=[Plan]) as saver:
            states = await asyncio.gather(*(graph_on(saver).aget_state(on("ann")) for _ in range(3)))
            assert [state.values["said"] for state in states] == [["a", "1 said"]] * 3
            [*_] = [one async for one in saver.alist(on("ann"))]
            await saver.aprune(["ann"])
            await saver.adelete_thread("ann")
            assert await saver.aget_tuple(on("ann")) is None


MODULES = [
    "keepstate.adapters.langgraph",
    "langgraph.checkpoint.postgres.aio",
    "langgraph.checkpoint.sqlite.aio",
]
BRING = """
import sys
from keepstate.adapters.langgraph import KeepstateSaver
from tests.adapters.langgraph.test_migration import Plan, facts, graph_on

with KeepstateSaver(sys.argv[1], migrate_from=sys.argv[2], allow=[Plan]) as saver:
    sys.exit(len(facts(graph_on(saver), "ann")) != int(sys.argv[3]))
"""


@pytest.mark.timeout(300)
async def test_threads_of_postgres_savers_come_over_whole_and_once(postgres_url: str, tmp_path: Path) -> None:
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(Plan.__module__, "Plan")])
    async with AsyncPostgresSaver.from_conn_string(postgres_url, serde=serde) as theirs:
        await theirs.setup()
        for n in range(2):
            await graph_on(theirs).ainvoke({"said": [f"hello {n}"]}, on("ann"))
        with PostgresSaver.from_conn_string(postgres_url) as blocking:
            blocking.serde = serde
            told = await asyncio.to_thread(facts, graph_on(blocking), "ann")

            for source in (theirs, blocking, postgres_url):
                async with KeepstateSaver("memory://", migrate_from=source, allow=[Plan]) as saver:
                    await saver.aget_tuple(on("ann"))
                    assert facts(graph_on(saver), "ann") == told

    url = f"sqlite:///{tmp_path}/new.db"
    users = [Program("-c", BRING, url, postgres_url, len(told), modules=MODULES) for _ in "ab"]
    assert [user.wait(200) for user in users] == [0, 0]
    with keepstate.sync.open(url) as ks:
        assert ks.space("thread/ann").history.stats().commits == len(told)
        assert facts(graph_on(KeepstateSaver(ks, allow=[Plan])), "ann") == told


@pytest.mark.parametrize("source", ["old.db", "redis://localhost", 7])
def test_a_source_that_is_none_is_rejected(source: Any) -> None:
    with pytest.raises(InvalidError, match="migrate_from"):
        KeepstateSaver("memory://", migrate_from=source)
