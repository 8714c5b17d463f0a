"""Messages to tasks: rows of the queue, until the task receives them or ends."""

from __future__ import annotations

from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import InvalidError, NotFoundError, TransitionError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack

_PACKED_MS: Final = 8


def message_prefix(task_id: str, name: str | None = None) -> bytes:
    """Return the key prefix of all messages to a task, or of those of a name. A stamp completes it."""
    return layout.MESSAGES + (pack(task_id) if name is None else pack(task_id, name))


async def send_message(
    executor: Executor, task_id: str, name: str, value: object, send_id: str | None
) -> bool:
    """Store a message to a task, and wake the task if it waits for it; see `Queue.send`."""
    prefix = message_prefix(task_id, name)
    stored = executor.encode(value, prefix)
    keys = [tasks.task_key(task_id)]
    if send_id is not None:
        store = await executor.store()
        digest = content_name(store, executor.stored_name, f"{task_id}\0{send_id}".encode())
        keys.append(layout.SENT + pack(task_id, digest))

    async def work(unit: Unit) -> bool:
        entry, *sent = await unit.read(*keys)
        if entry is None:
            raise NotFoundError(f"no task of {executor.name!r} has the id {task_id!r}")
        record = tasks.decode_record(entry.value, f"task {task_id!r} of {executor.name!r}")
        life = record.put_at_ms.to_bytes(_PACKED_MS, "big", signed=True)
        if any(known is not None and known.value == life for known in sent):
            return False
        if record.state in tasks.ENDED:
            raise TransitionError(
                f"task {task_id!r} of {executor.name!r} is {record.state} and takes no messages",
                current=record.state,
                wanted="sent",
            )
        if record.messages >= limits.TASK_MESSAGES:
            raise InvalidError(
                f"task {task_id!r} of {executor.name!r} has {record.messages} messages that it has not "
                "received, and takes no more"
            )
        unit.append(prefix, stored)
        if send_id is not None:
            unit.put(keys[1], life, ttl_ms=limits.TOKEN_KEPT_MS)
        record = tasks.replaced(record, messages=record.messages + 1)
        if record.state == "waiting" and name in record.waits_on:
            followers.wake(unit, record, await unit.now_ms())
        else:
            tasks.rewrite(unit, record, entry.version)
        return True

    return (await executor.run(work))[0]


async def unread(executor: Executor, unit: Unit, record: TaskRecord, name: str | None = None) -> list[Entry]:
    """Return the messages to a task, or those of a name, in the order of their sending.

    The unit has read the task's record, which every sending writes. So its batch fails if one comes first.
    """
    if not record.messages:
        return []
    prefix = message_prefix(record.id, name)
    if executor.gathers:
        return [entry async for entry in unit.scan(prefix)]
    page = await unit.store.scan(unit.space, prefix, limit=limits.TASK_MESSAGES)
    return [*page.entries]


async def drop_messages(executor: Executor, unit: Unit, record: TaskRecord) -> TaskRecord:
    """Delete the messages that a task has not received. Return its record, not yet written."""
    for entry in await unread(executor, unit, record):
        unit.delete(entry.key)
    return tasks.replaced(record, messages=0)
