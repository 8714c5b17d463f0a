"""`KeepstateSaver`: LangGraph's checkpoints in any keepstate store."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, cast

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

from keepstate.adapters.langgraph import deletion, queries, thread_copy
from keepstate.adapters.langgraph import put as putting
from keepstate.adapters.langgraph.arguments import (
    Place,
    admit_checkpoint,
    admit_serde,
    admit_wanted,
    admit_writes,
    channels_named,
    named_all,
    place_in,
    refuse,
    thread_named,
)
from keepstate.adapters.langgraph.channel_diff import lacking, snapshots_in, take
from keepstate.adapters.langgraph.classes import Allowed, Classes, hashable
from keepstate.adapters.langgraph.contexts import OnStore
from keepstate.adapters.langgraph.expiry import Expiry
from keepstate.adapters.langgraph.loop_handles import Homes
from keepstate.adapters.langgraph.past_configs import Past, going_back
from keepstate.adapters.langgraph.records import Names, PendingRecord
from keepstate.adapters.langgraph.retention import Retention, Strategy, milliseconds
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.adapters.langgraph.serde import Values
from keepstate.engine.kernel.arguments import check_flag
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.opening import DEFAULT_URL
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

OnFork = Literal["fork", "raise"]


class KeepstateSaver(OnStore, BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a keepstate store: for `compile(checkpointer=…)`, with and without `await`.

    A checkpoint is a commit in the history of its thread, `thread/<thread_id>`: it costs what has changed,
    and `keepstate log`, `show`, `diff` and `blame` read it by channel. Threads may share a saver, and event
    loops too; processes may share its store.

    Args:
        url: A store URL, the path of an SQLite file, an open store, or a handle on one.
        serde: A serializer of LangGraph, instead of keepstate's codec. One that encrypts leaves nothing
            readable but the names of threads, namespaces, checkpoints and tasks.
        allow: Classes whose objects may come back, or their modules and names: beside LangChain's messages,
            LangGraph's own types, and what is registered with `keepstate.register`.
        tenant: The tenant whose threads they are, if any.
        author: Who runs, as the history says.
        encryption: The keys that all values of the store are encrypted under.
        on_conflict: What becomes of a run whose thread another one has continued meanwhile: its checkpoints
            `fork` from where it began, as with LangGraph's own savers, or `raise` `ConflictError`.
        keep_last: Keeps so many checkpoints of each namespace, and what delta channels need of older ones.
        max_age_s: Lets go of checkpoints that are older, but for the latest of each namespace.
        ttl_s: Lets go of threads to which nothing was stored for so long. They are absent at once; `sweep`
            removes them.

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
    ) -> None:
        if serde is not None:
            admit_serde(serde)
        super().__init__(serde=serde)
        if on_conflict not in ("fork", "raise"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`on_conflict` is {on_conflict!r}; it is 'fork' or 'raise'")
        self._homes = Homes(url, tenant=tenant, author=author, encryption=encryption)
        own = None if serde is None else self.serde
        self._keeper = Keeper(Values(Classes(allow, is_quiet=serde is not None), own))
        self._on_conflict: OnFork = on_conflict
        self._clones: dict[frozenset[tuple[str, ...]], KeepstateSaver] = {}
        self._retention = Retention(self._keeper, keep_last, max_age_s)
        self._expiry = Expiry(self._keeper, milliseconds("ttl_s", ttl_s))

    def __repr__(self) -> str:
        return f"<KeepstateSaver on {self._homes!r}>"

    # ---- opening and closing

    def close(self) -> None:
        """Let go of the store as far as it is used without `await`; twice is once."""
        self._homes.close()

    async def aclose(self) -> None:
        """Let go of the store, in this event loop and without one; twice is once."""
        await self._homes.aclose()

    async def aleave(self) -> None:
        """Let go of what was opened for this event loop; other loops, and use without one, go on."""
        await self._homes.leave()

    # ---- versions and classes

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Return the version after one; those that other savers have given go on in their form."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:017.14f}"
        return 1 if current is None else int(current) + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return the same saver for more classes; graphs call it where LangGraph is to be strict."""
        asked = cast("frozenset[tuple[str, ...]]", hashable(extra_allowlist))
        if asked not in self._clones:
            self._clones[asked] = self._allowing(asked)
        return cast("Self", self._clones[asked])

    def _allowing(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        changed = cast("Self", super().with_allowlist(extra_allowlist)) if self._keeper.values.serde else self
        clone = copy.copy(self)
        clone.serde = changed.serde
        serde = clone.serde if self._keeper.values.serde else None
        clone._keeper = self._keeper.with_values(self._keeper.values.allowing(extra_allowlist, serde))
        clone._clones = {}
        clone._retention = self._retention.with_keeper(clone._keeper)
        clone._expiry = self._expiry.with_keeper(clone._keeper)
        return clone

    # ---- storing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and return the config that names it.

        Raises:
            ConflictError: The thread has gone on since its run began, and this saver is to raise then.
            InvalidError: A value would not come back equal; its path is named.
        """
        new = self._putting(config, checkpoint, metadata)
        self._homes.finish(lambda handle: self._put(handle, new))
        return queries.config_of(new.names)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; as `put`."""
        new = self._putting(config, checkpoint, metadata)
        await self._homes.wait(lambda handle: self._put(handle, new))
        return queries.config_of(new.names)

    async def _put(self, handle: Keepstate, new: putting.Putting) -> None:
        if new.parent is None and new.names.line == "":
            await self._expiry.end(handle, new.names.thread)
        await putting.put(self._keeper, handle, new)
        await self._retention.after_put(handle, new.names.thread)

    def _putting(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> putting.Putting:
        """Return the checkpoint as it is now: what becomes of its values later changes nothing."""
        values = self._keeper.values
        thread, line, parent = place_in(config)
        names = Names(thread, line, admit_checkpoint(checkpoint, metadata))
        channels = checkpoint["channel_values"]
        standing = self._keeper.summaries.get(thread, line)
        told = get_serializable_checkpoint_metadata(config, metadata)
        fields = {key: value for key, value in checkpoint.items() if key not in ("channel_values", "id")}
        is_strict = self._on_conflict == "raise"
        is_copy = parent is None and told.get("source") == "fork"  # of the first one: nothing comes before it
        may_fork = not is_strict or line != "" or is_copy or isinstance(get_checkpoint_id(config), Past)
        try:
            taken = take(values, channels, standing)
        except InvalidError as error:
            refuse(error, names)
        try:
            body = values.dump([fields, told, list(channels)])
        except InvalidError as error:
            refuse(error, names, "metadata" if (error.path or "").startswith("[1]") else "checkpoint")
        message = f"{told.get('source', 'step')}, step {told.get('step', '?')}, {names.id}"
        return putting.Putting(
            names,
            parent,
            taken,
            standing,
            body,
            snapshots_in(channels),
            lacking(told, channels),
            "" if values.is_encrypted else message,
            may_fork,
            is_strict,
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written on a checkpoint."""
        names, record = self._writes(config, writes, task_id, task_path)
        self._homes.finish(lambda handle: putting.put_writes(self._keeper, handle, names, task_id, record))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written on a checkpoint."""
        names, record = self._writes(config, writes, task_id, task_path)
        await self._homes.wait(
            lambda handle: putting.put_writes(self._keeper, handle, names, task_id, record)
        )

    def _writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> tuple[Names, PendingRecord]:
        dump = self._keeper.values.dump
        thread, line, id = place_in(config)
        if id is None:
            raise InvalidError("writes belong to a checkpoint; name it in the config")
        admit_writes(writes, task, path)
        names, told = Names(thread, line, id), dict[int, bytes]()
        for place, (channel, value) in enumerate(writes):
            try:
                told[WRITES_IDX_MAP.get(channel, place)] = dump([channel, value])
            except InvalidError as error:
                refuse(error, names, channel, by=task)
        return names, PendingRecord(dump(path), [*told.items()])

    # ---- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest of its thread; None if there is none."""
        return self._homes.finish(lambda handle: self._get(handle, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest of its thread; None if there is none."""
        return await self._homes.wait(lambda handle: self._get(handle, config))

    async def _get(self, handle: Keepstate, config: RunnableConfig) -> CheckpointTuple | None:
        thread, line, id = place_in(config)
        if await self._expiry.is_over(handle, thread):
            return None
        is_strict = line == "" and self._on_conflict == "raise"
        latest = None
        if id is not None and is_strict:
            latest = await queries.Reading(self._keeper, handle, thread).latest(line)
        told = config if id is not None else None
        found = await queries.get(self._keeper, handle, thread, line, id, told)
        if found is None or not is_strict:
            return found
        return going_back(found, is_past=latest is not None and latest.names.id != id)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the latest first; see `alist`."""
        wanted = admit_wanted(config, filter, before, limit)
        return self._homes.finish_each(lambda handle: self._list(handle, wanted))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the latest first.

        Args:
            config: Whose: of a thread, of one namespace if it names one. None for those of all threads, which
                are all looked at.
            filter: What their metadata must have; compared by equality.
            before: Only those before this one.
            limit: So many at most.
        """
        wanted = admit_wanted(config, filter, before, limit)
        async for one in self._homes.wait_each(lambda handle: self._list(handle, wanted)):
            yield one

    async def _list(self, handle: Keepstate, wanted: queries.Wanted) -> AsyncIterator[CheckpointTuple]:
        if wanted.thread is not None and await self._expiry.is_over(handle, wanted.thread):
            return
        async for one in queries.listed(self._keeper, handle, wanted):
            thread, _, _ = place_in(one.config)
            if wanted.thread is None and await self._expiry.is_over(handle, thread):
                continue
            yield one

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what was written to channels before a checkpoint, back to the nearest value of each."""
        place, names = place_in(config), channels_named(channels)
        return self._homes.finish(lambda handle: self._delta_history(handle, place, names))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what was written to channels before a checkpoint, back to the nearest value of each."""
        place, names = place_in(config), channels_named(channels)
        return await self._homes.wait(lambda handle: self._delta_history(handle, place, names))

    async def _delta_history(
        self, handle: Keepstate, place: Place, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if await self._expiry.is_over(handle, place[0]):
            return {channel: {"writes": []} for channel in channels}
        return await queries.delta_history(self._keeper, handle, *place, channels)

    def threads(self) -> Iterator[str]:
        """Yield the ids of threads that have checkpoints."""
        return self._homes.finish_each(self._threads)

    async def athreads(self) -> AsyncIterator[str]:
        """Yield the ids of threads that have checkpoints."""
        async for thread in self._homes.wait_each(self._threads):
            yield thread

    async def _threads(self, handle: Keepstate) -> AsyncIterator[str]:
        async for thread in queries.threads(handle):
            if not await self._expiry.is_over(handle, thread):
                yield thread

    # ---- copying and letting go

    def delete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread; an absent one stays absent."""
        thread = thread_named(thread_id)
        self._homes.finish(lambda handle: deletion.delete(self._keeper, handle, thread))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread; an absent one stays absent."""
        thread = thread_named(thread_id)
        await self._homes.wait(lambda handle: deletion.delete(self._keeper, handle, thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs and what was written on them; looks at all threads.

        What a delta channel of another run's checkpoint is made of stays.
        """
        runs = named_all("run_ids", run_ids)
        self._homes.finish(lambda handle: self._retention.delete_runs(handle, runs))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs and what was written on them; looks at all threads."""
        runs = named_all("run_ids", run_ids)
        await self._homes.wait(lambda handle: self._retention.delete_runs(handle, runs))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all that is stored of a thread to another one.

        Raises:
            AlreadyExistsError: The other has a history already.
        """
        source = thread_named(source_thread_id, "source_thread_id")
        target = thread_named(target_thread_id, "target_thread_id")
        self._homes.finish(lambda handle: self._copy(handle, source, target))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all that is stored of a thread to another one."""
        source = thread_named(source_thread_id, "source_thread_id")
        target = thread_named(target_thread_id, "target_thread_id")
        await self._homes.wait(lambda handle: self._copy(handle, source, target))

    async def _copy(self, handle: Keepstate, source: str, target: str) -> None:
        if source == target or not await self._expiry.is_over(handle, source):
            await self._expiry.end(handle, target)
            await thread_copy.copy(self._keeper, handle, source, target)

    def prune(  # type: ignore[override]  # it also says how many
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_s: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Let go of old checkpoints of threads, and return how many.

        The latest of each namespace stays, and what its delta channels are made of.

        Args:
            thread_ids: The threads.
            strategy: `delete` deletes all; `keep_latest` keeps what the other arguments say, by default only
                the latest of each namespace.
            keep_last: Keeps so many of each namespace.
            max_age_s: Keeps those that are not older.
            dry_run: Only says how many there are.
        """
        threads, how = named_all("thread_ids", thread_ids), Strategy.of(strategy, keep_last, max_age_s)
        check_flag("dry_run", dry_run)
        return self._homes.finish(lambda handle: self._retention.prune(handle, threads, how, dry_run=dry_run))

    async def aprune(  # type: ignore[override]  # it also says how many
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        max_age_s: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Let go of old checkpoints of threads, and return how many; as `prune`."""
        threads, how = named_all("thread_ids", thread_ids), Strategy.of(strategy, keep_last, max_age_s)
        check_flag("dry_run", dry_run)
        return await self._homes.wait(
            lambda handle: self._retention.prune(handle, threads, how, dry_run=dry_run)
        )

    def sweep(self) -> int:
        """Remove threads that have outlived their time to live, and return how many."""
        return self._homes.finish(self._expiry.sweep)

    async def asweep(self) -> int:
        """Remove threads that have outlived their time to live, and return how many."""
        return await self._homes.wait(self._expiry.sweep)
