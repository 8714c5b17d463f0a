"""What a saver keeps of its threads' checkpoints: so many, so old ones, or all but those of some runs.

What is kept goes on to have all that it is made of: of a delta channel a checkpoint holds nothing, only the
writes on those before it do, back to the nearest that holds a value. So these stay too.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from keepstate._runner import Lock
from keepstate.adapters.langgraph.deletion import delete, let_go, to_go
from keepstate.adapters.langgraph.queries import Reading, Stored, threads
from keepstate.adapters.langgraph.records import CheckpointRecord, Names, line_prefix, read
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, KeepstateError
from keepstate.values import limits

_LOG: Final = logging.getLogger("keepstate.adapters.langgraph")

_SOME: Final = 8
_PART: Final = 4
"""Letting go of checkpoints looks at all that stay: it waits until so large a part of them has come anew."""
_BYTES_A_PUT: Final = 32 << 10
"""And at all that the latest state is made of: for so much of it, it waits for another checkpoint."""
_THREADS: Final = 4_096
_LONGEST_S: Final = 1e11
_ROOT: Final = ""
_OF_TASK: Final = ":"
"""Stands in the namespaces of subgraphs that are a task's own, before the id of the task."""


class Strategy(msgspec.Struct, frozen=True):
    """Which checkpoints of a thread are kept.

    Attributes:
        is_all: Whether none is.
        last: So many of each namespace.
        max_age_ms: Those that are not older.
    """

    is_all: bool
    last: int | None
    max_age_ms: int | None

    @classmethod
    def of(cls, strategy: str, keep_last: int | None, max_age_s: float | None) -> Strategy:
        """Return what is asked for.

        Raises:
            InvalidError: It says nothing that can be done.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidError(f"`strategy` is {strategy!r}; it is 'keep_latest' or 'delete'")
        if strategy == "delete" and (keep_last is not None or max_age_s is not None):
            raise InvalidError("'delete' deletes all; `keep_last` and `max_age_s` go with 'keep_latest'")
        if keep_last is not None:
            limits.admit_count("keep_last", keep_last)
        last = 1 if keep_last is None and max_age_s is None else keep_last
        return cls(strategy == "delete", last, milliseconds("max_age_s", max_age_s))

    def chosen(self, found: Sequence[Stored], now_ms: int) -> set[Names]:
        """Return which checkpoints are let go of: what neither number nor age keeps.

        The namespace of a task's subgraph goes with the checkpoint of the root that the task began at.
        """
        by_line: dict[str, list[Stored]] = {}
        for stored in found:
            by_line.setdefault(stored.names.line, []).append(stored)
        for own in by_line.values():
            own.sort(key=lambda stored: stored.names.id, reverse=True)
        gone = {
            stored.names
            for own in by_line.values()
            for place, stored in enumerate(own)
            if place and self._lets_go(place, stored, now_ms)
        }
        roots = [stored.names for stored in reversed(by_line.get(_ROOT, []))]
        for line, own in by_line.items():
            if roots and _OF_TASK in line:
                # What a task does comes after the checkpoint that it began at, and before the next one.
                place = bisect_left(roots, own[-1].names._replace(line=_ROOT)) - 1
                if place < 0 or roots[place] in gone:
                    gone.update(stored.names for stored in own)
        return gone

    def _lets_go(self, place: int, stored: Stored, now_ms: int) -> bool:
        return self.is_old(stored.record, now_ms) or (self.last is not None and place >= self.last)

    def is_old(self, record: CheckpointRecord, now_ms: int) -> bool:
        """Return whether a checkpoint is too old to be kept."""
        return self.max_age_ms is not None and now_ms - record.created_ms > self.max_age_ms


class Pace:
    """When to look at a thread again: so seldom that looking costs each checkpoint the same."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._lock = Lock()

    def count(self, thread: str) -> int | None:
        """Return how many checkpoints it has still to wait for after one more; None for an unknown one."""
        with self._lock:
            left = self._left.get(thread)
            if left is not None:
                self._left[thread] = left - 1
            return left if left is None else left - 1

    def wait(self, thread: str, count: int) -> None:
        """Let it wait for so many; forgets who has waited the longest if there are too many."""
        with self._lock:
            self._left.pop(thread, None)
            self._left[thread] = count
            if len(self._left) > _THREADS:
                del self._left[next(iter(self._left))]


class Retention:
    """What a saver keeps of its threads.

    Args:
        keeper: What is at hand.
        keep_last: So many checkpoints of each namespace.
        max_age_s: Those that are not older.
        pace: When it looks at which thread, where that is shared.
    """

    def __init__(
        self, keeper: Keeper, keep_last: int | None, max_age_s: float | None, pace: Pace | None = None
    ) -> None:
        self._keeper = keeper
        self._given = keep_last, max_age_s
        self._strategy: Strategy | None = None
        if keep_last is not None or max_age_s is not None:
            self._strategy = Strategy.of("keep_latest", keep_last, max_age_s)
        self._pace = pace or Pace()

    def with_keeper(self, keeper: Keeper) -> Retention:
        """Return the same for what decodes otherwise."""
        return Retention(keeper, *self._given, self._pace)

    async def after_put(self, handle: Keepstate, thread: str) -> None:
        """Let go of what need not be kept, once in a few checkpoints.

        The checkpoint is stored: what goes wrong here is logged, and tried again later.
        """
        if self._strategy is None:
            return
        left = self._pace.count(thread)
        if left is not None and left > 0:
            return
        self._pace.wait(thread, _SOME)
        try:
            if await self._is_due(self._strategy, handle, thread, is_first=left is None):
                done = await let_go(self._keeper, handle, thread, self._strategy.chosen)
                standing = self._keeper.summaries.get(thread, _ROOT)
                size = standing.size_bytes // _BYTES_A_PUT if standing else 0
                self._pace.wait(thread, max(_SOME, done.left // _PART, size))
        except KeepstateError as error:
            _LOG.warning("old checkpoints of thread %r stay until later: %s", thread, error)

    async def _is_due(self, how: Strategy, handle: Keepstate, thread: str, *, is_first: bool) -> bool:
        """Return whether there may be something to let go of, by the oldest checkpoint and the latest."""
        reading = Reading(self._keeper, handle, thread)
        unit = await reading.unit()
        found = await unit.store.read(unit.space, [layout.LETTING_GO])
        page = await unit.store.scan(unit.space, line_prefix(layout.CHECKPOINTS, _ROOT), limit=1)
        if found.entries[0] is not None or not page.entries or (how.last is not None and not is_first):
            return True
        oldest = read(await unit.value(page.entries[0]), CheckpointRecord, page.entries[0].key)
        if how.last is None or how.is_old(oldest, found.now_ms):
            return how.is_old(oldest, found.now_ms)
        latest = await reading.latest(_ROOT)
        return latest is not None and latest.record.number - oldest.number >= how.last + _SOME

    async def prune(
        self, handle: Keepstate, thread_ids: Sequence[str], how: Strategy, *, dry_run: bool = False
    ) -> int:
        """Let go of checkpoints of threads, and return how many; or only says how many there are."""
        gone = 0
        for thread in thread_ids:
            if how.is_all:
                reading = Reading(self._keeper, handle, thread)
                gone += len([stored async for stored in reading.records(None)])
                if not dry_run:
                    await delete(self._keeper, handle, thread)
            elif dry_run:
                gone += len((await to_go(Reading(self._keeper, handle, thread), how.chosen))[1])
            else:
                gone += (await let_go(self._keeper, handle, thread, how.chosen)).gone
        return gone

    async def delete_runs(self, handle: Keepstate, run_ids: Collection[str]) -> None:
        """Delete the checkpoints of runs, in all threads."""
        runs = set(run_ids)
        if not runs:
            return
        for thread in [thread async for thread in threads(handle)]:
            reading = Reading(self._keeper, handle, thread)

            def of_runs(found: Sequence[Stored], _now_ms: int, reading: Reading = reading) -> set[Names]:
                by_names = {one.names: reading.body(one).metadata.get("run_id") for one in found}
                return {names for names, run in by_names.items() if run is not None and str(run) in runs}

            await let_go(self._keeper, handle, thread, of_runs)


def milliseconds(what: str, seconds: float | None) -> int | None:
    """Return a length of time, None for none.

    Raises:
        InvalidError: It is none, or longer than any.
    """
    if seconds is None:
        return None
    given: Any = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _LONGEST_S:
        raise InvalidError(f"`{what}` is {seconds!r}; give seconds, more than 0")
    return max(1, round(seconds * 1000))
