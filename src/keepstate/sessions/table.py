"""The table of a state machine: what may follow what, what it makes of a step's result, its picture. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from keepstate.engine.kernel.arguments import check_name
from keepstate.errors import InvalidError, TransitionError

_MERMAIDS_OWN: Final = frozenset({
    "as", "choice", "class", "classdef", "click", "default", "direction", "end", "fork", "hide", "join",
    "left", "note", "of", "over", "right", "scale", "state", "style",
})  # fmt: skip
"""Words that mean something in a Mermaid state diagram, and so cannot name a state there."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to, in the words of the default table.

    Attributes:
        complete: The task is done.
        needs_input: It can go on when the user has answered.
    """

    complete: bool = False
    needs_input: bool = False


@dataclass(frozen=True)
class Table:
    """States and the events that lead from one to the next.

    Attributes:
        states: All states, the first one is the beginning.
        transitions: The state after an event, by the state before it and the event.
        waiting: The states in which the user is waited for.
    """

    states: Sequence[str]
    transitions: Mapping[tuple[str, str], str]
    waiting: Collection[str]

    def __post_init__(self) -> None:
        states = _names("states", self.states)
        if not states or len(set(states)) != len(states):
            raise InvalidError(f"the states {states!r} are none, or not each another")
        if not isinstance(cast("object", self.transitions), Mapping):
            raise InvalidError(f"`transitions` is {self.transitions!r}; give a mapping of (state, event)")
        for pair, target in self.transitions.items():
            state, _ = _pair("transitions", pair)
            self.admit("transitions", state, target)
        for state in _names("waiting", self.waiting):
            self.admit("waiting", state)
            if self.is_last(state):
                raise InvalidError(f"the user is waited for in {state!r}, and no event leads on; add one")

    def admit(self, what: str, *states: object) -> None:
        """Raise `InvalidError` for what is no state."""
        for state in states:
            if state not in self.states:
                known = ", ".join(map(repr, self.states))
                raise InvalidError(f"`{what}` names {state!r}, which is no state; there are {known}")

    def admit_pairs(self, what: str, pairs: Iterable[object]) -> None:
        """Raise `InvalidError` for what is no (state, event) of the table."""
        for pair in pairs:
            if _pair(what, pair) not in self.transitions:
                known = ", ".join(map(repr, self.transitions))
                raise InvalidError(f"`{what}` names {pair!r}, which is no transition; there are {known}")

    def admit_work(self, what: str, states: Iterable[object]) -> None:
        """Raise `InvalidError` for states in which no work would ever be done."""
        for state in states:
            self.admit(what, state)
            if state in self.waiting or self.is_last(str(state)):
                why = "the user is waited for" if state in self.waiting else "it is over"
                raise InvalidError(f"`{what}` names {state!r}, in which no work is done: {why}")

    def events(self, state: str) -> list[str]:
        """Return the events that lead on from a state; a state without any is the last."""
        return [event for (before, event) in self.transitions if before == state]

    def is_last(self, state: str) -> bool:
        """Whether no event leads on from a state."""
        return not self.events(state)

    def after(self, state: str, event: str) -> str:
        """Return the state that an event leads to.

        Raises:
            TransitionError: It leads nowhere from there.
        """
        target = self.transitions.get((state, event))
        if target is None:
            known = " or ".join(map(repr, self.events(state))) or "no event, it is the last state"
            raise TransitionError(
                f"Invalid transition: {state} + {event}; from {state!r} leads {known}",
                current=state,
                wanted=event,
            )
        return target

    def event_of(self, state: str, result: Any) -> str:
        """Return the event that follows from what the work in a state has returned.

        Raises:
            InvalidError: It told nothing, and several events lead on.
        """
        if isinstance(result, str):
            return result
        if result is not None:
            complete, needs_input = getattr(result, "complete", None), getattr(result, "needs_input", None)
            if complete is not None or needs_input is not None:
                return "task_complete" if complete else "needs_input" if needs_input else "step_complete"
        events = self.events(state)
        if result is not None or len(events) != 1:
            raise InvalidError(f"the work in {state!r} returned {result!r}; let it return one of {events!r}")
        return events[0]

    def event_of_answer(self, state: str, answer: object, event: str | None) -> str:
        """Return the event by which an answer leads on from a state that waits.

        Raises:
            TransitionError: The event that was told leads nowhere from there.
            InvalidError: None was told, several lead on, and the answer is the name of none.
        """
        events = self.events(state)
        if event is not None:
            self.after(state, event)
            return event
        if len(events) == 1:
            return events[0]
        if isinstance(answer, str) and answer in events:
            return answer
        raise InvalidError(f"several events lead on from {state!r}; say which by `event`, one of {events!r}")

    def diagram(self, current: str | None = None) -> str:
        """Return the machine as a Mermaid state diagram."""
        names = self._drawn()
        lines = ["stateDiagram-v2"]
        lines += [
            f'    state "{_escaped(state)}" as {name}' for state, name in names.items() if name != state
        ]
        lines += [f"    [*] --> {names[self.states[0]]}"]
        lines += [
            f"    {names[before]} --> {names[after]}: {_escaped(event)}"
            for (before, event), after in self.transitions.items()
        ]
        lines += [f"    {names[state]} --> [*]" for state in self.states if self.is_last(state)]
        if current is not None:
            lines += ["    classDef current stroke-width:4px", f"    class {names[current]} current"]
        return "\n".join(lines)

    def _drawn(self) -> dict[str, str]:
        """Return by state what stands for it in the picture: itself, or a name that Mermaid can read."""
        names: dict[str, str] = {}
        number = 0
        for state in self.states:
            names[state] = state
            if state.isidentifier() and state.casefold() not in _MERMAIDS_OWN:
                continue
            while (name := f"s{(number := number + 1)}") in self.states:
                pass
            names[state] = name
        return names


def table_of(
    machine: Any,
    states: Sequence[str] | None = None,
    transitions: Mapping[tuple[str, str], str] | None = None,
    waiting: Collection[str] | None = None,
) -> Table:
    """Return the table of a machine or a class of them, in either colour, or what is given in its place."""
    chosen: Sequence[str] = machine.STATES if states is None else states
    table: Mapping[tuple[str, str], str] = machine.TRANSITIONS if transitions is None else transitions
    if waiting is None:
        known = _names("states", chosen)
        waiting = [state for state in _names("waiting", machine.WAITING) if state in known]
    return Table(chosen, table, waiting)


def _names(what: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidError(f"`{what}` is {given!r}; give a list of names")
    return [check_name(what, name) for name in cast("Collection[object]", given)]


def _pair(what: str, given: object) -> tuple[str, str]:
    """Return a state and an event; that they are of the table is not looked at."""
    if not isinstance(given, tuple) or len(cast("tuple[object, ...]", given)) != 2:
        raise InvalidError(f"`{what}` has the key {given!r}; give a tuple of a state and an event")
    state, event = cast("tuple[object, object]", given)
    return check_name(what, state), check_name(what, event)


def _escaped(text: str) -> str:
    """Return text as Mermaid shows it: what ends a label there is told by its number."""
    return "".join(
        sign if sign.isalnum() or sign in " _-.,()/?!+=" else f"#{ord(sign)};"
        for sign in "".join(" " if sign.isspace() else sign for sign in text)
    )
