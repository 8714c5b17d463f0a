"""AgentRun: the runs of an agent on its threads, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

from keepstate._runner import Lock
from keepstate.binding import PRIVATE, Resource, StorageOptions, StoreBinding
from keepstate.engine.events.record import Event
from keepstate.engine.kernel.arguments import (
    check_choice,
    check_duration_ms,
    check_flag,
    check_text,
    reject_twin,
    require_instance,
)
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    AttemptsExhaustedError,
    InvalidError,
    LeaseLostError,
    StateConflictError,
    StateError,
)
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import CommitHook, Hooks
from keepstate.typed.key import AnyKey, ReadableKey
from keepstate.typed.layout import names_of
from keepstate.typed.leased_run import HeldRun, begin_run
from keepstate.typed.profiles import ProfileAccess
from keepstate.typed.records import RunRecord
from keepstate.typed.registry import Plugin, Registry
from keepstate.typed.state import KeyedState
from keepstate.typed.state_map import Snapshot
from keepstate.typed.tools import (
    OnConflict,
    RunStep,
    ToolCall,
    ToolCallContext,
    call,
    check_messages,
    check_tools,
    combine_errors,
    name_of,
    name_tools,
    split_calls,
)
from keepstate.values import limits

V = TypeVar("V")


class AgentRun(Resource):
    """Runs an agent on threads: parallel tools, merged updates, and one transaction for each step.

    A step writes the messages, the run's record and the thread's state together, or nothing. A run is held by
    a lease, so a second process that starts the same run gets a conflict. Two runs on one thread may proceed
    concurrently, and no update of either is lost.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one; threads are in
            spaces `thread/<thread_id>`. Without it and `space`, private memory.
        space: Instead: the space of the thread and of all profiles.
        keys: Keys to register.
        plugins: Plugins to install.
        profile: Profiles and shared state for the tools; by default those in the same store or space.
        author: The author of writes.
        record: Whether each step is recorded in the history of the thread's space.
        on_conflict: If two tools update the same exclusive key, `rerun` the later one on the result of the
            earlier, or `raise`.
        reruns: Maximum number of times a tool is run again.
        lease_ttl_s: Seconds without a renewal after which another process may take over the run.
    """

    def __init__(
        self,
        *,
        keys: Iterable[AnyKey] = (),
        plugins: Iterable[Plugin] = (),
        profile: ProfileAccess | None = None,
        author: str | None = None,
        record: bool = False,
        on_conflict: OnConflict = "rerun",
        reruns: int = 4,
        lease_ttl_s: float = 60.0,
        **storage: Unpack[StorageOptions],
    ) -> None:
        check_choice("on_conflict", on_conflict, "rerun", "raise")
        if isinstance(storage.get("space"), Transaction):
            raise InvalidError(
                "A run commits step by step and cannot be part of a transaction. Pass the space instead."
            )
        if profile is not None:
            reject_twin("profile", profile)
            require_instance("profile", profile, ProfileAccess)
            profile._check_mode(storage.get("_mode", "async"))  # pyright: ignore[reportPrivateUsage]
        self._binding = self._closing = StoreBinding(storage, default=PRIVATE, author=author, record=record)
        self._author = author
        self._registry, self._hooks = Registry.of(keys, plugins), Hooks(self._binding.mode)
        self._profile = profile
        self._on_conflict: OnConflict = on_conflict
        limits.admit_count("reruns", reruns)
        check_duration_ms("lease_ttl_s", lease_ttl_s)
        self._reruns, self._lease_ttl_s = reruns, lease_ttl_s
        self._lock = Lock()
        self._held: HeldRun | _StartingRun | None = None
        self._thread_id = ""
        self._before: KeyedState | None = None  # state of the last run, whose memory the next one may reuse

    def __repr__(self) -> str:
        held = self._held
        return f"<AgentRun in {self._binding!r} {'idle' if held is None else f'doing {_id_of(held)!r}'}>"

    # ---- starting and ending

    async def start_run(
        self, thread_id: str, run_id: str, *, resume: bool = False, wait_s: float = 0.0
    ) -> RunRecord:
        """Begin a run, without run-scoped values, and with the thread-scoped values of the thread.

        Args:
            thread_id: The thread.
            run_id: The run. Processes that pass the same id share the run, and only one of them may hold it.
            resume: Continue with the values the run had when it was interrupted, including run-scoped ones.
                The last 16 interrupted runs can be resumed.
            wait_s: Maximum seconds to wait for another process that holds the run. A killed process holds it
                until its `lease_ttl_s` have passed, 60 by default.

        Raises:
            ConflictError: Another process holds the run.
            StateError: This object already has a run or begins one, or was closed in the meantime. Or the run
                cannot be resumed because its run-scoped values were removed.
        """
        check_flag("resume", resume)
        if not check_text("run_id", run_id):
            raise InvalidError("`run_id` is empty. Pass the run's id.")
        space, names = names_of(self._binding, thread_id)
        assert isinstance(space, Space)
        state = KeyedState._in_run(space, names, run_id, self._registry, self._hooks)  # pyright: ignore[reportPrivateUsage]
        starting = _StartingRun(run_id)
        if not self._replace_run(starting, instead_of=None):
            raise StateError(f"Run {_id_of(self._held)!r} is active. Finish it before you start another.")
        try:
            held = await begin_run(
                space,
                names,
                state,
                run=(thread_id, run_id),
                before=self._before if self._thread_id == thread_id else None,
                resume=resume,
                wait_s=wait_s,
                lease_ttl_s=self._lease_ttl_s,
            )
        except BaseException:
            self._replace_run(None, instead_of=starting)
            raise
        if not self._replace_run(held, instead_of=starting):
            await held.heartbeat.stop()
            raise StateError(
                f"This object was closed while run {run_id!r} began. Start it with a new object."
            )
        self._thread_id, self._before = thread_id, state
        return held.record

    async def finish_run(
        self, status: Literal["finished", "failed"] = "finished", *, messages: Sequence[object] = ()
    ) -> RunRecord:
        """End the run: write its final status and last messages in one batch, and release it.

        Raises:
            LeaseLostError: Another process took over the run.
        """
        held = self._current_run()
        check_choice("status", status, "finished", "failed")
        check_messages(messages)
        try:
            await held.commit(MutationBatch(), messages=messages, begins=False, status=status)
        except LeaseLostError:
            self._replace_run(None, instead_of=held)
            await held.heartbeat.stop()
            raise
        self._replace_run(None, instead_of=held)
        await held.heartbeat.stop()
        return held.record

    async def close(self) -> None:
        """Release an unfinished run, so that it can be resumed, and close a store that was opened here."""
        with self._lock:
            held, self._held = self._held, None
        try:
            if isinstance(held, HeldRun):
                await held.heartbeat.stop()
        finally:
            await super().close()

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object's runs.

        Hooks are called in the order of adding. Hooks added to `state`, and plugins installed there, also
        apply to the next run.
        """
        self._hooks.add(hook)

    # ---- reading

    @property
    def record(self) -> RunRecord:
        """The record of the current run."""
        return self._current_run().record

    @property
    def state(self) -> KeyedState:
        """The state of the current run's thread; its commits are fenced by the run's lease."""
        return self._current_run().state

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the state as this run last read it."""
        return self.state.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never updated."""
        return self.state.read(key)

    async def messages(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return messages of the thread in order.

        Args:
            after: Start after the message with this `position`, or, within one handle, with this `number`.
            limit: Maximum number of messages; pass the position of the last one as `after` to continue.
        """
        return await self._current_run().space.events.read(
            stream=self._current_run().names.messages, after=after, limit=limit
        )

    # ---- working

    async def step(
        self, *tools: Callable[[ToolCallContext], Any], messages: Sequence[object] = ()
    ) -> RunStep:
        """Run tools in parallel on one snapshot, and commit their results, messages included.

        A tool returns a `MutationBatch`, a `ToolOutput`, any other value, or None. It may be run again, so
        its side effects must be repeatable. If a tool raises, nothing is committed. The error is raised after
        all tools have ended, with a note about other failures.

        A coroutine function that blocks the event loop for longer than `lease_ttl_s` loses the run.

        Args:
            tools: Functions; plain ones run in threads.
            messages: Messages for the thread, before those of the tools.

        Raises:
            StateConflictError: Two tools, or a tool and another run, update the same exclusive key, and
                `on_conflict` is `raise`; nothing was applied.
            LeaseLostError: Another process took over the run; nothing more was applied.
        """
        held = self._current_run()
        check_tools(tools)
        check_messages(messages)
        calls = await self._call_tools(held, dict(enumerate(tools)))
        fitting, apart = split_calls(calls, self._on_conflict)
        others = await self._commit_calls(held, fitting, apart, messages)
        results = {each.index: each for each in calls}
        for index, each in enumerate(others):
            later = others[index + 1 :]
            results[each.index] = await self._rerun(held, each.index, tools[each.index], later)
        values = [results[index].output.value for index in range(len(tools))]
        return RunStep(held.state.revision, values, [each.name for each in others])

    async def commit(self, batch: MutationBatch, *, messages: Sequence[object] = ()) -> int:
        """Commit a batch, messages and the run's record in one batch, and return the revision.

        Raises:
            StateConflictError: As for `KeyedState.commit`; nothing was applied.
            LeaseLostError: Another process took over the run; nothing was applied.
        """
        held = self._current_run()
        require_instance("batch", batch, MutationBatch)
        check_messages(messages)
        await held.commit(batch, messages=messages)
        return held.state.revision

    async def _call_tools(
        self, held: HeldRun, tools: dict[int, Callable[[ToolCallContext], Any]]
    ) -> list[ToolCall]:
        """Run tools on the latest snapshot and return their calls; raise the error of a failed one."""
        await held.state.refresh()
        base, snapshot, runner = held.state.begin_mutation(), held.state.snapshot(), held.space.runner

        def work(index: int) -> Any:
            context = ToolCallContext(snapshot, held.record.run_id, held.record.thread_id, self._access())
            return call(runner, index, tools[index], context)

        answers = await runner.gather([partial(work, index) for index in tools])
        if failed := [answer for answer in answers if isinstance(answer, BaseException)]:
            raise combine_errors(failed)
        calls = [answer for answer in answers if isinstance(answer, ToolCall)]
        if len(calls) == 1 and calls[0].batch.base_revision is not None:
            return calls  # a single batch is not merged and keeps its own base
        return [each.rebase(base) for each in calls]

    def _access(self) -> ProfileAccess:
        if self._profile is None:
            self._profile = ProfileAccess(
                persistence=self._binding.handle,
                space=self._binding.passed,
                author=self._author,
                _mode=self._binding.mode,
            )
        return self._profile._for_task(self._registry.profile_keys)  # pyright: ignore[reportPrivateUsage]

    async def _commit_calls(
        self, held: HeldRun, calls: list[ToolCall], apart: list[ToolCall], messages: Sequence[object]
    ) -> list[ToolCall]:
        """Commit the calls that can be merged, and return those to run again.

        If another run updated an exclusive key first, the calls that update such keys run again too.
        """
        try:
            await held.commit(
                _merge_batches(calls),
                messages=[*messages, *_messages(calls)],
                pending=[each.name for each in apart],
            )
        except StateConflictError as conflict:
            if self._on_conflict == "raise":
                raise name_tools(conflict, calls) from conflict
        else:
            return apart
        free = [each for each in calls if not each.batch.exclusive_keys()]
        late = [each for each in calls if each.batch.exclusive_keys()]
        others = sorted([*apart, *late], key=lambda each: each.index)
        pending = [each.name for each in others]
        await held.commit(_merge_batches(free), messages=[*messages, *_messages(free)], pending=pending)
        return others

    async def _rerun(
        self, held: HeldRun, index: int, tool: Callable[[ToolCallContext], Any], later: list[ToolCall]
    ) -> ToolCall:
        """Run a tool again on the latest snapshot, commit its call and return it."""
        pending = [each.name for each in later]
        for _ in range(self._reruns):
            (called,) = await self._call_tools(held, {index: tool})
            try:
                await held.commit(
                    called.batch, messages=called.output.messages, begins=False, pending=pending
                )
            except StateConflictError:
                continue
            return called
        raise AttemptsExhaustedError(
            f"Tool {name_of(tool)!r} was run again {self._reruns} times, but another run was faster each "
            "time. Reduce concurrent updates of one exclusive key, or raise `reruns`.",
            attempts=self._reruns,
        )

    def _current_run(self) -> HeldRun:
        held = self._held
        if not isinstance(held, HeldRun):
            raise StateError("No run is active. Start one with start_run(thread_id, run_id).")
        return held

    def _replace_run(
        self, held: HeldRun | _StartingRun | None, *, instead_of: HeldRun | _StartingRun | None
    ) -> bool:
        """Replace the held run if it is the expected one, and return whether it was."""
        with self._lock:
            did = self._held is instead_of
            if did:
                self._held = held
        return did


@dataclass(frozen=True, slots=True, eq=False)
class _StartingRun:
    """Reserves the object for a run that begins; a concurrent start is rejected."""

    run_id: str


def _id_of(held: HeldRun | _StartingRun | None) -> str:
    return held.record.run_id if isinstance(held, HeldRun) else held.run_id if held is not None else ""


def _merge_batches(calls: Iterable[ToolCall]) -> MutationBatch:
    """Return one batch of the calls' updates."""
    merged = MutationBatch()
    for each in calls:
        merged.extend(each.batch)
    return merged


def _messages(calls: Iterable[ToolCall]) -> list[object]:
    return [message for each in calls for message in each.output.messages]
