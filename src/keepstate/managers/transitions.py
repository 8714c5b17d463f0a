"""Which states may follow which: a table, and the error of who wants another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Generic, TypeVar

from keepstate.errors import TransitionError

S = TypeVar("S", bound="Enum | str")


class Transitions(Generic[S]):
    """A table of allowed transitions.

    Args:
        what: What has the states, for messages.
        table: The states that may follow, by state; a state that is no key is the last.
    """

    def __init__(self, what: str, table: Mapping[S, Collection[S]]) -> None:
        self._what = what
        self.table = {state: frozenset(following) for state, following in table.items()}

    def allows(self, current: S, wanted: S) -> bool:
        """Return whether one state may follow another."""
        return wanted in self.table.get(current, frozenset())

    def is_final(self, state: S) -> bool:
        """Return whether nothing follows a state."""
        return not self.table.get(state)

    def check(self, id: str, current: S, wanted: S) -> None:
        """Raise `TransitionError`, which names both states, unless one may follow the other."""
        if not self.allows(current, wanted):
            raise self.refused(id, current, wanted)

    def refused(self, id: str, current: S, wanted: S | str) -> TransitionError:
        """Return the error of a transition that is not allowed."""
        now, then = _named(current), _named(wanted)
        following = sorted(_named(state) for state in self.table.get(current, ()))
        told = f"from there it goes to {' or '.join(following)}" if following else "that is its last state"
        return TransitionError(
            f"{self._what} {id!r} is {now} and cannot become {then}; {told}", current=now, wanted=then
        )


def _named(state: Enum | str) -> str:
    return state.name if isinstance(state, Enum) else state
