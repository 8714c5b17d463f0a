"""Budgets raced by 8 processes, some of which are killed: none is exceeded, all reservations return."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

import keepstate
from keepstate import Budget, BudgetExceededError
from keepstate.engine.usage.ledger import UsageLedger
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program
from tests.processes.spend_budget import SPACE
from tests.tally import Tally

PROGRAM = PROCESSES / "spend_budget.py"
SHOWN = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
SIZES = [
    pytest.param(60, id="short", marks=pytest.mark.slow),
    pytest.param(1_500, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(600)]),
]


def noted(folder: Path, word: str) -> Decimal:
    """Return the money on the lines of all processes that begin with a word."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    return Decimal(sum(int(cents) for said, cents in lines if said == word)) / 100


def killed(processes: Sequence[Program]) -> int:
    """Return the number of processes that did not end by themselves."""
    return sum(process.returncode == -signal.SIGKILL for process in processes)


async def returned(shared: UsageLedger) -> None:
    """Wait until no reservation is left, which is when those of killed processes have ended."""
    while (await shared.budgets())["all"].reserved_cost:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize("cents", SIZES)
async def test_eight_processes_never_exceed_a_budget_though_three_are_killed(
    kind: str, cents: int, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, ceiling = url_of(kind, request, tmp_path), Decimal(cents) / 100
    notes = tmp_path / "notes"
    notes.mkdir()
    async with keepstate.open(url) as ks:
        shared = ks.space(SPACE).usage
        await shared.set_budget("all", Budget(cost=ceiling))
        stalls = [1, 2, 1, 0, 0, 0, 0, 0]
        running = [
            Program(PROGRAM, url, f"p{number}", stall, notes, stdout=subprocess.PIPE)
            for number, stall in enumerate(stalls)
        ]
        spent_at_times = []
        while any(process.poll() is None for process in running[3:]):
            state = (await shared.budgets())["all"]
            spent_at_times.append(state.used_cost + state.reserved_cost)
            await asyncio.sleep(0.02)
        for process in running[:3]:
            process.kill()
        said = [process.communicate(timeout=100)[0].split() for process in running]
        await returned(shared)

        assert all(words[:1] == ["done"] for words in said[3:])
        assert max(spent_at_times) <= ceiling
        state, totals = (await shared.budgets())["all"], await shared.totals()
        assert noted(notes, "counted") == state.used_cost == totals.total.cost <= ceiling
        assert totals.total.calls == sum(sums.calls for sums in totals.by_model.values())
        parts = [await ks.space(f"session/p{number}").usage.totals() for number in range(8)]
        assert sum(part.total.cost for part in parts) == totals.total.cost
        left = ceiling - state.used_cost
        with pytest.raises(BudgetExceededError):
            async with shared.reserve(cost=left + Decimal("0.000000001")):
                pass
        async with shared.reserve(cost=left):
            pass
    tally(
        f"{SHOWN[kind]}: budgets raced",
        budgets=1,
        spends=totals.total.calls,
        worker_kills=killed(running),
        exceeded=0,
        lost=0,
    )


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_processes_killed_at_any_line_never_exceed_a_budget(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, ceiling = url_of(kind, request, tmp_path), Decimal(10)
    notes = tmp_path / "notes"
    notes.mkdir()
    async with keepstate.open(url) as ks:
        shared = ks.space(SPACE).usage
        await shared.set_budget("all", Budget(cost=ceiling))
        begun = [Program(PROGRAM, url, f"p{number}", 0, notes) for number in range(8)]
        running = [*begun]
        for number in range(8, 48):
            await asyncio.sleep(0.25)
            victim = running.pop(0)
            victim.kill()
            victim.wait()
            begun.append(Program(PROGRAM, url, f"p{number}", 0, notes))
            running.append(begun[-1])
            state = (await shared.budgets())["all"]
            assert state.used_cost + state.reserved_cost <= ceiling
        for process in running:
            process.kill()
            process.wait()
        await returned(shared)

        used = (await shared.budgets())["all"].used_cost
        assert noted(notes, "counted") <= used <= noted(notes, "began")
        assert used == (await shared.totals()).total.cost <= ceiling
        parts = [await ks.space(f"session/p{number}").usage.totals() for number in range(48)]
        assert sum(part.total.cost for part in parts) <= used
        calls = (await shared.totals()).total.calls
    tally(
        f"{SHOWN[kind]}: budgets raced",
        budgets=1,
        spends=calls,
        worker_kills=killed(begun),
        exceeded=0,
        lost=0,
    )
