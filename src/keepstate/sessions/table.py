"""The transition table of a state machine: validation, events of step results, and the diagram. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from keepstate.engine.kernel.arguments import check_name
from keepstate.errors import InvalidError, TransitionError

StateNames: TypeAlias = Collection[str]

_MERMAIDS_OWN: Final = frozenset({
    "as", "choice", "class", "classdef", "click", "default", "direction", "end", "fork", "hide", "join",
    "left", "note", "of", "over", "right", "scale", "state", "style",
})  # fmt: skip
"""Keywords of Mermaid state diagrams, which cannot name a state there."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step, for the default table.

    Attributes:
        complete: The task is done.
        needs_input: The task continues after the user has answered.
    """

    complete: bool = False
    needs_input: bool = False


@dataclass(frozen=True)
class Table:
    """States and the events that lead from one to the next.

    Attributes:
        states: All states; the first is the initial state.
        transitions: The state after an event, by the state before it and the event.
        waiting: The states that wait for the user.
    """

    states: Sequence[str]
    transitions: Mapping[tuple[str, str], str]
    waiting: StateNames

    def __post_init__(self) -> None:
        states = _names("states", self.states)
        if not states or len(set(states)) != len(states):
            raise InvalidError(f"`states` is {states!r}. Pass one or more distinct states.")
        if not isinstance(cast("object", self.transitions), Mapping):
            raise InvalidError(
                f"`transitions` is {self.transitions!r}. Pass a dict with (state, event) as keys."
            )
        for pair, target in self.transitions.items():
            state, _ = _pair("transitions", pair)
            self.check_states("transitions", state, target)
        for state in _names("waiting", self.waiting):
            self.check_states("waiting", state)
            if self.is_last(state):
                raise InvalidError(
                    f"State {state!r} waits for the user, but no event leads on from it. Add one."
                )

    def check_states(self, what: str, *states: object) -> None:
        """Raise `InvalidError` for names that are not states."""
        for state in states:
            if state not in self.states:
                known = ", ".join(map(repr, self.states))
                raise InvalidError(f"`{what}` names {state!r}, which is not a state. The states are {known}.")

    def check_pairs(self, what: str, pairs: Iterable[object]) -> None:
        """Raise `InvalidError` for pairs that are not a (state, event) of the table."""
        for pair in pairs:
            if _pair(what, pair) not in self.transitions:
                known = ", ".join(map(repr, self.transitions))
                raise InvalidError(
                    f"`{what}` names {pair!r}, which is not a transition. The transitions are {known}."
                )

    def check_work_states(self, what: str, states: Iterable[object]) -> None:
        """Raise `InvalidError` for states in which no work is ever done."""
        for state in states:
            self.check_states(what, state)
            if state in self.waiting or self.is_last(str(state)):
                why = "it waits for the user" if state in self.waiting else "it is a final state"
                raise InvalidError(f"`{what}` names {state!r}, in which no work is done because {why}.")

    def events(self, state: str) -> list[str]:
        """Return the events that lead on from a state; empty for a final state."""
        return [event for (before, event) in self.transitions if before == state]

    def is_last(self, state: str) -> bool:
        """Return whether no event leads on from a state."""
        return not self.events(state)

    def after(self, state: str, event: str) -> str:
        """Return the state that an event leads to.

        Raises:
            TransitionError: The event does not lead on from this state.
        """
        target = self.transitions.get((state, event))
        if target is None:
            known = " or ".join(map(repr, self.events(state))) or "none, because it is a final state"
            raise TransitionError(
                f"Invalid transition: {state} + {event}. Events from {state!r}: {known}.",
                current=state,
                wanted=event,
            )
        return target

    def event_of(self, state: str, result: Any) -> str:
        """Return the event that follows from the result of a state's work.

        Raises:
            InvalidError: The result names no event, and not exactly one event leads on.
        """
        if isinstance(result, str):
            return result
        if result is not None:
            complete, needs_input = getattr(result, "complete", None), getattr(result, "needs_input", None)
            if complete is not None or needs_input is not None:
                return "task_complete" if complete else "needs_input" if needs_input else "step_complete"
        events = self.events(state)
        if result is not None or len(events) != 1:
            raise InvalidError(f"The work in state {state!r} returned {result!r}. Return one of {events!r}.")
        return events[0]

    def event_of_answer(self, state: str, answer: object, event: str | None) -> str:
        """Return the event by which an answer leads on from a waiting state.

        Raises:
            TransitionError: The given event does not lead on from this state.
            InvalidError: No event was given, several lead on, and the answer is the name of none.
        """
        events = self.events(state)
        if event is not None:
            self.after(state, event)
            return event
        if len(events) == 1:
            return events[0]
        if isinstance(answer, str) and answer in events:
            return answer
        raise InvalidError(f"Several events lead on from state {state!r}. Pass event=, one of {events!r}.")

    def diagram(self, current: str | None = None) -> str:
        """Return the machine as a Mermaid state diagram."""
        names = self._diagram_names()
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

    def _diagram_names(self) -> dict[str, str]:
        """Return each state's name in the diagram: the state itself, or a generated name for Mermaid."""
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
    waiting: StateNames | None = None,
) -> Table:
    """Return the table of a machine or machine class, in either mode, with the given parts replaced."""
    chosen: Sequence[str] = machine.STATES if states is None else states
    table: Mapping[tuple[str, str], str] = machine.TRANSITIONS if transitions is None else transitions
    if waiting is None:
        known = _names("states", chosen)
        waiting = [state for state in _names("waiting", machine.WAITING) if state in known]
    return Table(chosen, table, waiting)


def _names(what: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidError(f"`{what}` is {given!r}. Pass a list of names.")
    return [check_name(what, name) for name in cast("Collection[object]", given)]


def _pair(what: str, given: object) -> tuple[str, str]:
    """Validate a (state, event) key; membership in the table is not checked."""
    if not isinstance(given, tuple) or len(cast("tuple[object, ...]", given)) != 2:
        raise InvalidError(f"`{what}` has the key {given!r}. Pass a tuple of a state and an event.")
    state, event = cast("tuple[object, object]", given)
    return check_name(what, state), check_name(what, event)


def _escaped(text: str) -> str:
    """Return text for a Mermaid label, with special characters as character codes."""
    return "".join(
        sign if sign.isalnum() or sign in " _-.,()/?!+=" else f"#{ord(sign)};"
        for sign in "".join(" " if sign.isspace() else sign for sign in text)
    )
