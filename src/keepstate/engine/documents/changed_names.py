"""Which documents were changed since a revision: their names alone, told by the log."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.errors import CompactedError, HistoryLostError

_PAGES: Final = 4
"""Who has missed more than so many pages of the log is better off reading what there is."""


async def names_changed(executor: Executor, prefix: str, after: int) -> tuple[AbstractSet[str], int] | None:
    """Return the names that begin with `prefix` of documents changed after a revision, and up to which.

    That is at least the revision at which the space stands. None where the log does not reach back, or tells
    too much, or a name is so long that it does not tell it.
    """
    store, begins = await executor.store(), layout.name_prefix(layout.DOCUMENTS, prefix)
    goal, names = (await store.read(executor.stored_name, [])).revision, set[str]()
    for _ in range(_PAGES):
        if after >= goal:
            return names, after
        try:
            changes = await store.changes(executor.stored_name, after)
        except (CompactedError, HistoryLostError):
            return None
        for change in changes.items:
            if change.key.startswith(begins):
                if layout.is_cut(layout.DOCUMENTS, change.key):
                    return None
                names.add(layout.name_of(layout.DOCUMENTS, change.key))
        after = changes.upto
    return (names, after) if after >= goal else None
