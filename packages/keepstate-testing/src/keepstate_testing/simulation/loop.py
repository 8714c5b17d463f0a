"""An event loop whose time is virtual and whose order is a seed's.

It never waits: if nothing is ready, time jumps to the next timer. If there is no timer either, the tasks that
still wait would wait for ever, and an error is raised at once. The seed decides the order of callbacks that
are ready at one moment; asyncio promises none between tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

_MOST_ROUNDS = 1_000_000
"""Of callbacks, before it is taken for a loop without end; a world of 500 steps takes some ten thousand."""


class StuckError(AssertionError):
    """Every task waits and nothing is left that could wake one, or a task loops for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks in virtual time, without threads, sockets or signals.

    Args:
        random: Decides the order of callbacks that are ready at once.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._selector = self
        self._random, self._now_s = random, 0.0
        self.rounds = 0

    def time(self) -> float:
        """Return the virtual time, in seconds since the world began."""
        return self._now_s

    def select(self, timeout: float | None) -> list[object]:
        """Let time pass instead of waiting, as the selector that `BaseEventLoop` asks before each round."""
        self.rounds += 1
        if timeout is None:
            raise StuckError(f"after {self._now_s:.3f} s every task waits and nothing will wake one")
        if self.rounds > _MOST_ROUNDS:
            raise StuckError(f"after {self._now_s:.3f} s something goes round for ever")
        if timeout > 0:
            self._now_s += timeout
        elif len(self._ready) > 1:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """Have nothing to do: there is nothing outside."""

    def _write_to_self(self) -> None:
        """Do nothing: there is one thread."""
