"""Blocking twins of `keepstate.typed.run`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from keepstate._finish import finish
from keepstate.engine.events.record import Event
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space
from keepstate.sync.twin import Twin, around, inner_of, receiving
from keepstate.sync.typed.profiles import ProfileAccess
from keepstate.sync.typed.state import KeyedState
from keepstate.sync.typed.tools import ToolCallContext
from keepstate.typed import run as typed
from keepstate.typed.batch import MutationBatch
from keepstate.typed.hooks import CommitHook
from keepstate.typed.key import AnyKey, ReadableKey
from keepstate.typed.records import RunRecord
from keepstate.typed.registry import Plugin
from keepstate.typed.state_map import Snapshot
from keepstate.typed.tools import OnConflict, RunStep

V = TypeVar("V")


class AgentRun(Twin[typed.AgentRun]):
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
    ) -> None:
        super().__init__(
            typed.AgentRun(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space) if isinstance(space, Space) else space,
                keys=keys,
                plugins=plugins,
                profile=inner_of(profile) if isinstance(profile, ProfileAccess) else profile,
                author=author,
                record=record,
                on_conflict=on_conflict,
                reruns=reruns,
                lease_ttl_s=lease_ttl_s,
                _mode="blocking",
            )
        )

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def start_run(
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
        return finish(self._inner.start_run(thread_id, run_id, resume=resume, wait_s=wait_s))

    def finish_run(
        self, status: Literal["finished", "failed"] = "finished", *, messages: Sequence[object] = ()
    ) -> RunRecord:
        """End the run: its record says so, in one batch with its last messages; others may begin it again.

        Raises:
            LeaseLostError: Another process has taken the run over.
        """
        return finish(self._inner.finish_run(status, messages=messages))

    def close(self) -> None:
        """Let go of a run that goes on, so that it can be resumed, and of a store that was opened here."""
        finish(self._inner.close())

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object's runs, in order of adding.

        A hook that is added to `state` goes on with the next run too, and so does a plugin installed there.
        """
        self._inner.add_hook(hook)

    @property
    def record(self) -> RunRecord:
        """Return what is known of the present run."""
        return self._inner.record

    @property
    def state(self) -> KeyedState:
        """The state of the present run's thread; what it commits is fenced by the run's lease."""
        return around(KeyedState, self._inner.state)

    def snapshot(self) -> Snapshot:
        """Return the state as this run knows it."""
        return self._inner.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never touched."""
        return self._inner.read(key)

    def messages(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return messages of the thread in order.

        Args:
            after: Starts behind the message of this `position`; or, within a handle, of this `number`.
            limit: How many at the most; to read on, give the position of the last one as `after`.
        """
        return finish(self._inner.messages(after=after, limit=limit))

    def step(self, *tools: Callable[[ToolCallContext], Any], messages: Sequence[object] = ()) -> RunStep:
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
        return finish(
            self._inner.step(*[receiving(ToolCallContext, each) for each in tools], messages=messages)
        )

    def commit(self, batch: MutationBatch, *, messages: Sequence[object] = ()) -> int:
        """Commit a batch, messages and the run's record in one batch, and return the revision.

        Raises:
            StateConflictError: As for `KeyedState.commit`; nothing was applied.
            LeaseLostError: Another process has taken the run over; nothing was applied.
        """
        return finish(self._inner.commit(batch, messages=messages))
