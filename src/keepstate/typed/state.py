"""KeyedState: the state of a thread, by typed keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace as replaced
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack

from keepstate.binding import PRIVATE, Resource, StorageOptions, StoreBinding
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import check_flag, check_text, require_instance, single_use
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import on_rollback
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, StateConflictError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import (
    CommitEvent,
    CommitHook,
    Hooks,
    KeyDifference,
    StateWatch,
    diff_slots,
    find_differences,
    read_memory,
)
from keepstate.typed.key import AnyKey, EncodedValue, KeyScope, ReadableKey, StateKey, check_key, check_list
from keepstate.typed.layout import RUN_SLOTS, Names, is_of_scope, key_in, names_of, slot_of
from keepstate.typed.persisted import PersistedState, Unknown, check_scope, decode_state, export_state
from keepstate.typed.records import new_lineage
from keepstate.typed.registry import Plugin, Registry, plugin_name
from keepstate.typed.state_map import Memory, Snapshot
from keepstate.typed.thread import (
    BatchApplication,
    Change,
    ChangeResult,
    ExtraWrites,
    StoredState,
    ThreadState,
)

V = TypeVar("V")

_REMOVED_BY_BATCH: Final = 500


class KeyedState(Resource):
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
        binding = StoreBinding(storage, default=PRIVATE, author=author, record=record)
        target, names = names_of(binding, thread_id)
        self._begin(binding, target, names, run_id, Registry.of(keys, plugins), Hooks(binding.mode))

    def _begin(
        self,
        binding: StoreBinding | None,
        target: Space | Transaction,
        names: Names,
        run_id: str,
        registry: Registry,
        hooks: Hooks,
    ) -> None:
        names.check_run_id(check_text("run_id", run_id))
        self._binding = self._closing = binding
        self._target, self._names = target, names
        self._thread = ThreadState(target, names, run_id, is_empty=binding is not None and binding.is_private)
        self._registry, self._hooks = registry, hooks

    @classmethod
    def _in_run(
        cls, target: Space, names: Names, run_id: str, registry: Registry, hooks: Hooks
    ) -> KeyedState:
        """Return the state of a run's thread; for `AgentRun`, which owns store, keys and hooks."""
        state = cls.__new__(cls)
        state._begin(None, target, names, run_id, registry, hooks)
        return state

    def __repr__(self) -> str:
        state = f"at revision {self._thread.memory.revision}" if self._thread.is_loaded else "not read yet"
        return f"<KeyedState in {self._target!r} {state}>"

    # ---- opening and closing

    async def __aenter__(self) -> Self:
        await self._thread.load()
        return self

    async def close(self) -> None:
        """Close a store that was opened here. A store, handle or space that was passed in open stays open."""
        if self._binding is not None:
            self._thread.is_closed = True
        await super().close()

    # ---- reading

    @property
    def revision(self) -> int:
        """The number of batches that were applied to the state when this object last read it."""
        return self._thread.require_memory().revision

    def snapshot(self) -> Snapshot:
        """Return the state as this object last read it, in constant time.

        Raises:
            NotLoadedError: Nothing was read yet. Enter it as a context manager, or call `refresh`.
        """
        return self._thread.require_memory().snapshot(self._registry.keys)

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never updated."""
        return self.snapshot().get(key)

    async def refresh(self) -> int:
        """Read the changes of other writers, and return the latest revision."""
        await self._thread.refresh()
        return self.revision

    # ---- changing

    def begin_mutation(self) -> MutationBatch:
        """Return an empty batch based on the current revision."""
        memory = self._thread.require_memory()
        return MutationBatch(memory.revision, lineage=memory.lineage)

    async def commit(self, batch: MutationBatch, *, message: str = "") -> int:
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
        require_instance("batch", batch, MutationBatch)
        await self._thread.load()
        if batch.is_empty():
            return self.revision
        return (await self._commit(batch, message=message)).head.revision

    async def _commit(
        self,
        batch: MutationBatch,
        *,
        extra_writes: ExtraWrites | None = None,
        applied: Callable[[], None] | None = None,
        message: str = "",
    ) -> ChangeResult:
        """Apply a batch and extra writes; for `AgentRun`, whose batch may be empty.

        Args:
            batch: The updates.
            extra_writes: Adds writes to the same batch.
            applied: Called once the batch is applied and before the hooks, because hooks may commit in turn.
            message: Description of the change.
        """
        batch = batch.copy()  # the caller may change the batch during the wait

        async def work() -> ChangeResult:
            application = BatchApplication(
                batch, self._registry, self._thread.memory.slots, self._thread.run_id
            )
            try:
                done = await self._thread.change(
                    application.stored, application.compute, extra_writes=extra_writes, message=message
                )
            except StateConflictError:
                await self._thread.refresh()
                raise
            if applied is not None:
                applied()
            if done.change is not None:
                await self._hooks.notify(
                    CommitEvent(done.before.revision, done.head.revision, batch.op_len(), self.snapshot())
                )
            return done

        return await self._thread.serialized(work)

    def merge_parallel(self, a: MutationBatch, b: MutationBatch) -> MutationBatch:
        """Return one batch of two computed in parallel: the updates of `a`, then the updates of `b`.

        Raises:
            StateError: Both touch the same exclusive key, which the error names, or their revisions differ.
        """
        return self.merge_all([a, b])

    def merge_all(self, batches: Iterable[MutationBatch]) -> MutationBatch:
        """Return one batch of all batches computed in parallel, in their order; see `merge_parallel`."""
        merged = MutationBatch()
        for batch in check_list("batches", batches):
            merged.merge_parallel(batch)
        return merged

    def _fence(self, lease: Lease, before: KeyedState | None) -> None:
        """Apply all later changes only while the lease is held; for `AgentRun`.

        Args:
            lease: The lease of the run.
            before: The state of the thread's previous run, whose unstored values are carried over.
        """
        self._thread.lease = lease
        if before is not None:
            self._thread.carry(before._thread)

    # ---- plugins and hooks

    async def install_plugin(self, plugin: Plugin) -> None:
        """Register the keys of a plugin. Values stored under them become readable.

        Raises:
            StateError: The plugin is installed already, or one of its keys is in use; nothing was registered.
        """
        await self._thread.load()
        on_rollback(self._target, self._registry.make_restorer())
        self._registry.add(self._registry.collect(plugin))

    async def uninstall_plugin(self, plugin: Plugin | type | str) -> None:
        """Unregister the keys of a plugin, and delete their values except those to be retained.

        More than 500 values are deleted in several batches.

        Args:
            plugin: The plugin, its class, or its name.

        Raises:
            StateError: The plugin is not installed.
        """
        await self._thread.load()
        owner = plugin_name(plugin)
        gone = {
            slot_of(each.scope, each.key.KEY): each
            for each in self._registry.keys_of(owner)
            if not each.retain_on_uninstall
        }
        on_rollback(self._target, self._registry.make_restorer())
        await self._remove({slot: each.persistent for slot, each in gone.items()})
        self._registry.remove(owner)

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object, in the order of adding."""
        if isinstance(self._target, Transaction):
            raise InvalidError(
                "Hooks run after a commit was applied. Add the hook to the state of the space, outside of "
                "the transaction."
            )
        self._hooks.add(hook)

    async def clear_run_scoped(self) -> None:
        """Delete all run-scoped values, including values of unregistered keys."""
        await self._thread.refresh()
        slots = [slot for slot in self._thread.memory.slots if slot.startswith(RUN_SLOTS)]
        await self._remove({slot: not self._is_unstored(slot) for slot in slots})

    async def _remove(self, slots: dict[str, bool]) -> None:
        """Remove the values of slots, each given with whether it is stored in a document."""
        all_slots = sorted(slots)
        for begin in range(0, len(all_slots), _REMOVED_BY_BATCH):
            part = all_slots[begin : begin + _REMOVED_BY_BATCH]
            stored = [slot for slot in part if slots[slot]]

            def compute(
                found: StoredState, part: list[str] = part, stored: list[str] = stored
            ) -> Change | None:
                held = [slot for slot in part if found.slots.get(slot) or slot in self._thread.memory.slots]
                return Change(dict.fromkeys(held), stored) if held else None

            await self._thread.serialized(partial(self._thread.change, stored, compute))

    def _is_unstored(self, slot: str) -> bool:
        known = self._registry.find(key_in(slot))
        if known is not None and slot_of(known.scope, known.key.KEY) == slot:
            return not known.persistent
        return slot in self._thread.unstored

    # ---- the whole state

    def export_persisted(self, scope: KeyScope | None = None) -> PersistedState:
        """Return all persistent values as JSON, including values of keys that are not registered here.

        Args:
            scope: Only the values of this scope; None for both.
        """
        check_scope(scope)
        memory = self._thread.require_memory()
        stored = {
            slot: value
            for slot, value in memory.slots.items()
            if not self._is_unstored(slot) and is_of_scope(slot, scope)
        }
        return export_state(memory.revision, stored, self._registry.keys)

    async def restore_persisted(
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
        slots = decode_state(state, self._registry.keys, unknown, scope)
        await self._thread.load()
        lineage = new_lineage(self._target.clock)

        async def work() -> ChangeResult:
            await self._thread.refresh()
            while (done := await attempt(self._thread.memory)).change is None:
                pass  # another writer committed; retry, so that its values are replaced too
            return done

        async def attempt(memory: Memory) -> ChangeResult:
            gone = dict.fromkeys(
                slot for slot in memory.slots if slot not in slots and is_of_scope(slot, scope)
            )
            stored = [slot for slot in (*gone, *slots) if not self._is_unstored(slot)]

            def compute(found: StoredState) -> Change | None:
                if (found.head.revision, found.head.lineage) != (memory.revision, memory.lineage):
                    return None
                if scope is None:
                    return Change({**gone, **slots}, stored, restart=(state.revision, lineage))
                return Change({**gone, **_at(found.head.revision + 1, slots)}, stored)

            return await self._thread.change(stored, compute)

        await self._thread.serialized(work)

    async def seed(
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
        check_flag("replace", replace)
        slots = decode_state(state, self._registry.keys, unknown, scope)
        await self._thread.load()
        stored = [slot for slot in slots if not self._is_unstored(slot)]

        def compute(found: StoredState) -> Change | None:
            own = {slot: self._thread.memory.slots.get(slot) for slot in slots} | dict(found.slots)
            added = {slot: value for slot, value in slots.items() if replace or own[slot] is None}
            names[:] = sorted(key_in(slot) for slot in added)
            if not added:
                return None
            return Change(_at(found.head.revision + 1, added), [slot for slot in stored if slot in added])

        names: list[str] = []
        await self._thread.serialized(partial(self._thread.change, stored, compute, message="seed the state"))
        return names

    # ---- changes and the past

    @single_use
    async def watch(
        self,
        key: type[StateKey[V, Any]],
        *,
        after: str | int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[StateWatch[V]]:
        """Yield an iterator over all changes of a key, by any writer, in order.

        Args:
            key: A registered key that is persistent.
            after: Start after a `position`; as for `Documents.watch`. By default, start now.
            timeout_s: End the iteration after this many seconds without a change; None means never.
        """
        check_key(key)
        known = self._registry.require(key)
        if not known.persistent:
            raise StateError(
                f"Key {key.KEY!r} is not stored, so it cannot be watched. Use add_hook().", state_key=key.KEY
            )
        name = self._names.document(slot_of(known.scope, key.KEY), self._thread.run_id)
        async with self._target.documents.watch(
            escape_pattern(name), after=after, timeout_s=timeout_s
        ) as changes:
            yield StateWatch(key, changes)

    async def at(self, ref: Revision = "main") -> Snapshot:
        """Return the state at a commit of the thread's history; see `Space.at`.

        Raises:
            NotFoundError: The commit does not exist: the space is not recorded, or was not at that time.
        """
        keys = self._registry.keys
        slots = [slot_of(each.scope, each.key.KEY) for each in keys.values() if each.persistent]
        memory = await read_memory(self._target, self._names, ref, self._thread.run_id, slots)
        return memory.snapshot(keys)

    async def diff(self, a: Revision, b: Revision = "main") -> list[KeyDifference]:
        """Return the keys whose values differ between `a` and `b`, ordered by name."""
        old, new = await diff_slots(self._target, self._names, a, b, self._thread.run_id)
        return find_differences(old, new, self._registry.keys)


def _at(revision: int, slots: Mapping[str, EncodedValue]) -> dict[str, EncodedValue]:
    """Return values with the revision of the batch that writes them."""
    return {slot: replaced(value, revision=revision) for slot, value in slots.items()}
