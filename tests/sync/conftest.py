"""A blocking handle on each store that needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstate import sync

URLS = {
    "memory": "memory://",
    "file": "file:///{folder}/state.keep",
    "sqlite": "sqlite:///{folder}/state.db?durability=normal",
}


@pytest.fixture(params=URLS)
def ks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sync.Keepstate]:
    with sync.open(URLS[request.param].format(folder=tmp_path), author="tester") as opened:
        yield opened


@pytest.fixture
def space(ks: sync.Keepstate) -> sync.Space:
    return ks.space("run/42")
