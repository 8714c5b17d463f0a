"""Tasks, their events and their push configurations for replicas of an A2A server.

A task is stored in pieces: a short record, and runs of the messages and parts that one save added. A save
compares hashes, and writes only the runs that are new, so that a task of any length grows by what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from hashlib import blake2b
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from keepstate.adapters.base import Adapter, BoundSpace, outlast_cancellation
from keepstate.engine.events.record import Event as StoredEvent
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import CorruptError, MissingExtraError
from keepstate.names import DEFAULT_URL, segment
from keepstate.sessions.namespace import make_deletion
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from a2a.server.context import ServerCallContext
    from a2a.server.events.event_queue import Event

    from keepstate.stores.wrappers.encrypted import KeyRing

try:
    from a2a.server.cluster.event_stream import TaskEventStream, VersionedEvent
    from a2a.server.cluster.task_store import (
        ConcurrentTaskModificationError,
        StoredTask,
        VersionedTaskStore,
    )
    from a2a.server.cluster.version import TaskVersion
    from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
    from a2a.server.tasks.push_notification_config_store import (
        PushNotificationConfigStore,
        normalize_push_notification_config,
    )
    from a2a.types import a2a_pb2
    from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
    from a2a.utils.errors import InvalidParamsError
    from a2a.utils.proto_utils import to_stream_response
    from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
except ImportError as error:
    install = "pip install 'keepstate[a2a]'"
    raise MissingExtraError(f"this needs a2a-sdk 1.3: {install}", install=install) from error

_ENDED: Final = frozenset(
    {
        a2a_pb2.TASK_STATE_COMPLETED,
        a2a_pb2.TASK_STATE_CANCELED,
        a2a_pb2.TASK_STATE_FAILED,
        a2a_pb2.TASK_STATE_REJECTED,
    }
)
_AT_ONCE: Final = 900
_POLL_S: Final = 0.05
_LIVES: Final = "lives"
"""The number of tasks that the space has had, also those that were deleted."""


class KeepstateTaskStore(Adapter, VersionedTaskStore):
    """The tasks of an A2A server, for `task_store=` of its request handlers. Replicas may share one.

    Of two writers that read one version, one gets `ConcurrentTaskModificationError`. A save is one batch, and
    a cancelled save is waited for. The tasks of an owner are in a space, and those of callers without a name
    in another.

    Args:
        store, tenant, author, encryption, record: As for `Adapter`.
        owner_resolver: The function that names the owner of a call.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a"

    def __init__(
        self,
        store: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        record: bool = False,
        owner_resolver: OwnerResolver = resolve_user_scope,
    ) -> None:
        super().__init__(store, tenant=tenant, author=author, encryption=encryption, record=record)
        self._owner_of = owner_resolver

    def _tasks(self, context: ServerCallContext) -> BoundSpace:
        return self.space("tasks", owner=self._owner_of(context) or None)

    async def save(
        self,
        task: a2a_pb2.Task,
        *,
        event: Event | None = None,
        prev: a2a_pb2.Task | None = None,
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Store a task, and return its new version.

        Raises:
            ConcurrentTaskModificationError: The stored task has another version than `prev_version`. A task
                that moves to canceled is stored at any version, unless the stored one has ended or is absent.
        """
        space, name = self._tasks(context), f"task/{segment(task.id)}"
        parts = _split(task)

        async def fn(tx: Transaction) -> tuple[int, list[str]]:
            record: dict[str, Any] | None = await tx.documents.get(name)
            _check(task, record, prev_version)
            if record is None:
                life = await tx.documents.get(_LIVES, 0) + 1
                await tx.documents.put(_LIVES, life)
                record = {"life": life, "version": 0, "runs": {}}
            version = record["version"] + 1
            runs, writes, stale = _changes(record, parts, version)
            for key, run in writes.items():
                await tx.documents.put(key, run)
            bare = _without(task, "history", "artifacts")
            await tx.documents.put(name, {**record, "version": version, "runs": runs, "task": bare})
            return version, stale

        async def work() -> int:
            version, stale = (await space.transact(fn, message=f"save {task.id}")).value
            if stale:
                await space.call(lambda target: _delete_each(target, stale))
            return version

        return TaskVersion(await outlast_cancellation(work()))

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return a task with its version, or None if the owner of the call has no such task."""
        name = f"task/{segment(task_id)}"

        async def work(space: Space) -> StoredTask | None:
            found = await _read(space, name, await space.documents.get(name))
            return None if found is None else StoredTask(found[0], TaskVersion(found[1]))

        return await self._tasks(context).call(work)

    async def list(
        self, params: a2a_pb2.ListTasksRequest, context: ServerCallContext
    ) -> a2a_pb2.ListTasksResponse:
        """Return a page of the owner's tasks, the last changed first.

        Cost: the records of all tasks of the owner, and the messages and parts of those on the page.

        Raises:
            InvalidParamsError: The page token is not one of a former page.
        """
        cursor = decode_list_tasks_cursor(params.page_token) if params.page_token else None
        if params.page_token and cursor is None:
            raise InvalidParamsError(f"Invalid page token: {params.page_token}")
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE

        async def work(space: Space) -> a2a_pb2.ListTasksResponse:
            listed = [each async for each in space.documents.items(prefix="task/")]
            rows = [(_bare(record), name, record) for name, record in listed]
            rows = [row for row in rows if _matches(row[0], params)]
            rows.sort(key=lambda row: _place(row[0]).sort_key(), reverse=True)
            total = len(rows)
            if cursor is not None:
                rows = [row for row in rows if _place(row[0]).sort_key() < cursor.sort_key()]
            found = [await _read(space, name, record) for _, name, record in rows[:size]]
            tasks = [each[0] for each in found if each is not None]  # without one that was just deleted
            more = encode_list_tasks_cursor(_place(rows[size - 1][0])) if len(rows) > size else None
            return a2a_pb2.ListTasksResponse(
                tasks=tasks, total_size=total, page_size=size, next_page_token=more
            )

        return await self._tasks(context).call(work)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the owner, if there is one."""
        space, name = self._tasks(context), f"task/{segment(task_id)}"

        async def fn(tx: Transaction) -> int | None:
            record = await tx.documents.get(name)
            await tx.documents.delete(name)
            return None if record is None else record["life"]

        async def work() -> None:
            life = (await space.transact(fn, message=f"delete {task_id}")).value
            if life is not None:
                await space.call(lambda target: _delete_all(target, f"run/{life}/"))

        await outlast_cancellation(work())

    async def sweep(self) -> int:
        """Delete what interrupted deletions of tasks left, and return the number of documents."""

        async def work(ks: Keepstate) -> int:
            names = [name async for name in ks.spaces(f"{self.kind}/")]
            return sum([await _sweep(ks.space(name, record=self.records)) for name in names])

        return await outlast_cancellation(self.call(work))

    async def erase(self, owner: str) -> Erased:
        """Erase all tasks of an owner, with their events in this store; see `Adapter.erase`."""
        name = self.space_name("tasks", owner=owner)

        async def work(ks: Keepstate) -> None:
            stream = KeepstateEventStream(ks)
            records = [record async for _, record in ks.space(name).documents.items(prefix="task/")]
            for task in map(_bare, records):
                await ks.drop(stream.space_name(task.id))

        await self.call(work)
        return await super().erase(owner)


class KeepstateEventStream(Adapter, TaskEventStream):
    """The events of tasks, for `event_stream=` of a request handler, so that any replica can follow a task.

    A server's store tells a follower at once. An embedded store (memory, file, SQLite) is asked every 50 ms.

    Args:
        store, tenant, author, encryption: As for `Adapter`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a-events"

    def __init__(
        self,
        store: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
    ) -> None:
        super().__init__(store, tenant=tenant, author=author, encryption=encryption)

    async def publish(self, task_id: str, event: VersionedEvent) -> None:
        """Append an event of a task. A cancelled call is waited for."""
        stored = [_value(event.version), _dump(to_stream_response(event.event))]
        await outlast_cancellation(self.space(task_id).call(lambda space: space.events.append(stored)))

    async def subscribe(self, task_id: str, *, after: TaskVersion) -> AsyncGenerator[VersionedEvent, None]:
        """Yield the events of a task after a version, then wait for new ones, until the caller stops."""
        space = self.space(task_id)
        last = await space.call(lambda target: _last_up_to(target, after))
        following = self._follow(space, last)
        async with aclosing(following):
            async for stored in following:
                version = TaskVersion(stored.data[0])
                if version.is_after(after):
                    yield VersionedEvent(event=_event_of(stored), version=version)

    async def _follow(self, space: BoundSpace, after: int | None) -> AsyncGenerator[StoredEvent, None]:
        if not self._handles.is_embedded:
            following = space.on(self._handles.here()).events.follow(after=after)
            async with aclosing(cast("AsyncGenerator[StoredEvent, None]", following)) as found:
                async for stored in found:
                    yield stored
        while True:
            # A thread that waits for an event could not be cancelled.
            events = await _read_after(space, after)
            for stored in events:
                after = stored.number
                yield stored
            if not events:
                await asyncio.sleep(_POLL_S)

    async def destroy(self, task_id: str) -> None:
        """Delete the events of a task."""
        name = self.space_name(task_id)
        await outlast_cancellation(self.call(lambda ks: ks.drop(name)))


class KeepstatePushConfigs(Adapter, PushNotificationConfigStore):
    """The push configurations of tasks, for `push_config_store=` of a request handler.

    They contain tokens of the receivers: give `encryption` to store them encrypted.

    Args:
        store, tenant, author, encryption: As for `Adapter`.
        owner_resolver: The function that names the owner of a call.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a-push"

    def __init__(
        self,
        store: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        owner_resolver: OwnerResolver = resolve_user_scope,
    ) -> None:
        super().__init__(store, tenant=tenant, author=author, encryption=encryption)
        self._owner_of = owner_resolver

    async def set_info(
        self,
        task_id: str,
        notification_config: a2a_pb2.TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Store a configuration of a task, in place of one of the same id, and return it as stored."""
        config = normalize_push_notification_config(task_id, notification_config)
        owner = self._owner_of(context)
        key = f"{_owner_prefix(owner)}{segment(config.id)}"

        async def work(ks: Keepstate) -> None:
            if owner:  # first, so that an erasure finds every task of the owner
                await ks.space(self.space_name("tasks", owner=owner)).documents.put(segment(task_id), task_id)
            await ks.space(self.space_name(task_id)).documents.put(key, _dump(config))

        await outlast_cancellation(self.call(work))
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the configurations of a task that the owner of the call has set."""
        return await self._read(task_id, _owner_prefix(self._owner_of(context)))

    async def get_info_for_dispatch(self, task_id: str) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the configurations of a task, of all owners."""
        return await self._read(task_id, "")

    async def _read(self, task_id: str, prefix: str) -> list[a2a_pb2.TaskPushNotificationConfig]:
        async def work(space: Space) -> list[a2a_pb2.TaskPushNotificationConfig]:
            listed = space.documents.items(prefix=prefix)
            return [a2a_pb2.TaskPushNotificationConfig.FromString(each) async for _, each in listed]

        return await self.space(task_id).call(work)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Delete a configuration of the owner of the call, or all of them that the task has."""
        prefix = _owner_prefix(self._owner_of(context))

        async def work(space: Space) -> None:
            if config_id is None:
                await _delete_all(space, prefix)
            else:
                await space.documents.delete(f"{prefix}{segment(config_id)}")

        await outlast_cancellation(self.space(task_id).call(work))

    async def erase(self, owner: str) -> Erased:
        """Erase all configurations of an owner; see `Adapter.erase`."""
        tasks = self.space_name("tasks", owner=owner)

        async def work(ks: Keepstate) -> None:
            for task_id in [id async for _, id in ks.space(tasks).documents.items()]:
                await ks.space(self.space_name(task_id)).expunge(_owner_prefix(owner))

        await self.call(work)
        return await super().erase(owner)


# ---- tasks in pieces


class _Part(NamedTuple):
    """The history, or an artifact: what is not repeated in it, and the messages or parts that are."""

    head: bytes
    pieces: list[bytes]


class _Run(NamedTuple):
    """The state of the stored runs of a part. A part whose beginning changed gets a new generation."""

    generation: int
    length: int
    digest: bytes
    head_digest: bytes


_EMPTY: Final = _Run(0, 0, b"", b"")


def _split(task: a2a_pb2.Task) -> dict[str, _Part]:
    """Return the history and the artifacts of a task, by names that sort in no special order."""
    parts = {"history": _Part(b"", [*map(_dump, task.history)])}
    for index, artifact in enumerate(task.artifacts):
        parts[str(index)] = _Part(_without(artifact, "parts"), [*map(_dump, artifact.parts)])
    return parts


def _changes(
    record: Mapping[str, Any], parts: Mapping[str, _Part], version: int
) -> tuple[dict[str, list[Any]], dict[str, list[Any]], list[str]]:
    """Compare a task with its stored runs.

    Returns:
        The state of the runs, the new runs by name, and the beginnings of the names of runs that are stale.
    """
    life: int = record["life"]
    stored = {name: _Run(*run) for name, run in record["runs"].items()}
    runs: dict[str, list[Any]] = {}
    writes: dict[str, list[Any]] = {}
    stale = [f"run/{life}/{name}/" for name in stored if name not in parts]
    for name, part in parts.items():
        was = stored.get(name, _EMPTY)
        generation, start = was.generation, was.length
        if start > len(part.pieces) or _digest(part.pieces[:start]) != was.digest:
            stale.append(f"run/{life}/{name}/{generation}/")
            generation, start = generation + 1, 0
        head_digest = _digest([part.head])
        is_new = name not in stored or generation != was.generation
        head = part.head if is_new or head_digest != was.head_digest else None
        if start < len(part.pieces) or head is not None:
            writes[f"run/{life}/{name}/{generation}/{version:012}"] = [head, part.pieces[start:]]
        runs[name] = [*_Run(generation, len(part.pieces), _digest(part.pieces), head_digest)]
    return runs, writes, stale


async def _read(space: Space, name: str, record: dict[str, Any] | None) -> tuple[a2a_pb2.Task, int] | None:
    """Return a task and its version, or None if it was deleted.

    No transaction is needed: the runs of a record are never written again. If some were deleted, the record
    was replaced before that, and is read again.

    Raises:
        CorruptError: Runs are missing.
    """
    while record is not None:
        task = await _join(space, record)
        if task is not None:
            return task, record["version"]
        newer: dict[str, Any] | None = await space.documents.get(name)
        if newer == record:
            raise CorruptError(
                f"messages or parts of {name!r} are missing in {space!r}; run `keepstate doctor`"
            )
        record = newer
    return None


async def _join(space: Space, record: Mapping[str, Any]) -> a2a_pb2.Task | None:
    """Return the task of a record with its history and its artifacts, or None if some were deleted."""
    runs = {name: _Run(*run) for name, run in record["runs"].items()}
    heads: dict[str, bytes] = {}
    pieces: dict[str, list[bytes]] = {name: [] for name in runs}
    async for key, (head, some) in space.documents.items(prefix=f"run/{record['life']}/"):
        _, _, name, generation, version = key.split("/")
        if name not in runs or runs[name].generation != int(generation) or int(version) > record["version"]:
            continue
        heads[name] = heads[name] if head is None else head
        pieces[name] += some
    if any(run.length != len(pieces[name]) or name not in heads for name, run in runs.items()):
        return None
    task = _bare(record)
    task.history.extend(map(a2a_pb2.Message.FromString, pieces.pop("history")))
    for index in range(len(pieces)):
        artifact = a2a_pb2.Artifact.FromString(heads[str(index)])
        artifact.parts.extend(map(a2a_pb2.Part.FromString, pieces[str(index)]))
        task.artifacts.append(artifact)
    return task


def _bare(record: Mapping[str, Any]) -> a2a_pb2.Task:
    task: a2a_pb2.Task = a2a_pb2.Task.FromString(record["task"])
    return task


def _check(task: a2a_pb2.Task, record: Mapping[str, Any] | None, expected: TaskVersion) -> None:
    """Raise ConcurrentTaskModificationError if a task may not be stored over the stored one."""
    if task.status.state == a2a_pb2.TASK_STATE_CANCELED:
        stored = None if record is None else _bare(record)
        if stored is None or stored.status.state in _ENDED:
            raise ConcurrentTaskModificationError(task.id)
    elif TaskVersion(0 if record is None else record["version"]) != expected:
        raise ConcurrentTaskModificationError(task.id)


async def _sweep(space: Space) -> int:
    # A task that begins after this read is above `last`. One that began before is seen, or was deleted.
    last = await space.documents.get(_LIVES, 0)
    lives = {record["life"] async for _, record in space.documents.items(prefix="task/")}
    removed, after = 0, None
    while names := [name async for name in space.documents.keys(prefix="run/", after=after, limit=1)]:
        life = names[0].split("/")[1]
        if int(life) <= last and int(life) not in lives:
            removed += await _delete_all(space, f"run/{life}/")
        after = f"run/{life}0"  # which sorts behind all names of the task
    return removed


async def _delete_each(space: Space, prefixes: Iterable[str]) -> int:
    return sum([await _delete_all(space, prefix) for prefix in prefixes])


async def _delete_all(space: Space, prefix: str) -> int:
    """Delete the documents whose names begin with a prefix, and return their number."""
    removed = 0
    while names := [name async for name in space.documents.keys(prefix=prefix, limit=_AT_ONCE)]:
        removed += await run_in_transaction(space, make_deletion(names), message="delete", turn="adapter")
    return removed


def _matches(task: a2a_pb2.Task, params: a2a_pb2.ListTasksRequest) -> bool:
    since = (
        params.status_timestamp_after.ToNanoseconds() if params.HasField("status_timestamp_after") else None
    )
    changed = _place(task).timestamp_ns
    return (
        (not params.context_id or task.context_id == params.context_id)
        and (not params.status or task.status.state == params.status)
        and (since is None or (changed is not None and changed >= since))
    )


def _place(task: a2a_pb2.Task) -> ListTasksCursor:
    """Return the place of a task in the order of listings."""
    is_timed = task.HasField("status") and task.status.HasField("timestamp")
    changed = task.status.timestamp.ToNanoseconds() if is_timed else None
    return ListTasksCursor(timestamp_ns=changed, task_id=task.id)


# ---- events


async def _read_after(space: BoundSpace, after: int | None) -> list[StoredEvent]:
    return await space.call(lambda target: target.events.read(after=after))


async def _last_up_to(space: Space, after: TaskVersion) -> int | None:
    """Return the number of the last event that is not after a version, or None."""
    before: int | None = None
    while found := await space.events.read(reverse=True, before=before, limit=64):
        for event in found:
            if not TaskVersion(event.data[0]).is_after(after):
                return event.number
        before = found[-1].number
    return None


def _event_of(stored: StoredEvent) -> Event:
    response = a2a_pb2.StreamResponse.FromString(stored.data[1])
    event: Event = getattr(response, str(response.WhichOneof("payload")))
    return event


def _value(version: TaskVersion) -> int | str:
    value: int | str = version._value  # pyright: ignore[reportPrivateUsage] - theirs alone can be stored
    return value


# ---- bytes


def _dump(message: Any) -> bytes:
    """Return the bytes of a message of protobuf; equal messages have equal ones."""
    dumped: bytes = message.SerializeToString(deterministic=True)
    return dumped


def _without(message: Any, *fields: str) -> bytes:
    """Return the bytes of a message without some of its fields."""
    copy: Any = type(message)()
    copy.CopyFrom(message)
    for field in fields:
        copy.ClearField(field)
    return _dump(copy)


def _digest(pieces: Iterable[bytes]) -> bytes:
    """Return a hash of a sequence of bytes; of nothing, nothing."""
    hashed = blake2b(digest_size=16)
    is_empty = True
    for piece in pieces:
        is_empty = False
        hashed.update(len(piece).to_bytes(8))
        hashed.update(piece)
    return b"" if is_empty else hashed.digest()


def _owner_prefix(owner: str) -> str:
    return f"{segment(owner)}/"
