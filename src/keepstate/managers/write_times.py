"""When keys were last written, as far as `cleanup` needs it.

A document tells by which revision it was written, not when. So now and then a write also notes the store's
time, and the revision that was the last one then; and so does a manager that has written when it is closed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.space import Space
from keepstate.managers.binding import Folder, Together

_TIMES: Final = "times"
_READ, _REMOVED_AT_ONCE = 1_000, 300


async def note_time(folder: Folder, least_s: float = 0.0) -> None:
    """Note the store's time, unless that was done within so many seconds."""
    if not isinstance(folder.space, Space):
        return
    stream = folder.space.events.stream(folder.label(_TIMES))
    # What has this revision or a lower one was written before this time.
    revision = await folder.space.revision()
    now = await folder.space.now()
    last = await stream.last()
    if last is not None and least_s:
        noted = await stream.read(after=last - 1, limit=1)
        if noted and (now - noted[0].data[0]).total_seconds() < least_s:
            return
    await stream.append((now, revision))


async def remove_old(folder: Folder, before: datetime, together: Together) -> int:
    """Remove documents that were last written before a time, as far as notes tell, and return how many."""
    last, number = await _revision_at(folder, before)
    keys = (
        [key async for key in folder.space.documents.keys(escape_pattern(folder.prefix) + "*")]
        if last
        else []
    )
    removed = 0
    for begin in range(0, len(keys), _REMOVED_AT_ONCE):
        page = keys[begin : begin + _REMOVED_AT_ONCE]

        async def work(inside: Folder, page: list[str] = page) -> int:
            found = await inside.space.documents.entries(*page)
            old = [key for key, entry in found.items() if 0 < entry.version <= last]
            for key in old:
                await inside.space.documents.delete(key)
            return len(old)

        removed += await together(folder, work, message="clean up what is old")
    if number is not None:
        await folder.space.events.stream(folder.label(_TIMES)).truncate(number)
    return removed


async def _revision_at(folder: Folder, before: datetime) -> tuple[int, int | None]:
    """Return the revision that the last note tells which is not younger, and the number of the one before.

    The revision is 0 if there is no such note, the number None if none comes before it.
    """
    stream = folder.space.events.stream(folder.label(_TIMES))
    found, after, passed = 0, None, None
    while True:
        noted = await stream.read(after=after, limit=_READ)
        for event in noted:
            now, revision = event.data
            if now > before:
                return found, passed
            found, after, passed = max(found, revision), event.number, after
        if len(noted) < _READ:
            return found, passed
