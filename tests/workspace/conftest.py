"""States with versions, wherever they can be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstate import Cache, Disk, Versioned
from keepstate.workspace import Memory
from tests.workspace.plain import Plain

Place = Callable[..., Versioned]

EMBEDDED = ("memory", "named", "disk", "cache", "plain", "sqlite", "file")
EVERYWHERE = (*EMBEDDED, "redis", "postgres")
SHARED = ("disk", "sqlite", "redis", "postgres")


def disk_in(path: Path, request: pytest.FixtureRequest) -> Disk:
    """Return a new disk, which is closed at the end of the test."""
    disk = Disk(path / "disk")
    request.addfinalizer(disk.close)
    return disk


def store_at(kind: str, request: pytest.FixtureRequest, path: Path) -> Any:
    """Return what a `Versioned` is given to keep its commits at one place."""
    made: dict[str, Callable[[], Any]] = {
        "memory": Memory,
        "named": lambda: f"memory://{path.name}",
        "disk": lambda: disk_in(path, request),
        "cache": lambda: Cache(disk_in(path, request)),
        "plain": Plain,
        "sqlite": lambda: f"sqlite:///{path}/state.db",
        "file": lambda: f"file:///{path}/state.journal",
    }
    return made[kind]() if kind in made else request.getfixturevalue(f"{kind}_url")


def opening_at(store: Any) -> Iterator[Place]:
    """Yield what opens states on one store; all are closed at the end."""
    opened: list[Versioned] = []

    def open_one(**options: Any) -> Versioned:
        opened.append(Versioned(store, **options))
        return opened[-1]

    yield open_one
    for state in opened:
        state.close()


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Open states on one place, of every kind."""
    yield from opening_at(store_at(request.param, request, tmp_path))


@pytest.fixture(params=("named", "disk"))
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Open states on one place, where it makes no difference which."""
    yield from opening_at(store_at(request.param, request, tmp_path))


@pytest.fixture(params=SHARED)
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that processes share: the URL of a store, or the folder of a disk behind `disk:`."""
    if request.param == "disk":
        return f"disk:{tmp_path}"
    url: str = store_at(request.param, request, tmp_path)
    return url
