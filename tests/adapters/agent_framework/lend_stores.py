"""A pytest plugin that lends our stores to the framework's own tests, in place of its in-memory ones.

`KEEPSTATE_KIND` is the kind of store, or `theirs` to leave their own in place.

Loaded by name, in a process of its own, where a checkout of theirs is the working folder. It writes the ids
of the tests that have built one of our stores, each with its outcome, as JSON lines into `KEEPSTATE_TALLY`.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from agent_framework import InMemoryCheckpointStorage

from keepstate.adapters.agent_framework import KeepstateCheckpointStorage, KeepstateSessionStore

BUILT: dict[str, str] = {}
"""The outcome of each test that has built one of our stores."""
_running = ""


def note() -> None:
    """Note that a test builds a store."""
    BUILT.setdefault(_running, "passed")


def built() -> str:
    """Note that a test builds a store, and return the URL of an empty one."""
    note()
    if os.environ["KEEPSTATE_KIND"] == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return f"sqlite:///{os.environ['KEEPSTATE_FOLDER']}/{uuid.uuid4().hex}.db"


class LentStorage(KeepstateCheckpointStorage):
    """Our storage, which allows the classes that the module of the test defines."""

    def __init__(self) -> None:
        super().__init__(built(), allowed_checkpoint_types=_allowed)


class LentSessions(KeepstateSessionStore):
    """Our session store, without arguments as theirs."""

    def __init__(self) -> None:
        super().__init__(built())


class TheirStorage(InMemoryCheckpointStorage):
    """Their own storage, which is noted."""

    def __init__(self) -> None:
        note()
        super().__init__()


_allowed: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put our stores where theirs were."""
    lends: list[tuple[str, type]] = [
        ("InMemoryCheckpointStorage", LentStorage),
        ("SessionStore", LentSessions),
    ]
    if os.environ["KEEPSTATE_KIND"] == "theirs":
        lends = [("InMemoryCheckpointStorage", TheirStorage)]
    for item in items:
        module: Any = item.getparent(pytest.Module)
        for name, lent in lends:
            if hasattr(module.obj, name):
                setattr(module.obj, name, lent)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs, and which classes its module defines."""
    global _running
    _running = item.nodeid
    module: Any = item.getparent(pytest.Module)
    own = [one for one in vars(module.obj).values() if isinstance(one, type)]
    _allowed[:] = [
        f"{one.__module__}:{one.__qualname__}" for one in own if one.__module__ == module.obj.__name__
    ]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test has ended."""
    if report.nodeid in BUILT and report.outcome != "passed":
        BUILT[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    lines = [json.dumps([test, outcome]) for test, outcome in sorted(BUILT.items())]
    Path(os.environ["KEEPSTATE_TALLY"]).write_text("\n".join(lines), encoding="utf-8")
