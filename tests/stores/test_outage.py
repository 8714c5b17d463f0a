"""An outage is told when it begins and when it ends, and not by every call in between."""

from __future__ import annotations

import logging

import pytest

from keepstate.errors import StoreUnavailableError
from keepstate.stores.retries import OutageLog
from keepstate.testing.clocks import ManualClock


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_calls_in_between_are_told_only_to_who_debugs(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outage = OutageLog("redis://here", 30.0, clock)
    with caplog.at_level(logging.DEBUG, "keepstate.stores"):
        for _ in range(3):
            outage.record_failure(StoreUnavailableError("redis://here is not reached"))
            clock.advance(2_000)
        for _ in range(2):
            outage.record_answer()

    assert told(caplog) == [
        ("WARNING", "Calls are retried for up to 30 s each: redis://here is not reached"),
        ("DEBUG", "A call is retried: redis://here is not reached"),
        ("DEBUG", "A call is retried: redis://here is not reached"),
        ("INFO", "redis://here answers again, after 6.0 s"),
    ]


def test_the_next_outage_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("redis://here", 30.0, ManualClock())
    with caplog.at_level(logging.INFO, "keepstate.stores"):
        for _ in range(2):
            outage.record_failure("away")
            outage.record_answer()

    assert [level for level, _ in told(caplog)] == ["WARNING", "INFO"] * 2
