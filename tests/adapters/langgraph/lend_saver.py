"""A pytest plugin that lends our saver to LangGraph's own tests, in place of its SQLite savers.

Loaded by name, in a process of its own, where the folder of their tests is the working folder.
`KEEPSTATE_URL` says which store: each test gets a namespace of its own in it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

import pytest

from keepstate.adapters.langgraph import KeepstateSaver

LENT = {"sync_checkpointer": "sqlite", "async_checkpointer": "sqlite_aio"}


def _saver() -> KeepstateSaver:
    return KeepstateSaver(os.environ["KEEPSTATE_URL"], namespace=f"{secrets.token_hex(8)}/")


@contextmanager
def _lent() -> Iterator[KeepstateSaver]:
    with _saver() as saver:
        yield saver


@asynccontextmanager
async def _lent_aio() -> AsyncIterator[KeepstateSaver]:
    async with _saver() as saver:
        yield saver


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts our savers where theirs were, and leaves out the tests of the others."""
    theirs: Any = import_module("tests.conftest")
    theirs._checkpointer_sqlite, theirs._checkpointer_sqlite_aio = _lent, _lent_aio
    logging.getLogger("keepstate.adapters.langgraph").setLevel(logging.ERROR)
    others = [
        item
        for item in items
        for name, value in getattr(getattr(item, "callspec", None), "params", {}).items()
        if name in LENT and value != LENT[name]
    ]
    mine = [item for item in items if set(LENT) & set(getattr(getattr(item, "callspec", None), "params", {}))]
    others += [item for item in items if item not in mine]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)
