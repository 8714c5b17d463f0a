"""The approvals of interrupts: their questions and subjects, their expiry, and their end with a thread."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, interrupt
from pydantic import BaseModel, SecretStr

import keepstate
from keepstate import Limit
from keepstate.adapters.langgraph import InterruptQuestion, KeepstateSaver, resume
from keepstate.adapters.langgraph.interrupts import question_of
from keepstate.adapters.langgraph.plain import plain
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Store
from tests.adapters.langgraph.asking import (
    State,
    answer,
    config,
    one_asks,
    pending,
    said,
    space_of,
    two_ask,
    work,
)
from tests.adapters.langgraph.test_interrupts import Interrupted, interrupted, states
from tests.engine.conftest import Turned

__all__ = ["interrupted"]

ID = "0" * 32


class Color(Enum):
    RED = "red"


@dataclass
class Order:
    amount: int
    color: Color


class Person(BaseModel):
    name: str
    secret: SecretStr


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


class Broken:
    def __repr__(self) -> str:
        raise OSError


def asking(value: object, schema: Any = None) -> Any:
    """Return a node that asks with a value."""

    def run(state: State) -> dict[str, Any]:
        return {"said": [f"{interrupt(value, response_schema=schema)}"]}

    return run


# ---- subjects


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": (1, 2.5, None, True, b"x")}, {"a": [1, 2.5, None, True, b"x"]}),
        (Order(3, Color.RED), {"amount": 3, "color": "red"}),
        (
            [Person(name="ann", secret=SecretStr("hidden"))],
            [
                {
                    "name": "ann",
                    "secret": {"class": "pydantic.types.SecretStr", "text": "SecretStr('**********')"},
                }
            ],
        ),
        ({Odd(): 1}, {"<odd>": 1}),
        ("lone \ud800", "lone \\ud800"),
    ],
)
def test_a_subject_is_data(value: object, shown: object) -> None:
    assert plain(value) == shown


def test_what_cannot_be_plain_is_a_text_that_says_so() -> None:
    odd, broken = plain([Odd(), Broken()])
    assert (odd["class"].endswith("Odd"), odd["text"]) == (True, "<odd>")
    assert broken["text"] == "<Broken whose repr raised OSError>"

    circle: list[Any] = []
    circle.append(circle)
    assert "[[" in str(plain(circle))


async def test_a_subject_is_readable_without_the_classes_of_the_graph(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    value = {"question": "Send it?", "message": HumanMessage("hello"), "order": Order(3, Color.RED)}
    await one_asks(saver, asking(value)).ainvoke({"said": []}, config())

    [asked] = await pending(space_of(ks))

    assert asked.question == "Send it?"
    assert asked.subject["message"]["content"] == "hello"
    assert asked.subject["order"] == {"amount": 3, "color": "red"}
    assert type(asked.subject["message"]) is dict


@pytest.mark.parametrize(
    ("value", "question"),
    [
        ("Go?", "Go?"),
        ({"question": "Go?"}, "Go?"),
        ({"message": "Go?"}, "Go?"),
        ({"question": ""}, "The graph asks: {'question': ''}"),
        ("", "The graph asks: ''"),
        (["x" * 300], f"The graph asks: ['{'x' * 198}…"),
    ],
)
def test_the_question_is_the_value_or_in_it(value: object, question: str) -> None:
    assert question_of(Interrupt(value, ID), {}).question == question


# ---- answers that are more than yes or no


async def test_the_schema_of_an_interrupt_is_that_of_its_answer(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver, asking("Which?", {"enum": ["card", "bank"]})), space_of(ks)
    await graph.ainvoke({"said": []}, config())

    with pytest.raises(InvalidError):
        await answer(space, "cash")
    await answer(space, "bank")

    await work(space, graph)
    assert await said(graph) == ["bank", "end"]


async def test_a_schema_that_cannot_be_checked_stores_nothing(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph = one_asks(saver, asking("Which?", {"type": "string", "pattern": "a+"}))

    with pytest.raises(InvalidError, match="pattern"):
        await graph.ainvoke({"said": []}, config(), durability="sync")

    assert not (await graph.aget_state(config())).interrupts
    assert await pending(space_of(ks)) == []


async def test_a_function_makes_the_question(opened: list[Keepstate]) -> None:
    seen: list[Any] = []

    def ask(asked: Interrupt[Any], at: Any) -> InterruptQuestion:
        seen.append((asked.value, at["configurable"]["thread_id"]))
        return InterruptQuestion(f"Pay {asked.value['amount']}?", to=["ann", "bob"], need=2, expires_s=60)

    opened.append(keepstate.open("memory://"))
    saver, space = KeepstateSaver(opened[0], approvals=True, ask=ask), space_of(opened[0])
    graph = one_asks(saver, asking({"amount": 7}))
    await graph.ainvoke({"said": []}, config())

    [asked] = await space.approvals.pending(to="bob")
    assert (asked.question, asked.to, asked.need) == ("Pay 7?", ("ann", "bob"), 2)
    assert seen == [({"amount": 7}, "t")]
    await answer(space, by="ann")
    assert await work(space, graph) == []
    await answer(space, by="bob")
    assert await work(space, graph) == ["resumed"]


# ---- expiry


def expiring(default: Any) -> Any:
    return lambda asked, _: InterruptQuestion(str(asked.value), expires_s=60, **default)


@pytest.mark.parametrize(
    ("default", "outcome", "left"),
    [({}, "expired", []), ({"default": False}, "resumed", ["False", "end"])],
)
async def test_an_expired_approval_resumes_with_its_default(
    turned: Turned, default: Any, outcome: str, left: list[str]
) -> None:
    saver = KeepstateSaver(turned.ks, approvals=True, ask=expiring(default))
    graph, space = one_asks(saver, asking("Pay?")), space_of(turned.ks)
    await graph.ainvoke({"said": []}, config())
    [asked] = await pending(space)
    turned.clock.advance(61_000)

    assert await work(space, graph) == [outcome]

    assert await said(graph) == left
    assert [event.kind for event in await space.approvals.log(asked.id)] == ["asked", "expired"]
    await graph.ainvoke(None, config())
    assert [each.id for each in await pending(space)] == ([] if left else [f"{asked.id}/2"])


async def test_a_default_has_to_be_an_answer(interrupted: Interrupted) -> None:
    ks, _ = interrupted
    saver = KeepstateSaver(ks, approvals=True, ask=expiring({"default": "yes"}))

    with pytest.raises(InvalidError, match="yes or no"):
        await one_asks(saver).ainvoke({"said": []}, config(), durability="sync")


# ---- ends of threads


async def parts(store: Store, space: str) -> list[bytes]:
    kept = (layout.APPROVALS, layout.ASKED, layout.ASSIGNED, layout.DECIDED, layout.TASKS, layout.CHECKPOINTS)
    return [part for part in kept if (await store.scan(space, part, limit=1)).entries]


async def test_a_deleted_thread_takes_its_approvals_along(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    await two_ask(saver).ainvoke({"said": []}, config())

    await saver.adelete_thread("t")

    assert [name async for name in ks.spaces()] == []


async def test_a_deleted_thread_leaves_what_others_keep_in_its_space(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = two_ask(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    own = await space.approvals.ask("Mine?")
    _, first, _ = await pending(space)
    await space.approvals.answer(first.id, True, by="ann")

    await saver.adelete_thread("t")

    assert [each.id for each in await pending(space)] == [own.id]
    assert len(await space.approvals.log(own.id)) == 1
    stored = space.executor.stored_name
    assert await parts(await ks.opened(), stored) == [
        *(layout.APPROVALS, layout.ASKED, layout.ASSIGNED, layout.DECIDED)
    ]
    lines = (await (await ks.opened()).scan(stored, layout.DECIDED, limit=10)).entries
    assert len(lines) == 1
    assert await saver.aget_tuple(config()) is None


async def test_a_task_of_a_deleted_thread_runs_nothing(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await space.documents.put("own", 1)
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    await space.approvals.discard(task.payload["approval"])

    assert await resume(graph)(task) == {"outcome": "deleted"}


async def test_deleting_the_checkpoint_withdraws_what_it_asked(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, {**config(), "run_id": ID, "metadata": {"run_id": "r"}})
    [asked] = await pending(space)

    await saver.adelete_for_runs(["r"])

    assert await states(ks, [asked.id]) == [("withdrawn", "its checkpoint was deleted")]


async def test_pruning_keeps_what_is_asked(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())

    assert await saver.aprune(["t"]) > 0

    assert len(await pending(space)) == 1
    await answer(space)
    assert await work(space, graph) == ["resumed"]


async def test_a_copy_asks_when_it_runs(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph = one_asks(saver)
    await graph.ainvoke({"said": []}, config())
    await saver.acopy_thread("t", "copy")
    assert await pending(space_of(ks, "copy")) == []

    await graph.ainvoke(None, config("copy"))

    assert len(await pending(space_of(ks, "copy"))) == 1
    await answer(space_of(ks, "copy"))
    assert await work(space_of(ks, "copy"), graph) == ["resumed"]
    assert (await said(graph, "copy"), await said(graph)) == (["pay: True", "end"], [])


# ---- arguments


@pytest.mark.parametrize(
    "options",
    [
        {"approvals": "yes"},
        {"ask": question_of},
        {"approvals": True, "ask": "Pay?"},
        {"approvals": True, "serde": "encrypting"},
    ],
)
def test_a_wrong_option_is_rejected(options: dict[str, Any]) -> None:
    if "serde" in options:
        inner = JsonPlusSerializer(allowed_msgpack_modules=None)
        options["serde"] = EncryptedSerializer.from_pycryptodome_aes(inner, key=b"0" * 16)

    with pytest.raises(InvalidError):
        KeepstateSaver("memory://", **options)


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        ("graph", {}),
        (1, {}),
        (None, {"durability": "never"}),
        (None, {"lease_s": 0}),
        (None, {"config": "t"}),
    ],
)
def test_a_wrong_argument_of_resume_is_rejected(graph: Any, options: dict[str, Any]) -> None:
    with KeepstateSaver("memory://", approvals=True) as saver, pytest.raises(InvalidError):
        resume(graph or one_asks(saver), **options)


def test_a_graph_with_another_checkpointer_is_rejected() -> None:
    with pytest.raises(InvalidError, match="approvals=True"):
        resume(one_asks(InMemorySaver()))  # type: ignore[arg-type]


async def test_a_graph_that_does_not_ask_resumes_after_no_approval(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    await one_asks(saver).ainvoke({"said": []}, config(), durability="sync")
    await answer(space_of(ks))

    with pytest.raises(InvalidError, match="so that later interrupts ask too"):
        await work(space_of(ks), one_asks(KeepstateSaver(ks)))


async def test_a_question_of_another_class_is_rejected(interrupted: Interrupted) -> None:
    ks, _ = interrupted
    saver = KeepstateSaver(ks, approvals=True, ask=lambda asked, _: str(asked.value))  # type: ignore[arg-type,return-value]

    with pytest.raises(InvalidError, match="give an InterruptQuestion"):
        await one_asks(saver).ainvoke({"said": []}, config(), durability="sync")


async def test_another_task_of_the_kind_is_rejected(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    await space_of(ks).queue.put({"thread": "t"}, kind="langgraph.resume")

    with pytest.raises(InvalidError, match="does not resume a thread"):
        await work(space_of(ks), one_asks(saver))


async def test_limits_hold_for_resumed_threads(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = two_ask(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await space.queue.configure(limits=[Limit(running=1, kind="langgraph.resume")])
    await answer(space)

    claims = await asyncio.gather(*(space.queue.claim(f"{n}", lease_s=60) for n in range(2)))

    assert [len(found) for found in claims] == [1, 0]
