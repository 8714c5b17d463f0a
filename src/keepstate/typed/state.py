"""KeyedState: the state of a thread, by typed keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace as replaced
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from keepstate._runner import Mode
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import check_flag, check_text, require_instance
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import on_rollback
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError, StateConflictError, StateError
from keepstate.stores.protocol import Store
from keepstate.typed import epoch as lineages
from keepstate.typed.admission import admit_many
from keepstate.typed.batch import MutationBatch
from keepstate.typed.binding import Home
from keepstate.typed.changes import KeyDifference, StateWatch, differences
from keepstate.typed.commit import Applying
from keepstate.typed.encoded_value import Kept
from keepstate.typed.hooks import CommitEvent, CommitHook, Hooks
from keepstate.typed.key import AnyKey, KeyScope, ReadableKey, StateKey, admit_key
from keepstate.typed.layout import RUN_SLOTS, Names, is_of_scope, key_in, slot_of
from keepstate.typed.memory import Memory
from keepstate.typed.past import changed_between, memory_at
from keepstate.typed.persisted import PersistedState, Unknown, admit_scope, exported, restored
from keepstate.typed.registry import Plugin, Registry, plugin_name
from keepstate.typed.state_map import Snapshot
from keepstate.typed.thread import Beside, Change, Done, Found, ThreadState

V = TypeVar("V")

_REMOVED_BY_BATCH: Final = 500


class KeyedState:
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
        _mode: Mode = "async",
    ) -> None:
        home = Home(persistence, space, author=author, record=record, mode=_mode)
        place, names = home.thread(thread_id)
        self._begin(home, place, names, run_id, Registry.of(keys, plugins), Hooks(_mode))

    def _begin(
        self,
        home: Home | None,
        place: Space | Transaction,
        names: Names,
        run_id: str,
        registry: Registry,
        hooks: Hooks,
    ) -> None:
        names.admit(check_text("run_id", run_id))
        self._home, self._place, self._names = home, place, names
        self._thread = ThreadState(place, names, run_id, is_empty=home is not None and home.is_private)
        self._registry, self._hooks = registry, hooks

    @classmethod
    def _in_run(cls, place: Space, names: Names, run_id: str, registry: Registry, hooks: Hooks) -> KeyedState:
        """Return the state of a run's thread; for `AgentRun`, which owns store, keys and hooks."""
        state = cls.__new__(cls)
        state._begin(None, place, names, run_id, registry, hooks)
        return state

    def __repr__(self) -> str:
        state = f"at revision {self._thread.memory.revision}" if self._thread.is_loaded else "not read yet"
        return f"<KeyedState in {self._place!r} {state}>"

    # ---- opening and closing

    async def __aenter__(self) -> Self:
        await self._thread.load()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of a store that was opened here; what was passed in open stays open."""
        if self._home is not None:
            self._thread.is_closed = True
            await self._home.close()

    # ---- reading

    @property
    def revision(self) -> int:
        """Return how many batches the state has seen, as far as this object knows."""
        return self._thread.known().revision

    def snapshot(self) -> Snapshot:
        """Return the state as this object knows it; it costs nothing, however many keys there are.

        Raises:
            NotLoadedError: Nothing was read yet: enter the object, or call `refresh`.
        """
        return self._thread.known().snapshot(self._registry.keys)

    def read(self, key: type[ReadableKey[V]]) -> V | None:
        """Return a copy of a key's value, or None if it was never touched."""
        return self.snapshot().get(key)

    async def refresh(self) -> int:
        """Read what others have changed, and return the newest revision."""
        await self._thread.refresh()
        return self.revision

    # ---- changing

    def begin_mutation(self) -> MutationBatch:
        """Return an empty batch on the present revision."""
        memory = self._thread.known()
        return MutationBatch(memory.revision, lineage=memory.lineage)

    async def commit(self, batch: MutationBatch, *, message: str = "") -> int:
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
        require_instance("batch", batch, MutationBatch)
        await self._thread.load()
        if batch.is_empty():
            return self.revision
        return (await self._commit(batch, message=message)).head.revision

    async def _commit(
        self,
        batch: MutationBatch,
        *,
        beside: Beside | None = None,
        applied: Callable[[], None] | None = None,
        message: str = "",
    ) -> Done:
        """Apply a batch, and do more beside it; for `AgentRun`, whose batch may be empty.

        Args:
            batch: The updates.
            beside: Does more in the same batch.
            applied: Called once it is applied, before hooks are: they may commit in turn.
            message: Says what for.
        """
        batch = batch.copy()  # the caller may go on with it while this waits

        async def work() -> Done:
            applying = Applying(batch, self._registry, self._thread.memory.slots, self._thread.run_id)
            try:
                done = await self._thread.change(
                    applying.stored, applying.compute, beside=beside, message=message
                )
            except StateConflictError:
                await self._thread.refresh()
                raise
            if applied is not None:
                applied()
            if done.change is not None:
                await self._hooks.tell(
                    CommitEvent(done.before.revision, done.head.revision, batch.op_len(), self.snapshot())
                )
            return done

        return await self._thread.serialized(work)

    def merge_parallel(self, a: MutationBatch, b: MutationBatch) -> MutationBatch:
        """Return one batch of two that were computed in parallel: the updates of `a`, then those of `b`.

        Raises:
            StateError: Both touch an exclusive key, which is named, or they were computed from different
                revisions.
        """
        return self.merge_all([a, b])

    def merge_all(self, batches: Iterable[MutationBatch]) -> MutationBatch:
        """Return one batch of all that were computed in parallel, in their order; as `merge_parallel`."""
        merged = MutationBatch()
        for batch in admit_many("batches", batches):
            merged.merge_parallel(batch)
        return merged

    def _fence(self, lease: Lease, before: KeyedState | None) -> None:
        """Let all changes apply only while the lease is held; for `AgentRun`.

        Args:
            lease: The lease of the run.
            before: The state of the run before on this thread, whose values that are not stored go on.
        """
        self._thread.lease = lease
        if before is not None:
            self._thread.carry(before._thread)

    # ---- plugins and hooks

    async def install_plugin(self, plugin: Plugin) -> None:
        """Register the keys of a plugin; what is stored under them can be read from now on.

        Raises:
            StateError: It is installed, or one of its keys is in use; nothing was registered.
        """
        await self._thread.load()
        on_rollback(self._place, self._registry.saved())
        self._registry.add(self._registry.asked(plugin))

    async def uninstall_plugin(self, plugin: Plugin | type | str) -> None:
        """Take the keys of a plugin out of use; removes their values but for those to be retained.

        More than 500 values are removed in several batches.

        Args:
            plugin: The plugin, its class, or its name.

        Raises:
            StateError: It is not installed.
        """
        await self._thread.load()
        owner = plugin_name(plugin)
        gone = {
            slot_of(each.scope, each.key.KEY): each
            for each in self._registry.owned(owner)
            if not each.retain_on_uninstall
        }
        on_rollback(self._place, self._registry.saved())
        await self._remove({slot: each.persistent for slot, each in gone.items()})
        self._registry.remove(owner)

    def add_hook(self, hook: CommitHook) -> None:
        """Call a function with a `CommitEvent` after each commit of this object, in the order of adding."""
        if isinstance(self._place, Transaction):
            raise InvalidError(
                "a hook is told of what was applied; add it to the state of the space, outside"
            )
        self._hooks.add(hook)

    async def clear_run_scoped(self) -> None:
        """Remove all run-scoped values, those of keys that are not registered too."""
        await self._thread.refresh()
        slots = [slot for slot in self._thread.memory.slots if slot.startswith(RUN_SLOTS)]
        await self._remove({slot: not self._is_unstored(slot) for slot in slots})

    async def _remove(self, slots: dict[str, bool]) -> None:
        """Remove the values of slots; each says whether it stands in a document."""
        all_slots = sorted(slots)
        for begin in range(0, len(all_slots), _REMOVED_BY_BATCH):
            part = all_slots[begin : begin + _REMOVED_BY_BATCH]
            stored = [slot for slot in part if slots[slot]]

            def compute(found: Found, part: list[str] = part, stored: list[str] = stored) -> Change | None:
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
        """Return all persistent values as JSON, those of keys that are not registered here too.

        Args:
            scope: Only the values of this scope; None for both.
        """
        admit_scope(scope)
        memory = self._thread.known()
        stored = {
            slot: kept
            for slot, kept in memory.slots.items()
            if not self._is_unstored(slot) and is_of_scope(slot, scope)
        }
        return exported(memory.revision, stored, self._registry.keys)

    async def restore_persisted(
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
        slots = restored(state, self._registry.keys, unknown, scope)
        await self._thread.load()
        lineage = lineages.restored(self._place.clock)

        async def work() -> Done:
            await self._thread.refresh()
            while (done := await attempt(self._thread.memory)).change is None:
                pass  # others have committed: the memory has that now, and what they added goes too
            return done

        async def attempt(memory: Memory) -> Done:
            gone = dict.fromkeys(
                slot for slot in memory.slots if slot not in slots and is_of_scope(slot, scope)
            )
            stored = [slot for slot in (*gone, *slots) if not self._is_unstored(slot)]

            def compute(found: Found) -> Change | None:
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
        check_flag("replace", replace)
        slots = restored(state, self._registry.keys, unknown, scope)
        await self._thread.load()
        stored = [slot for slot in slots if not self._is_unstored(slot)]

        def compute(found: Found) -> Change | None:
            own = {slot: self._thread.memory.slots.get(slot) for slot in slots} | dict(found.slots)
            taken = {slot: kept for slot, kept in slots.items() if replace or own[slot] is None}
            names[:] = sorted(key_in(slot) for slot in taken)
            if not taken:
                return None
            return Change(_at(found.head.revision + 1, taken), [slot for slot in stored if slot in taken])

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
        """Yield an iterator over a key's changes, whoever makes them: in order, none missing.

        Args:
            key: A registered key that is persistent.
            after: Starts behind a `position`; as for `Documents.watch`. Without it, now.
            timeout_s: Ends the iteration when nothing has changed for so long; without it, it never ends.
        """
        admit_key(key)
        known = self._registry.named(key)
        if not known.persistent:
            raise StateError(
                f"{key.KEY!r} is not stored, and cannot be watched; add a hook", state_key=key.KEY
            )
        name = self._names.document(slot_of(known.scope, key.KEY), self._thread.run_id)
        async with self._place.documents.watch(
            escape_pattern(name), after=after, timeout_s=timeout_s
        ) as changes:
            yield StateWatch(key, changes)

    async def at(self, ref: Revision = "main") -> Snapshot:
        """Return the state as it was at a commit of the thread's history; see `Space.at`.

        Raises:
            NotFoundError: There is no such commit: the space is not recorded, or not for so long.
        """
        keys = self._registry.keys
        slots = [slot_of(each.scope, each.key.KEY) for each in keys.values() if each.persistent]
        memory = await memory_at(self._place, self._names, ref, self._thread.run_id, slots)
        return memory.snapshot(keys)

    async def diff(self, a: Revision, b: Revision = "main") -> list[KeyDifference]:
        """Return which keys have another value at `b` than at `a`, by name."""
        old, new = await changed_between(self._place, self._names, a, b, self._thread.run_id)
        return differences(old, new, self._registry.keys)


def _at(revision: int, slots: Mapping[str, Kept]) -> dict[str, Kept]:
    """Return values as the batch of a revision writes them."""
    return {slot: replaced(kept, revision=revision) for slot, kept in slots.items()}
