"""Event sourcing: events with ids, states folded from them, moments of a stream, letting go of its start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
import pytest

from keepstate import EventStream, Fold
from keepstate.engine import folding, layout
from keepstate.engine.event_record import Event
from keepstate.engine.events import event_key
from keepstate.engine.space import Space
from keepstate.engine.verifying import Verifier
from keepstate.errors import ConflictError, InvalidError, NotFoundError, PrunedError
from keepstate.stores.protocol import Batch, Delete, Entry, Put
from keepstate.values import codec
from keepstate.values.schema import CLASSES, register, upcast
from tests.engine.conftest import Turned


def added(state: int, event: Event) -> int:
    return state + int(event.data["n"])


async def filled(space: Space, count: int, *, stream: str = "sums") -> list[int]:
    """Appends 0 to count - 1, each with an id, and returns where they stand."""
    events = space.events.stream(stream)
    return [await events.append({"n": n}, id=f"e{n}") for n in range(count)]


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
    assert (note.cause, note.correlation) == (f"main@{bare.position}", "notes")


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


# ---- folds


async def test_a_fold_reads_only_what_came_after_the_state_that_was_kept(space: Space) -> None:
    stream = space.events.stream("sums")
    for _ in range(3):
        await stream.append(*({"n": 1} for _ in range(100)))
    first = await stream.fold_entry(Fold(added, 0))
    last = await stream.append({"n": 1})
    second = await stream.fold_entry(Fold(added, 0))

    assert (first.state, first.events_read) == (300, 300)
    assert (second.state, second.position, second.events_read) == (301, last, 1)
    assert await stream.fold(added, 0) == 301


async def test_a_changed_reducer_or_beginning_throws_the_kept_state_away(space: Space) -> None:
    await filled(space, 5)
    stream = space.events.stream("sums")

    async def folded(reducer: Any, initial: Any = 0, version: int = 1) -> tuple[Any, int]:
        entry = await stream.fold_entry(Fold(reducer, initial, 1, "sum", version))
        return entry.state, entry.events_read

    assert await folded(lambda state, event: state + event.data["n"]) == (10, 5)
    assert await folded(lambda state, event: state + event.data["n"]) == (10, 0)
    assert await folded(lambda state, event: state - event.data["n"]) == (-10, 5)
    assert await folded(lambda state, event: state - event.data["n"], 1) == (-9, 5)
    assert await folded(lambda state, event: state - event.data["n"], 1, 2) == (-9, 5)


async def test_a_changed_function_that_the_reducer_calls_is_seen(turned: Turned) -> None:
    await filled(turned.space, 3)
    stream, code = turned.space.events.stream("sums"), weight.__code__

    assert await stream.fold(weighed, 0, 1) == 3
    try:
        weight.__code__ = (lambda event: 2 * event.data["n"]).__code__
        assert await stream.fold(weighed, 0, 1) == 6
    finally:
        weight.__code__ = code


def weight(event: Event) -> int:
    return int(event.data["n"])


def weighed(state: int, event: Event) -> int:
    return state + weight(event)


RATE = 1


async def test_a_changed_constant_that_the_reducer_uses_is_seen(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(space, 3)
    stream = space.events.stream("sums")

    def rated(state: int, event: Event) -> int:
        return state + RATE

    assert await stream.fold(rated, 0, 1) == 3
    monkeypatch.setitem(globals(), "RATE", 2)
    assert await stream.fold(rated, 0, 1) == 6


async def test_two_versions_of_a_reducer_that_take_turns_read_each_event_once(space: Space) -> None:
    stream = space.events.stream("sums")
    read: list[int] = []

    for version in (1, 2, 1, 2, 3, 2, 1):
        await stream.append({"n": 1})
        entry = await stream.fold_entry(Fold(added, 0, 1, version=version))
        read.append(entry.events_read)
        assert entry.state == len(read)

    assert read == [1, 2, 2, 2, 5, 2, 7]


async def test_a_fold_in_a_transaction_sees_what_that_has_appended(space: Space) -> None:
    await filled(space, 3)

    async with space.transaction() as tx:
        stream = EventStream(tx, "sums")
        entry = await stream.fold_entry(Fold(added, 0))
        await stream.append({"n": 10}, expected=entry.position or 0)
        assert await stream.fold(added, 0) == 13

    assert await space.events.stream("sums").fold(added, 0) == 13


async def test_an_initial_state_stays_as_it_is_and_reducers_may_be_coroutine_functions(space: Space) -> None:
    await filled(space, 3)
    initial: list[int] = []

    async def listed(state: list[int], event: Event) -> list[int]:
        state.append(event.data["n"])
        return state

    assert await space.events.stream("sums").fold(listed, initial) == [0, 1, 2]
    assert initial == []


async def test_a_reducer_that_forgets_its_return_is_told_so(turned: Turned) -> None:
    await filled(turned.space, 1)

    with pytest.raises(InvalidError, match="returned None"):
        await turned.space.events.stream("sums").fold(lambda state, event: state.append(event), [])


async def test_a_state_that_cannot_be_kept_names_the_way_out(turned: Turned) -> None:
    await filled(turned.space, 1)
    stream = turned.space.events.stream("sums")

    with pytest.raises(InvalidError, match="cache_every=None"):
        await stream.fold(lambda state, event: [object()], [], 1)
    assert len(await stream.fold(lambda state, event: [object()], [], None)) == 1


# ---- moments


async def test_a_stream_can_be_read_and_folded_as_it_was(space: Space) -> None:
    places = await filled(space, 10)
    stream = space.events.stream("sums")
    await stream.fold(added, 0, 1)
    then = stream.at(places[3])

    assert [event.data["n"] for event in await then.read()] == [0, 1, 2, 3]
    assert await then.fold(added, 0) == 6
    assert await then.last() == places[3]
    with pytest.raises(InvalidError, match="as it was"):
        await then.append({"n": 1})


async def test_a_stream_as_of_a_time_ends_before_what_was_recorded_later(turned: Turned) -> None:
    stream = turned.space.events.stream("sums")
    for n in range(4):
        await stream.append({"n": n})
        turned.clock.advance(60_000)
    begun = (await stream.read())[0].recorded_at
    await stream.fold(added, 0, 1)

    assert await stream.at(begun + timedelta(seconds=61)).fold(added, 0) == 1
    assert await stream.at(begun - timedelta(seconds=1)).fold(added, 0) == 0
    assert await stream.at(begun + timedelta(days=1)).fold(added, 0) == 6
    just_before = (await stream.read())[3].recorded_at - timedelta(microseconds=300)
    for cache_every in (None, 1):
        assert await stream.at(just_before).fold(added, 0, cache_every=cache_every) == 3
    for wrong in (datetime(2026, 1, 1), "now", -1, True, 10**40):
        with pytest.raises(InvalidError, match="moment"):
            stream.at(wrong)  # type: ignore[arg-type]


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> int:
    """After so many events a state is kept for good."""
    monkeypatch.setattr(folding, "_FAR", 10)
    return 10


async def test_an_earlier_moment_is_folded_from_the_nearest_state_that_was_kept(
    space: Space, near: int
) -> None:
    stream = space.events.stream("sums")
    places: list[int] = []
    for n in range(24):
        places += [await stream.append({"n": 1}) for _ in range(3)]
        if n % 2:
            await stream.fold(added, 0, 1)

    for count in (1, 9, 30, 44, 71, 72):
        entry = await stream.at(places[count - 1]).fold_entry(Fold(added, 0))
        assert entry.state == count
        assert entry.events_read <= near + 6
    then = (await stream.read())[50].recorded_at
    by_time = await stream.at(then).fold_entry(Fold(added, 0))
    assert by_time.state == sum(1 for event in await stream.read() if event.recorded_at <= then)
    async with space.transaction() as tx:
        assert await EventStream(tx, "sums").at(places[43]).fold(added, 0) == 44


async def test_a_long_fold_up_to_a_moment_is_not_done_twice(space: Space, near: int) -> None:
    places = await filled(space, 45)
    then = space.events.stream("sums").at(places[39])

    assert [(await then.fold_entry(Fold(added, 0, 1))).events_read for _ in range(2)] == [40, 0]
    assert await space.events.stream("sums").fold(added, 0, 1) == sum(range(45))


async def test_states_kept_for_good_go_with_their_reducer_and_with_their_events(
    space: Space, near: int
) -> None:
    places = await filled(space, 5)
    stream = space.events.stream("sums")

    async def fold_and_append(version: int, count: int) -> None:
        for _ in range(count):
            places.append(await stream.append({"n": 1}))
            await stream.fold(added, 0, 1, version=version)

    async def kept() -> int:
        prefix = layout.fold_key("sums", Fold(added, 0).title, folding.MOMENT)
        store = await space._alone.store()
        return len((await store.scan(space.name, prefix)).entries)

    await fold_and_append(1, 31)
    assert await kept() == 3
    await fold_and_append(2, 1)
    await fold_and_append(3, 10)
    assert await kept() == 3  # of the versions 2 and 3
    await stream.truncate(places[-1], Fold(added, 0, version=3))
    assert await kept() == 0
    assert await stream.fold(added, 0, version=3) == sum(range(5)) + 42
    with pytest.raises(PrunedError):
        await stream.at(places[20]).fold(added, 0, version=3)


# ---- truncation


async def test_truncation_lets_go_of_events_and_changes_no_state(space: Space) -> None:
    places = await filled(space, 20)
    stream = space.events.stream("sums")

    assert await stream.truncate(places[9], Fold(added, 0)) == 10
    assert await stream.fold(added, 0, None) == sum(range(20))
    assert [event.data["n"] for event in await stream.read()] == list(range(10, 20))
    assert await stream.truncate(places[9], Fold(added, 0)) == 0
    assert await stream.truncate(places[19], Fold(added, 0)) == 10
    assert (await stream.fold(added, 0, None), await stream.read()) == (sum(range(20)), [])
    assert await stream.last() == places[19]


async def test_who_needs_what_was_let_go_is_told_so(space: Space) -> None:
    places = await filled(space, 6)
    stream = space.events.stream("sums")
    await stream.truncate(places[3], Fold(added, 0))

    for reading in (
        stream.read(after=places[1]),
        stream.fold(lambda state, event: state, 0),
        stream.fold(added, 1),
        stream.at(places[1]).fold(added, 0),
        anext(stream.follow(after=places[1])),
    ):
        with pytest.raises(PrunedError):
            await reading
    assert await stream.fold(added, 1, from_base=True) == sum(range(6))
    assert [event.data["n"] for event in await stream.read(after=places[3])] == [4, 5]


async def test_truncation_is_refused_where_something_would_be_lost(space: Space) -> None:
    places = await filled(space, 6)
    stream = space.events.stream("sums")
    await stream.fold(added, 0, 1)
    count = iter(range(100))

    with pytest.raises(InvalidError, match="folded by"):
        await stream.truncate(places[3])
    with pytest.raises(InvalidError, match="two different states"):
        await stream.truncate(places[3], Fold(lambda state, event: next(count), 0), Fold(added, 0))
    with pytest.raises(NotFoundError):
        await stream.truncate(places[3] + 1, Fold(added, 0))
    assert len(await stream.read()) == 6


async def test_truncation_is_refused_by_a_reducer_that_changes_what_it_uses(space: Space) -> None:
    places = await filled(space, 6)
    stream = space.events.stream("sums")
    costs: dict[int, int] = {}

    def spent(state: int, event: Event) -> int:
        return state + costs.setdefault(event.data["n"], 2 * event.data["n"])

    @lru_cache
    def cost(n: int) -> int:
        return 2 * n

    def spending(state: int, event: Event) -> int:
        return state + cost(event.data["n"])

    with pytest.raises(InvalidError, match="changes what it uses"):
        await stream.truncate(places[3], Fold(spent, 0))
    assert len(await stream.read()) == 6
    assert await stream.truncate(places[3], Fold(spending, 0)) == 4
    assert await stream.fold(spending, 0) == 30


async def problems_of(space: Space) -> tuple[int, list[str]]:
    """Returns how many records the space has, and what is wrong with them."""
    store = await space._alone.store()

    class Live:
        async def read(self, name: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
            return (await store.read(name, keys)).entries

        def pages(self, name: str) -> AsyncIterator[Sequence[Entry]]:
            raise NotImplementedError

    entries = (await store.scan(space.name, b"\x01")).entries
    verifier = Verifier(Live(), space.name)
    return len(entries), [one.what for entry in entries for one in await verifier.problems(entry)]


async def test_what_is_verified_after_truncation_is_whole(space: Space) -> None:
    places = await filled(space, 6)
    stream = space.events.stream("sums")
    await stream.fold(added, 0, 1)
    await stream.truncate(places[4], Fold(added, 0))
    count, problems = await problems_of(space)

    assert count == 6  # the end, the last event and its id, the head, what was kept twice
    assert problems == []


async def test_damage_to_what_is_kept_is_found_and_a_cache_is_made_again(
    space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    places = await filled(space, 3)
    stream = space.events.stream("sums")
    await stream.fold(added, 0, 1)
    store = await space._alone.store()
    damaged = [
        Put(layout.fold_key("sums", Fold(added, 0).title, "cache"), b"\xc1"),
        Put(layout.cursor_key("sums", "totals"), b"\xc1"),
        Put(layout.event_id_key("sums", "e1"), b"\xc1"),
    ]
    await store.apply([Batch(space.name, [*damaged, Delete(event_key("sums", places[0]))])])

    _, problems = await problems_of(space)
    assert len(problems) == 4
    assert "the event of stream 'sums' that it tells of is lost" in problems
    assert await stream.fold(added, 0, 1) == 3
    assert "it is folded again" in caplog.text


async def test_a_state_that_was_kept_without_the_number_of_its_events_is_gone_on_from(space: Space) -> None:
    places, fold = await filled(space, 3), Fold(added, 0, 1)
    stored = msgspec.msgpack.encode([fold.digest(), places[1], 0, codec.encode(100)])
    put = Put(layout.fold_key("sums", fold.title, "cache"), stored)
    await (await space._alone.store()).apply([Batch(space.name, [put])])

    entry = await space.events.stream("sums").fold_entry(fold)
    assert (entry.state, entry.events_read) == (102, 1)


# ---- the class itself


async def test_a_stream_made_of_a_space_is_that_of_its_events(space: Space) -> None:
    await EventStream(space, "a").append(1)

    assert [event.data for event in await space.events.stream("a").read()] == [1]


async def test_what_has_no_events_in_this_colour_makes_no_stream(turned: Turned) -> None:
    for wrong in (1, turned.ks, turned.ks.sync.space("a")):
        with pytest.raises(InvalidError, match="events"):
            EventStream(wrong)  # type: ignore[arg-type]
