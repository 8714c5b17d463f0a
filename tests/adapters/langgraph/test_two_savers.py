"""Two savers that write to the same threads: what one has at hand, the other may have changed."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ConflictError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement
from tests.adapters.langgraph.saving import checkpoint, config, put, values

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "back", "again", "writes", "delete", "prune", "copy"]),
        st.integers(0, 1),
        st.integers(0, 50),
    ),
    max_size=30,
)


def id_of(at: Any) -> str:
    name: str = at["configurable"]["checkpoint_id"]
    return name


def told(saver: KeepstateSaver, thread: str = "t") -> dict[str, tuple[Any, str | None]]:
    """Return the messages of all checkpoints of a thread, and the ids of their parents."""
    return {
        id_of(found.config): (
            [one.content for one in found.checkpoint["channel_values"]["messages"]],
            id_of(found.parent_config) if found.parent_config else None,
        )
        for found in saver.list(config(thread))
    }


def ends(saver: KeepstateSaver, thread: str = "t") -> list[tuple[str, str]]:
    """Return the branches of a thread, and the checkpoint that each stands on, by its message."""

    async def find(handle: Keepstate) -> list[tuple[str, str]]:
        history = handle.space(f"thread/{thread}").history
        names = [branch.name async for branch in history.branches()]
        return [(name, (await history.find(name)).message.rpartition(", ")[2]) for name in names]

    return saver._handles.finish(find)


@given(STEPS)
def test_whoever_writes_all_checkpoints_are_as_they_were_put(steps: list[tuple[str, int, int]]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    expected: dict[str, tuple[list[str], str | None]] = {}
    with KeepstateSaver(url) as first, KeepstateSaver(url) as second:
        savers = first, second
        for number, (what, who, where) in enumerate(steps):
            saver = savers[who]
            known = sorted(expected)
            match what:
                case "put" | "back":
                    parent = (known[-1] if what == "put" else known[where % len(known)]) if known else None
                    texts = [*expected[parent][0], f"{number} " * 30] if parent else ["first"]
                    messages = [HumanMessage(text, id=str(place)) for place, text in enumerate(texts)]
                    at = put(saver, config(id=parent), number, messages=messages)
                    expected[id_of(at)] = texts, parent
                case _ if not known:
                    continue
                case "again":
                    id = known[where % len(known)]
                    made = checkpoint(number, messages=[HumanMessage("again")]) | {"id": id}
                    saver.put(config(id=expected[id][1]), made, {"source": "loop"}, {})  # type: ignore[arg-type]
                    expected[id] = ["again"], expected[id][1]
                case "writes":
                    saver.put_writes(config(id=known[-1]), [("messages", "written")], f"task {number}")
                case "delete":
                    saver.delete_thread("t")
                    expected.clear()
                case "prune":
                    saver.prune(["t"])
                    expected = {known[-1]: expected[known[-1]]}
                case _:
                    saver.copy_thread("t", f"copy {number}")
                    assert told(savers[1 - who], f"copy {number}").keys() == expected.keys()

            assert told(savers[1 - who]) == expected
        if expected:
            found = ends(first)
            assert dict(found)["main"] == max(expected)
            parents = {parent for _, parent in expected.values()}
            assert {id for _, id in found} >= {id for id in expected if id not in parents}


def test_what_another_saver_has_put_meanwhile_is_neither_lost_nor_followed(any_url: str) -> None:
    with KeepstateSaver(any_url) as first, KeepstateSaver(any_url) as second:
        begun = put(first, config(), 0, messages=["a"])
        there = put(second, begun, 1, messages=["a", "b"])

        here = put(first, begun, 2, messages=["a", "c"])

        assert values(second, there)["messages"] == ["a", "b"]
        assert values(second, here)["messages"] == ["a", "c"]
        assert sorted(id for _, id in ends(first)) == sorted([id_of(there), id_of(here)])
        assert dict(ends(first))["main"] == id_of(here)


def test_a_saver_that_raises_learns_that_another_one_has_gone_on(any_url: str) -> None:
    with KeepstateSaver(any_url, on_conflict="raise") as first, KeepstateSaver(any_url) as second:
        begun = put(first, config(), 0, messages=["a"])
        put(second, begun, 1, messages=["a", "b"])

        with pytest.raises(ConflictError, match="gone on"):
            put(first, begun, 2, messages=["a", "c"])

        assert values(first, config())["messages"] == ["a", "b"]


def test_a_thread_that_another_saver_has_deleted_begins_anew(any_url: str) -> None:
    with KeepstateSaver(any_url) as first, KeepstateSaver(any_url) as second:
        messages = [HumanMessage(f"message {number} " * 20, id=str(number)) for number in range(60)]
        begun = put(first, config(), 0, messages=messages)
        second.delete_thread("t")

        at = put(first, begun, 1, messages=[*messages, HumanMessage("one more")])

        assert len(values(second, at)["messages"]) == 61
        assert [id for _, id in ends(second)] == [id_of(at)]


def test_what_follows_the_last_checkpoint_reads_nothing() -> None:
    told: list[Measurement] = []
    store = MeasuredStore(finish(MemoryStore(runner=ThreadRunner()).open()), told.append)
    with KeepstateSaver(store) as saver:
        begun = put(saver, config(), 0, messages=["a"])
        at = put(saver, begun, 1, messages=["a", "b"])
        told.clear()

        put(saver, at, 2, messages=["a", "b", "c"])

        assert [one.operation for one in told] == ["apply"]
        assert values(saver, config())["messages"] == ["a", "b", "c"]
    finish(store.close())


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_that_is_outrun_learns_of_it_whoever_looks_at_where_it_began(
    durability: Any, *, is_async: bool
) -> None:
    meanwhile: list[Any] = []

    def say(state: MessagesState) -> dict[str, Any]:
        while meanwhile:
            worker = threading.Thread(target=meanwhile.pop())
            worker.start()
            worker.join()
        return {"messages": [AIMessage("said")]}

    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        builder = StateGraph(MessagesState)
        builder.add_node("say", say)
        builder.add_edge(START, "say")
        graph = builder.compile(checkpointer=saver)
        run = (lambda *a, **k: asyncio.run(graph.ainvoke(*a, **k))) if is_async else graph.invoke
        run({"messages": [HumanMessage("first")]}, config())
        begun = graph.get_state(config()).config

        def outrun() -> None:
            graph.invoke({"messages": [HumanMessage("other")]}, config())
            for found in graph.get_state_history(config()):
                graph.get_state(found.config)
            graph.get_state(begun)

        meanwhile.append(outrun)
        with pytest.raises(ConflictError, match="gone on"):
            run({"messages": [HumanMessage("mine")]}, config(), durability=durability)

        assert "other" in [one.content for one in values(saver, config())["messages"]]
        run(None, begun, durability=durability)
        run({"messages": [HumanMessage("back")]}, begun, durability=durability)
        assert [one.content for one in values(saver, config())["messages"]][-2:] == ["back", "said"]
