"""A call ends in time, whatever each attempt takes."""

from __future__ import annotations

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import StoreUnavailableError
from keepstate.stores.retries import READ_ONLY_FOR_S, RetryBudget
from keepstate.testing.clocks import ManualClock


class Unsleeping(ThreadRunner):
    """Lets the clock's time pass in place of its own."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    async def sleep(self, seconds: float) -> None:
        self._clock.advance(int(seconds * 1000) + 1)


def tried(for_s: float, *attempts_ms: int) -> tuple[int, float]:
    """Return how many attempts were made and how long all took; the last one given stands for all others."""
    clock = ManualClock()
    budget = RetryBudget(for_s, runner=Unsleeping(clock), clock=clock)
    times = 0
    while True:
        clock.advance(attempts_ms[min(times, len(attempts_ms) - 1)])
        times += 1
        if not finish(budget.wait_for_retry()):
            return times, clock.monotonic_s()


@pytest.mark.parametrize("attempt_ms", [0, 1, 999, 5_000, 7_000, 10_000, 16_000])
def test_no_attempt_is_begun_that_would_end_too_late(attempt_ms: int) -> None:
    times, took_s = tried(30.0, attempt_ms)

    assert times >= 1
    assert 14.0 <= took_s <= 30.0


def test_without_time_there_is_one_attempt() -> None:
    assert tried(0.0, 5) == (1, 0.005)


def test_a_store_that_is_soon_back_is_asked_again_soon() -> None:
    clock = ManualClock()
    budget = RetryBudget(30.0, runner=Unsleeping(clock), clock=clock)

    assert all(finish(budget.wait_for_retry()) for _ in range(3))

    assert clock.monotonic_s() < 0.2


def test_a_server_that_takes_no_writes_is_not_asked_for_long() -> None:
    clock = ManualClock()
    budget = RetryBudget(30.0, runner=Unsleeping(clock), clock=clock)
    refused = StoreUnavailableError("a standby", is_read_only=True)
    clock.advance(10_000)

    while finish(budget.wait_for_retry(StoreUnavailableError("away"))) and clock.monotonic_s() < 15:
        pass
    began_s = clock.monotonic_s()
    while finish(budget.wait_for_retry(refused)):
        pass

    assert clock.monotonic_s() - began_s <= READ_ONLY_FOR_S


def test_one_long_attempt_counts_for_all_that_follow() -> None:
    times, took_s = tried(30.0, 20_000, 0)

    assert (times, took_s) == (1, 20.0)
