"""What may happen in any order, in worlds of virtual time: nothing lost, doubled, torn, or waiting for ever.

`KEEPSTATE_SEED=n` begins with world n; `KEEPSTATE_WORLD=n` runs world n and no other. What a world finds
becomes an example beside the code that was wrong, for a seed means another world as soon as a workload
changes; so far `test_a_transaction_that_completes_a_task_again_does_nothing_else_either`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
from keepstate_testing.simulation import Dials, Report, simulate

from tests.tally import Tally, first_seed

STEPS = 500
ALONE = os.environ.get("KEEPSTATE_WORLD")


@dataclass(frozen=True)
class Size:
    """Which worlds, counted from the first seed."""

    first: int
    last: int
    steps: int = STEPS

    def seeds(self) -> range:
        return range(first_seed() + self.first, first_seed() + self.last)


DEEP = [pytest.mark.deep, pytest.mark.timeout(1200)]
SIZES = [
    pytest.param(Size(0, 20, steps=300), id="short", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    pytest.param(Size(20, 50, steps=300), id="rest of the short", marks=DEEP),
    *(pytest.param(Size(n, n + 250), id=f"long from {n}", marks=DEEP) for n in range(50, 1050, 250)),
]
if ALONE is not None:
    SIZES = [
        pytest.param(Size(int(ALONE) - first_seed(), int(ALONE) - first_seed() + 1), id=f"world {ALONE}")
    ]


@pytest.mark.parametrize("size", SIZES)
def test_every_promise_holds_in_every_world(size: Size, tally: Tally) -> None:
    reports = [simulate(seed, steps=size.steps) for seed in size.seeds()]

    assert all(report.findings.operations > size.steps // 10 for report in reports)
    assert told("Simulated worlds over memory", tally, reports).total() == 0


def test_a_world_repeats_itself_byte_for_byte_in_another_process() -> None:
    seed = 8
    code = f"from keepstate_testing.simulation import simulate; print(simulate({seed}, steps=200).digest)"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert simulate(seed, steps=200).digest == told.stdout.strip()
    assert simulate(seed + 1, steps=200).digest != told.stdout.strip()


def test_worlds_see_every_kind_of_trouble() -> None:
    wild = Dials(
        refused=0.1, lost_request=0.1, lost_reply=0.1, late=0.1, repeated=0.1, split=0.5, failed_read=0.05,
        delayed=0.5, longest_delay_s=0.5, lost_hint=0.3, cancelled=0.1, paused=0.1, longest_pause_s=10.0,
        clock_jumps=0.05,
    )  # fmt: skip

    trace = "\n".join(line for seed in range(4) for line in simulate(seed, dials=wild).trace)

    for trouble in (
        "is refused", "loses a request", "loses an answer", "gives up on a request", "sends a request twice",
        "is cut off in the middle of a flush", "cannot ask", "hears no answer", "late request arrives",
        "clock 0 jumps", ": applied", ": refused", ": unknown",
    ):  # fmt: skip
        assert trouble in trace, trouble


def told(subject: str, tally: Tally, reports: list[Report]) -> Counter[str]:
    """Add worlds to the record, and return what the judges of all of them found."""
    found = Counter[str]()
    for report in reports:
        found.update(report.findings.counts())
    tally(
        subject,
        seeds=len(reports),
        steps=sum(report.steps for report in reports),
        operations=sum(report.operations for report in reports),
        faults=sum(report.faults for report in reports),
        **found,
    )
    return found
