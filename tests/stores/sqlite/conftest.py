"""Handles for the tests of SQLite's own quirks, and what can go wrong beneath them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keepstate_testing.faults.disk import FailingDisk
from keepstate_testing.faults.vfs import beneath_sqlite

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.sqlite import SqliteStore

Opens = Callable[..., SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keepstate.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Opens]:
    """Open blocking handles on the test's file, or another, and close them in the end."""
    stores: list[SqliteStore] = []

    def open_one(at: Path = path, **options: Any) -> SqliteStore:
        store = finish(SqliteStore(at, runner=ThreadRunner(), **options).open())
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        finish(store.close())


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A disk under all databases opened from now on, which fails when it is told to."""
    disk = FailingDisk()
    with beneath_sqlite(disk):
        yield disk
