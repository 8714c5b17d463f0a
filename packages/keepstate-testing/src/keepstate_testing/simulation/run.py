"""One seed: a world from its beginning to the judgement."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from unittest.mock import patch

from keepstate.values import limits
from keepstate_testing.proof.findings import Findings
from keepstate_testing.simulation.dials import Dials
from keepstate_testing.simulation.loop import VirtualLoop
from keepstate_testing.simulation.workloads.every import EVERY
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor, World

_LONGEST_STEP_S = 1.0
_LONGEST_PAUSES_S = 200.0
_LONGEST_ENDING_S = 300.0
_CLOSED_WITHIN_S = 60.0
_LIMITS_SCALED_BY = 64
_SHOWN = 30
_SHOWN_OF_ERROR = 2_000


@dataclass(frozen=True, slots=True)
class Report:
    """The record of a run.

    Attributes:
        seed: Repeats it.
        steps: How many steps its actors took.
        operations: How many operations of the engine.
        calls: How many calls on the store.
        faults: How many of them went wrong.
        seconds: How long it took, in virtual time.
        findings: How many of its operations were judged in the end; a broken promise would have been raised.
        trace: All that happened, line by line.
    """

    seed: int
    steps: int
    operations: int
    calls: int
    faults: int
    seconds: float
    findings: Findings
    trace: Sequence[str]

    @property
    def digest(self) -> str:
        """A name for all that happened: two runs of it are the same, byte for byte."""
        return sha256("\n".join(self.trace).encode()).hexdigest()


class BrokenPromiseError(AssertionError):
    """A promise was broken in a world.

    Attributes:
        seed: Repeats it.
        trace: All that had happened until then.
    """

    def __init__(self, seed: int, steps: int, error: BaseException, trace: Sequence[str]) -> None:
        self.seed, self.trace = seed, trace
        last = "\n  ".join(line[:200] for line in trace[-_SHOWN:])
        broken = f"{type(error).__name__}: {str(error)[:_SHOWN_OF_ERROR]}"
        super().__init__(
            f"seed {seed} with {steps} steps broke a promise: {broken}\n"
            f"  simulate({seed}, steps={steps}) runs it again; what happened last:\n  {last}"
        )


def simulate(
    seed: int,
    *,
    steps: int = 500,
    dials: Dials | None = None,
    workloads: Sequence[type[Workload]] = EVERY,
) -> Report:
    """Run a world and judge it. During the run the limits of values and batches are 1/64 of the real ones.

    Args:
        seed: Decides everything in it.
        steps: The number of steps of all its actors together.
        dials: The rates of faults; without them the seed decides.
        workloads: The work of its actors.

    Raises:
        BrokenPromiseError: Something was lost, doubled, torn, out of order, or waits for ever.
    """
    loop = VirtualLoop(Random(f"order of {seed}"))
    with (
        _no_collection(),
        _small_limits(),
        _no_warnings(),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        world = World(seed, steps, dials, loop)
        try:
            runner.run(_live(world, [workload(world) for workload in workloads]))
        except Exception as error:
            raise BrokenPromiseError(seed, steps, error, world.network.trace) from error
    return Report(
        seed, world.taken, world.operations, world.network.calls, world.network.faults, loop.time(),
        world.witness.findings, world.network.trace,
    )  # fmt: skip


@contextmanager
def _no_collection() -> Generator[None]:
    """Hold back the garbage collector: when it runs, and end generators, is not part of a seed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _no_warnings() -> Generator[None]:
    """Hold back what stores say of each retry: a world is made of them, and keep its own trace."""
    log = logging.getLogger("keepstate.stores")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _small_limits() -> Generator[None]:
    """Make large values of middling ones, so that many are written, read and collected."""
    with ExitStack() as small:
        for name in ("VALUE_BYTES", "BATCH_BYTES", "READ_BYTES", "PAGE_BYTES"):
            scaled = getattr(limits, name) // _LIMITS_SCALED_BY
            small.enter_context(patch.object(limits, name, scaled))
        yield


async def _live(world: World, workloads: Sequence[Workload]) -> None:
    await world.open()
    tasks: list[asyncio.Task[None]] = []
    try:
        for workload in workloads:
            name = f"listener of {type(workload).__name__}"
            tasks += [asyncio.create_task(listener, name=name) for listener in workload.listeners()]
        listeners = tuple(tasks)
        tasks += [
            asyncio.create_task(_act(world, actor, workloads), name=actor.name) for actor in world.actors
        ]
        await _ended(
            tasks[len(listeners) :],
            _LONGEST_PAUSES_S + _LONGEST_STEP_S * world.steps / len(world.actors),
            watched=listeners,
        )
        await world.heal()
        tasks.append(asyncio.create_task(_end(world, workloads), name="the end"))
        await _ended(tasks[-1:], _LONGEST_ENDING_S, watched=listeners)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stuck = await world.close(_CLOSED_WITHIN_S)
    assert not stuck, f"{stuck} did not close within {_CLOSED_WITHIN_S:.0f} s"


async def _act(world: World, actor: Actor, workloads: Sequence[Workload]) -> None:
    weights = [workload.weight for workload in workloads]
    while True:
        await world.think()
        if not world.begin_step():
            return
        [workload] = world.random.choices(workloads, weights)
        await workload.act(actor)


async def _ended(
    tasks: Sequence[asyncio.Task[None]], within_s: float, *, watched: Sequence[asyncio.Task[None]]
) -> None:
    """Return when the tasks have ended; raises what any of them raised, or the watched ones."""
    left = set(tasks)
    deadline_s = asyncio.get_running_loop().time() + within_s
    while left:
        now_s = asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(
            [*(task for task in tasks if task in left), *watched],
            timeout=max(deadline_s - now_s, 0),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in (*tasks, *watched):
            if task in done:
                task.result()
        assert not done.intersection(watched), "a listener has ended by itself"
        pending = sorted(task.get_name() for task in left - done)
        assert done, f"after {within_s:.0f} s these still wait: {pending}"
        left -= done


async def _end(world: World, workloads: Sequence[Workload]) -> None:
    for workload in workloads:
        await workload.finish()
    await world.witness.judge(world.processes[0].store)
    for workload in workloads:
        await workload.verify()
