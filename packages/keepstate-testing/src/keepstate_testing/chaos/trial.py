"""A trial by chaos: workers use a store while they and its server are killed; then the rest is judged."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from keepstate_testing.chaos.crew import Crew
from keepstate_testing.chaos.plan import Plan
from keepstate_testing.chaos.report import Report, judge
from keepstate_testing.proof.findings import Findings

_PAUSE_SHARE: Final = 0.2
_PAUSE_S: Final = (0.05, 0.8)


def run(plan: Plan) -> Report:
    """Run a trial and return its report.

    It lasts as long as was planned, and until a worker and the server, if there is one, were killed once.
    Blocks. All its processes have ended when it returns.
    """
    crew, dice = Crew(plan), random.Random(plan.seed)
    report = Report(findings=Findings())
    try:
        crew.begin()
        until_s = time.monotonic() + plan.seconds
        for kills_server in _targets(plan, dice):
            time.sleep(dice.uniform(*plan.kill_every_s))
            if dice.random() < _PAUSE_SHARE:
                crew.pause(dice.randrange(plan.workers), dice.uniform(*_PAUSE_S))
                report.pauses += 1
            if kills_server and plan.crash is not None:
                plan.crash(dice)
                report.server_crashes += 1
            else:
                crew.kill(dice.randrange(plan.workers))
                report.worker_kills += 1
            if time.monotonic() > until_s and (report.server_crashes or plan.crash is None):
                break
        crew.end()
    finally:
        crew.abandon()
    report.faults += crew.faults
    judge(report, plan.urls[0], crew.orders)
    return report


def _targets(plan: Plan, dice: random.Random) -> Iterator[bool]:
    """Yield whether the server is to be killed next: first a worker, then the server, then either."""
    yield from (False, True)
    while True:
        yield dice.random() < plan.crash_share
