"""Checkpoints that are listed together share what was decoded, and nothing of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.adapters.langgraph.serde import without_collection
from tests.adapters.langgraph.saving import config, put
from tests.adapters.langgraph.test_changed_in_place import exact, messages


def conversation(saver: KeepstateSaver) -> None:
    """Store checkpoints of a long list with messages of all kinds, and of others beside."""
    at, said = config(), messages(80)
    said[7].additional_kwargs["odd"] = (1, {"a"}, [HumanMessage("inner")])
    said[20].note = ["extra", {"n": 1}]
    for step in range(6):
        said = [*said, AIMessage(f"step {step}", id=str(step))]
        at = put(saver, at, step, messages=said, notes=[{"n": [n], "t": (n,)} for n in range(900)], plan="x")


def test_what_is_listed_is_what_is_read_one_by_one(any_url: str) -> None:
    with KeepstateSaver(any_url) as saver:
        conversation(saver)

        listed = list(saver.list(config()))

        assert len(listed) == 6
        for found in listed:
            alone = saver.get_tuple(found.config)
            assert alone is not None
            assert exact(found.checkpoint["channel_values"]) == exact(alone.checkpoint["channel_values"])
            fields = [one.__pydantic_fields_set__ for one in found.checkpoint["channel_values"]["messages"]]
            assert fields == [
                one.__pydantic_fields_set__ for one in alone.checkpoint["channel_values"]["messages"]
            ]


def spoil(one: Any) -> None:
    """Change all that a value consists of, in place."""
    if isinstance(one, dict):
        for part in [*one.values()]:
            spoil(part)
        one["spoiled"] = True
    elif isinstance(one, list):
        for part in one:
            spoil(part)
        one.append("spoiled")
    elif hasattr(one, "__dict__"):
        spoil(one.__pydantic_extra__)
        spoil(one.__dict__)
        one.content, one.spoiled = "spoiled", True


def test_what_is_listed_is_nobody_elses() -> None:
    with KeepstateSaver("memory://") as saver:
        conversation(saver)
        expected = [exact(found.checkpoint["channel_values"]) for found in saver.list(config())]

        listed = []
        for found in saver.list(config()):
            listed.append(exact(found.checkpoint["channel_values"]))
            spoil(found.checkpoint["channel_values"])

        assert listed == expected
        assert [exact(found.checkpoint["channel_values"]) for found in saver.list(config())] == expected


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.enable()
    gc.set_threshold(*before)


def test_the_collector_stands_still_and_goes_on_as_before(thresholds: tuple[int, int, int]) -> None:
    with pytest.raises(KeyError), without_collection():
        runs = gc.get_stats()[0]["collections"]
        made = [[number] for number in range(20 * thresholds[0])]
        assert gc.get_stats()[0]["collections"] == runs and made
        with without_collection():
            pass
        assert gc.get_threshold()[0] == 0
        raise KeyError

    assert gc.get_threshold() == thresholds


def test_who_stops_the_collector_meanwhile_or_sets_it_has_done_so(thresholds: tuple[int, int, int]) -> None:
    with without_collection():
        gc.disable()
    assert not gc.isenabled() and gc.get_threshold() == thresholds
    with without_collection():
        assert gc.get_threshold() == thresholds
    gc.enable()
    with without_collection():
        gc.set_threshold(5_000, 20)

    assert gc.isenabled()
    assert gc.get_threshold()[:2] == (5_000, 20)
