"""Names of the documents that changed since a revision, read from the log."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.errors import CompactedError, HistoryLostError

_PAGES: Final = 4
"""Pages of the log after which a full listing is cheaper than reading on."""


async def list_changed_names(
    executor: Executor, prefix: str, after: int
) -> tuple[AbstractSet[str], int] | None:
    """Return the names with a prefix of documents changed after a revision, and the last revision read.

    The last revision read is at least the space's revision at the time of the call. The result is None if the
    log does not reach back to `after`, if it has too many pages, or if a name is too long for its key.
    """
    store, begins = await executor.store(), layout.name_prefix(layout.DOCUMENTS, prefix)
    target, names = (await store.read(executor.stored_name, [])).revision, set[str]()
    for _ in range(_PAGES):
        if after >= target:
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
    return (names, after) if after >= target else None
