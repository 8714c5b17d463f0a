"""LangGraph's checkpoints by keepstate and by LangGraph's own savers, turn by turn beside one another.

Short threads have 100 turns of 500 bytes. One thread grows past 1,000 by one `put` a turn, and another one
through a graph on `MessagesState`. SQLite has its setting `normal` on both sides, so that work is measured,
and no disk. Files are weighed when they are closed. SqliteSaver checks nothing of what it stores.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

from keepstate_testing.servers import Postgres

from bench import others
from bench.harness import Figure, Pace, Table, apart, timed
from bench.savers import (
    MEMORY,
    OURS,
    POSTGRES,
    SQLITE,
    TEXT_BYTES,
    Conversation,
    Took,
    file_bytes,
    opened,
    opened_async,
    texts,
)

TURNS = 1_000
ROW, ROWS = 10, 10
"""Puts in a row, and of how many rows at the end the times are told."""
CONVERSATIONS = 64
SHORT = {5: 2.5, 20: 1.5, 50: 1.0, 100: 1.0}
"""Turns of a short thread, and how many times longer than SqliteSaver's our put may take there."""
THREADS = 40
"""How many short threads there are."""
LONG = ((300, 1.0, False), (TURNS, 8.0, True))
"""Turns of a long thread, the ratio of the means there, and whether it says how much faster our put is."""
AROUND = 100
"""Turns before and after, whose puts count: SQLite's log is moved into its file once in a hundred of ours."""
STORE = "LangGraph"

Points = dict[str, list[tuple[int, int]]]
"""Bytes by turn, of each saver."""


def langgraph(table: Table) -> None:
    """Add rows of bytes and times."""
    if "LangGraph's savers" in others.missing():
        table.show(f"LangGraph's own savers are not installed, and nothing is measured: {others.INSTALL}")
        return
    turns = table.scaled(TURNS, least=50)
    rounds = table.scaled(20, least=2)
    with TemporaryDirectory() as folder:
        _short(table, folder, "")
        _long(table, folder, "")
        asyncio.run(_many(table, "SQLite", SQLITE, f"{folder}/many", rounds, ""))
    with TemporaryDirectory() as folder, apart(Postgres(durable=True)) as server:
        places = {OURS: f"{folder}/ours", SQLITE: f"{folder}/theirs", MEMORY: "", POSTGRES: server.url}
        for name in (OURS, SQLITE):
            Path(places[name]).mkdir()
        _short(table, folder, ", pinned")
        _long(table, folder, ", pinned")
        _direct(table, places, turns)
        _through_a_graph(table, folder, turns)
        asyncio.run(_many(table, "SQLite", SQLITE, f"{folder}/many", rounds, ", pinned"))
        asyncio.run(_many(table, "PostgreSQL", POSTGRES, server.url, rounds, ", pinned"))


# ---- short and long conversations


def _short(table: Table, folder: str, where: str) -> None:
    """Add how long a put takes at some turns of short threads, one thread after the other in one file.

    Each saver stores some turns in a row, as one conversation does; the puts of the last ones count. Figures
    tell the processor's time, which says more than the time where others use the machine.
    """
    took: dict[int, list[tuple[Took, Took]]] = {turn: [] for turn in SHORT}
    with ExitStack() as stack:
        savers = _opened(stack, f"{folder}/short")
        for thread in range(table.scaled(THREADS, least=3) + 1):
            talks = {name: Conversation(saver, f"short-{thread}") for name, saver in savers.items()}
            given = texts(max(SHORT), seed=thread)
            done = 0
            for turn in SHORT:
                some = [*islice(given, turn - done)]
                counted = max(1, turn // 20)
                last = {name: [talk.put(text) for text in some][-counted:] for name, talk in talks.items()}
                done = turn
                if thread:  # the first one warms up
                    took[turn] += zip(last[OURS], last[SQLITE], strict=True)
    for turn, budget in SHORT.items():
        pairs = [(ours.seconds, theirs.seconds) for ours, theirs in took[turn]]
        table.add(f"{STORE}: put at turn {turn}, SQLite{where}", budget, pairs)
        for name, side in zip(savers, zip(*took[turn], strict=True), strict=True):
            cpu = fmean(each.cpu_s for each in side) * 1e6
            table.figure(Figure("cpu", f"SQLite{where}", name, "CPU of a put at turn", turn, cpu, "us"))


def _opened(stack: ExitStack, place: str) -> dict[str, Any]:
    """Return our saver and SqliteSaver, each with a new file in a folder of its own."""
    savers: dict[str, Any] = {}
    for name in (OURS, SQLITE):
        Path(f"{place}-{name}").mkdir()
        savers[name] = stack.enter_context(opened(name, f"{place}-{name}"))
    return savers


def _long(table: Table, folder: str, where: str) -> None:
    """Add the mean time of a put around some turns of a long thread, in savers that stay open.

    Closing a saver moves SQLite's log into the file. A run without it includes the moves that puts wait for.
    """
    with ExitStack() as stack:
        talks = {name: Conversation(saver) for name, saver in _opened(stack, f"{folder}/long").items()}
        given = texts(2 * TURNS)
        done = 0
        for middle, budget, at_least in LONG:
            turn = table.scaled(middle, least=middle // 10)
            around = min(AROUND, turn // 2) // ROW * ROW
            for text in islice(given, turn - around - done):
                for talk in talks.values():
                    talk.put(text)
            pairs: list[tuple[float, float]] = []
            for _ in range(0, 2 * around, ROW):
                some = [*islice(given, ROW)]
                ours, theirs = (fmean(talk.put(text).seconds for text in some) for talk in talks.values())
                pairs.append((ours, theirs))
            done = turn + around
            name = f"{STORE}: put around turn {turn:,}, mean, SQLite{where}"
            table.add(name, budget, pairs, at_least=at_least, judged="mean")


# ---- one conversation


def _direct(table: Table, places: dict[str, str], turns: int) -> None:
    points, talks = _grown(table, places, turns)
    for name, line in points.items():
        for turn, size in line:
            table.figure(Figure("growth", STORE, name, "bytes on disk", turn, size, "B"))
    weighed = {name: file_bytes(places[name]) for name in (OURS, SQLITE)}
    table.weigh(f"{STORE}: {turns:,} turns, kB", 2_200, weighed[OURS], weighed[SQLITE])
    with ExitStack() as stack:
        savers = {name: stack.enter_context(opened(name, places[name])) for name in (OURS, SQLITE, POSTGRES)}
        savers[MEMORY] = talks[MEMORY].saver
        newest = talks[OURS].newest

        def latest(saver: Any) -> None:
            assert saver.get_tuple(newest) is not None

        def listed(saver: Any) -> None:
            assert len(list(saver.list(newest, limit=10))) == 10

        table.add(f"{STORE}: get_tuple of the latest", 1.0, _calls(table, "get_tuple", savers, latest, 3, 12))
        table.add(f"{STORE}: list(limit=10)", 3.0, _calls(table, "list", savers, listed, 3, 8), at_least=True)
        deleted = _calls(table, "delete_thread", savers, lambda saver: saver.delete_thread("conversation"), 1)
        table.add(f"{STORE}: delete_thread", 10.0, deleted, at_least=True)


def _grown(table: Table, places: dict[str, str], turns: int) -> tuple[Points, dict[str, Conversation]]:
    """Let a conversation grow with each saver, a few turns of it in a row; returns its bytes by turn.

    What a graph puts it has just looked through, so that the processor's caches hold the messages; turn by
    turn the savers would push each other's out.
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
                    rows[name].append(sum([talk.put(text).seconds for text in some]) / len(some))
        for name in points:
            points[name].append((upto, file_bytes(places[name])))
    last = {name: seconds[-ROWS:] for name, seconds in rows.items()}
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
            spent[name].append(timed(partial(_repeat, do, saver, each)) / each)
    for name, seconds in spent.items():
        table.time(Pace(STORE, call, name, median(seconds) * 1e6, rounds))
    return list(zip(spent[OURS], spent[SQLITE], strict=True))


def _repeat(do: Callable[[Any], None], saver: Any, times: int) -> None:
    for _ in range(times):
        do(saver)


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
                    spent[name].append(timed(partial(graph.invoke, turn, config)))
    for name, seconds in spent.items():
        few = seconds[half - min(50, half) : half]
        table.time(Pace(STORE, f"invoke at turn {half:,}", name, median(few) * 1e6, len(few)))
    weighed = {name: file_bytes(place) for name, place in places.items()}
    table.weigh(f"{STORE}: {turns:,} turns of a graph, kB", 15_000, weighed[OURS], weighed[SQLITE])
    deltas = _delta_bytes(f"{folder}/graph-deltas", turns)
    table.weigh(f"{STORE}: … beside DeltaChannel, kB", 15_000, weighed[OURS], deltas)


def _delta_bytes(place: str, turns: int) -> int:
    """Return what SqliteSaver has if the graph's messages are a `DeltaChannel`, as LangGraph offers it."""
    Path(place).mkdir()
    with opened(SQLITE, place) as saver:
        graph = _graph(saver, deltas=True)
        for said in texts(turns, TEXT_BYTES // 2, seed=2):
            graph.invoke({"messages": [("user", said)]}, {"configurable": {"thread_id": "conversation"}})
    return file_bytes(place)


def _graph(saver: Any, *, deltas: bool = False) -> Any:
    graph = import_module("langgraph.graph")
    schema = graph.MessagesState
    if deltas:
        channel = import_module("langgraph.channels").DeltaChannel
        reducer = import_module("langgraph.graph.message")._messages_delta_reducer
        schema = TypedDict("Deltas", {"messages": Annotated[list[Any], channel(reducer)]})  # noqa: UP013
    answer = import_module("langchain_core.messages").AIMessage

    def model(state: Any) -> Any:
        return {"messages": [answer(state["messages"][-1].content[::-1])]}

    made = graph.StateGraph(schema)
    made.add_node("model", model)
    made.add_edge(graph.START, "model")
    return made.compile(checkpointer=saver)


# ---- many at once


async def _many(table: Table, store: str, theirs: str, place: str, turns: int, where: str) -> None:
    """Add the processor's time of a checkpoint while 64 conversations go on at once, and tell its duration.

    Both savers of a store are open, and do their rounds in turn.
    """
    if store == "SQLite":
        Path(place).mkdir()
    async with opened_async(OURS, place) as ours, opened_async(theirs, place) as other:
        crowds = {OURS: _Crowd(ours), theirs: _Crowd(other)}
        rounds = [
            {name: await crowd.talk(table.scaled(4, least=2)) for name, crowd in crowds.items()}
            for _ in range(max(2, turns // 4))
        ]
    name = f"{STORE}: {CONVERSATIONS} at once, CPU of a turn, {store}{where}"
    pairs = [(each[OURS].cpu_s, each[theirs].cpu_s) for each in rounds[1:]]
    table.add(name, 1.2, pairs, judged="mean")
    call = f"{CONVERSATIONS} conversations at once, a turn{where}"
    for name in crowds:
        us = median(each[name].seconds for each in rounds[1:]) * 1e6
        table.time(Pace(f"{STORE} {store}", call, name, us, CONVERSATIONS * turns))


class _Crowd:
    """Conversations that go on at once by one saver."""

    def __init__(self, saver: Any) -> None:
        self._talks = [Conversation(saver, f"many-{number}") for number in range(CONVERSATIONS)]
        self._round = 0

    async def talk(self, turns: int) -> Took:
        """Do some turns of each conversation at once, and return what one took."""
        self._round += 1
        said = list(texts(turns, seed=self._round))

        async def go_on(talk: Conversation) -> None:
            for text in said:
                await talk.aput(text)

        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(go_on(talk) for talk in self._talks))
        return Took.since(begun, cpu, checkpoints=CONVERSATIONS * turns)
