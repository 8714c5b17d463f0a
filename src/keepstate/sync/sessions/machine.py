"""Blocking twins of `keepstate.sessions.machine`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

from keepstate._finish import finish
from keepstate.engine.approvals.records import Approval
from keepstate.sessions import machine as sessions
from keepstate.sessions.machine_data import Action, Data, Transition
from keepstate.sessions.questions import AskFunction, Question
from keepstate.sessions.table import StateNames
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options


class AgentStateMachine(Resource[sessions.AgentStateMachine]):
    """An agent's task as a durable state machine, in the space `machine/<id>`.

    A subclass defines the work of each state: `plan` and `execute_step` for the states of the default table,
    and the methods named in `WORK` for other states. Alternatively, pass functions as `work`; they get the
    machine's data. Changes that the work makes in `data` are committed with the next transition, in one
    batch.

    Args:
        id: Name of the machine, any text. Without it the machine is private to this object, unless
            `persistence` or `space` is given.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the machine is in memory.
        space: Instead: a space, or a transaction whose batch each transition joins.
        states: The states, if not those of the class; the first is the initial state.
        transitions: The state after an event, by (state, event), if not those of the class.
        waiting: The states that wait for the user.
        guards: Functions by (state, event) that return whether a transition is allowed, given the data.
            Guards and actions run again when a transition meets a conflict, so they must have no effect
            except on the data.
        on_enter: Functions by state, called with the data when the state is entered, before anything is
            written.
        on_leave: Functions by state, called with the data when the state is left, before anything is written.
        work: Functions by state that do its work, given the data. They return the next event, a `StepResult`,
            or None if only one event leads on.
        questions: The questions that waiting states ask as approvals, or functions of the data that return
            them, by state. They are asked in the batch of the transition.

    Attributes:
        id: Name of the machine.
    """

    STATES: ClassVar[Sequence[str]] = sessions.AgentStateMachine.STATES
    TRANSITIONS: ClassVar[Mapping[tuple[str, str], str]] = sessions.AgentStateMachine.TRANSITIONS
    WAITING: ClassVar[StateNames] = sessions.AgentStateMachine.WAITING
    WORK: ClassVar[Mapping[str, str]] = sessions.AgentStateMachine.WORK
    QUESTIONS: ClassVar[Mapping[str, Question | AskFunction]] = sessions.AgentStateMachine.QUESTIONS

    def __init__(
        self,
        id: str | None = None,
        *,
        states: Sequence[str] | None = None,
        transitions: Mapping[tuple[str, str], str] | None = None,
        waiting: StateNames | None = None,
        guards: Mapping[tuple[str, str], Callable[[Data], object]] | None = None,
        on_enter: Mapping[str, Action] | None = None,
        on_leave: Mapping[str, Action] | None = None,
        work: Mapping[str, Action] | None = None,
        questions: Mapping[str, Question | AskFunction] | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        super().__init__(
            sessions.AgentStateMachine(
                id,
                states=states,
                transitions=transitions,
                waiting=waiting,
                guards=guards,
                on_enter=on_enter,
                on_leave=on_leave,
                work=work,
                questions=questions,
                **inner_options(storage),
                _face=self,
            )
        )

    @property
    def id(self) -> str:
        """Name of the machine."""
        return self._inner.id

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    @property
    def current_state(self) -> str:
        """The state, as of the last read or transition."""
        return self._inner.current_state

    @property
    def data(self) -> Data:
        """The data, to be changed in place; the next transition commits the changes."""
        return self._inner.data

    @property
    def is_done(self) -> bool:
        """True if no event leads on from the current state."""
        return self._inner.is_done

    def refresh(self) -> str:
        """Read the stored state, discard uncommitted changes of `data`, and return the state."""
        return finish(self._inner.refresh())

    def history(self) -> list[Transition]:
        """Return all transitions, in order."""
        return finish(self._inner.history())

    def diagram(self) -> str:
        """Return a Mermaid state diagram, with the current state highlighted once it was read."""
        return self._inner.diagram()

    def transition(self, event: str, **changes: Any) -> str:
        """Make a transition, commit the data with it, and return the new state.

        Args:
            event: The event.
            changes: Keys of the data to set, in addition to the changes made in `data` itself.

        Raises:
            TransitionError: The event does not lead on from the current state, or a guard forbids it.
            InvalidError: The event is not text, or the data cannot be stored.
            ConflictError: Another writer changed the same part of the data.
        """
        return finish(self._inner.transition(event, **changes))

    def provide(self, answer: object, *, event: str | None = None, by: str | None = None) -> None:
        """Store the user's answer for a waiting machine. The next `run`, in any process, continues with it.

        If the state has asked an approval, this answers it, as `approvals.answer` does.

        Args:
            answer: The user's answer; the next transition sets it as `feedback` in the data.
            event: The event that follows, if several lead on; not needed if the answer is the name of one.
                The answer to an approval decides about the event.
            by: The person who answers an approval, as the caller has verified it.

        Raises:
            ApprovalClosedError: The approval was answered otherwise, has expired or was withdrawn.
            NotAllowedError: The person may not answer the approval.
            TransitionError: The machine is not waiting, has an answer already, or the event does not lead on.
            InvalidError: Several events lead on and none was given, or the event is not text; or `by` is
                missing, or was given without an approval.
        """
        finish(self._inner.provide(answer, event=event, by=by))

    def wait_for_user(self, timeout_s: float | None = None) -> Any:
        """Wait for the user's answer and return it. After a restart, call it again to continue waiting.

        Args:
            timeout_s: Maximum seconds to wait; None means no limit.

        Raises:
            ApprovalClosedError: The approval that it asked has expired, or was withdrawn.
            NotLoadedError: No answer came in time.
            TransitionError: The machine is not waiting.
        """
        return finish(self._inner.wait_for_user(timeout_s))

    def approval(self) -> Approval | None:
        """Return the approval that the machine asked last, or None if it asked none."""
        return finish(self._inner.approval())

    def run(self, *, wait_s: float | None = None, lease_s: float = 60, turn_s: float = 0) -> str:
        """Do the work of each state and make the transition that follows, until no event follows.

        After a crash, the next run continues in the same state. Runs exclude each other by a lease: the next
        one starts when the first has ended, or has not renewed its lease for `lease_s`.

        Args:
            wait_s: Maximum seconds to wait for the user before returning; None means no limit.
            lease_s: Seconds until the lease expires without renewal. It is renewed while the run lasts.
            turn_s: Maximum seconds to wait for another run. A value above `lease_s` outlasts a killed run.

        Returns:
            The state in which the run ended: a final state, a waiting state, or a state without work.

        Raises:
            ConflictError: Another run held the lease for all of `turn_s`.
            LeaseLostError: Another run took over. Nothing more was written.
        """
        return finish(self._inner.run(wait_s=wait_s, lease_s=lease_s, turn_s=turn_s))
