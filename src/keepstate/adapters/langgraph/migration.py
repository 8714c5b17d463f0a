"""Migration of threads from another checkpointer, each at its first use.

The space `langgraph-migration` has a document for each thread that was brought over, or deleted before that.
A thread is brought over under a lease, so processes that use it at the same time wait for one of them. An
interrupted migration is repeated: checkpoints are stored under their own ids.

The source is only read. It is a checkpointer of any kind, or the URL of a database of LangGraph's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from keepstate.adapters.langgraph.classes import Named
from keepstate.adapters.langgraph.saver_state import OncePerThread
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, KeepstateError
from keepstate.names import segment

SPACE: Final = "langgraph-migration"
_THREAD: Final = "thread/"
_LEASE_S: Final = 30.0
_WAIT_S: Final = 600.0


class ForeignWrites(msgspec.Struct, frozen=True):
    """The writes of one task on a checkpoint, in order."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


class ForeignCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of another checkpointer, with the writes of tasks on it."""

    found: CheckpointTuple
    tasks: Sequence[ForeignWrites]

    @property
    def made_ms(self) -> int | None:
        """The time at which it was made; None if it does not say."""
        try:
            made = datetime.fromisoformat(self.found.checkpoint["ts"])
        except (KeyError, TypeError, ValueError):
            return None
        return int(made.replace(tzinfo=made.tzinfo or UTC).timestamp() * 1000)


Import = Callable[[Keepstate, ForeignCheckpoint], Awaitable[None]]
"""Stores a checkpoint with its writes."""


class Migration:
    """The threads of another checkpointer, until they have been brought over.

    Args:
        source: A checkpointer, or the URL of a database of LangGraph's SqliteSaver or PostgresSaver.
        allow: Classes whose objects may come back from such a database.

    Raises:
        InvalidError: The source is neither.
    """

    def __init__(self, source: object, allow: Iterable[Named]) -> None:
        if isinstance(source, str):
            if source.partition("://")[0].lower() not in ("sqlite", "postgresql", "postgres"):
                raise InvalidError(
                    f"`migrate_from` is {source.partition('://')[0][:40]!r}…; give sqlite:///old.db, "
                    "postgresql://…, or a checkpointer"
                )
        elif not isinstance(source, BaseCheckpointSaver):
            raise InvalidError(
                f"`migrate_from` is {source!r}; give the URL of a database of LangGraph's own savers, or a "
                "checkpointer"
            )
        self._source: str | BaseCheckpointSaver[Any] = source
        self._allow = [*allow]
        self._here = OncePerThread()

    async def bring(self, handle: Keepstate, thread: str, store: Import) -> None:
        """Bring a thread over if it was not used here before.

        Raises:
            InvalidError: A checkpoint cannot be read or stored, so the thread stays where it was.
            StoreUnavailableError: The source does not answer.
        """
        name = _THREAD + segment(thread)
        space = handle.space(SPACE)
        if self._here.has(thread):
            return
        if await space.documents.get(name) is None:
            async with (
                await space.leases.acquire(name, _LEASE_S, wait_s=_WAIT_S) as lease,
                lease.kept_alive(),
            ):
                if await space.documents.get(name) is None:
                    is_in_loop = handle.runner.mode == "async"
                    checkpoints = (
                        await asyncio.to_thread(self._read, thread) if is_in_loop else self._read(thread)
                    )
                    for one in checkpoints:
                        try:
                            await store(handle, one)
                        except KeepstateError as error:
                            if isinstance(error, InvalidError):
                                raise InvalidError(_failed(thread, error)) from error
                            raise
                    await space.documents.put(name, {"thread": thread, "checkpoints": len(checkpoints)})
        self._here.is_first(thread)

    async def skip(self, handle: Keepstate, thread: str) -> None:
        """Note that a thread is deleted, so that it is not brought over later."""
        name = _THREAD + segment(thread)
        space = handle.space(SPACE)
        async with await space.leases.acquire(name, _LEASE_S, wait_s=_WAIT_S):
            if await space.documents.get(name) is None:
                await space.documents.put(name, {"thread": thread, "checkpoints": 0})

    def _read(self, thread: str) -> list[ForeignCheckpoint]:
        """Return all checkpoints of a thread, the oldest first."""
        if isinstance(self._source, str):
            from keepstate.adapters.langgraph.official import opened  # loads LangGraph's own savers

            try:
                with opened(self._source, self._allow) as official:
                    return [
                        ForeignCheckpoint(
                            official.read(name),
                            [
                                ForeignWrites(task.task_id, task.task_path, task.writes)
                                for task in official.writes(name)
                            ],
                        )
                        for name in official.named(thread)
                    ]
            except InvalidError as error:
                raise InvalidError(_failed(thread, error)) from error
        found = list(self._source.list({"configurable": {"thread_id": thread}}))
        found.sort(key=lambda one: one.checkpoint["id"])
        return [ForeignCheckpoint(one, _tasks(one)) for one in found]


def _failed(thread: str, error: InvalidError) -> str:
    return f"thread {thread!r} cannot be brought over from `migrate_from`, and is not used here: {error}"


def _tasks(found: CheckpointTuple) -> list[ForeignWrites]:
    """Return the writes on a checkpoint by task. A checkpointer does not tell the paths of tasks."""
    tasks: dict[str, ForeignWrites] = {}
    for task, channel, value in found.pending_writes or ():
        tasks.setdefault(task, ForeignWrites(task, "", [])).writes.append((channel, value))
    return [*tasks.values()]
