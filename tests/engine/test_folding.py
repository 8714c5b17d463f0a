"""States folded from events: what is kept of them, moments of a stream, letting go of its start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from keepstate import EventStream, Fold
from keepstate.engine.events import folds
from keepstate.engine.events.record import Event, event_key
from keepstate.engine.kernel import layout
from keepstate.engine.repair.verifier import Verifier
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, NotFoundError, PrunedError, StoreUnavailableError
from keepstate.stores.protocol import Batch, Delete, Entry, Outcome, Put
from keepstate.values import codec
from tests.engine.conftest import Turned


def added(state: int, event: Event) -> int:
    return state + int(event.data["n"])


async def filled(space: Space, count: int, *, stream: str = "sums") -> list[int]:
    """Append 0 to count - 1, each with an id, and return where they stand."""
    events = space.events.stream(stream)
    return [await events.append({"n": n}, id=f"e{n}") for n in range(count)]


async def test_a_fold_reads_only_what_came_after_the_state_that_was_kept(space: Space) -> None:
    stream = space.events.stream("sums")
    for _ in range(3):
        await stream.append(*({"n": 1} for _ in range(100)))
    first = await stream.fold_entry(Fold(added, 0))
    last = await stream.append({"n": 1})
    second = await stream.fold_entry(Fold(added, 0))

    assert (first.state, first.events_read) == (300, 300)
    assert (second.state, second.number, second.events_read) == (301, last, 1)
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
        await stream.append({"n": 10}, expected=entry.number or 0)
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
    with pytest.raises(InvalidError, match="past state"):
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
    monkeypatch.setattr(folds, "_CHECKPOINT_EVERY", 10)
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
        prefix = layout.fold_key("sums", Fold(added, 0).title, folds.CHECKPOINT)
        store = await space.executor.store()
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


async def test_a_listing_skips_what_a_truncation_left_that_was_cut_short(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end stands already, and events before it are still there."""
    places = await filled(space, 8)
    stream = space.events.stream("sums")
    store = await space.executor.store()
    plain = store.apply

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        if any(batch.writes and all(type(write) is Delete for write in batch.writes) for batch in batches):
            raise StoreUnavailableError("the process ends here")
        return await plain(batches)

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError):
        patch.setattr(store, "apply", apply)
        await stream.truncate(places[4], Fold(added, 0))

    present = (await store.scan(space.name, layout.stream_key(layout.EVENTS, "sums"))).entries
    assert len(present) == 8
    assert [event.data["n"] for event in await stream.read()] == [5, 6, 7]
    assert await stream.fold(added, 0, None) == sum(range(8))
    with pytest.raises(PrunedError):
        await stream.read(after=places[1])
    assert await stream.truncate(places[4], Fold(added, 0)) == 4
    assert [event.data["n"] for event in await stream.read()] == [5, 6, 7]


async def test_truncation_is_refused_where_something_would_be_lost(space: Space) -> None:
    places = await filled(space, 6)
    stream = space.events.stream("sums")
    await stream.fold(added, 0, 1)
    count = iter(range(100))

    with pytest.raises(InvalidError, match="cached state of the fold"):
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

    with pytest.raises(InvalidError, match="modifies an object that it uses"):
        await stream.truncate(places[3], Fold(spent, 0))
    assert len(await stream.read()) == 6
    assert await stream.truncate(places[3], Fold(spending, 0)) == 4
    assert await stream.fold(spending, 0) == 30


async def problems_of(space: Space) -> tuple[int, list[str]]:
    """Return how many records the space has, and what is wrong with them."""
    store = await space.executor.store()

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
    store = await space.executor.store()
    damaged = [
        Put(layout.fold_key("sums", Fold(added, 0).title, "cache"), b"\xc1"),
        Put(layout.cursor_key("sums", "totals"), b"\xc1"),
        Put(layout.event_id_key("sums", sha256(b"e1").digest()[:16]), b"\xc1"),
    ]
    await store.apply([Batch(space.name, [*damaged, Delete(event_key("sums", places[0]))])])

    _, problems = await problems_of(space)
    assert len(problems) == 4
    assert "its event of stream 'sums' is lost" in problems
    assert await stream.fold(added, 0, 1) == 3
    assert "folding it again" in caplog.text


async def test_a_state_that_was_kept_without_the_number_of_its_events_is_gone_on_from(space: Space) -> None:
    places, fold = await filled(space, 3), Fold(added, 0, 1)
    stored = msgspec.msgpack.encode([fold.digest(), places[1], 0, codec.encode(100)])
    put = Put(layout.fold_key("sums", fold.title, "cache"), stored)
    await (await space.executor.store()).apply([Batch(space.name, [put])])

    entry = await space.events.stream("sums").fold_entry(fold)
    assert (entry.state, entry.events_read) == (102, 1)
