"""Blocking twins of `keepstate.typed.state`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

from keepstate._finish import entered, finish
from keepstate.engine.history.revisions import Revision
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import Twin, inner_of, single_use
from keepstate.sync.typed.changes import StateWatch
from keepstate.typed import state as typed
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import KeyDifference
from keepstate.typed.hooks import CommitHook
from keepstate.typed.key import AnyKey, KeyScope, ReadableKey, StateKey
from keepstate.typed.persisted import PersistedState, Unknown
from keepstate.typed.registry import Plugin
from keepstate.typed.state_map import Snapshot

V = TypeVar("V")


class KeyedState(Twin[typed.KeyedState]):
    """The values of registered keys, changed by batches of updates.

    What is read is in memory, of the revision that this object has read or made last; what is committed is
    applied to the newest values, whoever wrote them. Tasks and threads may share it.

    Args:
        thread_id: Whose state it is; it stands in the space `thread/<thread_id>`.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the state is in memory that nobody else sees.
        space: Instead: a space, or a transaction whose batch all commits join; of `thread/<thread_id>`, it is
            the same state, and in another space one of its own.
        run_id: The run whose run-scoped values it has.
        keys: Keys to register at once.
        plugins: Plugins to install at once.
        author: Who writes, in what is recorded.
        record: Records each commit in the history of the thread's space, for `at` and `diff`.
    """

    def __init__(
        self,
        thread_id: str = "default",
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        run_id: str = "",
        keys: Iterable[AnyKey] = (),
        plugins: Iterable[Plugin] = (),
        author: str | None = None,
        record: bool = False,
    ) -> None:
        super().__init__(
            typed.KeyedState(
                thread_id,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                run_id=run_id,
                keys=keys,
                plugins=plugins,
                author=author,
                record=record,
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

    def close(self) -> None:
        """Let go of a store that was opened here; what was passed in open stays open."""
        finish(self._inner.close())

    @property
    def revision(self) -> int:
        """Return how many batches the state has seen, as far as this object knows."""
        return self._inner.revision

    def snapshot(self) -> Snapshot:
        """Return the state as this object knows it; it costs nothing, however many keys there are.

        Raises:
            NotLoadedError: Nothing was read yet: enter the object, or call `refresh`.
        """
        return self._inner.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never touched."""
        return self._inner.read(key)

    def refresh(self) -> int:
        """Read what others have changed, and return the newest revision."""
        return finish(self._inner.refresh())

    def begin_mutation(self) -> MutationBatch:
        """Return an empty batch on the present revision."""
        return self._inner.begin_mutation()

    def commit(self, batch: MutationBatch, *, message: str = "") -> int:
        """Apply a batch to the newest values, all of it or nothing, and return the revision that it made.

        An empty batch changes nothing. Commutative updates are applied to what others have written meanwhile,
        so that all are kept.

        Args:
            batch: The updates.
            message: Says what for, in what is recorded.

        Raises:
            StateError: A key is not registered, or an update makes a value that cannot be kept.
            StateConflictError: The batch updates an exclusive key that was changed after the base revision.
                The newest is read by then: take a snapshot, and compute the batch again. What a batch has
                only read guards nothing.
            Exception: Whatever `apply` of a key raises; nothing of the batch was applied.
        """
        return finish(self._inner.commit(batch, message=message))

    def merge_parallel(self, a: MutationBatch, b: MutationBatch) -> MutationBatch:
        """Return one batch of two that were computed in parallel: the updates of `a`, then those of `b`.

        Raises:
            StateError: Both touch an exclusive key, which is named, or they were computed from different
                revisions.
        """
        return self._inner.merge_parallel(a, b)

    def merge_all(self, batches: Iterable[MutationBatch]) -> MutationBatch:
        """Return one batch of all that were computed in parallel, in their order; as `merge_parallel`."""
        return self._inner.merge_all(batches)

    def install_plugin(self, plugin: Plugin) -> None:
        """Register the keys of a plugin; what is stored under them can be read from now on.

        Raises:
            StateError: It is installed, or one of its keys is in use; nothing was registered.
        """
        finish(self._inner.install_plugin(plugin))

    def uninstall_plugin(self, plugin: Plugin | type | str) -> None:
        """Take the keys of a plugin out of use; removes their values but for those to be retained.

        More than 500 values are removed in several batches.

        Args:
            plugin: The plugin, its class, or its name.

        Raises:
            StateError: It is not installed.
        """
        finish(self._inner.uninstall_plugin(plugin))

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object, in the order of adding."""
        self._inner.add_hook(hook)

    def clear_run_scoped(self) -> None:
        """Remove all run-scoped values, those of keys that are not registered too."""
        finish(self._inner.clear_run_scoped())

    def export_persisted(self, scope: KeyScope | None = None) -> PersistedState:
        """Return all persistent values as JSON, those of keys that are not registered here too.

        Args:
            scope: Only the values of this scope; None for both.
        """
        return self._inner.export_persisted(scope)

    def restore_persisted(
        self, state: PersistedState, unknown: Unknown = "keep", *, scope: KeyScope | None = None
    ) -> None:
        """Put an exported state in place of all values, those that are not stored too. Calls no hook.

        Without `scope` the state goes on from the exported revision, and batches computed before are refused.
        With `scope` it is a change like a commit, and makes the next revision.

        Args:
            state: What was exported; at most 990 values.
            unknown: What to do with values whose key is not registered: `keep` them for when it is, raise an
                `error`, or `skip` them.
            scope: Replaces only the values of this scope; those of the other are neither read nor changed.

        Raises:
            StateError: A value cannot be read, or is unknown and must not be; nothing was changed.
        """
        finish(self._inner.restore_persisted(state, unknown, scope=scope))

    def seed(
        self,
        state: PersistedState,
        unknown: Unknown = "keep",
        *,
        scope: KeyScope | None = None,
        replace: bool = False,
    ) -> list[str]:
        """Add exported values of another state, such as those that a child agent begins with. Calls no hook.

        One batch, which makes the next revision; the revision of the export does not count. Seeding again,
        for instance because the child is resumed, changes nothing that the child has made since.

        Args:
            state: The exported values; at most 990. A run-scoped value becomes one of this state's run.
            unknown: As for `restore_persisted`.
            scope: Only the values of this scope.
            replace: Also replaces values that are there already. Otherwise these stay.

        Returns:
            The names of the keys whose values were added or replaced.

        Raises:
            StateError: A value cannot be read, or is unknown and must not be; nothing was changed.
        """
        return finish(self._inner.seed(state, unknown, scope=scope, replace=replace))

    @single_use
    def watch(
        self, key: type[StateKey[V, Any]], *, after: str | int | None = None, timeout_s: float | None = None
    ) -> Generator[StateWatch[V]]:
        """Yield an iterator over a key's changes, whoever makes them: in order, none missing.

        Args:
            key: A registered key that is persistent.
            after: Starts behind a `position`; as for `Documents.watch`. Without it, now.
            timeout_s: Ends the iteration when nothing has changed for so long; without it, it never ends.
        """
        with entered(self._inner.watch(key, after=after, timeout_s=timeout_s)) as inner:
            yield StateWatch(inner)

    def at(self, ref: Revision = "main") -> Snapshot:
        """Return the state as it was at a commit of the thread's history; see `Space.at`.

        Raises:
            NotFoundError: There is no such commit: the space is not recorded, or not for so long.
        """
        return finish(self._inner.at(ref))

    def diff(self, a: Revision, b: Revision = "main") -> list[KeyDifference]:
        """Return which keys have another value at `b` than at `a`, by name."""
        return finish(self._inner.diff(a, b))
