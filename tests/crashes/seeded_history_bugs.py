"""Bugs of histories and their collectors, planted into ours from outside; see `seeded_bugs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from keepstate.engine.history import commit_request, history, references, retention
from keepstate.engine.history.objects import HistoryObjects
from keepstate.engine.history.record import Grafts, Head
from keepstate.engine.history.revisions import Found
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.unit import Unit
from keepstate.stores.protocol import Applied, Batch, Check, Delete, Entry, Outcome, Store
from tests.crashes.seeded_bugs import Planted


@contextmanager
def new_objects_collected() -> Planted:
    """Delete all that is not marked, also what was written after the collection began."""
    right, right_delete = retention._entries, retention.delete_garbage

    class Old(int):
        def __lt__(self, other: int) -> bool:
            return True

    async def entries(store: Store, space: str, *prefixes: bytes) -> AsyncIterator[Entry]:
        async for entry in right(store, space, *prefixes):
            yield msgspec.structs.replace(entry, version=Old(entry.version))

    async def delete(store: Store, space: str, garbage: Sequence[Check], what: str) -> int:
        checks = [Check(check.key, version=int(check.version or 0)) for check in garbage]
        return await right_delete(store, space, checks, what)

    with patch.object(retention, "_entries", entries), patch.object(retention, "delete_garbage", delete):
        yield


@contextmanager
def garbage_deleted_unseen() -> Planted:
    """Delete what was garbage, without looking whether somebody has put it again."""

    async def delete(store: Store, space: str, garbage: Sequence[Check], _what: str) -> int:
        outcome = (await store.apply([Batch(space, [Delete(check.key) for check in garbage])]))[0]
        assert isinstance(outcome, Applied)
        return len(garbage)

    with patch.object(retention, "delete_garbage", delete):
        yield


@contextmanager
def moved_names_overlooked() -> Planted:
    """Read branches and tags page by page, and not where they have gone meanwhile."""

    async def marked(store: Store, space: str, since: int) -> set[bytes]:
        heads = {
            retention._commit(entry.value)
            async for entry in retention._entries(store, space, layout.BRANCHES, layout.TAGS)
        }
        return await retention._reached(HistorySession(Unit(store, space), Records()), heads)

    with patch.object(retention, "_marked", marked):
        yield


@contextmanager
def grafts_read_late() -> Planted:
    """Read the grafts when all heads are known: what was let go of meanwhile may have a new name."""
    right = retention._reached

    async def reached(session: HistorySession, heads: set[bytes]) -> set[bytes]:
        return await right(HistorySession(Unit(session.unit.store, session.unit.space), Records()), heads)

    with patch.object(retention, "_reached", reached):
        yield


@contextmanager
def grafts_dropped_early() -> Planted:
    """Forget what was before a commit as soon as that is let go of, though it may have a new name."""

    async def none(session: HistorySession, grafts: Grafts) -> Grafts:
        return {}

    with patch.object(retention, "_still_there", none):
        yield


@contextmanager
def present_objects_not_put() -> Planted:
    """Leave out the objects that are in the store already, as one does who knows of no collector."""
    right = large_values.apply_with_parts

    async def apply(store: Store, batch: Batch, parts: dict[bytes, bytes]) -> Outcome:
        keys = list(parts)[:900]
        there = (await store.read(batch.space, keys)).entries if keys else []
        known = {entry.key for entry in there if entry is not None}
        return await right(store, batch, {key: part for key, part in parts.items() if key not in known})

    with patch.object(large_values, "apply_with_parts", apply):
        yield


@contextmanager
def objects_ahead_ignore_the_epoch() -> Planted:
    """Let a commit stand on objects that went ahead of it, whoever has collected since."""

    def check(key: bytes, version: int) -> Check:
        if key == layout.EPOCH:
            return Check(key + b"another", version=0)
        return Check(key, version=version)

    with patch.object(large_values, "Check", check):
        yield


@contextmanager
def built_on_what_nothing_holds() -> Planted:
    """Take any commit that is there to branch off, merge or roll back to."""

    async def hold(session: HistorySession, found: Found) -> Found:
        return msgspec.structs.replace(found, is_held=True)

    with ExitStack() as planted:
        for user in (commit_request, history, references):
            planted.enter_context(patch.object(user, "hold", hold))
        yield


@contextmanager
def names_not_checked() -> Planted:
    """Move and make branches without a check of those that it read, and whose objects it takes over."""
    right = HistorySession.branch

    async def branch(self: HistorySession, name: str) -> Head | None:
        head = await right(self, name)
        self.unit._found.pop(layout.named_key(layout.BRANCHES, name), None)
        return head

    with patch.object(HistorySession, "branch", branch):
        yield


@contextmanager
def carried_roots_forgotten() -> Planted:
    """Write what is new, and not what only stood in the record of the commit before."""
    right = HistorySession._put

    def put(self: HistorySession, root: bytes, objects: Any, earlier: Any, carries: Any) -> None:
        right(self, root, objects, {}, carries)

    with patch.object(HistorySession, "_put", put):
        yield


@contextmanager
def cached_objects_not_put() -> Planted:
    """Leave out the objects that are cached, as if a cache knew what the store has."""
    right = HistoryObjects.put

    def put(self: HistoryObjects, name: bytes, encoding: bytes) -> None:
        if self._cache is None or self._cache.get(self._unit.space, name) is None:
            right(self, name, encoding)

    with patch.object(HistoryObjects, "put", put):
        yield
