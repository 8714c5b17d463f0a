"""Handles for the engine's tests, on every backend, and a loop for tests that are coroutines.

A test that takes `ks` or `space` runs on memory, file, SQLite, Redis and PostgreSQL; one that takes
`shared_url` on every store that processes share. `turned` stands on a clock that only the test moves.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest

import keepstate
from keepstate._clock import Clock
from keepstate._runner import TaskRunner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Store
from keepstate.testing.clocks import ManualClock

EVERYWHERE = ("memory", "file", "sqlite", "redis", "postgres")
WITH_TIERS = (*EVERYWHERE, pytest.param("tiered", marks=pytest.mark.deep))
SHARED = ("sqlite", "redis", "valkey", "redis_cluster", "postgres")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own, and close what it has opened."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    opened: list[Keepstate] = pyfuncitem.funcargs.get("opened", [])

    async def whole() -> None:
        try:
            await test(**wanted)
        finally:
            for handle in opened:
                await handle.close()

    asyncio.run(whole())
    return True


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    if kind == "memory":
        return f"memory://{tmp_path.name}"
    if kind == "file":
        return f"file:///{tmp_path}/keepstate.journal"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/keepstate.db"
    if kind == "tiered":
        return f"tiered+sqlite:///{tmp_path}/tiered.db?hot_bytes=100000"
    url: str = request.getfixturevalue(f"{kind}_url")
    return url


@pytest.fixture(params=WITH_TIERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def opened() -> list[Keepstate]:
    """The handles that are closed when the test ends, still in its loop."""
    return []


@pytest.fixture
def ks(url: str, opened: list[Keepstate]) -> Keepstate:
    """A handle that opens with its first operation."""
    opened.append(keepstate.open(url))
    return opened[-1]


@pytest.fixture
def space(ks: Keepstate) -> Space:
    return ks.space("run/1")


class TurnedSource(PassedStore):
    """Opens and closes the store that it was given."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, "async")
        self._made, self._is_open = store, False

    def now(self) -> Store | None:
        return self._made if self._is_open else None

    async def opened(self) -> Store:
        if not self._is_open:
            await self._made.open()
            self._is_open = True
        return self._made

    async def close(self) -> None:
        await self._made.close()


@dataclass(frozen=True)
class Turned:
    """A space in memory whose store and engine tell the time by one clock."""

    clock: ManualClock
    ks: Keepstate
    space: Space


class TurnedKeepstate(Keepstate):
    """A handle whose parts tell the time by a clock that a test turns."""

    turned: ManualClock

    @property
    def clock(self) -> Clock:
        return self.turned


@pytest.fixture
def turned(opened: list[Keepstate]) -> Turned:
    """A space whose time stands still; its store opens with the first operation."""
    clock = ManualClock()
    ks = TurnedKeepstate(TurnedSource(MemoryStore(runner=TaskRunner(), clock=clock)))
    ks.turned = clock
    opened.append(ks)
    return Turned(clock, ks, ks.space("run/1"))
