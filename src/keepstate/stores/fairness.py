"""Fairness between the tasks of an event loop, for stores whose calls never wait.

A call on a store in memory returns without suspending, so a task that makes one call after another would
block the loop. A `Turn` limits that: after a handle has used the loop for `TURN_S`, its next call first lets
other tasks run. Nothing is applied before the call, so a cancellation there has no effect.
"""

from __future__ import annotations

from math import inf

from keepstate._clock import Clock
from keepstate._runner import Runner

TURN_S = 0.01
"""Seconds for which the calls of a handle may hold the event loop; the last call may exceed them."""


class Turn:
    """The present turn of one handle; it never ends in blocking mode."""

    __slots__ = ("_clock", "_ends_s", "_runner")

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._ends_s = inf if runner.mode == "blocking" else 0.0

    def is_over(self) -> bool:
        """Return whether the next call should let other tasks run first."""
        return self._clock.monotonic_s() >= self._ends_s

    async def pass_on(self) -> None:
        """Let other tasks run once, and begin a new turn."""
        await self._runner.sleep(0)
        self._ends_s = self._clock.monotonic_s() + TURN_S
