"""Tables of allowed state transitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Generic, TypeVar

from keepstate.errors import TransitionError

S = TypeVar("S", bound="Enum | str")


class Transitions(Generic[S]):
    """A table of allowed transitions.

    Args:
        what: The kind of thing that has the states, for messages.
        table: The next states, by state. A state without a key is final.
    """

    def __init__(self, what: str, table: Mapping[S, Collection[S]]) -> None:
        self._what = what
        self.table = {state: frozenset(following) for state, following in table.items()}

    def allows(self, current: S, wanted: S) -> bool:
        """Return whether a state may follow another."""
        return wanted in self.table.get(current, frozenset())

    def is_final(self, state: S) -> bool:
        """Return whether a state has no next state."""
        return not self.table.get(state)

    def check(self, id: str, current: S, wanted: S) -> None:
        """Raise `TransitionError`, with both states, unless the transition is allowed."""
        if not self.allows(current, wanted):
            raise self.make_error(id, current, wanted)

    def check_update(self, id: str, current: S, wanted: S) -> None:
        """Raise `TransitionError` unless the state stays the same or the transition is allowed."""
        if current != wanted:
            self.check(id, current, wanted)

    def make_error(self, id: str, current: S, wanted: S | str) -> TransitionError:
        """Return the error of a transition that is not allowed."""
        now, then = _state_name(current), _state_name(wanted)
        following = sorted(_state_name(state) for state in self.table.get(current, ()))
        told = f"Allowed next: {', '.join(following)}." if following else f"{now} is final."
        return TransitionError(
            f"{self._what} {id!r} is {now} and cannot become {then}. {told}", current=now, wanted=then
        )


def _state_name(state: Enum | str) -> str:
    return state.name if isinstance(state, Enum) else state
