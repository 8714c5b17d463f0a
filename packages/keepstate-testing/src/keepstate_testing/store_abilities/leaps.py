"""Leaps in time: one wrong clock does not advance the time of a space. Mixins for the contract."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from keepstate._clock import Clock
from keepstate.errors import ClockError
from keepstate.stores.base import StoreBase
from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Leap, Put
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract.stage import (
    LONG_MS,
    Stage,
    applied,
    outcome_of,
    put_away,
    revision_of,
    value_of,
)

A, B = b"\x01a", b"\x01b"
_YEAR_MS = 365 * 86_400_000


def warnings_in(caplog: pytest.LogCaptureFixture, space: str) -> int:
    """Return how many warnings say that the space is ahead of both clocks."""
    return sum(
        record.levelno == logging.WARNING and "both clocks" in record.message and space in record.message
        for record in caplog.records
    )


class KeepsLeaps(Stage):
    """A store that keeps the last leap of each space's time. Put it after `Clocked`."""

    clock: ManualClock

    async def test_the_first_write_and_each_later_leap_are_kept(self, store: StoreBase, space: str) -> None:
        assert await store.last_leap(space) is None
        first_ms = (await applied(store, space, Put(A, b"1"))).now_ms
        assert await store.last_leap(space) == Leap(1, 0, first_ms)

        self.clock.advance(LEAP_MS)
        before_ms = (await applied(store, space, Put(A, b"2"))).now_ms
        assert await store.last_leap(space) == Leap(1, 0, first_ms), "an hour is not a leap"

        self.clock.advance(LEAP_MS + 1)
        await store.read(space, [A])  # moves on what the process remembers, and nothing that is kept
        outcome = await outcome_of(store, space, Put(A, b"3"), checks=[Check(A, version=ABSENT)])
        assert type(outcome) is Conflict
        leapt_ms = (await applied(store, space, Put(A, b"3"), Put(B, b""))).now_ms
        await applied(store, space, Put(A, b"4"))

        assert await store.last_leap(space) == Leap(3, before_ms, leapt_ms)

    async def test_a_drop_keeps_the_last_leap(self, store: StoreBase, space: str) -> None:
        first_ms = (await applied(store, space, Put(A, b"1"))).now_ms

        await store.drop(space)
        kept = await store.last_leap(space)
        self.clock.advance(_YEAR_MS)
        await applied(store, space, Put(A, b"2"))
        self.clock.advance(_YEAR_MS)
        await store.drop(space)

        assert kept == Leap(1, 0, first_ms)
        assert await store.last_leap(space) == Leap(4, first_ms + _YEAR_MS, first_ms + 2 * _YEAR_MS)

    async def test_a_leap_is_there_after_reopening(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.advance(_YEAR_MS)
        await applied(store, space, Put(A, b"2"))
        before = await store.last_leap(space)

        await store.close()
        again = await self.make_store(tmp_path).open()

        assert before is not None
        assert await again.last_leap(space) == before
        await put_away(again, space)
        await again.close()

    async def test_a_space_ahead_of_the_clocks_is_reported_once_a_minute(
        self, store: StoreBase, space: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.clock.advance(_YEAR_MS)
        await applied(store, space, Put(A, b"1"))
        assert warnings_in(caplog, space) == 0

        self.clock.turn_back(_YEAR_MS)
        for _ in range(3):
            await store.read(space, [A])
            await store.scan(space, A)
            await applied(store, space, Put(B, b""))
        assert warnings_in(caplog, space) == 1

        for number, look in enumerate([store.read(space, [A]), store.scan(space, A)], 2):
            self.clock.advance(60_000)
            await look
            assert warnings_in(caplog, space) == number
        self.clock.advance(60_000)
        await applied(store, space, Put(B, b""))
        assert warnings_in(caplog, space) == 4

    async def test_an_hour_ahead_is_not_reported(
        self, store: StoreBase, space: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.turn_back(LEAP_MS)

        await store.read(space, [A])
        await applied(store, space, Put(A, b"2"))

        assert warnings_in(caplog, space) == 0


class ConfirmsLeaps(Stage):
    """A store that asks a second clock before a space's time advances: by a file that it touches.

    Put it after `Clocked`.
    """

    clock: ManualClock

    async def test_a_wrong_clock_moves_no_space_on(self, store: StoreBase, space: str) -> None:
        first = await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))
        right_ms = self.clock.second_ms = self.clock.now_ms()
        self.clock.advance(70 * _YEAR_MS)

        outcome = await outcome_of(store, space, Put(B, b"2"))
        other = await outcome_of(store, f"{space}/new", Put(B, b"2"))
        with pytest.raises(ClockError):
            await store.read(space, [A])
        with pytest.raises(ClockError):
            await store.scan(space, A)
        with pytest.raises(ClockError):
            await store.drop(space)
        self.clock.turn_back(70 * _YEAR_MS)

        assert isinstance(outcome, ClockError)
        assert isinstance(other, ClockError)
        assert (outcome.clock_ms, outcome.second_ms) == (right_ms + 70 * _YEAR_MS, right_ms)
        assert outcome.space == space
        assert await value_of(store, space, A) == b"1", "only the wrong process is shut out"
        assert (await applied(store, space, Put(B, b"3"))).now_ms == first.now_ms
        assert await revision_of(store, space) == 2
        assert await revision_of(store, f"{space}/new") == 0

    async def test_one_batch_s_leap_is_its_own(self, store: StoreBase, space: str) -> None:
        ahead = f"{space}/ahead"
        await applied(store, space, Put(A, b"1"))
        self.clock.advance(4 * LEAP_MS)
        await applied(store, ahead, Put(A, b"1"))
        self.clock.second_ms = self.clock.now_ms() - 4 * LEAP_MS
        self.clock.turn_back(LEAP_MS)

        outcomes = await store.apply([Batch(space, [Put(B, b"")]), Batch(ahead, [Put(B, b"")])])

        assert [type(outcome) for outcome in outcomes] == [ClockError, Applied]
        self.clock.second_ms = None
        await put_away(store, ahead)

    async def test_a_long_pause_is_no_leap_of_a_wrong_clock(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))
        self.clock.advance(_YEAR_MS)

        assert await value_of(store, space, A) is None
        await applied(store, space, Put(A, b"2"), checks=[Check(A, version=ABSENT)])

    async def test_small_steps_carry_a_space_no_further_than_one(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=24 * LEAP_MS))
        right_ms = self.clock.second_ms = self.clock.now_ms()
        outcomes: list[object] = []

        for _ in range(30):
            self.clock.advance(LEAP_MS - 60_000)
            outcomes.append(await outcome_of(store, space, Put(B, b"")))
        with pytest.raises(ClockError):
            await store.read(space, [A])
        self.clock.turn_back(30 * (LEAP_MS - 60_000))

        assert [type(outcome) for outcome in outcomes] == [Applied] + [ClockError] * 29
        reading = await store.read(space, [A])
        assert reading.now_ms - right_ms <= LEAP_MS
        assert reading.entries[0] is not None

    async def test_a_clock_that_creeps_is_compared_each_minute(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        right_ms = self.clock.second_ms = self.clock.now_ms()

        for _ in range(100):
            self.clock.advance(50_000)
            await outcome_of(store, space, Put(B, b""))
        self.clock.turn_back(100 * 50_000)

        assert (await store.read(space, [A])).now_ms - right_ms <= LEAP_MS + 60_000
        self.clock.second_ms = None

    async def test_a_clock_that_is_behind_needs_no_second_clock(self, store: StoreBase, space: str) -> None:
        first = await applied(store, space, Put(A, b"1"))
        self.clock.second_ms = 0

        for _ in range(3):
            self.clock.turn_back(_YEAR_MS)
            assert (await applied(store, space, Put(A, b"2"))).now_ms == first.now_ms
            assert await value_of(store, space, A) == b"2"

        self.clock.second_ms = None

    async def test_a_second_clock_is_asked_at_most_once_a_minute(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.advance(_YEAR_MS)
        before = self.clock.touches

        for _ in range(20):
            await store.read(space, [A])
            await store.scan(space, A)
            await applied(store, space, Put(B, b""))
            self.clock.advance(1000)

        assert self.clock.touches == before + 1

    async def test_a_space_that_one_clock_confirms_is_not_reported(
        self, store: StoreBase, space: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.second_ms = self.clock.now_ms()
        self.clock.turn_back(_YEAR_MS)
        before = self.clock.touches

        for _ in range(20):
            await store.read(space, [A])
            await store.scan(space, A)

        assert warnings_in(caplog, space) == 0
        assert self.clock.touches == before + 1, "asked at most once a minute"


class ConfirmsServersClock(Stage):
    """A store on a server, by whose clock no space leaps that the client's own clock does not confirm."""

    def make_store_by(self, clock: Clock) -> StoreBase:
        """Return a handle whose process has this clock, not yet opened."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to make its store by a clock")

    async def set_time(self, store: StoreBase, space: str, ms: int) -> None:
        """Set the stored time of a space, as a server whose clock was wrong leaves it."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to set a space's time")

    async def test_two_clocks_that_differ_let_no_space_leap(self, store: StoreBase, space: str) -> None:
        apart = await self.make_store_by(ManualClock(0)).open()

        lone = await outcome_of(apart, space, Put(A, b"1"))
        several = await outcome_of(apart, space, Put(A, b"1"), Put(B, b"1"))

        for outcome in (lone, several):
            assert isinstance(outcome, ClockError)
            assert (outcome.space, outcome.second_ms) == (space, 0)
            assert (outcome.clock_ms or 0) > LEAP_MS
        assert await store.spaces(space) == []
        assert await revision_of(store, space) == 0
        await apart.close()

    async def test_a_clock_that_differs_is_asked_for_leaps_only(self, store: StoreBase, space: str) -> None:
        apart = await self.make_store_by(ManualClock(0)).open()
        await applied(store, space, Put(A, b"1"))

        await applied(apart, space, Put(B, b"2"), checks=[Check(A, version=1)])
        await apart.drop(space)

        assert await revision_of(store, space) == 3
        await apart.close()

    async def test_a_leap_is_kept_with_its_revision(self, store: StoreBase, space: str) -> None:
        assert await store.last_leap(space) is None
        first = await applied(store, space, Put(A, b"1"))
        assert await store.last_leap(space) == Leap(1, 0, first.now_ms)
        await applied(store, space, Put(A, b"2"))
        assert await store.last_leap(space) == Leap(1, 0, first.now_ms)

        before_ms = first.now_ms - _YEAR_MS
        await self.set_time(store, space, before_ms)
        lone = await applied(store, space, Put(A, b"3"))
        assert await store.last_leap(space) == Leap(3, before_ms, lone.now_ms)
        await self.set_time(store, space, before_ms)
        several = await applied(store, space, Put(A, b"4"), Put(B, b""))
        await applied(store, space, Put(A, b"5"))
        assert await store.last_leap(space) == Leap(4, before_ms, several.now_ms)

        await self.set_time(store, space, before_ms)
        await store.drop(space)
        leap = await store.last_leap(space)
        assert leap is not None
        assert leap[:2] == (6, before_ms)
        await applied(store, space, Put(A, b"7"))
        assert await store.last_leap(space) == leap

    async def test_reads_by_a_clock_that_differs_judge_no_expiry(self, store: StoreBase, space: str) -> None:
        apart = await self.make_store_by(ManualClock(0)).open()
        now_ms = (await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS), Put(B, b"1"))).now_ms
        assert await value_of(apart, space, B) == b"1", "no leap is to be judged"
        await self.set_time(store, space, now_ms - _YEAR_MS)

        for look in (apart.read(space, [A]), apart.read(space, [A, B]), apart.scan(space, A)):
            with pytest.raises(ClockError) as caught:
                await look
            assert (caught.value.space, caught.value.second_ms) == (space, 0)
        with pytest.raises(ClockError):
            await apart.read(space, [A] + [A + bytes((n,)) for n in range(100)])

        assert await revision_of(apart, space) == 1, "without a key nothing is judged"
        assert await value_of(store, space, A) == b"1"
        assert await value_of(apart, f"{space}/none", A) is None
        await apart.close()

    async def test_a_space_ahead_of_both_clocks_is_reported_once(
        self, store: StoreBase, space: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = await applied(store, space, Put(A, b"1"))
        clock = ManualClock(first.now_ms)
        near = await self.make_store_by(clock).open()
        await near.read(space, [A])
        assert warnings_in(caplog, space) == 0
        await self.set_time(store, space, first.now_ms + _YEAR_MS)

        looks: list[Callable[[], Awaitable[object]]] = [
            partial(near.read, space, [A]),
            partial(near.read, space, [A, B]),
            partial(near.scan, space, A),
            partial(applied, near, space, Put(B, b"")),
        ]
        for number, look in enumerate(looks, 1):
            await look()
            await look()
            assert warnings_in(caplog, space) == number
            clock.advance(60_000)
        clock.turn_back(_YEAR_MS)  # a client that is behind says nothing of the space
        other = f"{space}/other"
        await applied(store, other, Put(A, b"1"))
        await near.read(other, [A])

        assert warnings_in(caplog, other) == 0
        await put_away(store, other)
        await near.close()
