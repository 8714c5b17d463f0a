"""A durable state machine. Each transition commits the new state, the data and an event in one batch.

The stored document is the machine; an object of the class is a view of it. If a process is killed, the work
of a state may run again, but its transition is made once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, ClassVar, Self, Unpack

from keepstate._finish import finish
from keepstate._runner import Lock, Mode
from keepstate.binding import PRIVATE, SHARED, Resource, StorageOptions, StoreBinding
from keepstate.engine.approvals.records import Approval
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_duration_ms, check_text, check_text_keys, check_wait
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.queue.lease import Lease
from keepstate.engine.queue.step_records import Answer
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    ApprovalClosedError,
    ConflictError,
    InvalidError,
    NotLoadedError,
    TransitionError,
)
from keepstate.names import shorten
from keepstate.sessions.machine_data import (
    Action,
    Data,
    MachineRecord,
    Transition,
    View,
    carry_changes,
    merge_data,
)
from keepstate.sessions.namespace import hold_lease
from keepstate.sessions.questions import AskFunction, Question, Questions
from keepstate.sessions.table import StateNames, table_of


class AgentStateMachine(Resource):
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

    STATES: ClassVar[Sequence[str]] = ["idle", "planning", "executing", "waiting_feedback", "done"]
    TRANSITIONS: ClassVar[Mapping[tuple[str, str], str]] = {
        ("idle", "new_task"): "planning",
        ("planning", "plan_ready"): "executing",
        ("executing", "step_complete"): "executing",
        ("executing", "needs_input"): "waiting_feedback",
        ("waiting_feedback", "input_received"): "executing",
        ("executing", "task_complete"): "done",
    }
    WAITING: ClassVar[StateNames] = ("waiting_feedback",)
    WORK: ClassVar[Mapping[str, str]] = {"planning": "plan", "executing": "execute_step"}
    """The name of the method that does the work of a state."""
    QUESTIONS: ClassVar[Mapping[str, Question | AskFunction]] = {}

    id: str

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
        _face: object | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        face: Any = self if _face is None else _face
        kind = face.__class__
        self._table = table_of(face, states, transitions, waiting)
        self._work_names: Mapping[str, str] = face.WORK
        # Held only if it defines work itself, because it and its twin form a reference cycle.
        self._face = _face if any(hasattr(_face, name) for name in face.WORK.values()) else None
        self._guards, self._on_enter, self._on_leave = guards or {}, on_enter or {}, on_leave or {}
        self._work = work or {}
        self._binding = self._closing = StoreBinding(storage, default=PRIVATE if id is None else SHARED)
        id = "default" if id is None else id
        self._target, prefix = self._binding.locate("machine", id, record=True)
        self.id, self._name = id, f"{prefix}machine"
        asked = face.QUESTIONS if questions is None else questions
        self._questions = Questions(id, self._name, self._table, asked)
        self._check_functions(kind, self._binding.mode)
        self._stream = shorten(self._name)
        self._view: View | None = None
        self._lock = Lock()
        self._lease: Lease | None = None

    def __repr__(self) -> str:
        state = "not read yet" if self._view is None else self._view.base.state
        kind = type(self if self._face is None else self._face)
        return f"<{kind.__name__} {self.id!r} in {self._binding!r}: {state}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    async def __aenter__(self) -> Self:
        await self.refresh()
        return self

    def _check_functions(self, kind: type, mode: Mode) -> None:
        """Raise `InvalidError` for functions that would never be called, or that do not fit the mode."""
        table = self._table
        table.check_pairs("guards", self._guards)
        table.check_states("on_enter", *self._on_enter)
        table.check_states("on_leave", *self._on_leave)
        table.check_work_states("work", self._work)
        methods = {state: getattr(kind, name, None) for state, name in self._work_names.items()}
        if self._work_names is not AgentStateMachine.WORK:
            table.check_work_states("WORK", methods)
            if missing := [name for name in self._work_names.values() if not hasattr(kind, name)]:
                raise InvalidError(
                    f"`WORK` of {kind.__name__} names {missing[0]!r}, but the class has no such method. "
                    "Define it."
                )
        given = [one for ones in (self._guards, self._on_enter, self._on_leave) for one in ones.values()]
        given += self._questions.functions
        for function in (*given, *self._work.values(), *filter(None, methods.values())):
            if mode == "blocking" or not callable(function):
                reject_coroutine_function(function)

    # ---- state

    @property
    def current_state(self) -> str:
        """The state, as of the last read or transition."""
        return self._require_view().base.state

    @property
    def data(self) -> Data:
        """The data, to be changed in place; the next transition commits the changes."""
        return self._require_view().data

    @property
    def is_done(self) -> bool:
        """True if no event leads on from the current state."""
        return self._table.is_last(self.current_state)

    async def refresh(self) -> str:
        """Read the stored state, discard uncommitted changes of `data`, and return the state."""
        self._set_view(await self._read(self._target))
        return self.current_state

    async def history(self) -> list[Transition]:
        """Return all transitions, in order."""
        stream, found, after = self._target.events.stream(self._stream), list[Transition](), None
        while events := await stream.read(after=after, limit=1_000):
            found += [_transition(event.data, event.recorded_at) for event in events]
            after = events[-1].number
            if after is None:
                break
        return found

    def diagram(self) -> str:
        """Return a Mermaid state diagram, with the current state highlighted once it was read."""
        return self._table.diagram(self._view.base.state if self._view else None)

    # ---- changing

    async def transition(self, event: str, **changes: Any) -> str:
        """Make a transition, commit the data with it, and return the new state.

        Args:
            event: The event.
            changes: Keys of the data to set, in addition to the changes made in `data` itself.

        Raises:
            TransitionError: The event does not lead on from the current state, or a guard forbids it.
            InvalidError: The event is not text, or the data cannot be stored.
            ConflictError: Another writer changed the same part of the data.
        """
        event = check_text("event", event)
        if self._view is None:
            await self.refresh()
        view = self._view
        assert view is not None
        # Copied before the wait for the lock, because another call may replace the view during the wait.
        own = deepcopy({**view.data})
        made = await self._apply_event(event, view.base.data, {**own, **changes})
        self._adopt(made, view, own)
        return made.state

    async def provide(self, answer: object, *, event: str | None = None, by: str | None = None) -> None:
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
        event = None if event is None else check_text("event", event)

        async def work(tx: Transaction) -> None:
            record = await self._read(tx)
            if record.state not in self._table.waiting or record.answer:
                why = "has an answer already" if record.answer else "is not waiting for the user"
                raise TransitionError(
                    f"Machine {self.id!r} is in state {record.state!r} and {why}.", current=record.state
                )
            if (by is None) is bool(record.asked) or (by is not None and event is not None):
                rule = (
                    "an approval. Pass `by`, and no" if record.asked else "no approval. Pass `event`, and no"
                )
                left_out = "`event`" if record.asked else "`by`"
                raise InvalidError(
                    f"State {record.state!r} of machine {self.id!r} has asked {rule} {left_out}."
                )
            if by is not None:
                await tx.approvals.answer(record.asked[0], answer, by=by)
                return
            record.answer = [answer, self._table.event_of_answer(record.state, answer, event)]
            await tx.documents.put(self._name, record)

        await run_in_transaction(self._target, work, message=f"answer {self.id}", turn=self._name)

    async def wait_for_user(self, timeout_s: float | None = None) -> Any:
        """Wait for the user's answer and return it. After a restart, call it again to continue waiting.

        Args:
            timeout_s: Maximum seconds to wait; None means no limit.

        Raises:
            ApprovalClosedError: The approval that it asked has expired, or was withdrawn.
            NotLoadedError: No answer came in time.
            TransitionError: The machine is not waiting.
        """
        self._binding.require_outside_transaction("waiting for the user")
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        record = await self._read(self._target)
        if record.state in self._table.waiting and record.asked:
            return (await self._decided(record, timeout_s)).value
        return (await self._answered(timeout_s)).answer[0]

    async def approval(self) -> Approval | None:
        """Return the approval that the machine asked last, or None if it asked none."""
        return await self._questions.find(self._target, await self._read(self._target))

    async def _decided(self, record: MachineRecord, timeout_s: float | None) -> Answer:
        try:
            return await self._target.approvals.wait(record.asked[0], timeout_s=timeout_s)
        except TimeoutError as error:
            raise NotLoadedError(
                f"Machine {self.id!r} got no answer within {timeout_s} s. Call wait_for_user() again."
            ) from error

    async def _answered(self, timeout_s: float | None) -> MachineRecord:
        clock = self._binding.clock
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        async with self._target.documents.watch(escape_pattern(self._name)) as watch:
            while True:
                record = await self._read(self._target)
                if record.state not in self._table.waiting:
                    raise TransitionError(
                        f"Machine {self.id!r} is in state {record.state!r} and is not waiting for the user.",
                        current=record.state,
                    )
                if record.answer:
                    return record
                left_s = 5.0 if deadline_s is None else deadline_s - clock.monotonic_s()
                if left_s <= 0:
                    raise NotLoadedError(
                        f"Machine {self.id!r} got no answer within {timeout_s} s. Call wait_for_user() again."
                    )
                await watch.take(left_s)

    # ---- running

    async def run(self, *, wait_s: float | None = None, lease_s: float = 60, turn_s: float = 0) -> str:
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
        self._binding.require_outside_transaction("running a machine")
        if wait_s is not None:
            check_wait("wait_s", wait_s)
        check_duration_ms("lease_s", lease_s)
        check_wait("turn_s", turn_s)
        assert isinstance(self._target, Space)
        if self._table.is_last(state := await self.refresh()):
            return state
        async with hold_lease(self._target, self._name, lease_s=lease_s, turn_s=turn_s) as lease:
            self._lease = lease
            try:
                return await self._run(wait_s)
            finally:
                self._lease = None

    async def _run(self, wait_s: float | None) -> str:
        while True:
            state = await self.refresh()
            if self._table.is_last(state):
                return state
            if state in self._table.waiting:
                try:
                    await (self._resume_decided if self._require_view().base.asked else self._resume)(wait_s)
                except NotLoadedError:
                    return state
                continue
            work = self._work_of(state)
            if work is None:
                return state
            await self.transition(self._table.event_of(state, await call_function(work)))

    async def _resume_decided(self, wait_s: float | None) -> None:
        """Make the transition that follows the approval, when it is settled."""
        record = self._require_view().base
        closed: ApprovalClosedError | None = None
        try:
            await self._decided(record, wait_s)
        except ApprovalClosedError as error:
            closed = error
        approval = await self._questions.find(self._target, record)
        event = None if approval is None else self._questions.event_of(record, approval)
        if closed is not None and (await self._read(self._target)).number != record.number:
            return  # another writer moved the machine on, and withdrew the question
        if event is None or approval is None:
            assert closed is not None
            raise closed
        changes = {} if approval.answer is None else {"feedback": approval.answer.value}
        try:
            await self.transition(event, **changes)
        except TransitionError:
            await self._forget(record)
            raise

    async def _resume(self, wait_s: float | None) -> None:
        answered = await self._answered(wait_s)
        answer, *events = answered.answer
        event = self._table.event_of_answer(answered.state, answer, events[0] if events else None)
        try:
            await self.transition(event, feedback=answer)
        except TransitionError:
            await self._forget(answered)
            raise

    async def _forget(self, answered: MachineRecord) -> None:
        """Drop an answer whose transition a guard forbids, so that another answer can be given."""

        async def work(tx: Transaction) -> None:
            record = await self._read(tx)
            if record.number == answered.number:
                record.answer = []
                if record.asked:
                    record.asked = await self._questions.enter(tx, record, record.asked[1] + 1)
                await tx.documents.put(self._name, record)

        message = f"refuse the answer to {self.id}"
        await run_in_transaction(self._target, work, lease=self._lease, message=message, turn=self._name)

    def _work_of(self, state: str) -> Callable[[], Any] | None:
        if (given := self._work.get(state)) is not None:
            return lambda: given(self.data)
        face = self if self._face is None else self._face
        method: Callable[[], Awaitable[Any] | Any] | None = getattr(
            face, self._work_names.get(state, ""), None
        )
        return method

    # ---- its document

    def _require_view(self) -> View:
        if self._view is None:
            if self._binding.runner.mode != "blocking":
                raise NotLoadedError(
                    f"Machine {self.id!r} was not read yet. Await machine.refresh(), or use `async with`."
                )
            finish(self.refresh())
        assert self._view is not None
        return self._view

    def _set_view(self, record: MachineRecord) -> None:
        self._view = View(record, deepcopy(record.data))

    def _adopt(self, made: MachineRecord, view: View, own: Data) -> None:
        """Make the result of a transition the current view, unless a concurrent call has set a later one.

        Changes of `data` since the transition began are not in the result. They are carried over to the next.
        """
        with self._lock:
            now = self._view
            assert now is not None
            if now is not view and now.base.number >= made.number:
                return
            since = own if now is view else now.base.data
            self._view = View(made, carry_changes(since, {**now.data}, deepcopy(made.data), self._encode))

    def _encode(self, value: object) -> bytes:
        """Return a part of the data as it would be stored."""
        executor = self._target.executor
        return executor.encode(value, layout.named_key(layout.DOCUMENTS, self._name))

    async def _read(self, target: Space | Transaction) -> MachineRecord:
        record = await target.documents.get(self._name, type=MachineRecord)
        if record is None:
            return MachineRecord(self._table.states[0])
        if record.state not in self._table.states:
            known = ", ".join(map(repr, self._table.states))
            raise InvalidError(
                f"Machine {self.id!r} is in state {record.state!r}, but its table has only {known}. Add that "
                "state to the table, with an event that leads on."
            )
        return record

    async def _apply_event(self, event: str, base: Data, mine: Data) -> MachineRecord:
        async def work(tx: Transaction) -> MachineRecord | ConflictError:
            before = await self._read(tx)
            try:
                after = await self._next_record(before, event, base, mine)
            except ConflictError as error:  # a retry would fail in the same way
                return error
            await self._questions.leave(tx, before, event)
            after.asked = await self._questions.enter(tx, after)
            transition = {
                "number": after.number,
                "state": before.state,
                "event": event,
                "target": after.state,
            }
            await tx.documents.put(self._name, after)
            await tx.events.append(transition, stream=self._stream, type="keepstate.transition")
            return after

        made = await run_in_transaction(
            self._target, work, lease=self._lease, message=f"machine {self.id}", turn=self._name
        )
        if isinstance(made, ConflictError):
            raise made
        return made

    async def _next_record(self, record: MachineRecord, event: str, base: Data, mine: Data) -> MachineRecord:
        target = self._table.after(record.state, event)
        data = deepcopy(merge_data(self.id, base, mine, record.data, self._encode))
        guard = self._guards.get((record.state, event))
        if guard is not None and not await call_function(guard, data):
            raise TransitionError(
                f"A guard forbids the transition: {record.state} + {event}",
                current=record.state,
                wanted=event,
            )
        if (leave := self._on_leave.get(record.state)) is not None:
            await call_function(leave, data)
        if (enter := self._on_enter.get(target)) is not None:
            await call_function(enter, data)
        data = check_text_keys(f"the data of machine {self.id!r}", data)
        answer = [] if record.state in self._table.waiting else record.answer
        return MachineRecord(target, data, record.number + 1, answer, record.asked)


def _transition(data: Mapping[str, Any], at: datetime) -> Transition:
    return Transition(data["number"], data["state"], data["event"], data["target"], at)
