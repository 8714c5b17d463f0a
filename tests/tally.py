"""The record of a proof: what each test did and found, gathered over all processes of a run.

A test takes `tally` and calls it once a subject. `--record` writes docs/reliability.json and its table, if
everything passed and the run did as much as a record stands for; else it fails and says what was missing.
Without it the sums are printed at the end.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any, Protocol

import pytest

from tools.reliability import describe, missing, refuse_unknown, render, total, write

PROPERTY = "tally"


class Tally(Protocol):
    """Adds counts to the subject's row: `tally("SQLite: chaos", operations=9, lost=0)`."""

    def __call__(self, subject: str, /, **counts: int) -> None: ...


class TransactionState:
    """Collects the rows of every report that reaches the process that a person started."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[str, Counter[str]] = {}
        self.lacks: list[str] = []
        self._seed = seed
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        told: list[Any] = [value for name, value in report.user_properties if name == PROPERTY]
        for subject, counts in told:
            self.rows.setdefault(subject, Counter()).update(counts)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != 0 or not session.config.getoption("--record"):
            return
        self.lacks = missing(total(self.rows.values()))
        if self.lacks:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:
            write(self._described())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.rows and not self.lacks:
            return
        terminalreporter.section("what the proof did and found")
        if terminalreporter.config.getoption("--record"):
            terminalreporter.write_line(render(self._described()))
            for lack in self.lacks:
                terminalreporter.write_line(f"not recorded: {lack}", red=True)
        else:
            sums = total(self.rows.values()).items()
            terminalreporter.write_line(", ".join(f"{count:,} {name}" for name, count in sums))

    def _described(self) -> dict[str, object]:
        # A counter's sum drops no zero, and a verdict of zero is what a row is for.
        return describe(
            self.rows,
            date=time.strftime("%Y-%m-%d"),
            duration_s=time.monotonic() - self._began,
            seed=self._seed,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="write docs/reliability.json from this run, if it passes and did enough",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TransactionState(first_seed()), "tally-gathering")


def first_seed() -> int:
    """Return the seed from which a proof makes its random choices: KEEPSTATE_SEED, or 0."""
    return int(os.environ.get("KEEPSTATE_SEED", "0"))


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Add a row to the record of this run."""

    def add(subject: str, /, **counts: int) -> None:
        refuse_unknown(counts)
        request.node.user_properties.append((PROPERTY, (subject, counts)))

    return add
