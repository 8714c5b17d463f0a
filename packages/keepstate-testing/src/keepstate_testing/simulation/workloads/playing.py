"""Two processes that wait for each other: news that one of them misses is news that is not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from keepstate.engine.space.space import Space
from keepstate.errors import StoreUnavailableError
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_SPACE = "game"
_BALL = "ball"
_PLAYERS = (3, 0)
_PROMPT_S = 0.5


class Playing(Workload):
    """Each player hits the ball back when it hears that the other one has hit it; nothing else wakes it."""

    weight: ClassVar[float] = 0.0

    async def act(self, actor: Actor) -> None:
        """Have no steps: the players play by themselves."""

    def listeners(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return both players."""
        self._hits = 0
        self._is_over = False
        return [self._play(number, process) for number, process in enumerate(_PLAYERS)]

    async def _play(self, number: int, process: int) -> None:
        space = self.world.processes[process].ks.space(_SPACE)
        if number == 0:
            await self._hit(space, 0)
        after = 0
        while True:
            try:
                async with space.documents.watch(_BALL, after=after) as watch:
                    async for change in watch:
                        if change.new % 2 != number and not self._is_over:
                            self._check_news(change.revision)
                            await asyncio.sleep(self.world.random.choice([0.0, 0.0, 0.7]))
                            await self._hit(space, change.new + 1)
                        after = change.revision
            except StoreUnavailableError:
                await asyncio.sleep(0.1)

    def _check_news(self, revision: int) -> None:
        if self.world.dials.is_prompt and self.world.dials.longest_delay_s < _PROMPT_S / 10:
            late_s = self.world.loop.time() - self.world.server.applied_at_s[_SPACE, revision]
            assert late_s < _PROMPT_S, f"a player heard of {revision} after {late_s:.3f} s without loss"

    async def _hit(self, space: Space, number: int) -> None:
        """Put the ball where the other one waits for it; to put it there twice is to put it there."""
        while True:
            try:
                await space.documents.put(_BALL, number)
            except StoreUnavailableError:
                continue
            self._hits += 1
            return

    async def finish(self) -> None:
        """Wait for one more hit of each."""
        hits = self._hits
        for _ in range(60):
            if self._hits >= hits + 2:
                break
            await asyncio.sleep(0.5)
        else:
            raise AssertionError(f"after {self._hits} hits the players wait for each other for ever")
        self._is_over = True
        await asyncio.sleep(5)

    async def verify(self) -> None:
        """Look whether there is a ball."""
        ball = await self.judge.process.ks.space(_SPACE).documents.get(_BALL)
        assert ball is not None and ball < self._hits, f"ball {ball} after {self._hits} hits"
