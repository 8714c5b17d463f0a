"""Moments by the caller's clock become moments of the store's, whatever either clock says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from keepstate import InvalidError
from keepstate.engine.kernel.stored import to_datetime, to_milliseconds
from keepstate.managers.arguments import caller_now, check_age, subtract_age, to_store_ms
from keepstate.managers.tools.executions import backoff_s
from keepstate.testing.clocks import ManualClock

STORE_NOW = to_datetime(5_000_000_000_000)  # far from the caller's clock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.mark.parametrize("ahead", [timedelta(seconds=30), timedelta(0), timedelta(hours=-2)], ids=str)
def test_a_moment_is_as_far_from_the_store_s_present_as_from_the_caller_s(
    clock: ManualClock, ahead: timedelta
) -> None:
    aware = caller_now(clock) + ahead
    elsewhere = aware.astimezone(timezone(timedelta(hours=9)))
    naive = caller_now(clock, like=datetime(2001, 1, 1)) + ahead

    expected = to_milliseconds(STORE_NOW) + round(ahead.total_seconds() * 1000)
    assert naive.tzinfo is None
    assert [to_store_ms(moment, clock, STORE_NOW) for moment in (aware, elsewhere, naive)] == [expected] * 3


def test_a_moment_long_ago_is_no_earlier_than_the_beginning_of_time(clock: ManualClock) -> None:
    assert to_store_ms(datetime(1, 1, 1, tzinfo=UTC), clock, to_datetime(1000)) == 0


def test_what_is_longer_ago_than_time_goes_back_is_of_its_beginning() -> None:
    assert subtract_age(timedelta(hours=2), STORE_NOW) == STORE_NOW - timedelta(hours=2)
    assert subtract_age(timedelta.max, STORE_NOW) == to_datetime(0)
    for wrong in (timedelta(seconds=-1), 5, None):
        with pytest.raises(InvalidError, match="`older_than`"):
            check_age("older_than", wrong)  # type: ignore[arg-type]


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    waits = [backoff_s(attempts, 3, first_s=2, longest_s=100) for attempts in (0, 1, 2, 3, 4, 5, 10_000)]

    assert waits == [2, 2, 6, 18, 54, 100, 100]
    for wrong in ({"factor": 0.5}, {"first_s": 0}, {"longest_s": 1}):
        with pytest.raises(InvalidError):
            backoff_s(1, **{"factor": 2, "first_s": 2, "longest_s": 9, **wrong})
