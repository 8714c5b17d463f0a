"""Times under `--json`: those of the store are text, and those of a caller come back as they were put."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from keepstate import sync
from keepstate.cli.display import instant, is_time
from keepstate.engine.events.record import Event
from keepstate.engine.index.rows import Found
from keepstate.engine.queue.attempts import Attempt
from keepstate.engine.queue.schedules import Schedule
from keepstate.engine.queue.step_records import Step
from keepstate.engine.queue.tasks import TaskInfo
from keepstate.server.keys import Key
from tests.cli.conftest import INSTANT, Keepstate

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
TAGGED = {"@type": "datetime", "value": "2026-01-02T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (MOMENT, "2026-01-02T00:00:00Z"),
        (MOMENT.replace(microsecond=7_000), "2026-01-02T00:00:00.007Z"),
        (MOMENT.replace(microsecond=999), "2026-01-02T00:00:00Z"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=5))), "2026-01-01T22:00:00Z"),
    ],
    ids=["whole", "milliseconds", "microseconds", "zone"],
)
def test_a_time_is_text_in_utc_with_milliseconds_unless_zero(moment: datetime, text: str) -> None:
    assert instant(moment) == text


@pytest.mark.parametrize("type", [Attempt, Event, Found, Key, Schedule, Step, TaskInfo])
def test_the_name_of_each_field_that_is_listed_says_whether_it_is_a_time(type: type[object]) -> None:
    fields = {name: str(kind) for name, kind in type.__annotations__.items() if not name.startswith("_")}

    assert {name for name in fields if is_time(name)} == {
        name for name, kind in fields.items() if kind.startswith("datetime")
    }


def test_a_time_is_text_in_each_listing_and_a_value_keeps_its_type(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        space = ks.space("run")
        space.documents.put("at", MOMENT)
        space.events.append({"at": MOMENT})
        space.queue.put({"at": MOMENT}, id="one")
        space.schedules.put("hourly", every_s=3600, payload={"at": MOMENT})
    keepstate("keys", "add", "ann", "read", "--expires", "30d")

    event = keepstate("events", "run", "--json").json()
    task = keepstate("queue", "show", "run", "one", "--json").json()
    schedule = keepstate("schedules", "run", "--json").json()
    times = [
        *(event["recorded_at"], task["put_at"], task["due_at"], schedule["put_at"], schedule["next_at"]),
        keepstate("schedules", "run", "hourly", "--next", "1", "--json").json()["at"],
        keepstate("queue", "list", "run", "--json").json()["put_at"],
        *(row["changed_at"] for row in keepstate("find", "--json").lines()),
        keepstate("keys", "list", "--json").json()["expires_at"],
        keepstate("keys", "audit").json()["at"],
    ]

    assert len(times) > 9
    assert [time for time in times if not re.fullmatch(INSTANT, str(time))] == []
    assert event["data"] == {"at": TAGGED}
    assert task["payload"] == {"at": TAGGED}
    assert keepstate("get", "run", "at", "--json").json()["value"] == TAGGED
