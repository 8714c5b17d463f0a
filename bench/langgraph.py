"""LangGraph's checkpoints by keepstate and by LangGraph's own savers, turn by turn beside one another.

One thread grows to 1,000 turns of 500 bytes: by one `put` a turn, and through a graph on `MessagesState`.
SQLite has its setting `normal` on both sides, so that work is measured, and no disk. Files are weighed when
they are closed.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from keepstate_testing.servers import Postgres

from bench import others
from bench.harness import Pace, Table, apart
from bench.plot import plotted
from bench.savers import (
    MEMORY,
    OURS,
    POSTGRES,
    SQLITE,
    TEXT_BYTES,
    Conversation,
    file_bytes,
    opened,
    opened_async,
    texts,
)

TURNS = 1_000
ROW, ROWS = 10, 10
"""Puts in a row, and of how many rows at the end the times are told."""
CONVERSATIONS = 64
STORE = "LangGraph"
PLOT = Path(__file__).parents[1] / "docs" / "tutorial" / "langgraph.svg"

Points = dict[str, list[tuple[int, int]]]
"""Bytes by turn, of each saver."""


def langgraph(table: Table) -> None:
    """Add rows of bytes and times, and draws bytes by turn."""
    if "LangGraph's savers" in others.missing():
        table.show(f"LangGraph's own savers are not installed, and nothing is measured: {others.INSTALL}")
        return
    turns = table.scaled(TURNS, least=50)
    with TemporaryDirectory() as folder, apart(Postgres(durable=True)) as server:
        places = {OURS: f"{folder}/ours", SQLITE: f"{folder}/theirs", MEMORY: "", POSTGRES: server.url}
        for name in (OURS, SQLITE):
            Path(places[name]).mkdir()
        points = _direct(table, places, turns)
        _through_a_graph(table, folder, turns)
        asyncio.run(_many(table, folder, server.url, table.scaled(20, least=2)))
    if not table.is_quick:
        PLOT.write_text(plotted(points, turns, turns * TEXT_BYTES))


# ---- one conversation


def _direct(table: Table, places: dict[str, str], turns: int) -> Points:
    points, talks = _grown(table, places, turns)
    weighed = {name: file_bytes(places[name]) for name in (OURS, SQLITE)}
    table.weigh(f"{STORE}: {turns:,} turns, kB", 7_000, weighed[OURS], weighed[SQLITE])
    with ExitStack() as stack:
        savers = {name: stack.enter_context(opened(name, places[name])) for name in (OURS, SQLITE, POSTGRES)}
        savers[MEMORY] = talks[MEMORY].saver
        newest = talks[OURS].newest

        def latest(saver: Any) -> None:
            assert saver.get_tuple(newest) is not None

        def listed(saver: Any) -> None:
            assert len(list(saver.list(newest, limit=10))) == 10

        table.add(f"{STORE}: get_tuple of the latest", 1.0, _calls(table, "get_tuple", savers, latest, 3, 12))
        table.add_at_least(f"{STORE}: list(limit=10)", 3.0, _calls(table, "list", savers, listed, 3, 8))
        deleted = _calls(table, "delete_thread", savers, lambda saver: saver.delete_thread("conversation"), 1)
        table.add_at_least(f"{STORE}: delete_thread", 10.0, deleted)
    return points


def _grown(table: Table, places: dict[str, str], turns: int) -> tuple[Points, dict[str, Conversation]]:
    """Let a conversation grow with each saver, a few turns of it in a row; returns its bytes by turn.

    What a graph puts it has just looked through, so that the processor's caches hold the messages; turn by
    turn the savers would push each other's out. A row's time counts whole: now and then a put also moves
    SQLite's log into the file, and the more a saver writes, the more often.
    """
    points: Points = {OURS: [], SQLITE: []}
    steps = [max(1, turns * part // 10) for part in range(1, 11)]
    talks: dict[str, Conversation] = {}
    rows: dict[str, list[float]] = {name: [] for name in places}
    given = texts(turns)
    done = 0
    for upto in steps:
        with ExitStack() as stack:
            for name, place in places.items():
                if name == MEMORY and name in talks:
                    continue
                saver = stack.enter_context(opened(name, place))
                talks.setdefault(name, Conversation(saver)).moved(saver)
            while some := [*islice(given, min(ROW, upto - done))]:
                done += len(some)
                for name, talk in talks.items():
                    rows[name].append(sum([talk.put(text) for text in some]) / len(some))
        for name in points:
            points[name].append((upto, file_bytes(places[name])))
    last = {name: seconds[-ROWS:] for name, seconds in rows.items()}
    table.add_at_least(
        f"{STORE}: put at turn {turns:,}", 8.0, list(zip(last[OURS], last[SQLITE], strict=True))
    )
    for name, seconds in last.items():
        table.time(Pace(STORE, f"put at turn {turns:,}", name, median(seconds) * 1e6, len(seconds) * ROW))
    return points, talks


def _calls(
    table: Table, call: str, savers: dict[str, Any], do: Callable[[Any], None], rounds: int, each: int = 1
) -> Sequence[tuple[float, float]]:
    """Return how long ours and SQLite's took, in turn; tells those of all.

    Each is called some times in a row, so that it is the one that waits while Python looks for garbage among
    what it has made: one call in ten is as slow as three others.
    """
    spent: dict[str, list[float]] = {name: [] for name in savers}
    for _ in range(rounds):
        for name, saver in savers.items():
            gc.collect()
            seconds = _timed(lambda saver=saver: [do(saver) for _ in range(each)])
            spent[name].append(seconds / each)
    for name, seconds in spent.items():
        table.time(Pace(STORE, call, name, median(seconds) * 1e6, rounds))
    return list(zip(spent[OURS], spent[SQLITE], strict=True))


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# ---- a real graph


def _through_a_graph(table: Table, folder: str, turns: int) -> None:
    """Add how much a graph's turns take, each a message of the user and one of the model.

    SqliteSaver goes half the way, after which it has a quarter of what it would have at the end: 335 MB.
    """
    places = {OURS: f"{folder}/graph-ours", SQLITE: f"{folder}/graph-theirs"}
    spent: dict[str, list[float]] = {name: [] for name in places}
    half = turns // 2
    with ExitStack() as stack:
        graphs: dict[str, Any] = {}
        for name, place in places.items():
            Path(place).mkdir()
            graphs[name] = _graph(stack.enter_context(opened(name, place)))
        for number, said in enumerate(texts(turns, TEXT_BYTES // 2, seed=2)):
            for name, graph in graphs.items():
                if number < half or name == OURS:
                    turn = {"messages": [("user", said)]}
                    config = {"configurable": {"thread_id": "conversation"}}
                    spent[name].append(
                        _timed(lambda graph=graph, turn=turn: graph.invoke(turn, config))  # noqa: B023
                    )
    for name, seconds in spent.items():
        few = seconds[half - min(50, half) : half]
        table.time(Pace(STORE, f"invoke at turn {half:,}", name, median(few) * 1e6, len(few)))
    weighed = {name: file_bytes(place) for name, place in places.items()}
    table.weigh(f"{STORE}: {turns:,} turns of a graph, kB", 15_000, weighed[OURS], weighed[SQLITE])


def _graph(saver: Any) -> Any:
    graph = import_module("langgraph.graph")
    answer = import_module("langchain_core.messages").AIMessage

    def model(state: Any) -> Any:
        return {"messages": [answer(state["messages"][-1].content[::-1])]}

    made = graph.StateGraph(graph.MessagesState)
    made.add_node("model", model)
    made.add_edge(graph.START, "model")
    return made.compile(checkpointer=saver)


# ---- many at once


async def _many(table: Table, folder: str, url: str, turns: int) -> None:
    """Tell how long a checkpoint takes while 64 conversations go on at once, by how many there were."""
    said = list(texts(turns, seed=3))

    async def talk(saver: Any, number: int) -> None:
        conversation = Conversation(saver, f"many-{number}")
        for text in said:
            await conversation.aput(text)

    async def all_of(saver: Any) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(talk(saver, number) for number in range(CONVERSATIONS)))
        return (time.perf_counter() - begun) / (CONVERSATIONS * turns)

    where = Path(folder) / "many"
    where.mkdir()
    for store, name, place in (
        ("SQLite", OURS, str(where)),
        ("SQLite", SQLITE, str(where)),
        ("PostgreSQL", OURS, url),
        ("PostgreSQL", POSTGRES, url),
    ):
        async with opened_async(name, place) as saver:
            seconds = await all_of(saver)
        call = f"{CONVERSATIONS} conversations at once, a turn"
        table.time(Pace(f"{STORE} {store}", call, name, seconds * 1e6, CONVERSATIONS * turns))
