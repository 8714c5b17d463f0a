"""Cron expressions and their instants, against cronsim, and against a clock on the wall that walks."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate.engine.kernel.stored import to_datetime, to_milliseconds
from keepstate.engine.queue.cron import Cron
from keepstate.engine.queue.timetable import Interval, ZonedCron, check_zone, next_instants
from keepstate.errors import InvalidError

MINUTE = timedelta(minutes=1)
STEP = timedelta(minutes=5)
DAY_MS = 24 * 3600 * 1000

SPRING = ("Europe/Berlin", datetime(2025, 3, 1))
AUTUMN = ("Europe/Berlin", datetime(2025, 9, 20))
CHANGES = (
    SPRING,
    AUTUMN,
    ("America/New_York", datetime(2025, 2, 1)),
    ("America/New_York", datetime(2025, 10, 1)),
    ("Australia/Lord_Howe", datetime(2025, 3, 15)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2025, 9, 15)),
    ("Africa/Cairo", datetime(2025, 4, 1)),  # at midnight
    ("America/Havana", datetime(2025, 10, 1)),  # from one to midnight
    ("Pacific/Apia", datetime(2011, 12, 1)),  # without 30 December
    ("Asia/Pyongyang", datetime(2018, 4, 1)),  # by half an hour, for good
    ("America/Sao_Paulo", datetime(2018, 10, 1)),
    ("Europe/Dublin", datetime(2025, 9, 20)),
    ("Asia/Kathmandu", datetime(2025, 3, 1)),
)
EXPRESSIONS = (
    *("0 2 * * *", "30 2 * * *", "15 3 * * *", "0 0 * * *", "30 0 * * *", "45 1 * * *"),
    *("*/15 * * * *", "0 */2 * * *", "5,35 1-3 * * *", "0 9 * * MON-FRI", "0 0 L * *", "0 12 * * SUN#2"),
)


@cache
def walk(zone: str, start: datetime) -> tuple[list[datetime], list[datetime]]:
    """Return what a clock on the wall has shown at the latest, and when, for 90 days from a time in UTC."""
    latest, since = list[datetime](), list[datetime]()
    highest = datetime.min
    for step in range(90 * 24 * 12 + 1):  # the expressions below name multiples of five minutes
        moment = (start + step * STEP).replace(tzinfo=UTC)
        shown = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        if shown > highest:
            highest = shown
            latest.append(shown)
            since.append(moment)
    return latest, since


def instants_of_a_wall_clock(expression: str, zone: str, start: datetime) -> list[datetime]:
    """Return when a clock on the wall first shows each time of the expression, or a later one."""
    latest, since = walk(zone, start)
    found: list[datetime] = []
    wall = CronSim(expression, latest[0])
    for time in wall:
        place = bisect_right(latest, time - timedelta(seconds=1))
        if place >= len(latest):
            break
        if since[place] not in found[-1:]:
            found.append(since[place])
    return found


@pytest.mark.parametrize(("zone", "start"), CHANGES)
def test_90_days_tick_exactly_as_a_clock_on_the_wall_does(zone: str, start: datetime) -> None:
    begin_ms = to_milliseconds(start.replace(tzinfo=UTC))
    for expression in EXPRESSIONS:
        table = ZonedCron(Cron(expression), ZoneInfo(zone))
        expected = instants_of_a_wall_clock(expression, zone, start)
        end_ms = begin_ms + 90 * DAY_MS

        found = next_instants(table, begin_ms, end_ms, 100_000)

        assert [*map(to_datetime, found)] == expected, expression
        assert table.latest(begin_ms, end_ms, 100_000) == found, expression
        assert table.latest(begin_ms, end_ms, 7) == found[-7:], expression


def ticks(expression: str, zone: str, begin: str, most: int) -> list[str]:
    table = ZonedCron(Cron(expression), ZoneInfo(zone))
    begin_ms = to_milliseconds(datetime.fromisoformat(begin))
    return [f"{to_datetime(at_ms):%m-%dT%H:%M}" for at_ms in next_instants(table, begin_ms, None, most)]


def test_a_skipped_wall_time_runs_at_the_end_of_the_gap() -> None:
    found = ticks("30 2 * * *", "Europe/Berlin", "2025-03-28T12:00Z", 3)

    assert found == ["03-29T01:30", "03-30T01:00", "03-31T00:30"]


def test_times_that_fall_into_one_gap_run_once() -> None:
    assert ticks("*/20 * * * *", "Europe/Berlin", "2025-03-30T00:30Z", 3) == [
        *("03-30T00:40", "03-30T01:00", "03-30T01:20"),
    ]


def test_a_doubled_wall_time_runs_once_the_first_time() -> None:
    found = ticks("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00Z", 2)

    assert found == ["10-26T00:30", "10-27T01:30"]


def test_a_day_that_a_zone_leaves_out_runs_at_the_next_midnight() -> None:
    assert ticks("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00Z", 2) == ["12-30T10:00", "12-30T19:00"]


def test_a_time_in_the_second_pass_of_a_doubled_hour_has_the_ticks_of_the_first_behind_it() -> None:
    table = ZonedCron(Cron("*/10 * * * *"), ZoneInfo("Europe/Berlin"))
    at_ms = to_milliseconds(datetime(2025, 10, 26, 1, 25, tzinfo=UTC))

    assert to_datetime(table.after(at_ms) or 0) == datetime(2025, 10, 26, 2, 0, tzinfo=UTC)
    assert [*map(to_datetime, table.latest(0, at_ms, 2))] == [
        datetime(2025, 10, 26, 0, 40, tzinfo=UTC),
        datetime(2025, 10, 26, 0, 50, tzinfo=UTC),
    ]


# ---- expressions


def fields(low: int, high: int, *names: str) -> st.SearchStrategy[str]:
    value = st.integers(low, high).map(str)
    if names:
        value |= st.sampled_from(names)
    pair = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    # cronsim takes 3-3/2 for 3/2
    span = pair.filter(lambda ends: ends[0] < ends[1]).map(lambda ends: f"{ends[0]}-{ends[1]}")
    step = st.integers(1, high).map(str)
    item = st.one_of(
        value,
        span,
        st.builds("{}/{}".format, st.just("*"), step),
        st.builds("{}/{}".format, span, step),
        st.builds("{}/{}".format, st.integers(low, high), step),
    )
    return st.just("*") | st.lists(item, min_size=1, max_size=3).map(",".join)


expressions = st.builds(
    "{} {} {} {} {}".format,
    fields(0, 59),
    fields(0, 23),
    fields(1, 28) | st.sampled_from(["L", "1,L", "31", "29"]),
    fields(1, 12, "JAN", "Feb", "dec"),
    fields(0, 7, "SUN", "mon", "Sat") | st.sampled_from(["MON#1", "5L", "SUN#5", "1#2,4L", "7"]),
)


@pytest.mark.searched
@given(expressions, st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)))
@example("0 0 29 2 1", datetime(2025, 1, 1))
@example("0 0 29 2 *", datetime(2096, 3, 1))
@example("0 0 */29 2 SUN", datetime(2025, 1, 1))
@example("59 23 31 12 *", datetime(1999, 12, 31, 23, 59, 30))
@example("* * 31 2 *", datetime(2000, 1, 1))
def test_expressions_choose_the_same_times_as_cronsim(expression: str, start: datetime) -> None:
    try:
        expected = [*islice(CronSim(expression, start), 5)]
    except CronSimError:  # for a day that no chosen month has
        with pytest.raises(InvalidError, match="no day ever matches"):
            Cron(expression)
        return
    first = start.replace(second=0, microsecond=0) + MINUTE
    try:
        cron = Cron(expression)
    except InvalidError:
        assert expected == []
        return

    assert [*islice(cron.walls(first), 5)] == expected
    back = CronSim(expression, first, reverse=True)
    assert [*islice(cron.walls(first - MINUTE, reverse=True), 5)] == [*islice(back, 5)]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 0 30 2 *", "no day ever matches"),
        ("0 0 31 4,6,9,11 *", "no day ever matches"),
        ("* * * *", "it has 4 fields"),
        ("* * * * * *", "every_s"),
        ("@reboot", "it has 1 fields"),
        ("60 * * * *", "'60' is not a minute"),
        ("* 24 * * *", "'24' is not a hour"),
        ("* * 0 * *", "'0' is not a day of the month"),
        ("* * * 13 *", "'13' is not a month"),
        ("* * * * 8", "'8' is not a day of the week"),
        ("* * * * MON#0", "from #1 to #5"),
        ("* * * * MOON", "'MOON' is not a day of the week"),
        ("* * ? * *", "'?' is not a day of the month"),
        ("*/0 * * * *", "must be 1 to 59"),
        ("*/x * * * *", "must be 1 to 59"),
        ("*/90 * * * *", "must be 1 to 59"),
        ("30-10 * * * *", "is empty"),
        ("1,,2 * * * *", "'' is not a minute"),
        ("-1 * * * *", "'' is not a minute"),
        ("١ * * * *", "is not a minute"),
        ("1" * 600, "at most 512"),
        ("9" * 500 + " * * * *", "is not a minute"),
        ("*/" + "9" * 500 + " * * * *", "must be 1 to 59"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_field_at_fault(expression: str, reason: str) -> None:
    with pytest.raises(InvalidError) as refused:
        Cron(expression)

    assert reason in str(refused.value)


def test_macros_and_names_are_read_in_either_case() -> None:
    start = datetime(2025, 1, 1)

    assert next(Cron("@Weekly").walls(start)) == datetime(2025, 1, 5)
    assert [*islice(Cron("0 0 * * fri-sun").walls(start), 3)] == [datetime(2025, 1, day) for day in (3, 4, 5)]


@pytest.mark.parametrize(
    "zone",
    ["", "Nowhere", "Europe", "europe/berlin", "../../etc/passwd", "/etc/localtime", "a\0b", "x" * 5000],
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidError, match="IANA"):
        check_zone(zone)


# ---- intervals


@given(
    st.integers(0, 10_000),
    st.integers(1, 500),
    st.integers(0, 20_000),
    st.integers(0, 5_000),
    st.integers(1, 9),
)
def test_an_interval_has_each_multiple_after_its_anchor(
    anchor: int, every: int, begin: int, length: int, most: int
) -> None:
    interval, end = Interval(anchor, every), begin + length
    expected = [at for at in range(anchor + every, end + 1, every) if begin < at]

    assert interval.latest(begin, end, most) == expected[-most:]
    assert interval.after(begin) == next(
        at for at in range(anchor + every, end + every + anchor + 2, every) if at > begin
    )
