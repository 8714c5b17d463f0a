"""A commit tells which registered classes its state may hold, so that tools know what they need for it."""

from __future__ import annotations

from dataclasses import dataclass

import keepstate
from keepstate.engine.history.history import History
from keepstate.values.codec import STATES
from keepstate.values.nodes import classes_in


@keepstate.register("tests.classes.Step", version=3)
@dataclass(frozen=True)
class Step:
    name: object


@keepstate.register("tests.classes.Plan")
@dataclass(frozen=True)
class Plan:
    steps: object


async def test_a_commit_tells_the_classes_of_its_state_and_of_those_before(history: History) -> None:
    plain = await history.commit({"a": 1})
    draft = await history.begin()
    draft["deep"] = {"list": [{"n": n, "step": (Step(n),)} for n in range(500)]}
    deep = await draft.commit()
    del draft["deep"]
    gone = await draft.commit()
    item = await history.append("plans", Plan({"k": [Step(1)]}))

    assert plain.classes == ()
    assert deep.classes == gone.classes == ("tests.classes.Step@3",)
    assert item.classes == ("tests.classes.Plan@1", "tests.classes.Step@3")
    assert (await history.find()).to_dict()["classes"] == ["tests.classes.Plan@1", "tests.classes.Step@3"]


async def test_merges_and_rollbacks_tell_the_classes_of_what_they_take_over(history: History) -> None:
    await history.commit({"a": 1})
    await history.branch("side")
    await history.append("plans", Plan(1), branch="side")
    await history.branch("main2")
    rolled = await history.rollback("main2", to="side")
    merged = await history.merge("side")
    squashed = await history.squash("main2", since="main2~1")

    assert merged.classes == rolled.classes == squashed.classes == ("tests.classes.Plan@1",)


def test_what_only_looks_like_an_object_is_none() -> None:
    look = b"\xc7\x10\x24\x93\xa4name\x01\x80" * 9

    assert classes_in(STATES.canonical([look, "$\u0693", {"k": look}])) == set()
    assert classes_in(look) == set()
    assert classes_in(STATES.canonical({("a", 1): [Step(None)]})) == {"tests.classes.Step@3"}
