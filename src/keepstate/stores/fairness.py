"""Fairness between the tasks of an event loop, over stores whose calls never wait.

A call on a store in memory returns without a suspension, so a task that makes one call after another would
keep the loop for itself. A `Turn` bounds that: when a handle has kept the loop for `TURN_S`, its next call
first lets other tasks run. Nothing is applied before the call, so a cancellation there has no effect.
"""

from __future__ import annotations

from math import inf

from keepstate._clock import Clock
from keepstate._runner import Runner

TURN_S = 0.01
"""Longest time in seconds for which the calls of a handle keep the event loop, apart from its last call."""


class Turn:
    """The present turn of one handle; in blocking code it never ends."""

    __slots__ = ("_clock", "_ends_s", "_runner")

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._ends_s = inf if runner.mode == "blocking" else 0.0

    def is_over(self) -> bool:
        """Whether the next call is to let other tasks run first."""
        return self._clock.monotonic_s() >= self._ends_s

    async def pass_on(self) -> None:
        """Let other tasks run once, and begin a turn."""
        await self._runner.sleep(0)
        self._ends_s = self._clock.monotonic_s() + TURN_S
