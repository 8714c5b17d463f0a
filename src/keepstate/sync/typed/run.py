"""Blocking twins of `keepstate.typed.run`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, Unpack

from keepstate._finish import finish
from keepstate.engine.events.record import Event
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import around, inner_of, inner_options, receiving
from keepstate.sync.typed.profiles import ProfileAccess
from keepstate.sync.typed.state import KeyedState
from keepstate.sync.typed.tools import ToolCallContext
from keepstate.typed import run as typed
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import CommitHook
from keepstate.typed.key import AnyKey, ReadableKey
from keepstate.typed.records import RunRecord
from keepstate.typed.registry import Plugin
from keepstate.typed.state_map import Snapshot
from keepstate.typed.tools import OnConflict, RunStep

V = TypeVar("V")


class AgentRun(Resource[typed.AgentRun]):
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
        super().__init__(
            typed.AgentRun(
                keys=keys,
                plugins=plugins,
                profile=inner_of(profile) if isinstance(profile, ProfileAccess) else profile,
                author=author,
                record=record,
                on_conflict=on_conflict,
                reruns=reruns,
                lease_ttl_s=lease_ttl_s,
                **inner_options(storage),
            )
        )

    def start_run(
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
        return finish(self._inner.start_run(thread_id, run_id, resume=resume, wait_s=wait_s))

    def finish_run(
        self, status: Literal["finished", "failed"] = "finished", *, messages: Sequence[object] = ()
    ) -> RunRecord:
        """End the run: write its final status and last messages in one batch, and release it.

        Raises:
            LeaseLostError: Another process took over the run.
        """
        return finish(self._inner.finish_run(status, messages=messages))

    def close(self) -> None:
        """Release an unfinished run, so that it can be resumed, and close a store that was opened here."""
        finish(self._inner.close())

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object's runs.

        Hooks are called in the order of adding. Hooks added to `state`, and plugins installed there, also
        apply to the next run.
        """
        self._inner.add_hook(hook)

    @property
    def record(self) -> RunRecord:
        """The record of the current run."""
        return self._inner.record

    @property
    def state(self) -> KeyedState:
        """The state of the current run's thread; its commits are fenced by the run's lease."""
        return around(KeyedState, self._inner.state)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the state as this run last read it."""
        return self._inner.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never updated."""
        return self._inner.read(key)

    def messages(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return messages of the thread in order.

        Args:
            after: Start after the message with this `position`, or, within one handle, with this `number`.
            limit: Maximum number of messages; pass the position of the last one as `after` to continue.
        """
        return finish(self._inner.messages(after=after, limit=limit))

    def step(self, *tools: Callable[[ToolCallContext], Any], messages: Sequence[object] = ()) -> RunStep:
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
        return finish(
            self._inner.step(*[receiving(ToolCallContext, each) for each in tools], messages=messages)
        )

    def commit(self, batch: MutationBatch, *, messages: Sequence[object] = ()) -> int:
        """Commit a batch, messages and the run's record in one batch, and return the revision.

        Raises:
            StateConflictError: As for `KeyedState.commit`; nothing was applied.
            LeaseLostError: Another process took over the run; nothing was applied.
        """
        return finish(self._inner.commit(batch, messages=messages))
