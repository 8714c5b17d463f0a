"""Old checkpoints of LangGraph's threads are let go of from the command line."""

from __future__ import annotations

import pytest

from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.errors import InvalidError
from tests.cli.conftest import Keepstate
from tests.cli.talking import TURNS, graph, talk


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
    assert "alice" not in rest and "of 1 thread deleted" in rest
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


def test_pruning_where_no_store_is_asks_for_that_of_the_graphs(keepstate: Keepstate) -> None:
    done = keepstate("langgraph", "prune", "--every", "--keep-last", "1")

    assert done.code == 1
    assert "there is no store at" in done.err and "--url" in done.err
    assert "keepstate put" not in done.err


def test_checkpoints_of_a_moment_and_older_are_let_go_of(keepstate: Keepstate, url: str) -> None:
    with KeepstateSaver(url) as saver:
        talk(saver, "alice")

    assert "0 checkpoints" in keepstate("langgraph", "prune", "--every", "--older-than", "1h").out
    with pytest.raises(InvalidError), KeepstateSaver(url) as saver:
        saver.prune("alice", keep_last=1)
