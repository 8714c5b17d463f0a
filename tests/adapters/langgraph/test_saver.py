"""What the saver keeps, whatever becomes of the values that were passed to it."""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import re
import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel

import keepstate
from keepstate import sync
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import ConflictError, InvalidError
from tests.adapters.langgraph.saving import checkpoint, config, put, values


class Colour(Enum):
    RED = "red"


@dataclass
class Plan:
    steps: list[str]
    colour: Colour


class Model(BaseModel):
    name: str
    inner: dict[str, Plan]


MESSAGES = [
    HumanMessage("hello", id="1"),
    AIMessage(
        [{"type": "text", "text": "hi"}],
        id="2",
        tool_calls=[{"name": "look", "args": {"at": [1, 2]}, "id": "c", "type": "tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model": "m"},
        extra_field={"x": 1},
    ),
    ToolMessage("seen", tool_call_id="c", artifact=(1, {"a"})),
    SystemMessage("be kind", name="s"),
]

VALUES: dict[str, Any] = {
    "messages": MESSAGES,
    "plan": Plan(["a", "b"], Colour.RED),
    "model": Model(name="m", inner={"k": Plan([], Colour.RED)}),
    "sends": [Send("node", {"x": (1, 2)}), Command(goto="x", update={"a": 1}), Interrupt("why", id="i")],
    "odd": [
        *(
            deque([1], 3),
            re.compile("a+", re.IGNORECASE),
            ipaddress.ip_address("::1"),
            {1: "one", (1, 2): "two"},
        ),
        *(Decimal("1.10"), UUID(int=5), datetime(2026, 1, 1, tzinfo=UTC), Path("/x"), b"\x00", {1, 2}),
        *("lone \ud800 surrogate", 1 << 80, bytearray(b"1"), Document("text", metadata={"a": 1})),
    ],
    "none": None,
}


def test_values_come_back_equal_and_of_their_types(any_url: str) -> None:
    with KeepstateSaver(any_url) as saver:
        at = put(saver, config(), 0, **VALUES)

        found = values(saver, at)

        assert found == VALUES
        assert [type(one) for one in found["messages"]] == [type(one) for one in MESSAGES]
        assert [type(one) for one in found["odd"]] == [type(one) for one in VALUES["odd"]]
        assert found["messages"][1].extra_field == {"x": 1}


def test_what_is_read_is_a_copy() -> None:
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, messages=list(MESSAGES))

        values(saver, at)["messages"][0].content = "changed"

        assert values(saver, at)["messages"] == MESSAGES


# ---- changed in place

EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append",
                "content",
                "kind",
                "pop",
                "insert",
                "swap",
                "args",
                "tuple",
                "extra",
                "meta",
                "drop",
                "same",
            ]
        ),
        st.integers(0, 40),
    ),
    max_size=12,
)


def edit(messages: list[AnyMessage], what: str, number: int) -> None:
    """Change messages in place, as a node may."""
    at = number % len(messages) if messages else 0
    one: Any = messages[at] if messages else None
    match what:
        case "append":
            messages.append(AIMessage("x" * number, id=str(number), tool_calls=[]))
        case "insert":
            messages.insert(at, HumanMessage(f"new {number}", id=f"h{number}"))
        case "drop":
            del messages[: at // 2]
        case _ if one is None:
            return
        case "content":
            one.content = f"{one.content} and {number}"
        case "kind":
            messages[at] = SystemMessage(one.content, id=one.id)
        case "pop":
            messages.pop(at)
        case "swap":
            messages.reverse()
        case "args":
            one.additional_kwargs["n"] = [number]
        case "tuple":
            one.additional_kwargs["n"] = (number,)
        case "extra":
            one.note = number
        case "meta":
            one.response_metadata.setdefault("deep", {"list": []})["list"].append(number)


@given(st.lists(EDITS, min_size=1, max_size=6), st.integers(0, 30))
def test_what_was_stored_stays_what_it_was_then(rounds: list[list[tuple[str, int]]], count: int) -> None:
    messages: list[AnyMessage] = [HumanMessage(f"message {n} " * 9, id=str(n)) for n in range(count)]
    notes: dict[str, Any] = {"list": [{"n": n, "text": "t" * 99} for n in range(count)]}
    with KeepstateSaver("memory://") as saver:
        at, stored = config(), []
        for step, edits in enumerate(rounds):
            for what, number in edits:
                edit(messages, what, number)
                notes["list"].append({"n": number, "text": what})
                if notes["list"][0]["n"] % 3:
                    notes["list"][number % len(notes["list"])]["text"] = (what, number)
            expected = copy.deepcopy((messages, notes))
            at = put(saver, at, step, messages=messages, notes=notes)
            stored.append((at, expected))

        for at, (old, old_notes) in stored:
            found = values(saver, at)
            assert found["messages"] == old
            assert [type(one) for one in found["messages"]] == [type(one) for one in old]
            assert found["notes"] == old_notes
            assert repr(found["notes"]) == repr(old_notes)


def test_what_changes_while_it_is_being_stored_is_not_what_is_stored(tmp_path: Path) -> None:
    messages = [HumanMessage(f"message {n} " * 20, id=str(n)) for n in range(200)]
    expected = copy.deepcopy(messages)

    async def store() -> Any:
        async with KeepstateSaver(f"sqlite:///{tmp_path}/a.db") as saver:
            made = checkpoint(0, messages=messages)
            storing = asyncio.ensure_future(saver.aput(config(), made, {"source": "loop"}, {}))
            await asyncio.sleep(0)
            for one in messages:
                one.content = "changed"
            found = await saver.aget_tuple(await storing)
            assert found is not None
            return found.checkpoint["channel_values"]["messages"]

    found = asyncio.run(store())

    assert found == expected


# ---- what it costs


def test_a_long_list_costs_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    messages: list[AnyMessage] = []
    with KeepstateSaver(f"sqlite:///{path}?durability=normal") as saver:
        at = config()
        for step in range(300):
            messages.append(HumanMessage(f"{step} " * 120, id=str(step)))
            at = put(saver, at, step, messages=messages)

    assert path.stat().st_size < 300 * 7_000


def test_what_was_read_and_is_stored_again_costs_nothing_and_keeps_its_author(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url, author="first") as saver:
        at = put(saver, config(), 0, messages=MESSAGES * 30)
    with KeepstateSaver(url, author="second") as saver:
        found = values(saver, at)["messages"]
        history = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t").history
        before = history.stats().objects

        at = put(saver, at, 1, messages=found)
        put(saver, at, 2, messages=[*values(saver, at)["messages"], HumanMessage("new")])

        assert history.stats().objects <= before + 2
        assert history.blame(("messages", 70)).commit.author == "first"


def test_namespaces_and_forks_share_what_they_have_in_common() -> None:
    messages = [HumanMessage(f"message {n} " * 20, id=str(n)) for n in range(300)]
    with KeepstateSaver("memory://") as saver:
        handle = saver._handles.blocking()
        first = put(saver, config(), 0, messages=messages)
        space = keepstate.sync.Keepstate(handle).space("thread/t")
        before = space.history.stats().objects

        put(saver, config(line="child:1"), 0, messages=messages)
        put(saver, first, 1, messages=messages)
        put(saver, first, 2, messages=[*messages, HumanMessage("one more")])

        assert space.history.stats().objects <= before + 6


# ---- several at once


def test_one_saver_serves_threads_and_loops_at_once(any_url: str) -> None:
    with KeepstateSaver(any_url) as saver:

        async def converse(thread: str) -> None:
            at = config(thread)
            for step in range(5):
                made = checkpoint(step, messages=[HumanMessage(str(n)) for n in range(step)])
                at = await saver.aput(at, made, {"source": "loop", "step": step}, {})

        async def many(name: str) -> None:
            await asyncio.gather(*(converse(f"{name}{n}") for n in range(5)))
            await saver.aleave()

        workers = [threading.Thread(target=asyncio.run, args=(many(name),)) for name in ("a", "b")]
        for worker in workers:
            worker.start()
        for step in range(5):
            put(saver, config("c"), step, messages=[step])
        for worker in workers:
            worker.join()

        assert sorted(saver.threads()) == sorted([f"{n}{k}" for n in "ab" for k in range(5)] + ["c"])
        assert all(len(values(saver, config(f"a{k}"))["messages"]) == 4 for k in range(5))


def test_a_run_may_still_go_back_in_time_where_conflicts_raise() -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        first = put(saver, config(), 0, messages=["a"])
        put(saver, first, 1, messages=["a", "b"])
        with pytest.raises(ConflictError):
            put(saver, first, 2, messages=["a", "lost?"])

        found = saver.get_tuple(first)
        assert found is not None
        put(saver, found.config, 3, messages=["a", "c"])

        assert values(saver, config())["messages"] == ["a", "c"]


# ---- as others see it


def test_the_history_of_a_thread_is_told_by_channel(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url) as saver:
        at = put(saver, config(), 0, messages=["a"], topic="x")
        at = put(saver, at, 1, messages=["a", "b"], topic="x")
    with keepstate.sync.open(url) as ks:
        history = ks.space("thread/t").history

        told = [str(one) for one in history.diff("main~1", "main")]

        assert told == ["+ messages[1]"]
        assert history.blame("topic").commit.message.startswith("loop, step 0")
        assert history.checkout("main")["messages"] == ["a", "b"]
        assert at["configurable"]["checkpoint_id"] in history.find("main").message


def test_a_left_line_ends_in_a_branch_of_its_own() -> None:
    with KeepstateSaver("memory://") as saver:
        first = put(saver, config(), 0, messages=["a"])
        left = put(saver, first, 1, messages=["a", "b"])
        put(saver, first, 2, messages=["a", "c"])
        history = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t").history
        forks = [branch.name for branch in history.branches() if branch.name.startswith("fork/")]
        assert [history.checkout(fork)["messages"] for fork in forks] == [["a", "b"]]

        put(saver, left, 3, messages=["a", "b", "d"])

        assert history.checkout("main")["messages"] == ["a", "b", "d"]
        ends = {tuple(history.checkout(branch.name)["messages"]) for branch in history.branches()}
        assert ends == {("a", "c"), ("a", "b", "d")}


def test_long_names_are_kept_whole() -> None:
    thread, line, id = "thread " * 60, "child:" * 60, "1" * 300
    with KeepstateSaver("memory://") as saver:
        made = checkpoint(0, messages=["a"])
        made["id"] = id
        at = saver.put(config(thread, line), made, {"source": "loop"}, {})
        saver.put_writes(at, [("messages", "w")], "task " * 90, "path")

        (found,) = saver.list(None)

        assert found.config == at == config(thread, line, id)
        assert found.pending_writes == [("task " * 90, "messages", "w")]
        assert [*saver.threads()] == [thread]


def test_a_value_larger_than_an_entry_is_stored_in_parts(any_url: str) -> None:
    large = "x" * 3_000_000
    with KeepstateSaver(any_url) as saver:
        at = put(saver, config(), 0, text=large, texts=[large])
        saver.put_writes(at, [("text", large)], "task")

        found = saver.get_tuple(at)

        assert found is not None
        assert found.checkpoint["channel_values"] == {"text": large, "texts": [large]}
        assert found.pending_writes == [("task", "text", large)]


def test_arguments_are_refused_at_once() -> None:
    with pytest.raises(InvalidError, match="on_conflict"):
        KeepstateSaver("memory://", on_conflict="merge")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="ttl_s"):
        KeepstateSaver("memory://", ttl_s=0)
    with KeepstateSaver("memory://") as saver:
        with pytest.raises(InvalidError, match="thread_id"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(InvalidError, match="strategy"):
            saver.prune(["t"], strategy="some")


def test_a_commit_names_the_nodes_that_ran_and_the_model_that_answered(any_url: str) -> None:
    def agent(state: MessagesState) -> Any:
        return {"messages": [AIMessage("Yes.", response_metadata={"model_name": "m-1"})]}

    def left(state: MessagesState) -> Any:
        return {}

    graph = StateGraph(MessagesState)
    for name, node in (("agent", agent), ("left", left), ("right", left)):
        graph.add_node(name, node)
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "left")
    graph.add_edge("agent", "right")
    with KeepstateSaver(any_url) as saver:
        named: Any = {"configurable": {"thread_id": "1"}}
        graph.compile(checkpointer=saver).invoke({"messages": [("user", "Is there a train?")]}, named)
        with sync.open(any_url, meta=lambda: {"run": "x" * 1_020}) as ks:
            notes = [dict(commit.meta) for commit in ks.space("thread/1").history.log()]
            with KeepstateSaver(ks) as crowded:
                graph.compile(checkpointer=crowded).invoke({"messages": [("user", "And back?")]}, named)
            assert dict(ks.space("thread/1").history.find().meta) == {"run": "x" * 1_020}

    assert notes == [{"nodes": "left, right"}, {"nodes": "agent", "model": "m-1"}, {}, {}]
