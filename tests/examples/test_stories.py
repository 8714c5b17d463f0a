"""The examples without a server: a payment that two people approve, two tenants, and a notebook."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import tenants
from keepstate import sync

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


class Payments:
    """The commands of the payment example, each run as a process."""

    def __init__(self, folder: Path) -> None:
        self._bank = folder / "bank.txt"
        self.command = [sys.executable, "-m", "examples.payment", "--url", f"sqlite:///{folder}/payment.db"]

    def run(self, *words: str) -> str:
        done = subprocess.run([*self.command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def ask(self) -> str:
        return self.run("ask", "1200", "acme", "--bank", str(self._bank))

    def work(self) -> str:
        return self.run("work", "--idle-s", "0.2", "--lease-s", "1")

    def answer(self, by: str, answer: str = "yes") -> str:
        return self.run("answer", "pay/acme/1200/approved", answer, "--by", by)

    @property
    def bank(self) -> list[str]:
        return self._bank.read_text().splitlines() if self._bank.exists() else []


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    return Payments(tmp_path)


def test_two_people_approve_a_payment_and_it_is_made_once(payments: Payments) -> None:
    payments.ask()
    assert "was asked for before" in payments.ask()
    payments.work()
    assert "Pay 1200 to acme?" in payments.run("pending", "--by", "ann")

    payments.answer("ann")
    payments.answer("ann")  # twice the same person is one
    payments.work()
    assert payments.bank == []
    assert "may not answer" in payments.answer("agent")
    payments.answer("bob")
    payments.work()
    payments.work()

    assert payments.bank == ["1200 to acme"]
    assert "paid 1200 to acme" in payments.run("paid")
    assert "takes no answer any more" in payments.answer("carl", "no")


def test_one_no_settles_it_and_nothing_is_paid(payments: Payments) -> None:
    payments.ask()
    payments.work()

    payments.answer("carl", "no")
    payments.work()

    assert payments.bank == []
    assert "not paid: carl said no" in payments.run("paid")


def test_a_worker_that_is_killed_between_asking_and_paying_loses_nothing(payments: Payments) -> None:
    payments.ask()
    with subprocess.Popen([*payments.command, "work", "--lease-s", "1"], cwd=ROOT) as worker:
        while "Pay 1200" not in payments.run("pending"):
            assert worker.poll() is None
        worker.kill()
    payments.answer("ann")
    payments.answer("bob")

    payments.work()

    assert payments.bank == ["1200 to acme"]


def test_a_tenant_moves_away_and_nothing_of_it_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tenants.main(tmp_path)

    said = capsys.readouterr().out
    assert "the file does not know where bob lives" in said
    assert "in the new store: ['Book a flight to Rome', 'On Monday']" in said
    assert said.count("tenants: ") == 2 and "tenants: zeta\n" in said
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("agents.db*"))
    assert b"Main Street" not in stored
    assert b"Rome" not in stored


def test_the_notebook_runs_from_top_to_bottom_where_a_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}

    async def run() -> None:
        for cell in cells:
            exec("".join(cell["source"]), names)

    asyncio.run(run())

    assert "the price is from: planner" in capsys.readouterr().out
    assert all(cell["outputs"] == [] for cell in cells)
    with sync.open("sqlite:///research.db") as ks:
        dearer = ks.space("run/42").history.checkout("dearer")
        assert dearer["messages"][-1]["content"] == "I take Hotel Roma."
