"""A world: processes, actors in them, and the steps they take until it heals and is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final, TypeVar

from keepstate._clock import Clock
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from keepstate.opening import PassedStore
from keepstate_testing.simulation.clocks import ProcessClock, WallClock
from keepstate_testing.simulation.dials import Dials
from keepstate_testing.simulation.loop import VirtualLoop
from keepstate_testing.simulation.network import Network
from keepstate_testing.simulation.server import Server
from keepstate_testing.simulation.store import SimulatedStore
from keepstate_testing.simulation.witness import Witness

T = TypeVar("T")

MAIN: Final = "main"
"""The space that all workloads share."""

PROCESSES = 4
ACTORS_BY_PROCESS = 2
_SETTLED_IN = 8


class Fate(Enum):
    """The outcome of an operation, as far as its caller can know."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class _Handle(Keepstate):
    """A handle whose parts use a clock of the world."""

    turned: ProcessClock

    @property
    def clock(self) -> Clock:
        return self.turned


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the world.

    Attributes:
        name: Its name.
        store: Its handle on the store.
        ks: The engine over it.
        wall: Its own calendar clock.
    """

    name: str
    store: SimulatedStore
    ks: Keepstate
    wall: WallClock

    @property
    def space(self) -> Space:
        """The space that all workloads share."""
        return self.ks.space(MAIN)


@dataclass(frozen=True, slots=True)
class Actor:
    """An actor that takes steps, in one of the processes."""

    name: str
    process: Process

    @property
    def space(self) -> Space:
        """The space that all workloads share."""
        return self.process.space


class World:
    """The state that the workloads of one run share.

    Args:
        seed: Decides everything.
        steps: The number of steps of all actors together.
        dials: The rates of faults; without them the seed decides.
        loop: Virtual time.

    Attributes:
        random: The dice of the actors.
        server: The store.
        wall: The store's clock.
        network: The line to it.
        oracle: Has the right answers of the store.
        witness: Knows the answers that clients got.
        processes: The users of the store.
        taken: The number of steps taken.
        operations: The number of operations of the engine.
    """

    def __init__(self, seed: int, steps: int, dials: Dials | None, loop: VirtualLoop) -> None:
        self.seed, self.steps, self.loop = seed, steps, loop
        self.random = Random(f"actors of {seed}")
        self.dials = dials or Dials.drawn(Random(f"dials of {seed}"))
        self.network = Network(self.dials, Random(f"network of {seed}"), loop)
        self.wall = WallClock(loop)
        self.server = Server(ProcessClock(self.wall, loop, Random(f"server of {seed}")), self.network)
        self.oracle, self.witness = self.server.oracle, Witness(self.server.oracle)
        self.taken = self.operations = 0
        self._numbers = 0
        self.processes = [self._process(number) for number in range(PROCESSES)]
        self.actors = [
            Actor(f"{process.name}{letter}", process)
            for process in self.processes
            for letter in "ab"[:ACTORS_BY_PROCESS]
        ]

    def _process(self, number: int) -> Process:
        name = f"p{number}"
        wall = WallClock(self.loop, offset_ms=self.random.randint(-30_000, 30_000))
        clock = ProcessClock(wall, self.loop, Random(f"{name} of {self.seed}"))
        store = SimulatedStore(name, clock, self.server, self.network, self.witness)
        ks = _Handle(PassedStore(store, "async"), author=name)
        ks.turned = ProcessClock(wall, self.loop, Random(f"engine of {name} of {self.seed}"))
        return Process(name, store, ks, wall)

    def name(self, kind: str) -> str:
        """Return a name that nothing else in the world has."""
        self._numbers += 1
        return f"{kind}{self._numbers}"

    # ---- steps

    def begin_step(self) -> bool:
        """Count a step, and return whether there was one left."""
        if self.network.violations:
            raise self.network.violations[0]
        if self.taken >= self.steps:
            return False
        self.taken += 1
        return True

    async def think(self) -> None:
        """Let some time pass between two steps, sometimes a long one."""
        if self.network.happens(self.dials.paused):
            await asyncio.sleep(self.random.random() * self.dials.longest_pause_s)
        else:
            await asyncio.sleep(self.random.random() ** 4 * 0.5)
        if self.network.happens(self.dials.clock_jumps):
            self._jump()

    def _jump(self) -> None:
        walls = [self.wall, *(process.wall for process in self.processes)]
        place, ms = self.random.randrange(len(walls)), self.random.randint(-60_000, 60_000)
        self.network.note(f"clock {place} jumps by {ms} ms")
        walls[place].jump(ms)

    async def fate(self, actor: Actor, work: Callable[[], Awaitable[T]], what: str) -> tuple[Fate, T | None]:
        """Do an operation, sometimes only half, and finds out what became of it."""
        self.operations += 1
        fate, answer = await self._fate(actor, work)
        self.network.note(f"{actor.name} {what}: {fate.value}")
        return fate, answer

    async def _fate(self, actor: Actor, work: Callable[[], Awaitable[T]]) -> tuple[Fate, T | None]:
        try:
            if self.network.happens(self.dials.cancelled):
                async with asyncio.timeout(self.random.random() ** 2 * 0.1):
                    return Fate.APPLIED, await work()
            return Fate.APPLIED, await work()
        except TimeoutError:
            return Fate.UNKNOWN, None
        except OutcomeUnknownError as error:
            return await self._settled(actor, error), None
        except (ConflictError, AttemptsExhaustedError, StoreUnavailableError, NotFoundError):
            return Fate.REFUSED, None

    async def _settled(self, actor: Actor, error: OutcomeUnknownError) -> Fate:
        """Ask what became of a batch, as a caller in doubt should."""
        if error.token is None:
            return Fate.UNKNOWN
        for _ in range(_SETTLED_IN):
            try:
                revision = await actor.space.outcome(error.token)
            except StoreUnavailableError:
                await asyncio.sleep(0.5)
                continue
            return Fate.REFUSED if revision is None else Fate.APPLIED
        return Fate.UNKNOWN

    async def looked(self, actor: Actor, work: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Do an operation that changes nothing, and return None where the store was away."""
        self.operations += 1
        try:
            answer = await work()
        except (StoreUnavailableError, ConflictError):
            answer = None
        self.network.note(f"{actor.name} {what}")
        return answer

    # ---- the end

    async def open(self) -> None:
        """Open the store, and every process's handle on it."""
        for store in (self.server, *(process.store for process in self.processes)):
            await store.open()

    async def close(self, within_s: float) -> list[str]:
        """Close them, and return which could not be closed in time."""
        stuck: list[str] = []
        for store in (*(process.store for process in self.processes), self.server):
            try:
                await asyncio.wait_for(store.close(), within_s)
            except TimeoutError:
                stuck.append(store.url)
        return stuck

    async def heal(self) -> None:
        """End all faults, and return after everything under way has arrived.

        A space's time does not advance while its store's clock is behind it, so that clock is corrected too.
        """
        self.network.note("the world heals")
        self.wall.jump(max(self.oracle.latest_ms() - self.wall.now_ms(), 0))
        self.network.dials = Dials()
        while self.network.under_way:
            await asyncio.sleep(1)
        if self.network.violations:
            raise self.network.violations[0]
