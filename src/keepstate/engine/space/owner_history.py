"""Moments of a shared history at which documents of an owner changed, for the export of the owner.

A moment is a commit with the values that it gave to documents under some prefixes. It names no other author,
and has the message only if the owner wrote it. An import steps over moments: they are for readers, because a
commit also belongs to the owners of the other documents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from keepstate.engine.history.record import EMPTY_STATE, CommitRecord, heads
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.stores.protocol import Store
from keepstate.values.builtin import json_form
from keepstate.values.codec import FORMS
from keepstate.values.contents import open_contents, whole
from keepstate.values.diff import unlike_keys
from keepstate.values.merkle import gather
from keepstate.values.nodes import Entry
from keepstate.values.refs import together

_WORDS = {layout.BRANCHES: "branches", layout.TAGS: "tags"}


async def moments(
    store: Store, stored: str, prefixes: Sequence[str], owner: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield the moments at which documents under the prefixes changed, each after those before it.

    Cost: a read for each commit of the space, and what it changed.

    Args:
        store: The store.
        stored: The stored name of the space.
        prefixes: The prefixes of the names of documents, branches and tags.
        owner: The owner.
    """
    session = HistorySession(Unit(store, stored, stored), Records(), states=FORMS)
    begins = tuple(prefixes)
    named: dict[bytes, dict[str, list[str]]] = {}
    for part, word in _WORDS.items():
        async for name, head in heads(session.unit, part):
            names = named.setdefault(head.commit, {})
            if name.startswith(begins):
                names.setdefault(word, []).append(name)
    for _, id in sorted([(record.generation, id) async for id, record in _commits(session, named)]):
        record = await session.record(id)
        changed = await _changed(session, id, record, begins)
        if any(changed.values()) or named.get(id):
            told = {"author": owner, "message": record.message} if record.author == owner else {}
            at = to_datetime(record.created_ms).isoformat()
            yield {"moment": id.hex(), "at": at, **told, **changed, **named.get(id, {})}


async def _commits(
    session: HistorySession, ids: Iterable[bytes]
) -> AsyncIterator[tuple[bytes, CommitRecord]]:
    """Yield the commits and all their ancestors that are stored."""
    waiting = list(ids)
    seen = set(waiting)
    while waiting:
        id = waiting.pop()
        yield id, await session.record(id)
        fresh = [parent for parent in await session.parents(id) if parent not in seen]
        seen.update(fresh)
        waiting += fresh


async def _changed(
    session: HistorySession, id: bytes, record: CommitRecord, begins: tuple[str, ...]
) -> dict[str, Any]:
    """Return the documents that a commit gave a value, and the names of those that it deleted."""
    parents = await session.parents(id)
    before = (await session.record(parents[0])).root if parents else EMPTY_STATE
    sides = await session.serve(together([open_contents(before), open_contents(record.root)]))
    documents: dict[str, Any] = {}
    deleted: list[str] = []
    for was, entry in await session.serve(unlike_keys(*sides)):
        name = _name(was or entry)
        if not name.startswith(begins):
            continue
        if entry is None:
            deleted.append(name)
            continue
        encodings = await session.serve(whole([entry]))
        value = FORMS.assemble(encodings[0], await session.serve(gather(encodings)))
        documents[name] = json_form(value)
    return {"documents": documents} | ({"deleted": deleted} if deleted else {})


def _name(entry: Entry | None) -> str:
    name = "" if entry is None else FORMS.assemble(entry.key, {})
    return name if isinstance(name, str) else ""
