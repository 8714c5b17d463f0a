"""`KeepstateSaver`: LangGraph's checkpoints in any keepstate store."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT

from keepstate.adapters.langgraph import deletion, queries, threads
from keepstate.adapters.langgraph import put as putting
from keepstate.adapters.langgraph.arguments import (
    Past,
    as_past,
    check_channels,
    check_checkpoint,
    check_config,
    check_ids,
    check_serde,
    check_thread,
    check_wanted,
    check_writes,
    raise_unstorable,
)
from keepstate.adapters.langgraph.channel_diff import lacking, snapshots_in, take
from keepstate.adapters.langgraph.classes import Allowed, Classes, flat, hashable
from keepstate.adapters.langgraph.interrupts import INTERRUPTED, Ask, Interrupts, NewInterrupt, question_of
from keepstate.adapters.langgraph.migration import ForeignCheckpoint, Migration
from keepstate.adapters.langgraph.on_store import OnStore, open_handles
from keepstate.adapters.langgraph.records import Names, PendingRecord
from keepstate.adapters.langgraph.retention import Retention, Strategy, milliseconds
from keepstate.adapters.langgraph.retention import prune as prune_threads
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.adapters.langgraph.serde import Values
from keepstate.adapters.langgraph.threads import Expiry
from keepstate.adapters.loop_handles import Work, WorkOfMany, both, both_each
from keepstate.engine.kernel.arguments import check_flag
from keepstate.engine.queue.tasks import TaskInfo
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.names import DEFAULT_URL
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")

OnFork = Literal["fork", "raise"]
_NOTE: Final = 80
"""Characters of a note on a commit."""


class KeepstateSaver(OnStore, BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a keepstate store, blocking and asynchronous: `compile(checkpointer=…)`.

    A checkpoint is a commit in the history of its thread, in the space `thread/<thread_id>`. It costs what
    has changed. `keepstate log`, `show`, `diff` and `blame` read it by channel. Threads and event loops may
    share a saver, and processes may share its store.

    Args:
        url: A store URL, the path of an SQLite file, an open store, or a handle on one.
        serde: A serializer of LangGraph, instead of keepstate's codec. With one that encrypts, only the names
            of threads, namespaces, checkpoints and tasks are readable in the store.
        allow: Classes whose objects may come back, or their modules and names, or graphs: `StateGraph`s
            whose schemas name the classes. LangChain's messages, LangGraph's own types and classes registered
            with `keepstate.register` are always allowed.
        tenant: The tenant of the threads, if any.
        author: The author in the history.
        encryption: The keys that encrypt all values of the store.
        on_conflict: The rule for a run whose thread another run has continued. Its checkpoints `fork` from
            where it began, as with LangGraph's own savers, or `raise` `ConflictError`.
        keep_last: Keep N checkpoints of each namespace, and the older ones that their delta channels need.
        max_age_s: Delete checkpoints that are older, except the latest of each namespace.
        ttl_s: Expire threads to which nothing was stored for N seconds. They are absent at once; `sweep`
            removes them.
        approvals: Ask for each `interrupt()` of a graph by an approval in the thread's space, in the batch
            that stores the interrupt. The answer wakes a task, for which a worker runs `resume(graph)`.
        ask: A function that makes the question of an interrupt from the interrupt and the config of its
            checkpoint. Default: the interrupt's value is the question, and the answer is yes or no, or fits
            the interrupt's `response_schema`.
        migrate_from: A checkpointer, or the URL of a database of LangGraph's own, whose threads are brought
            over, each at its first use here. It is only read.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    def __init__(
        self,
        url: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        serde: SerializerProtocol | None = None,
        allow: Iterable[Allowed] = (),
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        on_conflict: OnFork = "fork",
        keep_last: int | None = None,
        max_age_s: float | None = None,
        ttl_s: float | None = None,
        approvals: bool = False,
        ask: Ask | None = None,
        migrate_from: str | BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        if serde is not None:
            check_serde(serde)
        super().__init__(serde=serde)
        if on_conflict not in ("fork", "raise"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`on_conflict` is {on_conflict!r}; it must be 'fork' or 'raise'")
        self._handles = open_handles(url, tenant=tenant, author=author, encryption=encryption)
        own = None if serde is None else self.serde
        allowed = flat(allow)
        values = Values(Classes(allowed, is_quiet=serde is not None), own)
        self._state = SaverState(values, _interrupts(approvals, ask, values))
        self._on_conflict: OnFork = on_conflict
        self._clones: dict[frozenset[tuple[str, ...]], KeepstateSaver] = {}
        self._retention = Retention(keep_last, max_age_s)
        self._expiry = Expiry(milliseconds("ttl_s", ttl_s))
        self._migration = None if migrate_from is None else Migration(migrate_from, allowed)
        self._handles.leaves_loop = migrate_from is not None

    def __repr__(self) -> str:
        return f"<KeepstateSaver on {self._handles!r}>"

    @property
    def asks(self) -> bool:
        """True if the saver asks for interrupts by approvals."""
        return self._state.interrupts is not None

    def _strict(self) -> Self:
        """Return the same saver with `on_conflict="raise"`."""
        clone = copy.copy(self)
        clone._on_conflict, clone._clones = "raise", {}
        return clone

    async def _task(self, space: str, id: str) -> TaskInfo | None:
        """Return a task of a thread's space, as this saver reads it."""
        return await self._handles.wait(lambda handle: handle.space(space).queue.get(id))

    async def aleave(self) -> None:
        """Close the handle of this event loop; other loops and blocking calls continue."""
        await self._handles.leave()

    # ---- versions and classes

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Return the next version of a channel, in the form of the saver that gave the current one."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:017.14f}"
        return 1 if current is None else int(current) + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return the same saver with more allowed classes; graphs call it in LangGraph's strict mode."""
        asked = cast("frozenset[tuple[str, ...]]", hashable(extra_allowlist))
        if asked not in self._clones:
            self._clones[asked] = self._allowing(asked)
        return cast("Self", self._clones[asked])

    def _allowing(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        values = self._state.values
        changed = cast("Self", super().with_allowlist(extra_allowlist)) if values.serde else self
        clone = copy.copy(self)
        clone.serde = changed.serde
        serde = clone.serde if values.serde else None
        clone._state = self._state.with_values(values.allowing(extra_allowlist, serde))
        clone._clones = {}
        return clone

    # ---- storing

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Work[RunnableConfig]:
        """Store a checkpoint and return the config that names it.

        Raises:
            ConflictError: The thread has continued since its run began, and `on_conflict` is `raise`.
            InvalidError: A value would not come back equal; the error names its path.
        """
        new = self._putting(config, checkpoint, metadata)

        async def work(handle: Keepstate) -> RunnableConfig:
            if new.parent is None and new.names.line == "":
                await self._expiry.end(self._state, handle, new.names.thread)
            await putting.put(self._state, handle, new)
            await self._retention.after_put(self._state, handle, new.names.thread)
            return queries.config_of(new.names)

        return self._arriving(work, new.names.thread)

    put, aput = both(_put)  # pyright: ignore[reportAssignmentType]

    def _putting(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> putting.Putting:
        """Return the checkpoint as it is now; later changes of its values have no effect."""
        values = self._state.values
        thread, line, parent = check_config(config)
        names = Names(thread, line, check_checkpoint(checkpoint, metadata))
        channels = checkpoint["channel_values"]
        last = self._state.summaries.get(thread, line)
        stored_metadata = get_serializable_checkpoint_metadata(config, metadata)
        fields = {key: value for key, value in checkpoint.items() if key not in ("channel_values", "id")}
        is_strict = self._on_conflict == "raise"
        is_copy = parent is None and stored_metadata.get("source") == "fork"  # of a thread's first checkpoint
        may_fork = line != "" or is_copy or isinstance(get_checkpoint_id(config), Past)
        try:
            taken = take(values, channels, last)
        except InvalidError as error:
            raise_unstorable(error, names)
        try:
            body = values.dump([fields, stored_metadata, list(channels)])
        except InvalidError as error:
            raise_unstorable(
                error, names, "metadata" if (error.path or "").startswith("[1]") else "checkpoint"
            )
        seen, notes = checkpoint["versions_seen"], dict[str, str]()
        if seen and last is not None and last.id == parent and not values.is_encrypted:
            notes = _notes(last.seen, checkpoint)
        message = (
            f"{stored_metadata.get('source', 'step')}, step {stored_metadata.get('step', '?')}, {names.id}"
        )
        return putting.Putting(
            names,
            parent,
            taken,
            last,
            body,
            snapshots_in(channels),
            lacking(stored_metadata, channels),
            "" if values.is_encrypted else message,
            dict(zip(seen, map(dict, seen.values()), strict=True)),
            notes,
            may_fork,
            is_strict,
        )

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> Work[None]:
        """Store a task's writes on a checkpoint."""
        dump = self._state.values.dump
        thread, line, id = check_config(config)
        if id is None:
            raise InvalidError("writes belong to a checkpoint; name it in the config")
        check_writes(writes, task_id, task_path)
        names, encoded = Names(thread, line, id), dict[int, bytes]()
        for index, (channel, value) in enumerate(writes):
            try:
                encoded[WRITES_IDX_MAP.get(channel, index)] = dump([channel, value])
            except InvalidError as error:
                raise_unstorable(error, names, channel, by=task_id)
        record, asking = PendingRecord(dump(task_path), [*encoded.items()]), list[NewInterrupt]()
        if self._state.interrupts is not None and line == "" and INTERRUPTED in encoded:
            asking = self._state.interrupts.prepare(config, dict(writes)[INTERRUPT])

        async def work(handle: Keepstate) -> None:
            await putting.put_writes(self._state, handle, names, task_id, record, asking)

        return self._arriving(work, thread)

    put_writes, aput_writes = both(_put_writes)  # pyright: ignore[reportAssignmentType]

    # ---- reading

    def _get_tuple(self, config: RunnableConfig) -> Work[CheckpointTuple | None]:
        """Return the checkpoint that a config names, or the latest of its thread; None if it is absent."""
        thread, line, id = check_config(config)

        async def work(handle: Keepstate) -> CheckpointTuple | None:
            if await self._expiry.is_over(self._state, handle, thread):
                return None
            is_strict = line == "" and self._on_conflict == "raise"
            latest = None
            if id is not None and is_strict:
                latest = await queries.ThreadReader(self._state, handle, thread).latest(line)
            own_config = config if id is not None else None
            found = await queries.get(self._state, handle, thread, line, id, own_config)
            if found is None or line:
                return found
            if not is_strict:  # a run that names its checkpoint forks on purpose, without a warning
                return as_past(found, is_past=id is not None)
            return as_past(found, is_past=latest is not None and latest.names.id != id)

        return self._arriving(work, thread)

    get_tuple, aget_tuple = both(_get_tuple)  # pyright: ignore[reportAssignmentType]

    def _list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> WorkOfMany[CheckpointTuple]:
        """Yield checkpoints, the latest first.

        Args:
            config: The thread, or one namespace of it. None for all threads, which are all read.
            filter: Fields that the metadata must have; compared by equality.
            before: Yield only checkpoints before this one.
            limit: Yield at most N checkpoints.
        """
        wanted = check_wanted(config, filter, before, limit)

        async def work(handle: Keepstate) -> AsyncIterator[CheckpointTuple]:
            if wanted.thread is not None:
                await self._arrive(handle, wanted.thread)
            if wanted.thread is not None and await self._expiry.is_over(self._state, handle, wanted.thread):
                return
            async for one in queries.list_checkpoints(self._state, handle, wanted):
                thread, _, _ = check_config(one.config)
                if wanted.thread is None and await self._expiry.is_over(self._state, handle, thread):
                    continue
                yield one

        return work

    list, alist = both_each(_list)  # pyright: ignore[reportAssignmentType]

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Work[Mapping[str, DeltaChannelHistory]]:
        """Return the writes to channels before a checkpoint, back to the nearest value of each channel."""
        thread, line, id = check_config(config)
        names = check_channels(channels)

        async def work(handle: Keepstate) -> Mapping[str, DeltaChannelHistory]:
            if await self._expiry.is_over(self._state, handle, thread):
                return {channel: {"writes": []} for channel in names}
            return await queries.delta_history(self._state, handle, thread, line, id, names)

        return self._arriving(work, thread)

    get_delta_channel_history, aget_delta_channel_history = both(_get_delta_channel_history)  # pyright: ignore[reportAssignmentType]

    def _threads(self) -> WorkOfMany[str]:
        """Yield the ids of threads that have checkpoints."""

        async def work(handle: Keepstate) -> AsyncIterator[str]:
            async for thread in queries.list_threads(handle):
                if not await self._expiry.is_over(self._state, handle, thread):
                    yield thread

        return work

    threads, athreads = both_each(_threads)

    # ---- threads of another checkpointer

    def _arriving(self, work: Work[T], *threads: str) -> Work[T]:
        """Return work that brings threads over first, if they come from elsewhere."""
        if self._migration is None:
            return work

        async def arrived(handle: Keepstate) -> T:
            for thread in threads:
                await self._arrive(handle, thread)
            return await work(handle)

        return arrived

    async def _arrive(self, handle: Keepstate, thread: str) -> None:
        if self._migration is not None:
            await self._migration.bring(handle, thread, self._import)

    async def _import(self, handle: Keepstate, one: ForeignCheckpoint) -> None:
        """Store a checkpoint of another checkpointer with its writes, and ask for nothing."""
        importing = copy.copy(self)
        importing._migration, importing._clones = None, {}
        importing._state = self._state.with_values(self._state.values)
        importing._state.interrupts = None
        checkpoint = one.found.checkpoint
        where = one.found.config.get("configurable", {})
        before = (one.found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        named = {"thread_id": where["thread_id"], "checkpoint_ns": where.get("checkpoint_ns", "")}
        own: RunnableConfig = {"configurable": {**named, "checkpoint_id": checkpoint["id"]}}
        for task in one.tasks:  # before the checkpoint, so that no reader sees an incomplete one
            await importing._put_writes(own, task.writes, task.task_id, task.task_path)(handle)
        parent: RunnableConfig = {"configurable": {**named, "checkpoint_id": before} if before else named}
        new = importing._putting(parent, checkpoint, one.found.metadata)
        new = msgspec.structs.replace(new, made_ms=one.made_ms, may_fork=True, is_strict=False)
        await putting.put(importing._state, handle, new)

    # ---- copying and deleting

    def _delete_thread(self, thread_id: str) -> Work[None]:
        """Delete all stored data of a thread; an absent one stays absent."""
        thread = check_thread(thread_id)

        async def work(handle: Keepstate) -> None:
            if self._migration is not None:
                await self._migration.skip(handle, thread)
            await deletion.delete_thread(self._state, handle, thread)

        return work

    delete_thread, adelete_thread = both(_delete_thread)  # pyright: ignore[reportAssignmentType]

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Work[None]:
        """Delete the checkpoints of some runs, and the writes on them. Cost: reads all threads.

        Checkpoints stay if the delta channels of another run's checkpoint need them.
        """
        runs = check_ids("run_ids", run_ids)
        return lambda handle: deletion.delete_runs(self._state, handle, runs)

    delete_for_runs, adelete_for_runs = both(_delete_for_runs)  # pyright: ignore[reportAssignmentType]

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Work[None]:
        """Copy all stored data of a thread to another thread.

        Raises:
            AlreadyExistsError: The other thread already has a history.
        """
        source = check_thread(source_thread_id, "source_thread_id")
        target = check_thread(target_thread_id, "target_thread_id")

        async def work(handle: Keepstate) -> None:
            if source == target or not await self._expiry.is_over(self._state, handle, source):
                await self._expiry.end(self._state, handle, target)
                await threads.copy(self._state, handle, source, target)

        return self._arriving(work, source, target)

    copy_thread, acopy_thread = both(_copy_thread)  # pyright: ignore[reportAssignmentType]

    def prune(  # type: ignore[override]  # it also returns how many
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_s: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete old checkpoints of threads, and return their number.

        The latest checkpoint of each namespace stays, and the older ones that its delta channels need.

        Args:
            thread_ids: The threads.
            strategy: `delete` deletes all; `keep_latest` keeps what the other arguments say, by default only
                the latest of each namespace.
            keep_last: Keep N checkpoints of each namespace.
            max_age_s: Keep checkpoints that are not older.
            dry_run: Only return the number.
        """
        how = Strategy.of(strategy, keep_last, max_age_s)
        return self._handles.finish(self._pruning(thread_ids, how, dry_run))

    async def aprune(  # type: ignore[override]  # it also returns how many
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_s: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete old checkpoints of threads, and return their number; as `prune`."""
        how = Strategy.of(strategy, keep_last, max_age_s)
        return await self._handles.wait(self._pruning(thread_ids, how, dry_run))

    def _pruning(self, thread_ids: Sequence[str], how: Strategy, dry_run: object) -> Work[int]:
        threads = check_ids("thread_ids", thread_ids)
        is_dry = check_flag("dry_run", dry_run)

        async def work(handle: Keepstate) -> int:
            return await prune_threads(self._state, handle, threads, how, dry_run=is_dry)

        return self._arriving(work, *threads)

    def _sweep(self) -> Work[int]:
        """Remove expired threads, and return their number."""
        return lambda handle: self._expiry.sweep(self._state, handle)

    sweep, asweep = both(_sweep)


def _notes(before: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, str]:
    """Return the notes on a checkpoint's commit: the nodes that ran, and the model that answered.

    A node that ran has seen newer versions of its channels than at the checkpoint before, which is known if
    this saver stored it.
    """
    seen = checkpoint["versions_seen"]
    ran = list[str]()
    for node, versions in seen.items():
        if before.get(node) != versions and node.isprintable() and not node.startswith("__"):
            ran.append(node)
    if not ran:
        return {}
    notes = {"nodes": ", ".join(sorted(ran))[:_NOTE]}
    updated = checkpoint.get("updated_channels")
    for name, value in checkpoint["channel_values"].items():
        if isinstance(value, list) and value and (updated is None or name in updated):
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            about: Any = getattr(items[-1], "response_metadata", None)
            model: Any = cast("dict[str, Any]", about).get("model_name") if isinstance(about, dict) else None
            if isinstance(model, str) and model.isprintable():
                notes["model"] = model[:_NOTE]
    return notes


def _interrupts(approvals: object, ask: Ask | None, values: Values) -> Interrupts | None:
    if ask is not None and not callable(ask):
        raise InvalidError(f"`ask` is {ask!r}; give a function of an interrupt and a config")
    if not check_flag("approvals", approvals):
        if ask is not None:
            raise InvalidError("`ask` has an effect only with approvals=True")
        return None
    if values.is_encrypted:
        raise InvalidError(
            "`serde` encrypts, and approvals have to be readable for people; encrypt the whole store "
            "instead, with encryption=KeyRing(…)"
        )
    return Interrupts(question_of if ask is None else ask)
