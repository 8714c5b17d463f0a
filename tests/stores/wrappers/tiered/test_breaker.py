"""A breaker leaves out what fails for half a second, and longer only where it fails again."""

from __future__ import annotations

import pytest

from keepstate.stores.wrappers.warm_tier import LONGEST_PAUSE_S, Breaker
from keepstate.testing.clocks import ManualClock

DOWN = OSError("down")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker("a cache", clock)


def test_one_failure_that_many_have_met_is_one(breaker: Breaker, clock: ManualClock) -> None:
    for _ in range(8):
        breaker.record_failure(DOWN)

    clock.advance(499)
    assert not breaker.allows()
    clock.advance(1)
    assert breaker.allows()


def test_only_who_was_let_in_again_makes_the_pause_longer(breaker: Breaker, clock: ManualClock) -> None:
    breaker.record_failure(DOWN)
    clock.advance(500)
    asked = [breaker.allows() for _ in range(3)]
    breaker.record_failure(DOWN)
    breaker.record_failure(DOWN)  # who had asked before, and waited long

    assert asked == [True, False, False]
    clock.advance(999)
    assert not breaker.allows()
    clock.advance(1)
    assert breaker.allows()


def test_pauses_grow_up_to_the_longest_and_end_with_an_answer(breaker: Breaker, clock: ManualClock) -> None:
    breaker.record_failure(DOWN)
    for _ in range(10):
        clock.advance(int(LONGEST_PAUSE_S * 1000))
        assert breaker.allows()
        breaker.record_failure(DOWN)
    clock.advance(int(LONGEST_PAUSE_S * 1000) - 1)
    assert not breaker.allows()
    breaker.record_answer()

    assert breaker.is_closed
    assert breaker.allows()
    breaker.record_failure(DOWN)
    clock.advance(500)
    assert breaker.allows()
