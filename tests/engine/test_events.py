"""Events: appended together, read in order, stream by stream."""

from __future__ import annotations

import asyncio

import pytest

from keepstate.engine.events.events import EXISTS, NO_STREAM
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, HistoryLostError, InvalidError


async def test_events_come_back_in_order_and_in_pages(space: Space) -> None:
    last = 0
    for number in range(0, 6, 2):
        last = await space.events.append(number, number + 1)

    first = await space.events.read(limit=4)
    rest = await space.events.read(after=first[-1].position)

    assert [event.data for event in (*first, *rest)] == list(range(6))
    positions = [event.number or 0 for event in (*first, *rest)]
    assert positions == sorted(set(positions)) and positions[-1] == last


async def test_streams_do_not_mix(space: Space) -> None:
    for stream in ("a", "ab", "a\0", "a/b"):
        await space.events.append(stream, stream=stream)

    for stream in ("a", "ab", "a\0", "a/b"):
        assert [event.data for event in await space.events.read(stream=stream)] == [stream]


async def test_an_append_applies_only_to_a_stream_that_is_as_expected(space: Space) -> None:
    with pytest.raises(ConflictError):
        await space.events.append(1, expected=EXISTS)
    first = await space.events.append(1, expected=NO_STREAM)
    with pytest.raises(ConflictError):
        await space.events.append(2, expected=NO_STREAM)
    second = await space.events.append(2, expected=first)
    with pytest.raises(ConflictError):
        await space.events.append(3, expected=first)
    await space.events.append(3, expected=EXISTS)

    assert second > first
    assert [event.data for event in await space.events.read()] == [1, 2, 3]


async def test_what_is_no_expectation_is_refused(space: Space) -> None:
    with pytest.raises(InvalidError):
        await space.events.append(1, expected="any")  # type: ignore[arg-type]


async def test_a_follower_gets_each_new_event(space: Space) -> None:
    await space.events.append(0)

    async def follow() -> list[object]:
        found: list[object] = []
        async for event in space.events.follow():
            found.append(event.data)
            if len(found) == 10:
                break
        return found

    following = asyncio.create_task(follow())
    for number in range(1, 10):
        await space.events.append(number)

    assert await asyncio.wait_for(following, 60) == list(range(10))


async def test_a_position_that_the_space_never_reached_is_lost_history(space: Space) -> None:
    last = await space.events.append(1)
    future = last + (1 << 16)

    assert await space.events.read(after=last) == []
    for reading in (space.events.read(after=future), anext(space.events.follow(after=future))):
        with pytest.raises(HistoryLostError, match="is at revision 1, below revision 2 of event 131072"):
            await reading
    with pytest.raises(HistoryLostError):
        async with space.transaction() as tx:
            await tx.events.append(2)
            await tx.events.read(after=future)


async def test_events_without_an_id_stand_between_those_with_one(space: Space) -> None:
    first = await space.events.append("a", "b", "c", id=["1", None, "3"])
    again = await space.events.append("a", "b", id=["1", None])
    last = await space.events.append("c", "d", id=[None, "3"])
    plain = await space.events.append("x", "y", id=[None, None])

    events = await space.events.read()
    assert [(event.data, event.id) for event in events] == [
        ("a", "1"), ("b", None), ("c", "3"), ("b", None), ("c", None), ("x", None), ("y", None),
    ]  # fmt: skip
    assert [first, again, last, plain] == [
        events[2].number, events[3].number, events[2].number, events[6].number,
    ]  # fmt: skip
    async with space.transaction() as tx:
        assert await tx.events.append("e", "f", id=["9", None]) == 0
    assert [event.data for event in await space.events.read(after=plain)] == ["e", "f"]
    for wrong in (["1"], [None], ["1", "1"], [1, None]):
        with pytest.raises(InvalidError):
            await space.events.append("a", "b", id=wrong)  # type: ignore[arg-type]
