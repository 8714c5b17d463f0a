"""Leaps in time: one wrong clock moves no space on. Mixins, like those of `abilities`."""

from __future__ import annotations

import pytest

from keepstate._clock import Clock
from keepstate.errors import ClockError
from keepstate.stores.base import StoreBase
from keepstate.stores.leaps import LEAP_MS
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Put
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


class ConfirmsLeaps(Stage):
    """A store that asks a second clock before a space's time leaps: by a file that it touches.

    To be named behind `Clocked`.
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
        assert await value_of(store, space, A) == b"1", "nobody but the wrong process is shut out"
        assert (await applied(store, space, Put(B, b"3"))).now_ms == first.now_ms
        assert await revision_of(store, space) == 2
        assert await revision_of(store, f"{space}/new") == 0

    async def test_one_batch_s_leap_is_its_own(self, store: StoreBase, space: str) -> None:
        ahead = f"{space}/ahead"
        await applied(store, space, Put(A, b"1"))
        self.clock.advance(2 * LEAP_MS)
        await applied(store, ahead, Put(A, b"1"))
        self.clock.second_ms = self.clock.now_ms() - 2 * LEAP_MS
        self.clock.advance(LEAP_MS)

        outcomes = await store.apply([Batch(space, [Put(B, b"")]), Batch(ahead, [Put(B, b"")])])

        assert [type(outcome) for outcome in outcomes] == [ClockError, Applied]
        self.clock.second_ms = None
        await put_away(store, ahead)

    async def test_a_long_pause_is_no_leap_of_a_wrong_clock(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))
        self.clock.advance(_YEAR_MS)

        assert await value_of(store, space, A) is None
        await applied(store, space, Put(A, b"2"), checks=[Check(A, version=ABSENT)])

    async def test_an_hour_needs_no_second_clock(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.second_ms = 0

        self.clock.advance(LEAP_MS)
        await applied(store, space, Put(A, b"2"))
        self.clock.advance(LEAP_MS)
        await applied(store, space, Put(A, b"3"))

        self.clock.advance(LEAP_MS + 1)
        assert isinstance(await outcome_of(store, space, Put(A, b"4")), ClockError)
        self.clock.second_ms = None

    async def test_a_second_clock_is_asked_at_most_once_a_minute(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.clock.advance(_YEAR_MS)
        before = self.clock.touches

        for _ in range(20):
            await store.read(space, [A])
            await store.scan(space, A)
            self.clock.advance(1000)

        assert self.clock.touches == before + 1


class ConfirmsServersClock(Stage):
    """A store on a server, by whose clock no space leaps that the client's own clock does not confirm."""

    def make_store_by(self, clock: Clock) -> StoreBase:
        """Returns a handle whose process has this clock, not yet opened."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to make its store by a clock")

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
