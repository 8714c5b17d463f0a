"""The store as a process of the world has it: `StoreBase` and its retries, over a line that fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from keepstate._runner import TaskRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    Batch,
    Capabilities,
    Changes,
    Durability,
    Leap,
    Outcome,
    Page,
    Reading,
    Sizes,
)
from keepstate_testing.simulation.clocks import ProcessClock
from keepstate_testing.simulation.network import Network
from keepstate_testing.simulation.server import Server
from keepstate_testing.simulation.witness import Witness

_RETRY_FOR_S = 3.0
"""Shorter than a real store's, so that some worlds see callers who were left in doubt."""


class SimulatedStore(StoreBase):
    """One process's handle on the server.

    Args:
        name: The process, in the trace.
        clock: The process's own.
        server: Where the spaces are.
        network: The line to it.
        witness: Hears of all answers.
    """

    retries: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    def __init__(
        self, name: str, clock: ProcessClock, server: Server, network: Network, witness: Witness
    ) -> None:
        super().__init__(
            url=f"simulated://{name}", runner=TaskRunner(), clock=clock, retry_for_s=_RETRY_FOR_S
        )
        self._process, self._server, self._network, self._witness = name, server, network, witness
        self._changed: dict[str, None] = {}
        self._heard: Collection[str] = ()

    async def _open(self) -> Capabilities:
        self._server.tell_of_changes(self._hint)
        return Capabilities(durability=Durability.NONE, shared=True)

    async def _close(self) -> None:
        self._server.tell_no_more(self._hint)

    # ---- what the caller is told

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply through the line, and pass the answers to the witness."""
        asked = self._witness.sent(batches)
        outcomes = await super().apply(batches)
        self._witness.answered(asked, outcomes)
        return outcomes

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read through the line, and pass the answer to the witness."""
        asked = self._witness.asked(space)
        reading = await super().read(space, keys, at_ms=at_ms)
        self._witness.told(space, asked, keys, reading, at_ms)
        return reading

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Scan through the line, and pass the answer to the witness."""
        asked = self._witness.asked(space)
        page = await super().scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)
        if not reverse:
            self._witness.told_page(space, asked, prefix, after, page, at_ms)
        return page

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Drop through the line."""
        self._witness.forget(space)
        return await super().drop(space, at=at)

    # ---- the line

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await self._network.apply(self._process, self._server, batches)

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        return await self._network.ask(self._process, lambda: self._server.read(space, keys, at_ms=at_ms))

    async def _scan(  # a backend's methods take no keywords
        self,
        space: str,
        prefix: bytes,
        after: bytes | None,
        limit: int,
        reverse: bool,  # noqa: FBT001
        at_ms: int | None,
    ) -> Page:
        return await self._network.ask(
            self._process,
            lambda: self._server.scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms),
        )

    async def _sizes(self, space: str) -> Sizes:
        return await self._network.ask(self._process, lambda: self._server.sizes(space))

    async def _last_leap(self, space: str) -> Leap | None:
        return await self._network.ask(self._process, lambda: self._server.last_leap(space))

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        return await self._network.ask(self._process, lambda: self._server.changed_ms(spaces))

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        return await self._network.ask(self._process, lambda: self._server.changes(space, after, limit=limit))

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        return await self._network.ask(
            self._process, lambda: self._server.spaces(prefix, after=after, limit=limit)
        )

    async def _drop(self, space: str, at: int | None) -> bool:
        return await self._network.order(self._process, lambda: self._server.drop(space, at=at))

    async def _trim(self, space: str, keep: int) -> None:
        await self._network.order(self._process, lambda: self._server.trim(space, keep=keep))

    async def _sweep(self, prefix: str, limit: int) -> int:
        return await self._network.ask(self._process, lambda: self._server.sweep(prefix, limit=limit))

    # ---- hints

    def _hint(self, space: str) -> None:
        self._network.hint(self._told, space)

    def _told(self, space: str) -> None:
        if space in self._heard:
            self._changed[space] = None
            self._nudge.set()

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        self._heard = spaces
        await self._nudge.wait(timeout_s)
        changed, self._changed = list(self._changed), {}
        return changed
