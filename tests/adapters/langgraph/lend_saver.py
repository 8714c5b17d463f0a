"""A pytest plugin that lends our saver to LangGraph's own tests, in place of its SQLite savers.

Loaded by name, in a process of its own, where the folder of their tests is the working folder.
`KEEPSTATE_URL` says which store: each test gets a tenant of its own in it. `KEEPSTATE_ON_CONFLICT` says
what becomes of a run that another one has overtaken, and `KEEPSTATE_APPROVALS` whether interrupts ask; theirs
are the same either way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

import pytest

from keepstate.adapters.langgraph import InterruptQuestion, KeepstateSaver
from keepstate.adapters.loop_handles import Opened

LENT = {"sync_checkpointer": "sqlite", "async_checkpointer": "sqlite_aio"}
UNNAMED = "ignore::keepstate.adapters.langgraph.classes.NotAllowedWarning"


def _opened() -> Opened[KeepstateSaver]:
    conflict = os.environ.get("KEEPSTATE_ON_CONFLICT", "fork")
    options: dict[str, Any] = {"tenant": secrets.token_hex(8), "on_conflict": conflict}
    if os.environ.get("KEEPSTATE_APPROVALS"):
        options |= {"approvals": True, "ask": lambda *_: InterruptQuestion("May it go on?")}
    return KeepstateSaver.from_conn_string(os.environ["KEEPSTATE_URL"], **options)


@contextmanager
def _lent() -> Iterator[KeepstateSaver]:
    with _opened() as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _lent_aio() -> AsyncIterator[KeepstateSaver]:
    async with _opened() as saver:
        await saver.setup()
        yield saver


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put our savers where theirs were, and leave out the tests of the others."""
    theirs: Any = import_module("tests.conftest")
    theirs._checkpointer_sqlite, theirs._checkpointer_sqlite_aio = _lent, _lent_aio
    others = [
        item
        for item in items
        for name, value in getattr(getattr(item, "callspec", None), "params", {}).items()
        if name in LENT and value != LENT[name]
    ]
    mine = [item for item in items if set(LENT) & set(getattr(getattr(item, "callspec", None), "params", {}))]
    for item in mine:
        item.add_marker(pytest.mark.filterwarnings(UNNAMED))
    others += [item for item in items if item not in mine]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)
