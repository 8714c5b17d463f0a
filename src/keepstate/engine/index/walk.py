"""Walks over spaces: which of them have changed, and the subjects of one, without an outbox or a row.

The subjects are found from their own records, the truth that an index is compared with. Cost of one space:
one call for the sizes of its parts, one for each part of its queue and for its approvals, and up to one for
each kind of subject and each subject in a shared space.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import scan_pages
from keepstate.engine.kernel.subjects import (
    CARRIED,
    FOREIGN,
    OUTBOXES,
    QUEUE,
    Subject,
    changed_subjects,
    owner_of,
    subject_in,
)
from keepstate.engine.queue import tasks, ticks
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Store

_LISTED: Final = (layout.READY, layout.WAITING, layout.CLAIMED, layout.DEAD)
"""The parts of a queue whose tasks are in the index."""
_UNKNOWN: Final = -1
"""The time of the last change, for a space that was never visited."""
_SETTLED_MS: Final = 1_000
_LAST: Final = b"/" + b"\xff" * 40
"""Sorts after each name that continues a subject's with a `/`, also after one that is cut there."""


class ChangedSpaces:
    """The spaces that were visited, with the times of their last changes, so that unchanged ones are skipped.

    Use: `begin`, `has_changed` for each space that exists, `end`; and `forget` if the visits fail.
    """

    def __init__(self) -> None:
        self._changed_ms: dict[str, int | None] = {}
        self._present: dict[str, int | None] = {}
        self._now_ms = 0

    def begin(self, now_ms: int) -> None:
        """Begin a listing of all spaces, at a time of the store."""
        self._present, self._now_ms = {}, now_ms

    def has_changed(self, space: str, at_ms: int | None) -> bool:
        """Return whether a space may have changed since the last visit, given the time of its last change."""
        # Another change of the same time may still come, so a late change is visited once more.
        is_settled = at_ms is not None and at_ms <= self._now_ms - _SETTLED_MS
        self._present[space] = at_ms if is_settled else None
        return at_ms is None or self._changed_ms.get(space, _UNKNOWN) != at_ms

    def end(self) -> None:
        """End the listing: spaces that it did not have are forgotten."""
        self._changed_ms = self._present

    def forget(self, spaces: Iterable[str]) -> None:
        """Take some spaces as never visited."""
        for space in spaces:
            self._changed_ms.pop(space, None)


async def subjects_in(store: Store, stored: str, space: str) -> AsyncGenerator[Subject]:
    """Yield the subjects of a space, each of them once or twice.

    Args:
        store: The opened store.
        stored: The stored name of the space.
        space: The name of the space, without its tenant.
    """
    if (own := owner_of(space)) is not None:
        yield own
    parts = (await store.sizes(stored)).parts

    def has(part: bytes) -> bool:
        return part in parts or part[:1] in parts

    for part, prefix in ((layout.OUTBOX, OUTBOXES), (layout.CARRIED, CARRIED)):
        if has(part):
            async for entries in scan_pages(store, stored, prefix):
                for entry in entries:
                    yield subject_in(prefix, entry)
    if has(layout.DOCUMENTS):
        async for subject in subjects_of_documents(store, stored, space):
            yield subject
    if has(layout.APPROVALS):
        async for entries in scan_pages(store, stored, layout.APPROVALS):
            for subject in changed_subjects(space, [entry.key for entry in entries]):
                yield subject
    listed = [part for part in (*_LISTED, layout.SCHEDULES) if has(part)]
    for kind in await _kinds_of_tasks(store, stored, listed):
        yield Subject(QUEUE, kind)


async def _kinds_of_tasks(store: Store, stored: str, parts: Sequence[bytes]) -> set[str]:
    """Return the kinds of the tasks, and of the schedules, in some parts of a space."""
    kinds = set[str]()
    for part in parts:
        async for entries in scan_pages(store, stored, part):
            if part != layout.SCHEDULES:
                kinds |= {tasks.index_in(entry).kind for entry in entries}
                continue
            for entry in entries:
                with suppress(CorruptError):
                    kinds.add(ticks.decode_schedule(entry.value, "a schedule").kind)
    return kinds


async def subjects_of_documents(store: Store, stored: str, space: str) -> AsyncGenerator[Subject]:
    """Yield the subjects that have documents in a space, and skip all documents but the first of each."""
    key: bytes | None = b""
    for prefix in FOREIGN:
        after = prefix
        while True:
            if key is not None and key <= after:
                key = await _key_behind(store, stored, after)
            if key is None or not key.startswith(prefix):
                break
            for subject in changed_subjects(space, [key]):
                yield subject
            name, is_part, _ = key[len(prefix) :].partition(b"/")
            after = prefix + name + _LAST if is_part else key


async def _key_behind(store: Store, stored: str, after: bytes) -> bytes | None:
    """Return the first key of a document above another one; None if there is none."""
    place: bytes | None = after
    while place is not None:
        page = await store.scan(stored, layout.DOCUMENTS, after=place, limit=1)
        if page.entries:
            return page.entries[0].key
        place = page.next
    return None
