"""The past of keys: their earlier values, and the times when they were last written.

Values are read from the record of the space. Times are approximate: a document stores the revision of its
last write, not the time. Therefore some writes also append the store's time and latest revision to a stream.
A manager that has written does the same when it is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from keepstate.engine.space.joint_work import is_recorded
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.managers.binding import ApplyWork, Namespace, change_pages

_TIMES: Final = "times"
_READ: Final = 1_000


@dataclass(frozen=True, slots=True)
class StateMoment:
    """The value of a key at one time.

    Attributes:
        value: The value from that time on.
        at: Time of the write by the writer's clock, UTC.
        author: Author of the write, or None.
        message: Message of the write.
        commit: The id of the commit of `main` that has the value.
    """

    value: Any
    at: datetime
    author: str | None
    message: str
    commit: str


async def read_key_history(space: Space | Transaction, name: str, limit: int) -> list[StateMoment]:
    """Return the values of a document since it was last absent, newest first.

    Raises:
        InvalidError: The space does not record.
    """
    history = space.history
    if not await is_recorded(space):
        if await space.documents.entry(name) is None:
            return []
        where = space.executor.name
        raise InvalidError(
            f"Space {where!r} does not record changes. Turn it on with StateConfig(record=True)."
        )
    values: list[StateMoment] = []
    ref = "main"
    while len(values) < limit:
        try:
            commit = (await history.blame((name,), ref)).commit
        except NotFoundError:
            break
        value = (await history.checkout(commit, load=[name]))[name]
        values.append(StateMoment(value, commit.created_at, commit.author, commit.message, commit.id))
        if not commit.parents:
            break
        ref = commit.parents[0]
    return values


async def record_time(namespace: Namespace, least_s: float = 0.0) -> None:
    """Record the store's time and revision, unless that was done within `least_s` seconds."""
    if not isinstance(namespace.space, Space):
        return
    stream = namespace.space.events.stream(namespace.label(_TIMES))
    # Entries at this revision or below were written before this time.
    revision = await namespace.space.revision()
    now = await namespace.space.now()
    last = await stream.last()
    if last is not None and least_s:
        noted = await stream.read(after=last - 1, limit=1)
        if noted and (now - noted[0].data[0]).total_seconds() < least_s:
            return
    await stream.append((now, revision))


async def delete_old_keys(namespace: Namespace, before: datetime, apply: ApplyWork) -> int:
    """Remove documents whose records show a last write before a time, and return the count."""
    last, number = await _revision_at(namespace, before)

    async def remove(inside: Namespace, ids: Sequence[str]) -> int:
        names = [inside.name(id) for id in ids]
        found = await inside.space.documents.entries(*names)
        old = [name for name, entry in found.items() if 0 < entry.version <= last]
        for name in old:
            await inside.space.documents.delete(name)
        return len(old)

    ids = [id async for id in namespace.collection().ids()] if last else []
    removed = await change_pages(apply, namespace, ids, remove, message="clean up old keys")
    if number is not None:
        await namespace.space.events.stream(namespace.label(_TIMES)).truncate(number)
    return removed


async def _revision_at(namespace: Namespace, before: datetime) -> tuple[int, int | None]:
    """Return the revision of the last record at or before a time, and the number of the record before it.

    The revision is 0 if there is no such record. The number is None if no record precedes it.
    """
    stream = namespace.space.events.stream(namespace.label(_TIMES))
    found, after, passed = 0, None, None
    while True:
        page = await stream.read(after=after, limit=_READ)
        for event in page:
            now, revision = event.data
            if now > before:
                return found, passed
            found, after, passed = max(found, revision), event.number, after
        if len(page) < _READ:
            return found, passed
