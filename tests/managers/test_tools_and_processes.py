"""Tools used by many processes: one execution for all who ask, and no effect twice after a crash."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from keepstate import EffectStatus, InvalidError, ToolExecution, TransitionError, sync
from tests.processes import Program

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tools.db?durability=normal"
    server: str = request.getfixturevalue(f"{request.param}_url")
    return server


def call(url: str, what: str, file: Path) -> Program:
    return Program("-m", "tests.processes.call_tool", url, what, file, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_processes_that_ask_for_the_same_get_one_execution(url: str, tmp_path: Path) -> None:
    callers = [call(url, "run", tmp_path / "uses") for _ in range(4)]
    answers = [caller.communicate(timeout=60)[0].splitlines() for caller in callers]

    assert [caller.returncode for caller in callers] == [0] * 4
    assert all(answer == answers[0] for answer in answers) and len(answers[0]) == 3
    assert len((tmp_path / "uses").read_text().splitlines()) == 3
    with sync.ToolStateManager(persistence=url) as tools:
        assert tools.get_tool_stats("search").completed == 3


@pytest.mark.slow
def test_a_payment_whose_process_died_is_not_sent_again(url: str, tmp_path: Path) -> None:
    payer = call(url, "pay", tmp_path / "payments")
    payer.communicate(timeout=60)
    assert payer.returncode == -signal.SIGKILL

    with sync.ToolStateManager(persistence=url) as tools:
        deadline_s = time.monotonic() + 60
        while not (unknown := tools.get_unknown_effects()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        with pytest.raises(TransitionError, match="settle_effect"):
            tools.perform_effect("order 1", lambda: "sent twice")
        settled = tools.settle_effect("order 1", is_done=True, result="receipt")
        answer = tools.perform_effect("order 1", lambda: "sent twice")

    assert [(effect.execution_id, effect.status) for effect in unknown] == [("order 1", EffectStatus.UNKNOWN)]
    assert settled.status is EffectStatus.DONE and answer == "receipt"
    assert len((tmp_path / "payments").read_text().splitlines()) == 1


def test_in_a_transaction_what_acts_at_once_is_refused_and_the_rest_joins() -> None:
    with sync.open("memory://") as ks:
        run = ks.space("run/1")
        with pytest.raises(ZeroDivisionError), run.transaction() as tx:
            tools = sync.ToolStateManager(space=tx, cache_results=True)
            _use(tools)
            assert tools.get_tool_stats("search").completed == 1
            raise ZeroDivisionError
        with run.transaction() as tx:
            tools = sync.ToolStateManager(space=tx, cache_results=True)
            _use(tools)
            for call in (
                lambda: tools.run("search", {}, lambda parameters: 1),
                lambda: tools.perform_effect("e", lambda: 1),
            ):
                with pytest.raises(InvalidError, match="transaction"):
                    call()
        after = sync.ToolStateManager(space=run)

        assert after.get_tool_stats("search").completed == 1
        assert after.get_cached_result("search", {"n": 1}) is not None
        assert [each.execution_id for each in after.get_execution_history("search")] == ["e"]


def _use(tools: sync.ToolStateManager) -> None:
    tools.start_execution(ToolExecution("e", "search", parameters={"n": 1}))
    tools.complete_execution("e", "found")
