"""Blocking twins of `keepstate.typed.state`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Self, TypeVar, Unpack

from keepstate._finish import entered, finish
from keepstate.engine.history.revisions import Revision
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options, single_use
from keepstate.sync.typed.changes import StateWatch
from keepstate.typed import state as typed
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import CommitHook, KeyDifference
from keepstate.typed.key import AnyKey, KeyScope, ReadableKey, StateKey
from keepstate.typed.persisted import PersistedState, Unknown
from keepstate.typed.registry import Plugin
from keepstate.typed.state_map import Snapshot

V = TypeVar("V")


class KeyedState(Resource[typed.KeyedState]):
    """The values of registered keys, changed by batches of updates.

    Reads come from memory, at the revision that this object last read or made. Commits are applied to the
    latest values, including those of other writers. Tasks and threads may share the object.

    Args:
        thread_id: Id of the thread; its state is in the space `thread/<thread_id>`.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the state is in private memory.
        space: Instead: a space, or a transaction whose batch all commits join. The space `thread/<thread_id>`
            has the same state as `persistence`; another space has a state of its own.
        run_id: The run of the run-scoped values.
        keys: Keys to register.
        plugins: Plugins to install.
        author: The author in the recorded history.
        record: Whether each commit is recorded in the history of the thread's space, for `at` and `diff`.
    """

    def __init__(
        self,
        thread_id: str = "default",
        *,
        run_id: str = "",
        keys: Iterable[AnyKey] = (),
        plugins: Iterable[Plugin] = (),
        author: str | None = None,
        record: bool = False,
        **storage: Unpack[StorageOptions],
    ) -> None:
        super().__init__(
            typed.KeyedState(
                thread_id,
                run_id=run_id,
                keys=keys,
                plugins=plugins,
                author=author,
                record=record,
                **inner_options(storage),
            )
        )

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def close(self) -> None:
        """Close a store that was opened here. A store, handle or space that was passed in open stays open."""
        finish(self._inner.close())

    @property
    def revision(self) -> int:
        """The number of batches that were applied to the state when this object last read it."""
        return self._inner.revision

    def snapshot(self) -> Snapshot:
        """Return the state as this object last read it, in constant time.

        Raises:
            NotLoadedError: Nothing was read yet. Enter it as a context manager, or call `refresh`.
        """
        return self._inner.snapshot()

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never updated."""
        return self._inner.read(key)

    def refresh(self) -> int:
        """Read the changes of other writers, and return the latest revision."""
        return finish(self._inner.refresh())

    def begin_mutation(self) -> MutationBatch:
        """Return an empty batch based on the current revision."""
        return self._inner.begin_mutation()

    def commit(self, batch: MutationBatch, *, message: str = "") -> int:
        """Apply a batch to the latest values, all or nothing, and return the new revision.

        An empty batch changes nothing. Commutative updates are applied on top of concurrent writes, so none
        is lost.

        Args:
            batch: The updates.
            message: Description of the change in the recorded history.

        Raises:
            StateError: A key is not registered, or an update makes a value that cannot be stored.
            StateConflictError: The batch updates an exclusive key that changed after the base revision. The
                latest values are read by then: take a snapshot and compute the batch again. Values that the
                batch only read are not checked.
            Exception: Any error that `apply` of a key raises; nothing of the batch was applied.
        """
        return finish(self._inner.commit(batch, message=message))

    def merge_parallel(self, a: MutationBatch, b: MutationBatch) -> MutationBatch:
        """Return one batch of two computed in parallel: the updates of `a`, then the updates of `b`.

        Raises:
            StateError: Both touch the same exclusive key, which the error names, or their revisions differ.
        """
        return self._inner.merge_parallel(a, b)

    def merge_all(self, batches: Iterable[MutationBatch]) -> MutationBatch:
        """Return one batch of all batches computed in parallel, in their order; see `merge_parallel`."""
        return self._inner.merge_all(batches)

    def install_plugin(self, plugin: Plugin) -> None:
        """Register the keys of a plugin. Values stored under them become readable.

        Raises:
            StateError: The plugin is installed already, or one of its keys is in use; nothing was registered.
        """
        finish(self._inner.install_plugin(plugin))

    def uninstall_plugin(self, plugin: Plugin | type | str) -> None:
        """Unregister the keys of a plugin, and delete their values except those to be retained.

        More than 500 values are deleted in several batches.

        Args:
            plugin: The plugin, its class, or its name.

        Raises:
            StateError: The plugin is not installed.
        """
        finish(self._inner.uninstall_plugin(plugin))

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object, in the order of adding."""
        self._inner.add_hook(hook)

    def clear_run_scoped(self) -> None:
        """Delete all run-scoped values, including values of unregistered keys."""
        finish(self._inner.clear_run_scoped())

    def export_persisted(self, scope: KeyScope | None = None) -> PersistedState:
        """Return all persistent values as JSON, including values of keys that are not registered here.

        Args:
            scope: Only the values of this scope; None for both.
        """
        return self._inner.export_persisted(scope)

    def restore_persisted(
        self, state: PersistedState, unknown: Unknown = "keep", *, scope: KeyScope | None = None
    ) -> None:
        """Replace all values, unstored ones included, by an exported state. Calls no hooks.

        Without `scope` the state continues from the exported revision, and batches computed before are
        rejected. With `scope` it is a change like a commit, and makes the next revision.

        Args:
            state: The exported state; at most 990 values.
            unknown: The handling of unregistered keys: `keep` their values until the key is registered, raise
                an `error`, or `skip` them.
            scope: Replace only the values of this scope; those of the other are neither read nor changed.

        Raises:
            StateError: A value cannot be read, or its key is unknown and `unknown` is `error`; nothing was
                changed.
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
        """Add exported values of another state, such as those that a child agent begins with. Calls no hooks.

        The values are added in one batch, which makes the next revision; the exported revision is ignored.
        Seeding again, for instance when the child is resumed, does not change values that exist by then.

        Args:
            state: The exported values; at most 990. A run-scoped value becomes a value of this state's run.
            unknown: As for `restore_persisted`.
            scope: Only the values of this scope.
            replace: Also replace existing values. Otherwise these are left unchanged.

        Returns:
            The names of the keys whose values were added or replaced.

        Raises:
            StateError: A value cannot be read, or its key is unknown and `unknown` is `error`; nothing was
                changed.
        """
        return finish(self._inner.seed(state, unknown, scope=scope, replace=replace))

    @single_use
    def watch(
        self, key: type[StateKey[V, Any]], *, after: str | int | None = None, timeout_s: float | None = None
    ) -> Generator[StateWatch[V]]:
        """Yield an iterator over all changes of a key, by any writer, in order.

        Args:
            key: A registered key that is persistent.
            after: Start after a `position`; as for `Documents.watch`. By default, start now.
            timeout_s: End the iteration after this many seconds without a change; None means never.
        """
        with entered(self._inner.watch(key, after=after, timeout_s=timeout_s)) as inner:
            yield StateWatch(inner)

    def at(self, ref: Revision = "main") -> Snapshot:
        """Return the state at a commit of the thread's history; see `Space.at`.

        Raises:
            NotFoundError: The commit does not exist: the space is not recorded, or was not at that time.
        """
        return finish(self._inner.at(ref))

    def diff(self, a: Revision, b: Revision = "main") -> list[KeyDifference]:
        """Return the keys whose values differ between `a` and `b`, ordered by name."""
        return finish(self._inner.diff(a, b))
