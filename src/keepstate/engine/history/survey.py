"""Looks at all of a history: how large it is, and whether it is what was written."""

from __future__ import annotations

from keepstate.engine.history.ancestry import depth
from keepstate.engine.history.commits import HistoryStats, Verified
from keepstate.engine.history.heads import heads
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.large_values import parse_manifest
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry, Store
from keepstate.values.merkle import admit_object, reach


async def survey(store: Store, space: str) -> HistoryStats:
    """Return how large a history is; what is written meanwhile may be counted or not."""
    counts: dict[bytes, int] = {}
    size_bytes = 0
    for part in (layout.BRANCHES, layout.TAGS, layout.COMMITS, layout.STATES):
        counts[part] = 0
        after: bytes | None = None
        while True:
            page = await store.scan(space, part, after=after)
            counts[part] += len(page.entries)
            if part in (layout.COMMITS, layout.STATES):
                size_bytes += sum(map(_size_bytes, page.entries))
            after = page.next
            if after is None:
                break
    branches, tags, commits, objects = counts.values()
    return HistoryStats(branches, tags, commits, objects, size_bytes)


def _size_bytes(entry: Entry) -> int:
    manifest = parse_manifest(entry.value, describe(entry.key))
    return len(entry.key) + len(entry.value) + (manifest.size_bytes if manifest else 0)


async def verify(unit: Unit) -> Verified:
    """Return what is damaged in all that branches and tags lead to."""
    session = HistorySession(unit, Records())
    problems: list[str] = []
    todo: list[bytes] = []
    for part, what in ((layout.BRANCHES, "branch"), (layout.TAGS, "tag")):
        try:
            async for name, head in heads(unit, part):
                todo.append(head.commit)
                number = await depth(session, head.commit)
                if number != head.number:
                    problems.append(f"{what} {name!r} counts {head.number} commits, and there are {number}")
        except CorruptError as error:
            problems.append(str(error))
    commits, objects = set(todo), set[bytes]()
    while todo:
        id = todo.pop()
        try:
            record = await session.record(id)
            await session.serve(reach([record.root], objects, admit_object), keep=False)
            objects.difference_update(record.roots())  # another commit may not carry them
            for parent in await session.parents(id):
                if parent not in commits:
                    commits.add(parent)
                    todo.append(parent)
        except CorruptError as error:
            problems.append(f"commit {id.hex()}: {error}")
    return Verified(len(commits), len(objects), tuple(dict.fromkeys(problems)))
