"""Messages that nodes change in place: whatever is stored is what was passed, to the type of each number."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import keepstate
import keepstate.sync
from keepstate._finish import finish
from keepstate.adapters.langgraph import KeepstateSaver, channel_diff
from keepstate.adapters.langgraph.classes import Classes
from keepstate.adapters.langgraph.identity_snapshot import IdentitySnapshot, attributes_of
from keepstate.adapters.langgraph.serde import Values
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.unit import Unit
from keepstate.values.touched import touched_between
from tests.adapters.langgraph.saving import config, put, values


class Look(StrEnum):
    """A text that equals another one."""

    A = "a"


VALUES = Values(Classes([Look]))


def exact(value: Any) -> Any:
    """Return what tells a value from all that are only equal to it."""
    if isinstance(value, dict):
        return dict, [(exact(key), exact(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(one) for one in value]
    if isinstance(value, set):
        return set, sorted(map(repr, value))
    if hasattr(value, "__pydantic_extra__"):
        fields = {name: value.__dict__.get(name) for name in type(value).model_fields}
        return type(value), exact(fields), exact(value.__pydantic_extra__ or {})
    return type(value), repr(value)


def messages(count: int) -> list[Any]:
    """Return messages of all kinds, with and without dicts and list in them."""
    some: list[Any] = []
    for number in range(count):
        some += [
            HumanMessage(f"message {number} " * 9, id=f"h{number}"),
            AIMessage(
                [{"type": "text", "text": f"part {number}"}, "and more"],
                id=f"a{number}",
                tool_calls=[{"name": "look", "args": {"at": [1, {"deep": number}]}, "id": "c"}],
                usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
                response_metadata={"model": "m", "kept": [[1, 2], [3]], "scores": [1, 0.5, None]},
            ),
            ToolMessage("seen", id=f"t{number}", tool_call_id="c", artifact=None),
        ]
    return some


SAME = st.sampled_from(
    (
        *(1, True, 1.0, "1", "a", Look.A, None, 0, False, 0.0, -0.0, float("nan"), (1,), [1]),
        *("ąĄ", b"a", bytearray(b"a"), [b"a"], [bytearray(b"a")]),
    )
)
"""Values of which some equal others."""

EDITS: dict[str, Callable[[list[Any], Any, Any], object]] = {
    "append": lambda all, one, value: all.append(AIMessage("more", id=f"n{len(all)}", tool_calls=[])),
    "drop": lambda all, one, value: all.remove(one),
    "move": lambda all, one, value: all.insert(0, all.pop()),
    "copy": lambda all, one, value: all.__setitem__(0, copy.deepcopy(all[0])),
    "name": lambda all, one, value: setattr(one, "name", value),
    "id": lambda all, one, value: setattr(one, "id", value),
    "content": lambda all, one, value: setattr(one, "content", str(value)),
    "content in place": lambda all, one, value: (
        one.content.append(value) if isinstance(one.content, list) else setattr(one, "content", [value])
    ),
    "emptied": lambda all, one, value: one.response_metadata.clear(),
    "filled": lambda all, one, value: one.additional_kwargs.update(n=value),
    "reordered": lambda all, one, value: one.additional_kwargs.update(
        n=one.additional_kwargs.pop("n", value)
    ),
    "renamed": lambda all, one, value: one.response_metadata.update(
        renamed=one.response_metadata.pop("scores", value)
    ),
    "handed on": lambda all, one, value: [
        kept[1].insert(0, kept[0].pop()) for kept in [one.response_metadata.get("kept", [[], []])] if kept[0]
    ],
    "deep": lambda all, one, value: one.response_metadata.setdefault("scores", []).append({"n": value}),
    "deeper": lambda all, one, value: (
        one.response_metadata.get("scores", [{}])[-1:] == [None]
        or one.response_metadata.setdefault("scores", [0]).__setitem__(-1, value)
    ),
    "args": lambda all, one, value: (
        one.tool_calls[0]["args"].get("at", [0, {}])[1].update(deep=value)
        if getattr(one, "tool_calls", None)
        else None
    ),
    "calls": lambda all, one, value: getattr(one, "tool_calls", []).append(
        {"name": "x", "args": {"n": value}}
    ),
    "odd": lambda all, one, value: one.additional_kwargs.update(odd=(value, {"in": [value]})),
    "in odd": lambda all, one, value: one.additional_kwargs.get("odd", (0, {}))[1].update(more=value),
    "extra": lambda all, one, value: setattr(one, "note", value),
    "private": lambda all, one, value: setattr(one, "_private", value),
    "replaced": lambda all, one, value: object.__setattr__(one, "__dict__", {**one.__dict__, "name": value}),
    "kind": lambda all, one, value: all.__setitem__(
        all.index(one), HumanMessage("now a human's", id=str(one.id))
    ),
    "none": lambda all, one, value: None,
}
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(sorted(EDITS)), st.integers(0, 40), SAME), max_size=4),
    min_size=2,
    max_size=8,
)


def taken_by(serde: Any, passed: list[Any]) -> list[Any]:
    """Return what a serializer of LangGraph makes of messages; it does not take all of them."""
    try:
        return [exact(serde.loads_typed(serde.dumps_typed(one))) for one in passed]
    except (TypeError, NotImplementedError):
        reject()


@pytest.mark.parametrize(
    "serde", [None, JsonPlusSerializer(allowed_msgpack_modules=None)], ids=["own", "serde"]
)
@settings(max_examples=60)
@given(steps=STEPS, count=st.integers(0, 4))
def test_what_is_stored_is_what_was_passed(serde: Any, steps: list[Any], count: int) -> None:
    store_and_compare(serde, steps, count)


def store_and_compare(serde: Any, steps: list[Any], count: int) -> None:
    """Change messages step by step, stores them after each, and compare what comes back."""
    passed = messages(count)
    with KeepstateSaver("memory://", serde=serde, allow=[Look]) as saver:
        at, stored = config(), []
        for step, edits in enumerate(steps):
            for name, place, value in edits:
                if passed or name == "append":
                    EDITS[name](passed, passed[place % len(passed)] if passed else None, value)
            if serde is None:
                expected = exact(passed)
            else:
                expected = taken_by(serde, passed)
            at = put(saver, at, step, messages=passed)
            stored.append((at, expected))

        for at, expected in stored:
            found = values(saver, at)["messages"]
            assert (exact(found) if serde is None else [exact(one) for one in found]) == expected


@given(steps=STEPS, count=st.integers(0, 4))
def test_on_other_pythons_it_is_so_too(steps: list[Any], count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_diff, "ARE_TOLD", False)
        patch.setattr(channel_diff, "IdentitySnapshot", None)

        store_and_compare(None, steps, count)


@pytest.mark.parametrize("name", sorted(set(EDITS) - {"none", "copy", "append", "private"}))
@given(values=st.lists(SAME, min_size=1, max_size=2), place=st.integers(0, 5), is_odd=st.booleans())
def test_no_edit_goes_unseen(name: str, values: list[Any], place: int, is_odd: bool) -> None:
    passed = messages(2)
    one = passed[place]
    if len(values) > 1 and name not in ("drop", "kind", "extra"):
        EDITS[name](passed, one, values[0])
    if is_odd:
        EDITS["odd"](passed, one, values[0])
    before = exact(passed)
    holding = IdentitySnapshot(passed, attributes_of(passed), VALUES.mark_message)
    assert holding.holds(passed)

    EDITS[name](passed, one, values[-1])

    assert exact(passed) == before or not holding.holds(passed)


def test_lists_may_mix_messages_with_anything() -> None:
    mixed: list[Any] = [HumanMessage("hi"), "a plain note"]
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, log=mixed)
        at = put(saver, at, 1, log=[*mixed, {"role": "user"}])
        end = put(saver, at, 2, log=["first", *mixed])

        assert values(saver, at)["log"] == [*mixed, {"role": "user"}]
        assert values(saver, end)["log"] == ["first", *mixed]


def test_attributes_that_are_none_of_a_message_do_not_become_part_of_one() -> None:
    passed = messages(40)
    with KeepstateSaver("memory://") as saver, KeepstateSaver(saver._handles.blocking()) as other:
        at = put(saver, config(), 0, messages=passed)
        passed[1].__dict__["_cached"] = 1
        other.delete_thread("t")

        at = put(saver, at, 1, messages=passed)

        del passed[1].__dict__["_cached"]
        assert exact(values(saver, at)["messages"]) == exact(passed)


def test_what_changes_in_another_thread_while_it_is_put_is_stored_by_the_next_put() -> None:
    passed = messages(100)
    with KeepstateSaver("memory://") as saver:
        at, is_over = config(), threading.Event()

        def change() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                one = passed[number % len(passed)]
                one.additional_kwargs["n"] = number
                one.name = str(number)

        worker = threading.Thread(target=change)
        worker.start()
        for step in range(30):
            at = put(saver, at, step, messages=passed)
        is_over.set()
        worker.join()

        at = put(saver, at, 30, messages=passed)

        assert exact(values(saver, at)["messages"]) == exact(passed)


class Pickling:
    """A serializer that says all there is of an object."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return a pickle."""
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return what it was made of."""
        return pickle.loads(data[1])


class Note(str):
    """A text that may have attributes, like any object of a class."""


class FailedError(Exception):
    """An error that says more than its text."""


SAID: dict[str, tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], object]]] = {
    "an error's attribute": (
        lambda: FailedError("x"),
        lambda one: setattr(one, "code", 7),
        lambda one: vars(one).get("code"),
    ),
    "a text's attribute": (
        lambda: Note("x"),
        lambda one: setattr(one, "code", 7),
        lambda one: vars(one).get("code"),
    ),
    "an artifact": (
        lambda: ToolMessage("x", tool_call_id="c", artifact=Note("a")),
        lambda one: setattr(one.artifact, "code", 7),
        lambda one: vars(one.artifact).get("code"),
    ),
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("around", [lambda one: one, lambda one: [one], lambda one: {"in": one}])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_only_a_serializer_says_is_seen_as_well(
    name: str, around: Callable[[Any], Any], is_encrypted: bool
) -> None:
    make, change, tell = SAID[name]
    serde: Any = Pickling()
    if is_encrypted:
        serde = EncryptedSerializer.from_pycryptodome_aes(serde, key=b"0123456789abcdef")
    one = make()
    with KeepstateSaver("memory://", serde=serde) as saver:
        at = put(saver, config(), 0, value=around(one))
        change(one)
        at = put(saver, at, 1, value=around(one))

        found = values(saver, at)["value"]
        [kept] = found if isinstance(found, list) else found.values() if isinstance(found, dict) else [found]
        assert tell(kept) == tell(one) == 7


def test_what_was_different_only_while_it_was_put_is_not_taken_for_what_stays() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(40):
            put_while_it_changes()
    finally:
        sys.setswitchinterval(before)


def put_while_it_changes() -> None:
    """Put messages while another thread changes each for a moment, and once more when it has ended."""
    passed = [HumanMessage(f"message {number} " * 9, id=str(number)) for number in range(200)]
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for one in passed:
                was, one.content = one.content, "for a moment"
                one.content = was

    worker = threading.Thread(target=change)
    worker.start()
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, messages=passed)
        is_over.set()
        worker.join()
        at = put(saver, at, 1, messages=passed)

        assert exact(values(saver, at)["messages"]) == exact(passed)


@pytest.mark.parametrize(
    "serde", [None, JsonPlusSerializer(allowed_msgpack_modules=None)], ids=["own", "serde"]
)
def test_an_artifact_that_is_neither_true_nor_false_is_stored(serde: Any) -> None:
    made = ToolMessage("seen", id="1", tool_call_id="c", artifact=np.array([1.0, 2.0]))
    with KeepstateSaver("memory://", serde=serde) as saver:
        at = put(saver, config(), 0, messages=[HumanMessage("look", id="0"), made])
        made.artifact[0] = 9.0
        at = put(saver, at, 1, messages=[HumanMessage("look", id="0"), made])

        assert [*values(saver, at)["messages"][1].artifact] == [9.0, 2.0]


# ---- the marks of what changed


def changed(dice: random.Random, held: dict[str, Any]) -> dict[str, Any]:
    """Return channels as a node may leave them."""
    now = {name: list(value) if isinstance(value, list) else value for name, value in held.items()}
    said = now.setdefault("messages", [HumanMessage("begin", id="0")])
    for _ in range(dice.choice([0, 1, 1, 1, 3])):
        said.append(AIMessage("x" * dice.choice([5, 400]), id=f"{dice.random()}"))
    match dice.randrange(8):
        case 0:
            said.insert(dice.randrange(len(said)), HumanMessage("between", id=f"{dice.random()}"))
        case 1:
            del said[dice.randrange(len(said))]
        case 2:
            said[dice.randrange(len(said))] = said[0]
        case 3:
            now["other"] = dice.choice([{"a": [1, 2]}, [1, 2, 3], "text", {"a": dice.random()}])
        case 4:
            now.pop("other", None)
        case 5:
            now["messages"] = dice.choice([[], "gone", {"said": 1}])
            now["messages"] = now["messages"] or [HumanMessage("again", id="1")]
        case _:
            pass
    if not isinstance(now["messages"], list):
        now[f"old {dice.randrange(3)}"] = now.pop("messages")
    return now


def test_a_commit_marks_exactly_what_its_checkpoint_changed() -> None:
    for seed in range(12):
        dice = random.Random(seed)
        with KeepstateSaver("memory://") as saver:
            at, held = config(), dict[str, Any]()
            for step in range(25):
                held = changed(dice, held)
                at = put(saver, at, step, **held)
            handle = saver._handles.blocking()
            space = keepstate.sync.Keepstate(handle).space("thread/t")
            assert not space.history.verify().problems
            session = HistorySession(Unit(finish(handle.opened()), "thread/t"), Records())
            ids = [bytes.fromhex(one.id) for one in space.history.log("main")]
            for later, earlier in pairwise(ids):
                record = finish(session.record(later))
                old = finish(session.record(earlier)).root
                right = finish(session.serve(touched_between(old, record.root)))
                assert record.own_touched() == right
