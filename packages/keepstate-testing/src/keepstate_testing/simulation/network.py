"""The network: the fate of a call on its way to the store and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

from keepstate.errors import OutcomeUnknownError, StoreUnavailableError
from keepstate.stores.protocol import Applied, Batch, Outcome
from keepstate_testing.simulation.dials import Dials

T = TypeVar("T")

_LATEST_S = 8.0
"""How late a request may arrive that its client gave up on."""


class FarEnd(Protocol):
    """The far end of a client's line."""

    def deliver(self, who: str, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply everything that has arrived, at one moment."""
        ...

    def floors(self, batches: Sequence[Batch]) -> list[int]:
        """Return where the logs of the batches' spaces begin."""
        ...


class Network:
    """The line between all clients and the store.

    Attributes:
        dials: Its shares of faults; calm once the world heals.
        faults: The number of faults.
        trace: The events, line by line.
        violations: Broken promises found where no client waits for an answer.
    """

    def __init__(self, dials: Dials, random: Random, loop: asyncio.AbstractEventLoop) -> None:
        self.dials, self._random, self._loop = dials, random, loop
        self.faults = self.calls = self.under_way = 0
        self.trace: list[str] = []
        self.violations: list[BaseException] = []

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._loop.time():.4f} {what}")

    def happens(self, share: float) -> bool:
        """Return whether an event of this share happens now."""
        return share > 0 and self._random.random() < share

    def _fault(self, who: str, what: str) -> None:
        self.faults += 1
        self.note(f"{who} {what}")

    async def _travel(self) -> None:
        if self.happens(self.dials.delayed):
            await asyncio.sleep(self._random.random() ** 3 * self.dials.longest_delay_s)

    # ---- batches

    async def apply(self, who: str, server: FarEnd, batches: Sequence[Batch]) -> list[Outcome]:
        """Bring a flush to the store and its answers back, or do not."""
        self.calls += 1
        dials = self.dials
        if self.happens(dials.refused):
            self._fault(who, "is refused")
            raise StoreUnavailableError("the store is away")
        if self.happens(dials.lost_request):
            self._fault(who, "loses a request")
            raise OutcomeUnknownError("the request was lost")
        if self.happens(dials.late):
            self._fault(who, "gives up on a request that is under way")
            self._send_later(who, server, batches)
            raise OutcomeUnknownError("the request has not been answered")
        try:
            await self._travel()
        except asyncio.CancelledError:
            if self._random.random() < 0.5:
                self._send_later(who, server, batches)
            raise
        if len(batches) > 1 and self.happens(dials.split):
            return self._split(who, server, batches)
        outcomes = server.deliver(who, batches)
        if self.happens(dials.repeated) and (known := _known_again(batches, outcomes)):
            self._fault(who, "sends a request twice")
            self._send_later(who, server, known)
        await self._travel()
        if self.happens(dials.lost_reply):
            self._fault(who, "loses an answer")
            raise OutcomeUnknownError("the answer was lost")
        return outcomes

    def _split(self, who: str, server: FarEnd, batches: Sequence[Batch]) -> list[Outcome]:
        """Deliver the first of the batches, and answer only the first of those."""
        self._fault(who, "is cut off in the middle of a flush")
        arrived = self._random.randint(0, len(batches))
        answered = self._random.randint(0, arrived)
        outcomes = server.deliver(who, batches[:arrived]) if arrived else []
        unknown = [OutcomeUnknownError("the line was cut") for _ in batches[answered:]]
        return [*outcomes[:answered], *unknown]

    def _send_later(self, who: str, server: FarEnd, batches: Sequence[Batch]) -> None:
        self.under_way += 1
        delay_s = self._random.random() ** 2 * _LATEST_S
        self._loop.call_later(delay_s, self._arrive, who, server, batches, server.floors(batches))

    def _arrive(self, who: str, server: FarEnd, batches: Sequence[Batch], floors: list[int]) -> None:
        self.under_way -= 1
        # A drop forgets the answers to what it had applied: then only what never came may still come.
        if server.floors(batches) != floors:
            return
        self.note(f"{who}'s late request arrives")
        try:
            server.deliver(who, batches)
        except AssertionError as error:
            self.violations.append(error)

    # ---- questions and hints

    async def ask(self, who: str, call: Callable[[], Awaitable[T]]) -> T:
        """Bring a question to the store and its answer back, or do not."""
        self.calls += 1
        if self.happens(self.dials.failed_read):
            self._fault(who, "cannot ask")
            raise StoreUnavailableError("the store is away")
        await self._travel()
        answer = await call()
        await self._travel()
        if self.happens(self.dials.failed_read):
            self._fault(who, "hears no answer")
            raise StoreUnavailableError("the answer was lost")
        return answer

    async def order(self, who: str, call: Callable[[], Awaitable[T]]) -> T:
        """Bring an order that has no token to the store, or do not, or loses what came of it."""
        if self.happens(self.dials.refused):
            self._fault(who, "is refused")
            raise StoreUnavailableError("the store is away")
        await self._travel()
        answer = await call()
        if self.happens(self.dials.lost_reply):
            self._fault(who, "loses an answer")
            raise OutcomeUnknownError("the answer was lost")
        return answer

    def hint(self, tell: Callable[[str], None], space: str) -> None:
        """Bring a hint to a client, at once, later or never."""
        if self.happens(self.dials.lost_hint):
            return
        if self.happens(self.dials.delayed):
            self._loop.call_later(self._random.random() * self.dials.longest_delay_s, tell, space)
        else:
            tell(space)


def _known_again(batches: Sequence[Batch], outcomes: Sequence[Outcome]) -> list[Batch]:
    """Return the batches that the store would recognize. A log has no rejected batches."""
    return [
        batch
        for batch, outcome in zip(batches, outcomes, strict=True)
        if type(outcome) is Applied or batch.retry_of is not None
    ]
