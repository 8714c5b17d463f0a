"""Histories for tests: on every backend, and in memory where the store makes no difference."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate
from keepstate.engine.history.history import History
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.sync.history import History as BlockingHistory


def history_of(space: Space) -> History:
    """Return the history of a space."""
    return space.history


def blocking_history(ks: keepstate.sync.Keepstate, name: str = "run/1") -> BlockingHistory:
    """Return the history of a space in blocking use."""
    return ks.space(name).history


@pytest.fixture(params=["memory", "sqlite"])
def history(request: pytest.FixtureRequest, tmp_path: Path, opened: list[Keepstate]) -> History:
    """A history that opens with its first operation."""
    url = f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/keepstate.db"
    opened.append(keepstate.open(url))
    return history_of(opened[-1].space("run/1"))


@pytest.fixture
def everywhere(space: Space) -> History:
    """A history on every backend."""
    return history_of(space)
