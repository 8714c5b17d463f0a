"""Retention: the checkpoints of a thread that a saver keeps, by number and by age.

A checkpoint with delta channels needs the writes on older checkpoints, back to the nearest one that holds a
value. Those older checkpoints stay too.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from keepstate._runner import Lock
from keepstate.adapters.langgraph.deletion import delete_checkpoints, delete_thread, select
from keepstate.adapters.langgraph.queries import Stored, ThreadReader
from keepstate.adapters.langgraph.records import CheckpointRecord, Names, decode, line_prefix
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, KeepstateError
from keepstate.values import limits

_LOG: Final = logging.getLogger("keepstate.adapters.langgraph")

_SOME: Final = 8
_PART: Final = 4
"""A deletion reads all checkpoints that stay. The next one waits until 1/4 of their number is new."""
_BYTES_A_PUT: Final = 32 << 10
"""A deletion also reads the latest state. For each 32 KiB of it, the next one waits for a checkpoint."""
_THREADS: Final = 4_096
_LONGEST_S: Final = 1e11
_ROOT: Final = ""
_OF_TASK: Final = ":"
"""The separator before the task id, in the namespace of a task's subgraph."""


class Strategy(msgspec.Struct, frozen=True):
    """The rule for the checkpoints that are kept.

    Attributes:
        is_all: Whether all checkpoints are deleted.
        last: Keep this many of each namespace.
        max_age_ms: Keep those that are not older.
    """

    is_all: bool
    last: int | None
    max_age_ms: int | None

    @classmethod
    def of(cls, strategy: str, keep_last: int | None, max_age_s: float | None) -> Strategy:
        """Return the strategy of the arguments of `prune`.

        Raises:
            InvalidError: The arguments contradict one another.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidError(f"`strategy` is {strategy!r}; it must be 'keep_latest' or 'delete'")
        if strategy == "delete" and (keep_last is not None or max_age_s is not None):
            raise InvalidError("'delete' deletes all; `keep_last` and `max_age_s` go with 'keep_latest'")
        if keep_last is not None:
            limits.admit_count("keep_last", keep_last)
        last = 1 if keep_last is None and max_age_s is None else keep_last
        return cls(strategy == "delete", last, milliseconds("max_age_s", max_age_s))

    def chosen(self, found: Sequence[Stored], now_ms: int) -> set[Names]:
        """Return the checkpoints to delete: those that neither number nor age keeps.

        The namespace of a task's subgraph is deleted with the root checkpoint at which the task began.
        """
        by_line: dict[str, list[Stored]] = {}
        for stored in found:
            by_line.setdefault(stored.names.line, []).append(stored)
        for own in by_line.values():
            own.sort(key=lambda stored: stored.names.id, reverse=True)
        gone = {
            stored.names
            for own in by_line.values()
            for index, stored in enumerate(own)
            if index
            and (self.is_old(stored.record, now_ms) or (self.last is not None and index >= self.last))
        }
        roots = [stored.names for stored in reversed(by_line.get(_ROOT, []))]
        for line, own in by_line.items():
            if roots and _OF_TASK in line:
                # A task's checkpoints lie between the root checkpoint at which it began and the next one.
                index = bisect_left(roots, own[-1].names._replace(line=_ROOT)) - 1
                if index < 0 or roots[index] in gone:
                    gone.update(stored.names for stored in own)
        return gone

    def is_old(self, record: CheckpointRecord, now_ms: int) -> bool:
        """Return whether a checkpoint is too old to keep."""
        return self.max_age_ms is not None and now_ms - record.created_ms > self.max_age_ms


class Retention:
    """The checkpoints that a saver keeps of its threads; it deletes others once in a few puts.

    Args:
        keep_last: Keep this many checkpoints of each namespace.
        max_age_s: Keep those that are not older.
    """

    def __init__(self, keep_last: int | None, max_age_s: float | None) -> None:
        self._strategy: Strategy | None = None
        if keep_last is not None or max_age_s is not None:
            self._strategy = Strategy.of("keep_latest", keep_last, max_age_s)
        self._left: dict[str, int] = {}
        self._lock = Lock()

    async def after_put(self, state: SaverState, handle: Keepstate, thread: str) -> None:
        """Delete old checkpoints if it is time.

        The new checkpoint is stored already, so an error is logged and the deletion is tried again later.
        """
        if self._strategy is None:
            return
        left = self._count(thread)
        if left is not None and left > 0:
            return
        self._wait(thread, _SOME)
        try:
            if await self._is_due(self._strategy, state, handle, thread, is_first=left is None):
                done = await delete_checkpoints(state, handle, thread, self._strategy.chosen)
                summary = state.summaries.get(thread, _ROOT)
                size = summary.size_bytes // _BYTES_A_PUT if summary else 0
                self._wait(thread, max(_SOME, done.left // _PART, size))
        except KeepstateError as error:
            _LOG.warning("old checkpoints of thread %r stay until later: %s", thread, error)

    def _count(self, thread: str) -> int | None:
        """Count a put, and return how many more to wait for; None for an unknown thread."""
        with self._lock:
            left = self._left.get(thread)
            if left is not None:
                self._left[thread] = left = left - 1
            return left

    def _wait(self, thread: str, count: int) -> None:
        """Wait for this many puts; if there are too many threads, forget the oldest one."""
        with self._lock:
            self._left.pop(thread, None)
            self._left[thread] = count
            if len(self._left) > _THREADS:
                del self._left[next(iter(self._left))]

    @staticmethod
    async def _is_due(
        how: Strategy, state: SaverState, handle: Keepstate, thread: str, *, is_first: bool
    ) -> bool:
        """Return whether there may be checkpoints to delete, by the oldest and the latest one."""
        reader = ThreadReader(state, handle, thread)
        unit = await reader.unit()
        found = await unit.store.read(unit.space, [layout.LETTING_GO])
        page = await unit.store.scan(unit.space, line_prefix(layout.CHECKPOINTS, _ROOT), limit=1)
        if found.entries[0] is not None or not page.entries or (how.last is not None and not is_first):
            return True
        oldest = decode(await unit.value(page.entries[0]), CheckpointRecord, page.entries[0].key)
        if how.last is None or how.is_old(oldest, found.now_ms):
            return how.is_old(oldest, found.now_ms)
        latest = await reader.latest(_ROOT)
        return latest is not None and latest.record.number - oldest.number >= how.last + _SOME


async def prune(
    state: SaverState, handle: Keepstate, thread_ids: Sequence[str], how: Strategy, *, dry_run: bool = False
) -> int:
    """Delete checkpoints of threads, unless it is a dry run, and return their number."""
    count = 0
    for thread in thread_ids:
        reader = ThreadReader(state, handle, thread)
        if how.is_all:
            count += len([stored async for stored in reader.records(None)])
            if not dry_run:
                await delete_thread(state, handle, thread)
        elif dry_run:
            count += len((await select(reader, how.chosen))[1])
        else:
            count += (await delete_checkpoints(state, handle, thread, how.chosen)).deleted
    return count


def milliseconds(what: str, seconds: float | None) -> int | None:
    """Return a number of seconds in milliseconds; None for None.

    Raises:
        InvalidError: It is not a positive number, or too large.
    """
    if seconds is None:
        return None
    given: Any = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _LONGEST_S:
        raise InvalidError(f"`{what}` is {seconds!r}; give seconds, more than 0")
    return max(1, round(seconds * 1000))
