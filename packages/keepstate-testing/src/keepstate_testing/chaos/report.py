"""The result of a trial: its counts, and the verdict on what its workers wrote down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from keepstate._finish import finish
from keepstate.errors import KeepstateError
from keepstate_testing.chaos import worker
from keepstate_testing.chaos.promises import promises
from keepstate_testing.chaos.workload import HOT
from keepstate_testing.proof.ending import read_end, settle
from keepstate_testing.proof.findings import Findings, Kind
from keepstate_testing.proof.linearizability import is_linearizable, sample
from keepstate_testing.proof.operations import History
from keepstate_testing.proof.recorder import load
from keepstate_testing.proof.witness import witness

_SAMPLE: Final = 2_000


class Report(msgspec.Struct, kw_only=True):
    """The result of a run.

    Attributes:
        worker_kills: The number of killed workers.
        server_crashes: The number of kills of a server.
        pauses: The number of pauses of workers.
        unanswered: The number of batches without an answer.
        history_lost: The number of `HistoryLostError`s of clients.
        samples: The number of samples in which an order was searched without trusting revisions.
        too_long: The number of searches that were given up.
        findings: The broken promises, and the number of judged operations.
        faults: Errors that stopped a worker or the judge.
        judging_s: The duration of the judgement, in seconds.
    """

    worker_kills: int = 0
    server_crashes: int = 0
    pauses: int = 0
    unanswered: int = 0
    history_lost: int = 0
    samples: int = 0
    too_long: int = 0
    findings: Findings
    faults: list[str] = []
    judging_s: float = 0.0

    def __str__(self) -> str:
        """Return all of it, to be read."""
        killed = f"workers killed {self.worker_kills} times and paused {self.pauses} times"
        lines = (
            f"{killed}, servers crashed {self.server_crashes} times",
            f"{self.unanswered} batches unanswered, history lost {self.history_lost} times",
            f"{self.samples} samples searched, {self.too_long} given up",
            str(self.findings),
            *self.faults,
        )
        return "\n".join(lines)


def judge(report: Report, url: str, orders: Sequence[worker.Order]) -> None:
    """Judge the store at `url` and the workers' files, and add the result. The workers must have ended."""
    begun_s = time.monotonic()
    histories = load(order.history for order in orders if order.history.exists())
    report.faults += [order.fault.read_text() for order in orders if order.fault.exists()]
    store = finish(worker.opened(url, "blocking"))
    try:
        for history in histories.values():
            open_ones = [attempt for attempt in history.attempts if attempt.answer is None]
            report.unanswered += len(open_ones)
            report.history_lost += sum(note.what == "history lost" for note in history.notes)
            finish(settle(store, open_ones))
            end = finish(read_end(store, history.space))
            report.findings.extend(witness(history, end))
            report.findings.extend(promises(history, end))
            _search(history, report)
    except KeepstateError as error:
        report.faults.append(f"the judge: {error!r}")
    finally:
        finish(store.close())
    report.judging_s = time.monotonic() - begun_s


def _search(history: History, report: Report) -> None:
    """Judge some keys at the beginning of a space once more, without trust in any revision."""
    for keys in (HOT[:2], HOT[2:5], HOT):
        answer = is_linearizable(sample(history, keys, most=_SAMPLE), len(keys))
        report.samples += answer is not None
        report.too_long += answer is None
        if answer is False:
            report.findings.add(Kind.DISORDERED, history.space, f"no order explains what {keys} were")
