"""AgentRun: the runs of an agent on its threads, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from keepstate._runner import Lock, Mode
from keepstate.engine.events.record import Event
from keepstate.engine.kernel.arguments import check_flag, check_text, reject_twin, require_instance
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import (
    AttemptsExhaustedError,
    InvalidError,
    LeaseLostError,
    StateConflictError,
    StateError,
)
from keepstate.stores.protocol import Store
from keepstate.typed.admission import admit_messages
from keepstate.typed.batch import MutationBatch
from keepstate.typed.binding import Home
from keepstate.typed.hooks import CommitHook, Hooks
from keepstate.typed.key import AnyKey, ReadableKey
from keepstate.typed.leased_run import HeldRun, begin_run
from keepstate.typed.profiles import ProfileAccess
from keepstate.typed.records import RunRecord
from keepstate.typed.registry import Plugin, Registry
from keepstate.typed.state import KeyedState
from keepstate.typed.state_map import Snapshot
from keepstate.typed.tools import (
    Called,
    OnConflict,
    RunStep,
    ToolCallContext,
    admit_tools,
    call,
    name_of,
    raised_by,
    together_and_apart,
    told_of,
)
from keepstate.values import limits

V = TypeVar("V")


class AgentRun:
    """Runs an agent on threads: its tools in parallel, what they change merged, each step one transaction.

    A step writes the messages, the run's record and the thread's state together, or nothing. A run is held by
    a lease, so that of two processes that do the same run one is refused; two runs on one thread may go on at
    once, and no update of either is lost.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one; threads stand in
            spaces `thread/<thread_id>`. Without it and `space`, in memory that nobody else sees.
        space: Instead: the space of the thread, with all profiles.
        keys: Keys to register.
        plugins: Plugins to install.
        profile: Profiles and shared state for the tools; without it, those in the same place.
        author: Who writes.
        record: Records each step in the history of the thread's space.
        on_conflict: What to do where two tools update one exclusive key: run the later one again on what the
            earlier made, or raise.
        reruns: How often a tool is run again at the most.
        lease_ttl_s: After so many seconds without a sign of life another process may take the run over.
    """

    def __init__(
        self,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | None = None,
        keys: Iterable[AnyKey] = (),
        plugins: Iterable[Plugin] = (),
        profile: ProfileAccess | None = None,
        author: str | None = None,
        record: bool = False,
        on_conflict: OnConflict = "rerun",
        reruns: int = 4,
        lease_ttl_s: float = 60.0,
        _mode: Mode = "async",
    ) -> None:
        if on_conflict not in ("rerun", "raise"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`on_conflict` is {on_conflict!r}; it is 'rerun' or 'raise'")
        if isinstance(space, Transaction):
            raise InvalidError(
                "a run acts step by step and cannot be part of one transaction; give its space"
            )
        if profile is not None:
            reject_twin("profile", profile)
            require_instance("profile", profile, ProfileAccess)
            profile._admit(_mode)  # pyright: ignore[reportPrivateUsage]
        self._home = Home(persistence, space, author=author, record=record, mode=_mode)
        self._mode: Mode = _mode
        self._author = author
        self._registry, self._hooks = Registry.of(keys, plugins), Hooks(_mode)
        self._profile = profile
        self._on_conflict: OnConflict = on_conflict
        limits.admit_count("reruns", reruns)
        check_duration_ms("lease_ttl_s", lease_ttl_s)
        self._reruns, self._lease_ttl_s = reruns, lease_ttl_s
        self._lock = Lock()
        self._held: HeldRun | _Beginning | None = None
        self._thread_id = ""
        self._before: KeyedState | None = None  # of the last run, whose memory may go on

    def __repr__(self) -> str:
        held = self._held
        return f"<AgentRun in {self._home!r} {'idle' if held is None else f'doing {_id_of(held)!r}'}>"

    # ---- beginning and ending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start_run(
        self, thread_id: str, run_id: str, *, resume: bool = False, wait_s: float = 0.0
    ) -> RunRecord:
        """Begin a run: without run-scoped values, and with the thread-scoped ones that the thread has.

        Args:
            thread_id: The thread.
            run_id: The run; processes that give the same one do the same run, and only one of them may.
            resume: Goes on with what the run had when it was interrupted, run-scoped values included. Of runs
                that were interrupted the last 16 can be resumed.
            wait_s: How long to wait for another process that does the run, in seconds. One that was killed
                holds it until its `lease_ttl_s` have passed, 60 if it was made without.

        Raises:
            ConflictError: Another process does the run.
            StateError: This object does a run already, or begins one, or was closed meanwhile. Or the run
                cannot be resumed, because its run-scoped values were removed since.
        """
        check_flag("resume", resume)
        if not check_text("run_id", run_id):
            raise InvalidError("`run_id` is empty; give the run's id")
        place, names = self._home.thread(thread_id)
        assert isinstance(place, Space)
        state = KeyedState._in_run(place, names, run_id, self._registry, self._hooks)  # pyright: ignore[reportPrivateUsage]
        beginning = _Beginning(run_id)
        if not self._now(beginning, instead_of=None):
            raise StateError(f"run {_id_of(self._held)!r} goes on; finish it before another begins")
        try:
            held = await begin_run(
                place,
                names,
                state,
                run=(thread_id, run_id),
                before=self._before if self._thread_id == thread_id else None,
                resume=resume,
                wait_s=wait_s,
                lease_ttl_s=self._lease_ttl_s,
            )
        except BaseException:
            self._now(None, instead_of=beginning)
            raise
        if not self._now(held, instead_of=beginning):
            await held.let_go()
            raise StateError(f"this object was closed while run {run_id!r} began; begin it by another")
        self._thread_id, self._before = thread_id, state
        return held.record

    async def finish_run(
        self, status: Literal["finished", "failed"] = "finished", *, messages: Sequence[object] = ()
    ) -> RunRecord:
        """End the run: its record says so, in one batch with its last messages; others may begin it again.

        Raises:
            LeaseLostError: Another process has taken the run over.
        """
        held = self._going()
        if status not in ("finished", "failed"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`status` is {status!r}; a run has `finished` or `failed`")
        admit_messages(messages)
        try:
            await held.commit(MutationBatch(), messages=messages, begins=False, status=status)
        except LeaseLostError:
            self._now(None, instead_of=held)
            await held.let_go()
            raise
        self._now(None, instead_of=held)
        await held.let_go()
        return held.record

    async def close(self) -> None:
        """Let go of a run that goes on, so that it can be resumed, and of a store that was opened here."""
        with self._lock:
            held, self._held = self._held, None
        try:
            if isinstance(held, HeldRun):
                await held.let_go()
        finally:
            await self._home.close()

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object's runs, in order of adding.

        A hook that is added to `state` goes on with the next run too, and so does a plugin installed there.
        """
        self._hooks.add(hook)

    # ---- reading

    @property
    def record(self) -> RunRecord:
        """Return what is known of the present run."""
        return self._going().record

    @property
    def state(self) -> KeyedState:
        """The state of the present run's thread; what it commits is fenced by the run's lease."""
        return self._going().state

    def snapshot(self) -> Snapshot:
        """Return the state as this run knows it."""
        return self.state.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never touched."""
        return self.state.read(key)

    async def messages(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return messages of the thread in order.

        Args:
            after: Starts behind the message of this `position`; or, within a handle, of this `number`.
            limit: How many at the most; to read on, give the position of the last one as `after`.
        """
        return await self._going().place.events.read(
            stream=self._going().names.messages, after=after, limit=limit
        )

    # ---- working

    async def step(
        self, *tools: Callable[[ToolCallContext], Any], messages: Sequence[object] = ()
    ) -> RunStep:
        """Run tools in parallel on one snapshot, and commit what they give, messages included.

        A tool gives a `MutationBatch`, a `ToolOutput`, any other value, or nothing. It may be run again: what
        it does beside must bear that. Where one raises nothing is committed, and it is raised once all have
        ended, with a note of others that failed.

        A coroutine function that blocks the event loop longer than `lease_ttl_s` loses the run.

        Args:
            tools: Functions; plain ones run in threads.
            messages: Messages of the thread, before those of the tools.

        Raises:
            StateConflictError: Two tools update one exclusive key, or a tool and another run, and
                `on_conflict` is `raise`; nothing was applied.
            LeaseLostError: Another process has taken the run over; nothing more was applied.
        """
        held = self._going()
        admit_tools(tools)
        admit_messages(messages)
        calls = await self._called(held, dict(enumerate(tools)))
        fitting, apart = together_and_apart(calls, self._on_conflict)
        others = await self._applied(held, fitting, apart, messages)
        results = {each.index: each for each in calls}
        for place, each in enumerate(others):
            later = others[place + 1 :]
            results[each.index] = await self._again(held, each.index, tools[each.index], later)
        values = [results[index].output.value for index in range(len(tools))]
        return RunStep(held.state.revision, values, [each.name for each in others])

    async def commit(self, batch: MutationBatch, *, messages: Sequence[object] = ()) -> int:
        """Commit a batch, messages and the run's record in one batch, and return the revision.

        Raises:
            StateConflictError: As for `KeyedState.commit`; nothing was applied.
            LeaseLostError: Another process has taken the run over; nothing was applied.
        """
        held = self._going()
        require_instance("batch", batch, MutationBatch)
        admit_messages(messages)
        await held.commit(batch, messages=messages)
        return held.state.revision

    async def _called(
        self, held: HeldRun, tools: dict[int, Callable[[ToolCallContext], Any]]
    ) -> list[Called]:
        """Return what tools give on the newest snapshot, all of them; raises what one raised."""
        await held.state.refresh()
        base, snapshot, runner = held.state.begin_mutation(), held.state.snapshot(), held.place.runner

        def work(index: int) -> Any:
            context = ToolCallContext(snapshot, held.record.run_id, held.record.thread_id, self._access())
            return call(runner, index, tools[index], context)

        answers = await runner.gather([partial(work, index) for index in tools])
        if failed := [answer for answer in answers if isinstance(answer, BaseException)]:
            raise raised_by(failed)
        calls = [answer for answer in answers if isinstance(answer, Called)]
        if len(calls) == 1 and calls[0].batch.base_revision is not None:
            return calls  # it is merged with nothing, and judged by its own base
        return [each.on(base) for each in calls]

    def _access(self) -> ProfileAccess:
        if self._profile is None:
            self._profile = ProfileAccess(
                persistence=self._home.handle,
                space=self._home.passed,
                author=self._author,
                _mode=self._mode,
            )
        return self._profile._afresh(self._registry.profile_keys)  # pyright: ignore[reportPrivateUsage]

    async def _applied(
        self, held: HeldRun, calls: list[Called], apart: list[Called], messages: Sequence[object]
    ) -> list[Called]:
        """Commit the calls that fit together, and return those that are to run again.

        Where another run was faster with an exclusive key, the calls that update such keys run again too.
        """
        try:
            await held.commit(
                _merged(calls), messages=[*messages, *_messages(calls)], pending=[each.name for each in apart]
            )
        except StateConflictError as conflict:
            if self._on_conflict == "raise":
                raise told_of(conflict, calls) from conflict
        else:
            return apart
        free = [each for each in calls if not each.batch.exclusive_keys()]
        late = [each for each in calls if each.batch.exclusive_keys()]
        others = sorted([*apart, *late], key=lambda each: each.index)
        pending = [each.name for each in others]
        await held.commit(_merged(free), messages=[*messages, *_messages(free)], pending=pending)
        return others

    async def _again(
        self, held: HeldRun, index: int, tool: Callable[[ToolCallContext], Any], later: list[Called]
    ) -> Called:
        """Return what a tool gave on the newest snapshot, once that is applied."""
        pending = [each.name for each in later]
        for _ in range(self._reruns):
            (called,) = await self._called(held, {index: tool})
            try:
                await held.commit(
                    called.batch, messages=called.output.messages, begins=False, pending=pending
                )
            except StateConflictError:
                continue
            return called
        raise AttemptsExhaustedError(
            f"tool {name_of(tool)!r} was run again {self._reruns} times, and each time another run was "
            "faster; let fewer update one exclusive key at once, or allow more `reruns`",
            attempts=self._reruns,
        )

    def _going(self) -> HeldRun:
        held = self._held
        if not isinstance(held, HeldRun):
            raise StateError("no run goes on; begin one by `start_run(thread_id, run_id)`")
        return held

    def _now(self, held: HeldRun | _Beginning | None, *, instead_of: HeldRun | _Beginning | None) -> bool:
        """Do this from now on if it did that until now, and return whether it did."""
        with self._lock:
            did = self._held is instead_of
            if did:
                self._held = held
        return did


@dataclass(frozen=True, slots=True, eq=False)
class _Beginning:
    """Keeps the place of a run that begins: of two that are begun at once one is refused."""

    run_id: str


def _id_of(held: HeldRun | _Beginning | None) -> str:
    return held.record.run_id if isinstance(held, HeldRun) else held.run_id if held is not None else ""


def _merged(calls: Iterable[Called]) -> MutationBatch:
    """Return one batch of calls that fit together."""
    merged = MutationBatch()
    for each in calls:
        merged.extend(each.batch)
    return merged


def _messages(calls: Iterable[Called]) -> list[object]:
    return [message for each in calls for message in each.output.messages]
