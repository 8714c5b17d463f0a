"""The command `diagram`."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstate import sync
from tests.cli.conftest import Keepstate

MODULE = """
from keepstate import AgentStateMachine, sync

class Lock(sync.AgentStateMachine):
    STATES = ["closed", "open"]
    TRANSITIONS = {("closed", "turn"): "open"}

lock = Lock("front")

class Door(AgentStateMachine):
    STATES = ["open", "shut"]
    TRANSITIONS = {("open", "push"): "shut"}

door = Door("front")
nothing = 1
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(MODULE)


def test_a_class_and_an_object_are_drawn(keepstate: Keepstate) -> None:
    by_class, by_object = keepstate("diagram", "drawn:Door"), keepstate("diagram", "drawn:door", "--json")

    assert by_class.out.splitlines()[1:] == [
        "    [*] --> open",
        "    open --> shut: push",
        "    shut --> [*]",
    ]
    assert by_object.json()["diagram"] == by_class.out.strip()


def test_a_class_and_an_object_of_blocking_use_are_drawn(keepstate: Keepstate) -> None:
    by_class, by_object = keepstate("diagram", "drawn:Lock"), keepstate("diagram", "drawn:lock")

    assert by_class.out == by_object.out
    assert "    closed --> open: turn" in by_class.out.splitlines()


def test_the_present_state_is_set_off(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        states, table = ["open", "shut"], {("open", "push"): "shut"}
        sync.AgentStateMachine("front", persistence=ks, states=states, transitions=table).transition("push")

    told = keepstate("diagram", "drawn:Door", "--id", "front")
    assert told.out.splitlines()[-1] == "    class shut current"


def test_a_machine_that_nobody_has_begun_has_no_present_state(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        ks.space("run").documents.put("a", 1)

    told = keepstate("diagram", "drawn:Door", "--id", "nope")
    assert (told.code, told.out) == (1, "")
    assert "there is no machine 'nope'" in told.err


@pytest.mark.parametrize(
    "words", [("drawn",), ("nowhere:Door",), ("drawn:nothing",), ("drawn:door", "--id", "a")]
)
def test_what_is_no_machine_is_refused(words: tuple[str, ...], keepstate: Keepstate) -> None:
    assert keepstate("diagram", *words).code == 2
