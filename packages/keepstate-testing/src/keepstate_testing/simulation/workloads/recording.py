"""Event streams: each event once, in one order, for readers and followers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from keepstate.engine.events.record import ANY, Event, Expected
from keepstate.errors import StoreUnavailableError
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import MAIN, Actor, Fate

_STREAMS = ("log/a", "log/b")
_FOLLOWED = "log/a"
_PROMPT_S = 0.5


class Recording(Workload):
    """Each append adds one to three events under a name of its own."""

    weight: ClassVar[float] = 2.0

    async def act(self, actor: Actor) -> None:
        """Append to a stream, blindly or behind the event that it saw last."""
        stream = self.world.random.choice(_STREAMS)
        expected: Expected | int = ANY
        if self.world.random.random() < 0.4:
            last = await self.world.looked(
                actor, lambda: actor.space.events.last(stream), "looks for the last"
            )
            expected = Expected.NO_STREAM if last is None else last
        name = self.world.name("e")
        events = [f"{name}.{number}" for number in range(self.world.random.randint(1, 3))]
        fate, number = await self.world.fate(
            actor,
            lambda: actor.space.events.append(*events, stream=stream, expected=expected),
            f"appends {name}",
        )
        assert number is None or not isinstance(expected, int) or number > expected, f"{name} at {number}"
        for event in events:
            self.fates[event] = fate

    def listeners(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return a follower of one stream: it looks up with every change of the space."""
        self._heard: list[Event] = []
        return [self._follow(0, _FOLLOWED)]

    async def _follow(self, process: int, stream: str) -> None:
        events, heard = self.world.processes[process].space.events, self._heard
        while True:
            try:
                after = heard[-1].number if heard else None
                async for event in events.follow(stream=stream, after=after):
                    self._check_news(event)
                    heard.append(event)
            except StoreUnavailableError:
                await asyncio.sleep(0.1)

    def _check_news(self, event: Event) -> None:
        assert event.number is not None
        self.world.network.note(f"a follower hears {event.data}")
        if self.world.dials.is_prompt and self.world.dials.longest_delay_s < _PROMPT_S / 10:
            applied_s = self.world.server.applied_at_s[MAIN, event.number >> 16]
            late_s = self.world.loop.time() - applied_s
            assert late_s < _PROMPT_S, f"{event} came after {late_s:.3f} s in a world without loss"

    async def finish(self) -> None:
        """Wait until the follower has heard of everything."""
        name = f"the end of {_FOLLOWED}"
        number = await self.judge.space.events.append(name, stream=_FOLLOWED)
        self.fates[name] = Fate.APPLIED
        for _ in range(60):
            if self._heard and self._heard[-1].number == number:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"a follower heard {self._heard[-1:]} and not {number} after 30 s")

    async def verify(self) -> None:
        """Compare the stored events, the followed ones and the answers."""
        names: list[str] = []
        for stream in _STREAMS:
            read = await self.judge.space.events.read(stream=stream, limit=100_000)
            names += [event.data for event in read]
            positions = [event.number or 0 for event in read]
            assert positions == sorted(set(positions)), f"{stream} is out of order: {positions}"
            heard = self._heard if stream == _FOLLOWED else read
            assert read == heard, f"a follower of {stream} heard {heard} of {read}"
        self.compare(names, "the streams")
