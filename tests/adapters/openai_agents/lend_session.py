"""A pytest plugin that lends our session to the SDK's own tests, in place of its SQLite session.

Loaded by name, in a process of its own, where the folder of their tests is the working folder. Sessions of
one file of theirs are in one store of ours beside it. It deselects no test. It writes the ids of the tests
that have built one of our sessions, each with its outcome, as JSON lines into `KEEPSTATE_TALLY`.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from keepstate.adapters.openai_agents import session

BUILT: dict[str, str] = {}
"""The outcome of each test that has built one of our sessions."""
_running = ""


class Lent(session.KeepstateSession):
    """Our session, with the arguments of theirs."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        BUILT.setdefault(_running, "passed")
        place = f"memory://{uuid.uuid4().hex}" if str(db_path) == ":memory:" else f"sqlite:///{db_path}.ours"
        super().__init__(session_id, place, tenant=messages_table, session_settings=session_settings)


Lent.__name__ = "SQLiteSession"  # a test looks for the name in a message


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put our session where theirs was, and let it be the class that has snapshots."""
    session.KeepstateSession = Lent  # type: ignore[misc]
    for item in items:
        module: Any = item.getparent(pytest.Module)
        if hasattr(module.obj, "SQLiteSession"):
            module.obj.SQLiteSession = Lent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs."""
    global _running
    _running = item.nodeid


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test has ended."""
    if report.nodeid in BUILT and report.outcome != "passed":
        BUILT[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    lines = [json.dumps([test, outcome]) for test, outcome in sorted(BUILT.items())]
    Path(os.environ["KEEPSTATE_TALLY"]).write_text("\n".join(lines), encoding="utf-8")
