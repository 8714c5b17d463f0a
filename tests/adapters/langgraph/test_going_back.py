"""Where conflicts raise: who may fork from an older checkpoint, and who learns that the thread is gone."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.adapters.langgraph.arguments import Past
from keepstate.errors import ConflictError
from tests.adapters.langgraph.saving import config, put, values

meanwhile: list[Any] = []


def say(state: MessagesState) -> dict[str, Any]:
    """Answer; but first somebody else does what was left for that."""
    while meanwhile:
        meanwhile.pop()()
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}


def talking(saver: KeepstateSaver) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    return graph.compile(checkpointer=saver)


def asked(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def said(graph: Any) -> list[str]:
    return [one.content for one in graph.get_state(config()).values["messages"]]


def test_who_looks_at_where_a_streaming_run_began_lets_it_fork_no_more_than_others() -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        graph = talking(saver)
        graph.invoke(asked("first"), config())
        begun = graph.get_state(config()).config
        stream = graph.stream(asked("mine"), config(), stream_mode="tasks", durability="exit")
        next(stream)
        graph.invoke(asked("other"), config(), durability="sync")
        for found in graph.get_state_history(config()):
            graph.get_state(found.config)
        graph.get_state(begun)

        with pytest.raises(ConflictError, match="gone on"):
            list(stream)

        assert "other" in said(graph)


def test_a_run_that_was_sent_back_forks_whatever_its_caller_looks_at_meanwhile() -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        graph = talking(saver)
        graph.invoke(asked("first"), config())
        begun = graph.get_state(config()).config
        graph.invoke(asked("second"), config())

        for _ in graph.stream(asked("instead"), begun, durability="exit"):
            graph.get_state(config())

        assert said(graph) == ["first", "answer 1", "instead", "answer 3"]


def test_each_checkpoint_may_be_copied(any_url: str) -> None:
    with KeepstateSaver(any_url, on_conflict="raise") as saver:
        graph = talking(saver)
        graph.invoke(asked("first"), config())
        history = list(graph.get_state_history(config()))

        copied = [
            graph.get_state(graph.update_state(found.config, None, as_node="__copy__")) for found in history
        ]
        latest = graph.get_state(graph.update_state(config(), None, as_node="__copy__"))

        assert [one.values for one in copied] == [one.values for one in history]
        assert latest.values == copied[-1].values
        assert {one.metadata["source"] for one in copied} == {"fork"}


def test_a_thread_that_was_deleted_is_not_put_back_by_a_run(any_url: str) -> None:
    with KeepstateSaver(any_url, on_conflict="raise") as saver, KeepstateSaver(any_url) as other:
        graph = talking(saver)
        graph.invoke(asked("first"), config())
        begun = graph.get_state(config()).config
        graph.invoke(asked("second"), config())
        for where in (config(), begun):
            meanwhile.append(lambda: other.delete_thread("t"))

            with pytest.raises(ConflictError, match="deleted"):
                graph.invoke(asked("mine"), where)

            assert other.get_tuple(config()) is None
            graph.invoke(asked("first"), config())
            begun.update(graph.get_state(config()).config)
            graph.invoke(asked("second"), config())


def test_a_copy_of_a_checkpoint_whose_parent_was_let_go_of_begins_a_line() -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        at = put(saver, config(), 0, n=0)
        for step in (1, 2):
            at = put(saver, at, step, n=step)
        saver.prune(["t"])
        found = saver.get_tuple(config())
        assert found is not None
        assert found.parent_config is not None

        at = put(saver, found.parent_config, 3, {"source": "fork"}, n=3)

        assert values(saver, at) == {"n": 3}


def test_what_comes_before_a_past_checkpoint_is_listed() -> None:
    with KeepstateSaver("memory://", on_conflict="raise") as saver:
        at = put(saver, config(), 0, n=0)
        for step in (1, 2):
            at = put(saver, at, step, n=step)
        found = saver.get_tuple(config())
        assert found is not None

        (first,) = saver.list(config(), before=found.parent_config)

        assert first.checkpoint["channel_values"] == {"n": 0}


class Wild(str):
    """A text that equals all others, as tests use it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    __hash__ = str.__hash__


def test_the_id_of_a_past_checkpoint_is_a_text_like_any_other() -> None:
    id = Past("1f1e")

    assert id == "1f1e" == Past("1f1e") == id
    assert id != "1f1f"
    assert id != Past("1f1f")
    assert id != 5
    assert hash(id) == hash("1f1e")
    assert id == Wild("")
    assert json.dumps({"id": id}) == '{"id": "1f1e"}'
    assert type(pickle.loads(pickle.dumps(id))) is str
    assert copy.deepcopy({"id": id})["id"] is copy.copy(id) is id
