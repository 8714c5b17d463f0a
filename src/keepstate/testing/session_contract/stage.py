"""What every part of the sessions' contract stands on: sessions in one place, and others beside them."""

from __future__ import annotations

from typing import Any, TypeVar

from keepstate.sessions.session import Session
from keepstate.sessions.sweeping import Sessions
from keepstate.sessions.threads import Threads
from keepstate.testing.manager_contract.stage import ManagerStage

T = TypeVar("T")

IDS = ["1", "10", "a", "a/b", "a%2Fb", "a:b", "session/1", "naïve 🦜", "..", " "]
"""Ids that must not be taken for one another."""


class SessionStage(ManagerStage):
    """Makes sessions and threads in one place, in both colours."""

    def where(self) -> dict[str, Any]:
        if self.in_passed_space:
            return {"space": self.run_space(), "_colour": self.colour_name}
        return {"persistence": self.url, "_colour": self.colour_name}

    def session(self, id: str = "s", **options: Any) -> Session:
        """Returns a session; called again, another object of the same."""
        return self.closed_later(Session(id, **options, **self.where()))

    def sessions(self) -> Sessions:
        return self.closed_later(Sessions(**self.where()))

    def threads(self) -> Threads:
        return self.closed_later(Threads(**self.where()))

    def closed_later(self, made: T) -> T:
        self._closing.append(made)
        return made
