"""Bugs of histories and their collectors, planted into ours from outside; see `seeded_bugs`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from keepstate.engine import large_values, layout
from keepstate.engine.history import collecting, committing, history, naming, pruning
from keepstate.engine.history.grafts import Grafts
from keepstate.engine.history.heads import Head
from keepstate.engine.history.ledger import Ledger, Records
from keepstate.engine.history.revisions import Found
from keepstate.engine.unit import Unit
from keepstate.stores.protocol import Applied, Batch, Check, Delete, Entry, Outcome, Store
from tests.crashes.seeded_bugs import Planted


@contextmanager
def new_objects_collected() -> Planted:
    """Deletes all that is not marked, also what was written after the collection began."""
    right, right_delete = collecting._entries, collecting._delete

    class Old(int):
        def __lt__(self, other: int) -> bool:
            return True

    async def entries(store: Store, space: str, *prefixes: bytes) -> AsyncIterator[Entry]:
        async for entry in right(store, space, *prefixes):
            yield msgspec.structs.replace(entry, version=Old(entry.version))

    async def delete(store: Store, space: str, garbage: list[Check]) -> int:
        checks = [Check(check.key, version=int(check.version or 0)) for check in garbage]
        return await right_delete(store, space, checks)

    with patch.object(collecting, "_entries", entries), patch.object(collecting, "_delete", delete):
        yield


@contextmanager
def garbage_deleted_unseen() -> Planted:
    """Deletes what was garbage, without looking whether somebody has put it again."""

    async def delete(store: Store, space: str, garbage: list[Check]) -> int:
        outcome = (await store.apply([Batch(space, [Delete(check.key) for check in garbage])]))[0]
        assert isinstance(outcome, Applied)
        return len(garbage)

    with patch.object(collecting, "_delete", delete):
        yield


@contextmanager
def moved_names_overlooked() -> Planted:
    """Reads branches and tags page by page, and not where they have gone meanwhile."""

    async def marked(store: Store, space: str, since: int) -> set[bytes]:
        heads = {
            collecting._commit(entry.value)
            async for entry in collecting._entries(store, space, layout.BRANCHES, layout.TAGS)
        }
        return await collecting._reached(Ledger(Unit(store, space), Records()), heads)

    with patch.object(collecting, "_marked", marked):
        yield


@contextmanager
def grafts_read_late() -> Planted:
    """Reads the grafts when all heads are known: what was let go of meanwhile may have a new name."""
    right = collecting._reached

    async def reached(ledger: Ledger, heads: set[bytes]) -> set[bytes]:
        return await right(Ledger(Unit(ledger.unit.store, ledger.unit.space), Records()), heads)

    with patch.object(collecting, "_reached", reached):
        yield


@contextmanager
def grafts_dropped_early() -> Planted:
    """Forgets what was before a commit as soon as that is let go of, though it may have a new name."""

    async def none(ledger: Ledger, grafts: Grafts) -> Grafts:
        return {}

    with patch.object(pruning, "_still_there", none):
        yield


@contextmanager
def present_objects_not_put() -> Planted:
    """Leaves out the objects that are in the store already, as one does who knows of no collector."""
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
    """Lets a commit stand on objects that went ahead of it, whoever has collected since."""

    def check(key: bytes, version: int) -> Check:
        return Check(key + b"another", version=0)

    with patch.object(large_values, "Check", check):
        yield


@contextmanager
def built_on_what_nothing_holds() -> Planted:
    """Takes any commit that is there to branch off, merge or roll back to."""

    async def held(ledger: Ledger, found: Found) -> Found:
        return msgspec.structs.replace(found, is_held=True)

    with (
        patch.object(naming, "held", held),
        patch.object(committing, "held", held),
        patch.object(history, "held", held),
    ):
        yield


@contextmanager
def names_not_checked() -> Planted:
    """Moves and makes branches without a check of those that it read, and whose objects it takes over."""
    right = Ledger.branch

    async def branch(self: Ledger, name: str) -> Head | None:
        head = await right(self, name)
        self.unit._found.pop(layout.named_key(layout.BRANCHES, name), None)
        return head

    with patch.object(Ledger, "branch", branch):
        yield


@contextmanager
def carried_roots_forgotten() -> Planted:
    """Writes what is new, and not what only stood in the record of the commit before."""
    right = Ledger._put

    def put(self: Ledger, root: bytes, objects: Any, earlier: Any, carries: Any) -> None:
        right(self, root, objects, {}, carries)

    with patch.object(Ledger, "_put", put):
        yield
