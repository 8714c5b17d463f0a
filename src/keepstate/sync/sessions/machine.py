"""Blocking twins of `keepstate.sessions.machine`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Self

from keepstate._finish import finish
from keepstate.sessions import machine as sessions
from keepstate.sessions.machine import Action, Transition
from keepstate.sessions.machine_data import Data
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class AgentStateMachine(Kept[sessions.AgentStateMachine]):
    """A task of an agent as a state machine, kept in the space `machine/<id>`.

    A subclass says what is done: it has `plan` and `execute_step` for the states of the default table, and
    names others in `WORK`. Or functions are given as `work`, which get the machine's data. What the work
    changes in `data` is kept with the transition that follows, in one batch.

    Args:
        id: Which machine; any text. Without it one that nobody else has, unless a place is given.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` it is in memory.
        space: Instead: a space, or a transaction whose batch each transition joins.
        states: Its states, if not those of the class; the first is the beginning.
        transitions: The state after an event, by (state, event), if not those of the class.
        waiting: In which states the user is waited for.
        guards: Say by (state, event) if a transition is allowed now, given the data. Guards and actions are
            asked again when a transition meets a conflict, so they do nothing but look and change the data.
        on_enter: Called with the data when a state is entered, before anything is written.
        on_leave: Likewise when one is left.
        work: What is done in a state, given the data: returns the event that follows, a `StepResult`, or None
            where only one event leads on.

    Attributes:
        id: Which machine.
    """

    STATES: ClassVar[Sequence[str]] = sessions.AgentStateMachine.STATES
    TRANSITIONS: ClassVar[Mapping[tuple[str, str], str]] = sessions.AgentStateMachine.TRANSITIONS
    WAITING: ClassVar[Collection[str]] = sessions.AgentStateMachine.WAITING
    WORK: ClassVar[Mapping[str, str]] = sessions.AgentStateMachine.WORK

    def __init__(
        self,
        id: str | None = None,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        states: Sequence[str] | None = None,
        transitions: Mapping[tuple[str, str], str] | None = None,
        waiting: Collection[str] | None = None,
        guards: Mapping[tuple[str, str], Callable[[Data], object]] | None = None,
        on_enter: Mapping[str, Action] | None = None,
        on_leave: Mapping[str, Action] | None = None,
        work: Mapping[str, Action] | None = None,
    ) -> None:
        super().__init__(
            sessions.AgentStateMachine(
                id,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                states=states,
                transitions=transitions,
                waiting=waiting,
                guards=guards,
                on_enter=on_enter,
                on_leave=on_leave,
                work=work,
                _mode="blocking",
                _face=self,
            )
        )

    @property
    def id(self) -> str:
        """Which machine."""
        return self._inner.id

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    @property
    def current_state(self) -> str:
        """Its state, as it was read or made last."""
        return self._inner.current_state

    @property
    def data(self) -> Data:
        """Its data, to be changed; the next transition keeps the changes."""
        return self._inner.data

    @property
    def is_done(self) -> bool:
        """Whether no event leads on from its state."""
        return self._inner.is_done

    def refresh(self) -> str:
        """Read how it stands, forgets what was changed in `data` and not kept, and return its state."""
        return finish(self._inner.refresh())

    def history(self) -> list[Transition]:
        """Return all transitions that it has made, in order."""
        return finish(self._inner.history())

    def diagram(self) -> str:
        """Return its picture as a Mermaid state diagram; the present state is set off, once it is read."""
        return self._inner.diagram()

    def transition(self, event: str, **changes: Any) -> str:
        """Make a transition, keeps the data with it, and return the new state.

        Args:
            event: What happened.
            changes: What becomes of the data beside what was changed in `data` itself.

        Raises:
            TransitionError: The event leads nowhere from the present state, or a guard forbids it.
            InvalidError: The event is no text, or the data cannot be stored.
            ConflictError: Somebody else has changed the same part of the data meanwhile.
        """
        return finish(self._inner.transition(event, **changes))

    def provide(self, answer: object, *, event: str | None = None) -> None:
        """Answer a machine that waits for the user; it goes on whenever somebody runs it.

        Args:
            answer: What the user has said; the transition that follows keeps it as `feedback`.
            event: What follows, where several events lead on; not needed if the answer is the name of one.

        Raises:
            TransitionError: It does not wait, or has an answer already, or the event leads nowhere.
            InvalidError: Several events lead on, and nothing tells which; or the event is no text.
        """
        finish(self._inner.provide(answer, event=event))

    def wait_for_user(self, timeout_s: float | None = None) -> Any:
        """Return what the user has answered, once that is there; the wait survives this process.

        Args:
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotLoadedError: No answer came in time.
            TransitionError: The machine does not wait.
        """
        return finish(self._inner.wait_for_user(timeout_s))

    def run(self, *, wait_s: float | None = None, lease_s: float = 60, turn_s: float = 0) -> str:
        """Do the work of each state and make the transition that follows, until none does.

        A run that was killed goes on in the state in which it was. Only one runs at a time: the next has its
        turn when the first has ended, or was not heard of for `lease_s`, as when it was killed.

        Args:
            wait_s: How long to wait for the user; then it returns. Without it, for ever.
            lease_s: For how long it is this one's turn, unless that is renewed, as it is meanwhile.
            turn_s: How long to wait for its turn; more than `lease_s` outlasts a run that was killed.

        Returns:
            The state in which it ended: a last one, one that waits, or one in which nobody said what to do.

        Raises:
            ConflictError: Another was running it for all of `turn_s`.
            LeaseLostError: Another has taken over; nothing more was written.
        """
        return finish(self._inner.run(wait_s=wait_s, lease_s=lease_s, turn_s=turn_s))
