"""A blocking handle on each store that needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstate import sync


@pytest.fixture(params=["memory", "sqlite"])
def ks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sync.Keepstate]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/state.db?durability=normal"
    with sync.open(url, author="tester") as opened:
        yield opened


@pytest.fixture
def space(ks: sync.Keepstate) -> sync.Space:
    return ks.space("run/42")
