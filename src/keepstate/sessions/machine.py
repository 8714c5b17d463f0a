"""An agent as a state machine that survives: each transition is an event, in the batch that it changes.

What stands in the document is the machine; an object of the class is one view of it. The work of a state may
be done more than once, when a process was killed in it; its transition is made once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import Any, ClassVar, Self, TypeAlias

from keepstate._finish import finish
from keepstate._runner import Lock, Mode
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text, check_text_keys
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.times import check_duration_ms, check_wait
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError, NotLoadedError, TransitionError
from keepstate.sessions.binding import Home, short
from keepstate.sessions.lease_block import holding
from keepstate.sessions.machine_data import Data, View, carried, merged
from keepstate.sessions.resource import Kept
from keepstate.sessions.table import table_of
from keepstate.stores.protocol import Store
from keepstate.values.schema import register

Action: TypeAlias = Callable[[Data], object]


@register("keepstate.Machine")
@dataclass
class MachineRecord:
    """A machine as it stands in its document."""

    state: str
    data: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read, and mended
    number: int = 0
    """How many transitions it has made."""
    answer: list[Any] = field(default_factory=list[Any])
    """What the user has said while it waits, and by which event that leads on; empty if nothing."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition that a machine made.

    Attributes:
        number: The first has 1.
        state: The state before it.
        event: What happened.
        target: The state after it.
        at: When, by the clock of who made it.
    """

    number: int
    state: str
    event: str
    target: str
    at: datetime


class AgentStateMachine(Kept):
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

    STATES: ClassVar[Sequence[str]] = ["idle", "planning", "executing", "waiting_feedback", "done"]
    TRANSITIONS: ClassVar[Mapping[tuple[str, str], str]] = {
        ("idle", "new_task"): "planning",
        ("planning", "plan_ready"): "executing",
        ("executing", "step_complete"): "executing",
        ("executing", "needs_input"): "waiting_feedback",
        ("waiting_feedback", "input_received"): "executing",
        ("executing", "task_complete"): "done",
    }
    WAITING: ClassVar[Collection[str]] = ("waiting_feedback",)
    WORK: ClassVar[Mapping[str, str]] = {"planning": "plan", "executing": "execute_step"}
    """The method that does the work of a state."""

    id: str

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
        _mode: Mode = "async",
        _face: object | None = None,
    ) -> None:
        face: Any = self if _face is None else _face
        kind = face.__class__
        self._table = table_of(face, states, transitions, waiting)
        self._work_names: Mapping[str, str] = face.WORK
        # Only one that has work of its own is kept: it would hold its twin, and that holds it.
        self._face = _face if any(hasattr(_face, name) for name in face.WORK.values()) else None
        self._guards, self._on_enter, self._on_leave = guards or {}, on_enter or {}, on_leave or {}
        self._work = work or {}
        self._admit(kind, _mode)
        self._home = self._closing = Home(persistence, space, mode=_mode, is_private=id is None)
        id = "default" if id is None else id
        self._place = self._home.place("machine", id, record=True)
        self.id, self._name = id, f"{self._home.prefix('machine', id)}machine"
        self._stream = short(self._name)
        self._view: View[MachineRecord] | None = None
        self._lock = Lock()
        self._lease: Lease | None = None

    def __repr__(self) -> str:
        state = "not read yet" if self._view is None else self._view.base.state
        kind = type(self if self._face is None else self._face)
        return f"<{kind.__name__} {self.id!r} in {self._home!r}: {state}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    async def __aenter__(self) -> Self:
        await self.refresh()
        return self

    def _admit(self, kind: type, mode: Mode) -> None:
        """Raise `InvalidError` for what would never be asked, called or done."""
        table = self._table
        table.admit_pairs("guards", self._guards)
        table.admit("on_enter", *self._on_enter)
        table.admit("on_leave", *self._on_leave)
        table.admit_work("work", self._work)
        methods = {state: getattr(kind, name, None) for state, name in self._work_names.items()}
        if self._work_names is not AgentStateMachine.WORK:
            table.admit_work("WORK", methods)
            if missing := [name for name in self._work_names.values() if not hasattr(kind, name)]:
                raise InvalidError(f"`WORK` of {kind.__name__} names {missing[0]!r}, which it does not have")
        given = [one for ones in (self._guards, self._on_enter, self._on_leave) for one in ones.values()]
        for function in (*given, *self._work.values(), *filter(None, methods.values())):
            if mode == "blocking" or not callable(function):
                reject_coroutine_function(function)

    # ---- how it stands

    @property
    def current_state(self) -> str:
        """Its state, as it was read or made last."""
        return self._known().base.state

    @property
    def data(self) -> Data:
        """Its data, to be changed; the next transition keeps the changes."""
        return self._known().data

    @property
    def is_done(self) -> bool:
        """Whether no event leads on from its state."""
        return self._table.is_last(self.current_state)

    async def refresh(self) -> str:
        """Read how it stands, forgets what was changed in `data` and not kept, and return its state."""
        self._take(await self._read(self._place))
        return self.current_state

    async def history(self) -> list[Transition]:
        """Return all transitions that it has made, in order."""
        stream, found, after = self._place.events.stream(self._stream), list[Transition](), None
        while events := await stream.read(after=after, limit=1_000):
            found += [_transition(event.data, event.recorded_at) for event in events]
            after = events[-1].number
            if after is None:
                break
        return found

    def diagram(self) -> str:
        """Return its picture as a Mermaid state diagram; the present state is set off, once it is read."""
        return self._table.diagram(self._view.base.state if self._view else None)

    # ---- changing

    async def transition(self, event: str, **changes: Any) -> str:
        """Make a transition, keeps the data with it, and return the new state.

        Args:
            event: What happened.
            changes: What becomes of the data beside what was changed in `data` itself.

        Raises:
            TransitionError: The event leads nowhere from the present state, or a guard forbids it.
            InvalidError: The event is no text, or the data cannot be stored.
            ConflictError: Somebody else has changed the same part of the data meanwhile.
        """
        event = check_text("event", event)
        if self._view is None:
            await self.refresh()
        view = self._view
        assert view is not None
        # Both before the wait for a turn, after which another call may have put a later view in its place.
        own = deepcopy({**view.data})
        made = await self._made(event, view.base.data, {**own, **changes})
        self._go_on_with(made, view, own)
        return made.state

    async def provide(self, answer: object, *, event: str | None = None) -> None:
        """Answer a machine that waits for the user; it goes on whenever somebody runs it.

        Args:
            answer: What the user has said; the transition that follows keeps it as `feedback`.
            event: What follows, where several events lead on; not needed if the answer is the name of one.

        Raises:
            TransitionError: It does not wait, or has an answer already, or the event leads nowhere.
            InvalidError: Several events lead on, and nothing tells which; or the event is no text.
        """
        event = None if event is None else check_text("event", event)

        async def work(tx: Transaction) -> None:
            record = await self._read(tx)
            if record.state not in self._table.waiting or record.answer:
                why = "has an answer already" if record.answer else "does not wait for the user"
                raise TransitionError(
                    f"machine {self.id!r} is {record.state} and {why}", current=record.state
                )
            record.answer = [answer, self._table.event_of_answer(record.state, answer, event)]
            await tx.documents.put(self._name, record)

        await together(self._place, work, message=f"answer {self.id}", turn=self._name)

    async def wait_for_user(self, timeout_s: float | None = None) -> Any:
        """Return what the user has answered, once that is there; the wait survives this process.

        Args:
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotLoadedError: No answer came in time.
            TransitionError: The machine does not wait.
        """
        self._home.require_outside_transaction("waiting for the user")
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        return (await self._answered(timeout_s)).answer[0]

    async def _answered(self, timeout_s: float | None) -> MachineRecord:
        clock = self._home.clock
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        async with self._place.documents.watch(escape_pattern(self._name)) as watch:
            while True:
                record = await self._read(self._place)
                if record.state not in self._table.waiting:
                    raise TransitionError(
                        f"machine {self.id!r} is {record.state} and does not wait", current=record.state
                    )
                if record.answer:
                    return record
                left_s = 5.0 if deadline_s is None else deadline_s - clock.monotonic_s()
                if left_s <= 0:
                    raise NotLoadedError(
                        f"nobody has answered machine {self.id!r} in {timeout_s} s; wait again"
                    )
                await watch.take(left_s)

    # ---- running

    async def run(self, *, wait_s: float | None = None, lease_s: float = 60, turn_s: float = 0) -> str:
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
        self._home.require_outside_transaction("running a machine")
        if wait_s is not None:
            check_wait("wait_s", wait_s)
        check_duration_ms("lease_s", lease_s)
        check_wait("turn_s", turn_s)
        assert isinstance(self._place, Space)
        if self._table.is_last(state := await self.refresh()):
            return state
        async with holding(self._place, self._name, lease_s=lease_s, turn_s=turn_s) as lease:
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
                    answered = await self._answered(wait_s)
                except NotLoadedError:
                    return state
                await self._go_on(answered)
                continue
            work = self._work_of(state)
            if work is None:
                return state
            await self.transition(self._table.event_of(state, await call_function(work)))

    async def _go_on(self, answered: MachineRecord) -> None:
        answer, *told = answered.answer
        event = self._table.event_of_answer(answered.state, answer, told[0] if told else None)
        try:
            await self.transition(event, feedback=answer)
        except TransitionError:
            await self._forget(answered)
            raise

    async def _forget(self, answered: MachineRecord) -> None:
        """Drop an answer that a guard forbids to go on with: else nobody could give another."""

        async def work(tx: Transaction) -> None:
            record = await self._read(tx)
            if record.number == answered.number:
                record.answer = []
                await tx.documents.put(self._name, record)

        message = f"refuse the answer to {self.id}"
        await together(self._place, work, lease=self._lease, message=message, turn=self._name)

    def _work_of(self, state: str) -> Callable[[], Any] | None:
        if (given := self._work.get(state)) is not None:
            return lambda: given(self.data)
        face = self if self._face is None else self._face
        method: Callable[[], Awaitable[Any] | Any] | None = getattr(
            face, self._work_names.get(state, ""), None
        )
        return method

    # ---- its document

    def _known(self) -> View[MachineRecord]:
        if self._view is None:
            if self._home.runner.mode != "blocking":
                raise NotLoadedError(
                    f"machine {self.id!r} was not read yet; await machine.refresh(), or enter it"
                )
            finish(self.refresh())
        assert self._view is not None
        return self._view

    def _take(self, record: MachineRecord) -> None:
        self._view = View(record, deepcopy(record.data))

    def _go_on_with(self, made: MachineRecord, view: View[MachineRecord], own: Data) -> None:
        """Take what a transition made, unless another call has taken a later one.

        What was changed in `data` since the transition began is not in it, and stays to be kept by the next.
        """
        with self._lock:
            now = self._view
            assert now is not None
            if now is not view and now.base.number >= made.number:
                return
            since = own if now is view else now.base.data
            self._view = View(made, carried(since, {**now.data}, deepcopy(made.data), self._encode))

    def _encode(self, value: object) -> bytes:
        """Return a part of the data as it would be stored."""
        executor = self._place.executor
        return executor.encode(value, layout.named_key(layout.DOCUMENTS, self._name))

    async def _read(self, place: Space | Transaction) -> MachineRecord:
        record = await place.documents.get(self._name, type=MachineRecord)
        if record is None:
            return MachineRecord(self._table.states[0])
        if record.state not in self._table.states:
            known = ", ".join(map(repr, self._table.states))
            raise InvalidError(
                f"machine {self.id!r} is {record.state!r}, and its table knows only {known}; keep that state "
                "in the table, with an event that leads on"
            )
        return record

    async def _made(self, event: str, base: Data, mine: Data) -> MachineRecord:
        async def work(tx: Transaction) -> MachineRecord | ConflictError:
            before = await self._read(tx)
            try:
                after = await self._after(before, event, base, mine)
            except ConflictError as error:  # no other attempt would come to anything else
                return error
            told = {"number": after.number, "state": before.state, "event": event, "target": after.state}
            await tx.documents.put(self._name, after)
            await tx.events.append(told, stream=self._stream, type="keepstate.transition")
            return after

        made = await together(
            self._place, work, lease=self._lease, message=f"machine {self.id}", turn=self._name
        )
        if isinstance(made, ConflictError):
            raise made
        return made

    async def _after(self, record: MachineRecord, event: str, base: Data, mine: Data) -> MachineRecord:
        target = self._table.after(record.state, event)
        data = deepcopy(merged(self.id, base, mine, record.data, self._encode))
        guard = self._guards.get((record.state, event))
        if guard is not None and not await call_function(guard, data):
            raise TransitionError(
                f"a guard forbids the transition: {record.state} + {event}",
                current=record.state,
                wanted=event,
            )
        if (leave := self._on_leave.get(record.state)) is not None:
            await call_function(leave, data)
        if (enter := self._on_enter.get(target)) is not None:
            await call_function(enter, data)
        data = check_text_keys(f"the data of machine {self.id!r}", data)
        answer = [] if record.state in self._table.waiting else record.answer
        return MachineRecord(target, data, record.number + 1, answer)


def _transition(told: Mapping[str, Any], at: datetime) -> Transition:
    return Transition(told["number"], told["state"], told["event"], told["target"], at)
