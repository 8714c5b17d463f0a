"""Event sourcing: events with ids, where they come from, and of what type they are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from keepstate import EventStream
from keepstate.engine.events.events import NO_STREAM
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError
from keepstate.sync import of
from keepstate.values.schema import CLASSES, register, upcast
from tests.engine.conftest import Turned

# ---- ids


async def test_an_event_is_appended_once_however_often_it_is_sent(space: Space) -> None:
    first = await space.events.append("a", id="1")
    second = await space.events.append("b", expected=first, id="2")

    assert await space.events.append("a", id="1") == first
    assert await space.events.append("b", expected=first, id="2") == second
    assert await space.events.append("a", "b", "c", id=["1", "2", "3"]) > second
    assert [(event.id, event.data) for event in await space.events.read()] == [
        ("1", "a"),
        ("2", "b"),
        ("3", "c"),
    ]


async def test_an_id_is_of_its_stream_alone_and_any_text(space: Space) -> None:
    ids = ["a/b", "%", ":", "two words", "🦜" * 50, "\0"]
    for stream in ("a", "b"):
        await space.events.append(*ids, id=ids, stream=stream)
        await space.events.append(*ids, id=ids, stream=stream)

    for stream in ("a", "b"):
        assert [event.id for event in await space.events.read(stream=stream)] == ids


async def test_two_who_send_one_event_at_once_append_it_once(space: Space) -> None:
    places = await asyncio.gather(*(space.events.append("a", id="1") for _ in range(8)))

    assert len(set(places)) == 1
    assert len(await space.events.read()) == 1


async def test_a_new_event_with_an_id_meets_what_the_stream_should_be(space: Space) -> None:
    first = await space.events.append("a", id="1")
    await space.events.append("b", id="2")

    with pytest.raises(ConflictError):
        await space.events.append("c", id="3", expected=first)


@pytest.mark.parametrize("known", ["1", "2", "3"])
async def test_events_of_which_only_some_are_there_meet_what_the_stream_should_be(
    space: Space, known: str
) -> None:
    await space.events.append("before", id=known)

    with pytest.raises(ConflictError):
        await space.events.append("a", "b", "c", id=["1", "2", "3"], expected=NO_STREAM)

    assert [event.id for event in await space.events.read()] == [known]


async def test_a_transaction_appends_an_event_once_too(space: Space) -> None:
    async with space.transaction() as tx:
        for _ in range(2):
            assert await EventStream(tx, "main").append("a", id="1") == 0
        assert [event.data for event in await tx.events.read()] == ["a"]

    assert len(await space.events.read()) == 1


@pytest.mark.parametrize("wrong", [1, "", ["a"], ["a", "a"], "a" * 201, b"a"], ids=repr)
async def test_what_is_no_id_for_each_event_is_refused(wrong: Any, turned: Turned) -> None:
    with pytest.raises(InvalidError):
        await turned.space.events.append("a", "b", id=wrong)


async def test_streams_are_listed(space: Space) -> None:
    for stream in ("b", "a/b", "a"):
        await space.events.append(1, stream=stream)

    assert sorted([name async for name in space.events.streams()]) == ["a", "a/b", "b"]


# ---- where they come from, and of what type they are


async def test_what_follows_from_an_event_has_its_correlation(space: Space) -> None:
    await space.events.append("asked", id="question")
    await space.events.append("bare")
    question, bare = await space.events.read()

    await space.events.append("searched", id="search", cause=question)
    search = (await space.events.read(after=bare.position))[0]
    await space.events.append("answered", cause=search)
    await space.events.append("noted", cause=bare, correlation="notes")
    _, _, _, answer, note = await space.events.read()

    assert (search.cause, search.correlation) == ("question", "question")
    assert (answer.cause, answer.correlation) == ("search", "question")
    assert (note.cause, note.correlation) == (f"main@{bare.number}", "notes")


async def test_dicts_of_a_type_are_brought_up_to_date_when_they_are_read(space: Space) -> None:
    @upcast("tests.paid", 1)
    def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "currency": "EUR"}

    await space.events.append({"amount": 3}, type="tests.paid")
    await space.events.append({"amount": 4, "currency": "USD"}, type="tests.paid@2")
    old, new = await space.events.read()

    assert (old.type, old.data) == ("tests.paid@2", {"amount": 3, "currency": "EUR"})
    assert (new.type, new.data) == ("tests.paid@2", {"amount": 4, "currency": "USD"})
    with_currency({})


async def test_events_of_classes_that_nobody_knows_are_kept_in_builtin_form(turned: Turned) -> None:
    @register("tests.Shipped")
    @dataclass
    class Shipped:
        to: str

    await turned.space.events.append({"n": 1}, [Shipped("Rome")], Shipped("Oslo"))
    known = CLASSES._by_name.pop("tests.Shipped")
    try:
        events = await turned.space.events.read()
    finally:
        CLASSES._by_name["tests.Shipped"] = known

    assert [event.is_known for event in events] == [True, False, False]
    assert events[1].data == [{"@type": "tests.Shipped@1", "to": "Rome"}]
    assert (events[2].type, events[2].data["to"]) == ("tests.Shipped@1", "Oslo")
    assert (await turned.space.events.read())[2].data == Shipped("Oslo")


@pytest.mark.parametrize("wrong", ["@1", "a@0", "a@x", "a@b@1", "", 1], ids=repr)
async def test_what_is_no_type_is_refused(wrong: Any, turned: Turned) -> None:
    with pytest.raises(InvalidError):
        await turned.space.events.append({}, type=wrong)
    with pytest.raises(InvalidError, match="only dicts"):
        await turned.space.events.append(1, type="a")


# ---- the class itself


async def test_a_stream_made_of_a_space_is_that_of_its_events(space: Space) -> None:
    await EventStream(space, "a").append(1)

    assert [event.data for event in await space.events.stream("a").read()] == [1]


async def test_what_has_no_events_in_this_mode_makes_no_stream(turned: Turned) -> None:
    for wrong in (1, turned.ks, of(turned.ks).space("a")):
        with pytest.raises(InvalidError, match="events"):
            EventStream(wrong)  # type: ignore[arg-type]
