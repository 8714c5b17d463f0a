"""Letting go of checkpoints, of runs and threads, and what must not go with them."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import keepstate
from keepstate._finish import finish
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import AlreadyExistsError
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.adapters.langgraph.saving import config, put, values


def line(saver: KeepstateSaver, count: int, thread: str = "t", name: str = "", **metadata: Any) -> list[Any]:
    """Store checkpoints, one after the other, and return their configs."""
    at, stored = config(thread, name), []
    messages: list[Any] = []
    for step in range(count):
        messages.append(HumanMessage(f"message {step} " * 20, id=str(step)))
        at = put(saver, at, step, {key: value[step] for key, value in metadata.items()}, messages=messages)
        saver.put_writes(at, [("messages", f"write {step}")], "task")
        stored.append(at)
    return stored


def ids(saver: KeepstateSaver, thread: str = "t") -> list[str]:
    """Return the ids of a thread's checkpoints, the latest first."""
    return [found.config["configurable"]["checkpoint_id"] for found in saver.list(config(thread))]


def id_of(at: Any) -> str:
    name: str = at["configurable"]["checkpoint_id"]
    return name


def test_pruning_keeps_the_latest_whole(any_url: str) -> None:
    with KeepstateSaver(any_url) as saver:
        stored = line(saver, 40)
        line(saver, 3, name="child:1")
        other = line(saver, 3, thread="other")

        gone = saver.prune(["t"])

        (latest, child) = saver.list({"configurable": {"thread_id": "t"}})
        if latest.config["configurable"]["checkpoint_ns"]:
            latest, child = child, latest
        assert gone == 39 + 2
        assert latest.config == stored[-1]
        assert len(latest.checkpoint["channel_values"]["messages"]) == 40
        assert latest.pending_writes == [("task", "messages", "write 39")]
        assert len(child.checkpoint["channel_values"]["messages"]) == 3
        assert len(ids(saver, "other")) == len(other)
        history = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t").history
        assert len([*history.log("main")]) == 1
        assert not history.verify().problems


def test_pruning_deletes_what_nothing_needs(tmp_path: Path) -> None:
    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db") as saver:
        at = config()
        for step in range(60):
            at = put(saver, at, step, text=f"{step} " * 300)
        history = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t").history

        saver.prune(["t"], keep_last=5)

        assert history.stats().commits == 5
        assert len(ids(saver)) == 5


def test_a_saver_may_keep_the_last_few_all_the_time() -> None:
    with KeepstateSaver("memory://", keep_last=10) as saver:
        stored = line(saver, 60)

        assert 10 <= len(ids(saver)) < 10 + 9
        assert ids(saver)[0] == id_of(stored[-1])
        assert len(values(saver, config())["messages"]) == 60


def test_old_checkpoints_are_let_go_of_by_their_age() -> None:
    with KeepstateSaver("memory://") as saver:
        stored = line(saver, 5)
        time.sleep(1.1)
        stored += [put(saver, stored[-1], 9, messages=[])]

        gone = saver.prune(["t"], max_age_s=1)

        assert gone == 5
        assert ids(saver) == [id_of(stored[-1])]


def test_forks_are_kept_as_their_number_says() -> None:
    with KeepstateSaver("memory://") as saver:
        stored = line(saver, 6)
        fork = put(saver, stored[2], 7, messages=["fork"])

        saver.prune(["t"], keep_last=2)

        assert ids(saver) == [id_of(fork), id_of(stored[-1])]
        assert values(saver, fork) == {"messages": ["fork"]}
        assert len(values(saver, stored[-1])["messages"]) == 6


def test_a_tag_keeps_its_commit_and_a_branch_its_line() -> None:
    with KeepstateSaver("memory://") as saver:
        at = config()
        for step in range(6):
            at = put(saver, at, step, texts=["text"] * step)
        history = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t").history
        history.tag("good", "main~4")
        history.branch("mine", "main~2")

        saver.prune(["t"])

        assert len(history.checkout("good")["texts"]) == 1
        assert len([*history.log("mine")]) == 4


def test_runs_are_deleted_wherever_they_are() -> None:
    with KeepstateSaver("memory://") as saver:
        runs = ["a", "b", "b", "c"]
        stored = line(saver, 4, run_id=runs)
        line(saver, 4, thread="other", run_id=["b"] * 4)

        saver.delete_for_runs(["b"])

        assert ids(saver) == [id_of(stored[3]), id_of(stored[0])]
        assert [*saver.threads()] == ["t"]
        assert len(values(saver, stored[3])["messages"]) == 4


def test_a_run_that_is_called_none_is_not_that_of_checkpoints_of_no_run() -> None:
    with KeepstateSaver("memory://") as saver:
        stored = line(saver, 3, run_id=["a", "None", None])
        (without,) = line(saver, 1, thread="without")

        saver.delete_for_runs(["None"])

        assert ids(saver) == [id_of(stored[2]), id_of(stored[0])]
        assert ids(saver, "without") == [id_of(without)]


def test_deleting_a_thread_leaves_what_else_is_in_its_space() -> None:
    with KeepstateSaver("memory://") as saver:
        space = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t")
        line(saver, 5)
        space.documents.put("plan", {"a": 1})

        saver.delete_thread("t")

        assert saver.get_tuple(config()) is None
        assert [*saver.threads()] == []
        assert space.documents.get("plan") == {"a": 1}
        assert space.history.stats().commits == 0
        line(saver, 2)
        assert len(ids(saver)) == 2


def test_the_saver_leaves_the_record_of_a_space_alone() -> None:
    with KeepstateSaver("memory://") as saver:
        space = keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t", record=True)
        space.documents.put("plan", 1)
        stored = line(saver, 5)
        space.documents.put("plan", 2)

        saver.prune(["t"], keep_last=2)

        assert ids(saver) == [id_of(stored[4]), id_of(stored[3])]
        assert [dict(space.at(f"main~{back}").items()) for back in (0, 1)] == [{"plan": 2}, {"plan": 1}]
        assert space.history.find("langgraph").message.endswith(id_of(stored[4]))


def test_a_copy_goes_its_own_way() -> None:
    with KeepstateSaver("memory://") as saver:
        stored = line(saver, 4)
        line(saver, 2, name="child:1")

        saver.copy_thread("t", "copy")
        put(saver, config("copy", id=id_of(stored[-1])), 9, messages=["new"])

        assert len(values(saver, config())["messages"]) == 4
        assert values(saver, config("copy")) == {"messages": ["new"]}
        assert len(ids(saver, "copy")) == 5
        with pytest.raises(AlreadyExistsError):
            saver.copy_thread("t", "copy")


# ---- threads that have an end


def test_a_thread_ends_when_its_time_is_over() -> None:
    clock = ManualClock()
    store = finish(MemoryStore(runner="blocking", clock=clock).open())
    with KeepstateSaver(store, ttl_s=10) as saver:
        line(saver, 3)
        line(saver, 3, thread="late")
        assert saver.get_tuple(config()) is not None
        clock.advance(11_000)
        line(saver, 1, thread="late")

        assert saver.get_tuple(config()) is None
        assert ids(saver) == []
        assert len(ids(saver, "late")) == 1
        assert saver.sweep() == 1
        assert [*saver.threads()] == ["late"]
    finish(store.close())


def test_nothing_of_a_thread_is_told_once_its_time_is_over() -> None:
    clock = ManualClock()
    store = finish(MemoryStore(runner="blocking", clock=clock).open())
    with KeepstateSaver(store, ttl_s=10) as saver:
        stored = line(saver, 3)
        line(saver, 3, thread="other")
        clock.advance(11_000)
        (new,) = line(saver, 1, thread="new")

        told = saver.get_delta_channel_history(config=stored[-1], channels=["messages"])
        threads = [*saver.threads()]
        saver.copy_thread("t", "copy")
        saver.copy_thread("new", "other")

        assert told == {"messages": {"writes": []}}
        assert threads == ["new"]
        assert sorted(saver.threads()) == ["new", "other"]
        assert ids(saver, "other") == [id_of(new)]
    finish(store.close())


# ---- delta channels


def _extend(old: list[Any], new: list[Any]) -> list[Any]:
    return [*old, *(item for part in new for item in (part if isinstance(part, list) else [part]))]


class Told(TypedDict):
    items: Annotated[list[Any], DeltaChannel(_extend, snapshot_frequency=7)]
    count: Annotated[int, operator.add]


def test_pruning_keeps_what_a_delta_channel_is_made_of() -> None:
    with KeepstateSaver("memory://") as saver:
        graph = StateGraph(Told)
        graph.add_node(
            "say",
            lambda state: {
                "items": [AIMessage(f"answer {state['count']}", id=str(state["count"]))],
                "count": 1,
            },
        )
        graph.add_edge(START, "say")
        app = graph.compile(checkpointer=saver)
        for turn in range(12):
            app.invoke({"items": [HumanMessage("q", id=f"q{turn}")], "count": 1}, config())
        before = app.get_state(config()).values
        assert len(before["items"]) == 24

        gone = saver.prune(["t"])

        assert gone > 10
        assert app.get_state(config()).values == before
        app.invoke({"items": [HumanMessage("more", id="more")], "count": 1}, config())
        assert len(app.get_state(config()).values["items"]) == 26
