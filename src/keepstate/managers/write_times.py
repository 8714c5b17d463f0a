"""Approximate write times of keys, for `cleanup`.

A document stores the revision of its last write, not the time. Therefore some writes also append the store's
time and latest revision to a stream. A manager that has written does the same when it is closed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.space import Space
from keepstate.managers.binding import ApplyWork, Namespace

_TIMES: Final = "times"
_READ, _REMOVED_AT_ONCE = 1_000, 300


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
        record_failure = await stream.read(after=last - 1, limit=1)
        if record_failure and (now - record_failure[0].data[0]).total_seconds() < least_s:
            return
    await stream.append((now, revision))


async def delete_old_keys(namespace: Namespace, before: datetime, together: ApplyWork) -> int:
    """Remove documents that were last written before a time, as far as records show, and return the count."""
    last, number = await _revision_at(namespace, before)
    keys = (
        [key async for key in namespace.space.documents.keys(escape_pattern(namespace.prefix) + "*")]
        if last
        else []
    )
    removed = 0
    for begin in range(0, len(keys), _REMOVED_AT_ONCE):
        page = keys[begin : begin + _REMOVED_AT_ONCE]

        async def work(inside: Namespace, page: list[str] = page) -> int:
            found = await inside.space.documents.entries(*page)
            old = [key for key, entry in found.items() if 0 < entry.version <= last]
            for key in old:
                await inside.space.documents.delete(key)
            return len(old)

        removed += await together(namespace, work, message="clean up old keys")
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
        record_failure = await stream.read(after=after, limit=_READ)
        for event in record_failure:
            now, revision = event.data
            if now > before:
                return found, passed
            found, after, passed = max(found, revision), event.number, after
        if len(record_failure) < _READ:
            return found, passed
