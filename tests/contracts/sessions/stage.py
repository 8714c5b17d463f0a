"""What every part of the sessions' contract stands on: sessions in one place, and others beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from keepstate.sessions.session import Session
from keepstate.sessions.sweep import Sessions
from keepstate.sessions.threads import Threads
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper
from tests.contracts.managers.stage import ManagerStage

T = TypeVar("T")

IDS = ["1", "10", "a", "a/b", "a%2Fb", "a:b", "session/1", "naïve 🦜", "..", " "]
"""Ids that must not be taken for one another."""


class BusyStore(StoreWrapper):
    """A store on which others write between two reads.

    Attributes:
        meanwhile: What others do; once.
        after_reads: Behind how many reads from now on.
    """

    def __init__(self, store: StoreBase | StoreWrapper) -> None:
        super().__init__(store)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.after_reads = 0

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        return type(self)(store)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        reading = await super().read(space, keys, at_ms=at_ms)
        self.after_reads -= 1
        if self.after_reads < 0 and self.meanwhile is not None:
            others, self.meanwhile = self.meanwhile, None
            await others()
        return reading


class SessionStage(ManagerStage):
    """Makes sessions and threads in one place, in both modes."""

    def where(self) -> dict[str, Any]:
        if self.in_passed_space:
            return {"space": self.run_space(), "_mode": self.mode_name}
        return {"persistence": self.url, "_mode": self.mode_name}

    def session(self, id: str = "s", **options: Any) -> Session:
        """Return a session; called again, another object of the same."""
        return self.closed_later(Session(id, **options, **self.where()))

    async def beside_others(self, id: str, **options: Any) -> tuple[BusyStore, Session, Session]:
        """Return a store, a session that works on it, and the same one for others, who work beside it."""
        inner: Any = await self.handle().opened()
        store = BusyStore(inner)
        kept: dict[str, Any] = {**options, "_mode": self.mode_name}
        mine, others = (self.closed_later(Session(id, persistence=each, **kept)) for each in (store, inner))
        return store, mine, others

    def sessions(self) -> Sessions:
        return self.closed_later(Sessions(**self.where()))

    def threads(self) -> Threads:
        return self.closed_later(Threads(**self.where()))

    def closed_later(self, made: T) -> T:
        self._closing.append(made)
        return made
