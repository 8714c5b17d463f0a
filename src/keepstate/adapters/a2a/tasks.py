"""`KeepstateTaskStore`: the tasks of an A2A server, with versions, in a space for each owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from keepstate.adapters.a2a.event_stream import KeepstateEventStream
from keepstate.adapters.a2a.pieces import bare_task, find_changes, read_task, split, without
from keepstate.adapters.base import (
    BoundSpace,
    RecordingAdapter,
    RecordingOptions,
    StoreLike,
    outlast_cancellation,
    sweep_numbers,
)
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import MissingExtraError
from keepstate.names import DEFAULT_URL, segment

if TYPE_CHECKING:
    from a2a.server.context import ServerCallContext
    from a2a.server.events.event_queue import Event

try:
    from a2a.server.cluster.task_store import (
        ConcurrentTaskModificationError,
        StoredTask,
        VersionedTaskStore,
    )
    from a2a.server.cluster.version import TaskVersion
    from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
    from a2a.types import a2a_pb2
    from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
    from a2a.utils.errors import InvalidParamsError
    from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
except ImportError as error:
    raise MissingExtraError.of("a2a", "a2a-sdk 1.3") from error

_ENDED: Final = frozenset(
    {
        a2a_pb2.TASK_STATE_COMPLETED,
        a2a_pb2.TASK_STATE_CANCELED,
        a2a_pb2.TASK_STATE_FAILED,
        a2a_pb2.TASK_STATE_REJECTED,
    }
)
_LIVES: Final = "lives"
"""The number of tasks that the space has had, also those that were deleted."""


class KeepstateTaskStore(RecordingAdapter, VersionedTaskStore):
    """The tasks of an A2A server, for `task_store=` of its request handlers. Replicas may share one.

    Of two writers that read one version, one gets `ConcurrentTaskModificationError`. A save is one batch, and
    a cancelled save is waited for. The tasks of an owner are in a space, and those of callers without a name
    in another.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner_resolver: The function that names the owner of a call.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner_resolver: OwnerResolver = resolve_user_scope,
        **options: Unpack[RecordingOptions],
    ) -> None:
        super().__init__(store, **options)
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
        parts = split(task)

        async def fn(tx: Transaction) -> tuple[int, list[str]]:
            record: dict[str, Any] | None = await tx.documents.get(name)
            _check(task, record, prev_version)
            if record is None:
                life = await tx.documents.get(_LIVES, 0) + 1
                await tx.documents.put(_LIVES, life)
                record = {"life": life, "version": 0, "runs": {}}
            version = record["version"] + 1
            runs, writes, stale = find_changes(record, parts, version)
            for key, run in writes.items():
                await tx.documents.put(key, run)
            bare = without(task, "history", "artifacts")
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
            found = await read_task(space, name, await space.documents.get(name))
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
            rows = [(bare_task(record), name, record) for name, record in listed]
            rows = [row for row in rows if _matches(row[0], params)]
            rows.sort(key=lambda row: _place(row[0]).sort_key(), reverse=True)
            total = len(rows)
            if cursor is not None:
                rows = [row for row in rows if _place(row[0]).sort_key() < cursor.sort_key()]
            found = [await read_task(space, name, record) for _, name, record in rows[:size]]
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
                await space.call(lambda target: target.documents.delete_all(f"run/{life}/"))

        await outlast_cancellation(work())

    async def sweep_space(self, space: Space) -> int:
        """Delete what interrupted deletions of tasks left in a space, and return the number of documents."""
        # A task that begins after this read is above `last`. One that began before is seen, or was deleted.
        last = await space.documents.get(_LIVES, 0)
        live = {record["life"] async for _, record in space.documents.items(prefix="task/")}
        return await sweep_numbers(space, "run", last=last, live=live)

    async def erase(self, owner: str) -> Erased:
        """Erase all tasks of an owner, with their events in this store; see `Adapter.erase`."""
        name = self.space_name("tasks", owner=owner)

        async def work(ks: Keepstate) -> None:
            stream = KeepstateEventStream(ks)
            records = [record async for _, record in ks.space(name).documents.items(prefix="task/")]
            for task in map(bare_task, records):
                await ks.drop(stream.space_name(task.id))

        await self.call(work)
        return await super().erase(owner)


def _check(task: a2a_pb2.Task, record: Mapping[str, Any] | None, expected: TaskVersion) -> None:
    """Raise ConcurrentTaskModificationError if a task may not be stored over the stored one."""
    if task.status.state == a2a_pb2.TASK_STATE_CANCELED:
        stored = None if record is None else bare_task(record)
        if stored is None or stored.status.state in _ENDED:
            raise ConcurrentTaskModificationError(task.id)
    elif TaskVersion(0 if record is None else record["version"]) != expected:
        raise ConcurrentTaskModificationError(task.id)


async def _delete_each(space: Space, prefixes: Iterable[str]) -> int:
    return sum([await space.documents.delete_all(prefix) for prefix in prefixes])


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
