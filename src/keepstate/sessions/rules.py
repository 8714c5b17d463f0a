"""The rules of a state machine: its table, what it makes of a step's result, and its picture. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepstate.errors import InvalidError, TransitionError


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
class Rules:
    """States and the events that lead from one to the next.

    Attributes:
        states: All states, the first one is the beginning.
        table: The state after an event, by the state before it and the event.
        waiting: The states in which the user is waited for.
    """

    states: Sequence[str]
    table: Mapping[tuple[str, str], str]
    waiting: Collection[str]

    def __post_init__(self) -> None:
        if not self.states or len(set(self.states)) != len(self.states):
            raise InvalidError(f"the states {list(self.states)!r} are none, or not each another")
        named = {*self.waiting, *self.table.values(), *(state for state, _ in self.table)}
        if unknown := sorted(named - set(self.states)):
            raise InvalidError(f"{', '.join(map(repr, unknown))} stands in the table and is no state; add it")

    def events(self, state: str) -> list[str]:
        """Returns the events that lead on from a state; a state without any is the last."""
        return [event for (before, event) in self.table if before == state]

    def after(self, state: str, event: str) -> str:
        """Returns the state that an event leads to.

        Raises:
            TransitionError: It leads nowhere from there.
        """
        target = self.table.get((state, event))
        if target is None:
            known = " or ".join(map(repr, self.events(state))) or "no event, it is the last state"
            raise TransitionError(
                f"Invalid transition: {state} + {event}; from {state!r} leads {known}",
                current=state,
                wanted=event,
            )
        return target

    def event_of(self, state: str, result: Any) -> str:
        """Returns the event that follows from what the work in a state has returned.

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

    def diagram(self, current: str | None = None) -> str:
        """Returns the machine as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.states[0]}"]
        lines += [f"    {before} --> {after}: {event}" for (before, event), after in self.table.items()]
        lines += [f"    {state} --> [*]" for state in self.states if not self.events(state)]
        if current is not None:
            lines += ["    classDef current stroke-width:4px", f"    class {current} current"]
        return "\n".join(lines)


def rules_of(
    machine: Any,
    states: Sequence[str] | None = None,
    transitions: Mapping[tuple[str, str], str] | None = None,
    waiting: Collection[str] | None = None,
) -> Rules:
    """Returns the rules of a machine or a class of them, in either colour, or those given in their place."""
    chosen: Sequence[str] = machine.STATES if states is None else states
    table: Mapping[tuple[str, str], str] = machine.TRANSITIONS if transitions is None else transitions
    named: Collection[str] = machine.WAITING if waiting is None else waiting
    return Rules(chosen, table, [state for state in named if waiting is not None or state in chosen])
