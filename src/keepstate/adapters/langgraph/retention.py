"""Lets go of checkpoints: of old ones, of those of some runs, of whole threads; and copies threads.

What is kept goes on to have all that it is made of: of a delta channel a checkpoint holds nothing, only the
writes on those before it do, back to the nearest that holds a value. So these stay too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from copy import copy as copied
from typing import Any, Final

import msgspec

from keepstate.adapters.langgraph.keeping import Keeper
from keepstate.adapters.langgraph.putting import FORKS, LINES, RECORDED_MAIN, fork_name
from keepstate.adapters.langgraph.reading import Reading, Stored, threads
from keepstate.adapters.langgraph.records import (
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    cut_names,
    names_of,
    packed,
    pending_key,
    pending_prefix,
    space_of,
    task_of,
)
from keepstate.adapters.langgraph.records import read as read_stored
from keepstate.engine import layout
from keepstate.engine.history.collecting import collect_history
from keepstate.engine.history.heads import MAIN, Head, heads, put_head
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.pruning import Keeping, prune
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.scope import SpaceScope
from keepstate.engine.unit import Unit
from keepstate.errors import AlreadyExistsError, InvalidError
from keepstate.sessions.home import short
from keepstate.values import limits

_FOREIGN: Final = (layout.DOCUMENTS, layout.LEASES, layout.HEADS, layout.TASKS, layout.BLOBS)
"""What begins to be there before anything else that is not a checkpoint's."""
_BY_BATCH: Final = 300
_SOME: Final = 8
_LONGEST_S: Final = 1e11

Choose = Callable[[Sequence[Stored], int], set[Names]]
"""Returns which of a thread's checkpoints are to be let go of, given the time."""


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
        """Returns what is asked for.

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
        return cls(strategy == "delete", last, _milliseconds("max_age_s", max_age_s))

    def chosen(self, found: Sequence[Stored], now_ms: int) -> set[Names]:
        """Returns which checkpoints are let go of: what neither number nor age keeps."""
        gone: set[Names] = set()
        for line in {stored.names.line for stored in found}:
            own = sorted(
                (stored for stored in found if stored.names.line == line),
                key=lambda stored: stored.names.id,
                reverse=True,
            )
            for place, stored in enumerate(own[1:], 1):
                is_old = self.max_age_ms is not None and now_ms - stored.record.created_ms > self.max_age_ms
                is_over = self.last is not None and place >= self.last
                if is_old or is_over:
                    gone.add(stored.names)
        return gone


class Retention:
    """What a saver keeps of its threads.

    Args:
        keeper: What is at hand.
        keep_last: So many checkpoints of each namespace.
        max_age_s: Those that are not older.
        ttl_s: Threads to which something was stored within that time.
    """

    def __init__(
        self, keeper: Keeper, keep_last: int | None, max_age_s: float | None, ttl_s: float | None
    ) -> None:
        self._keeper = keeper
        self._strategy: Strategy | None = None
        if keep_last is not None or max_age_s is not None:
            self._strategy = Strategy.of("keep_latest", keep_last, max_age_s)
        self._ttl_ms = _milliseconds("ttl_s", ttl_s)
        self._every = max(_SOME, (keep_last or 0) // 4)
        self._puts: dict[str, int] = {}

    def with_keeper(self, keeper: Keeper) -> Retention:
        """Returns the same for what decodes otherwise."""
        other = copied(self)
        other._keeper = keeper
        return other

    # ---- threads that have an end

    async def is_expired(self, handle: Keepstate, thread: str) -> bool:
        """Whether a thread has outlived its time to live."""
        if self._ttl_ms is None:
            return False
        reading = Reading(self._keeper, handle, thread)
        latest = await reading.latest("")
        if latest is None:
            return False
        now_ms = await (await reading.unit()).now_ms()
        return now_ms - latest.record.created_ms > self._ttl_ms

    async def end_expired(self, handle: Keepstate, thread: str) -> None:
        """Removes a thread that has outlived its time to live, before it begins anew."""
        if await self.is_expired(handle, thread):
            await delete(self._keeper, handle, thread)

    async def sweep(self, handle: Keepstate) -> int:
        """Removes all threads that have outlived their time to live, and returns how many."""
        expired = [thread async for thread in threads(handle) if await self.is_expired(handle, thread)]
        for thread in expired:
            await delete(self._keeper, handle, thread)
        return len(expired)

    # ---- checkpoints

    async def after_put(self, handle: Keepstate, thread: str) -> None:
        """Lets go of what need not be kept, once in a few checkpoints."""
        if self._strategy is None:
            return
        count = self._puts.get(thread, self._every - 1) + 1
        self._puts[thread] = 0 if count >= self._every else count
        if count >= self._every:
            await _let_go(self._keeper, handle, thread, self._strategy.chosen)

    async def prune(
        self, handle: Keepstate, thread_ids: Sequence[str], how: Strategy, *, dry_run: bool = False
    ) -> int:
        """Lets go of checkpoints of threads, and returns how many; or only says how many there are."""
        if isinstance(thread_ids, str):
            raise InvalidError(f"`thread_ids` is {thread_ids!r}; give a list")
        gone = 0
        for thread in thread_ids:
            if how.is_all:
                reading = Reading(self._keeper, handle, str(thread))
                gone += len([stored async for stored in reading.records(None)])
                if not dry_run:
                    await delete(self._keeper, handle, str(thread))
            elif dry_run:
                gone += len((await _to_go(Reading(self._keeper, handle, str(thread)), how.chosen))[1])
            else:
                gone += await _let_go(self._keeper, handle, str(thread), how.chosen)
        return gone

    async def delete_runs(self, handle: Keepstate, run_ids: Collection[str]) -> None:
        """Deletes the checkpoints of runs, in all threads."""
        if isinstance(run_ids, str):
            raise InvalidError(f"`run_ids` is {run_ids!r}; give a list")
        runs = {str(run) for run in run_ids}
        if not runs:
            return
        for thread in [thread async for thread in threads(handle)]:
            reading = Reading(self._keeper, handle, thread)

            def of_runs(found: Sequence[Stored], _now_ms: int, reading: Reading = reading) -> set[Names]:
                return {
                    stored.names
                    for stored in found
                    if str(reading.body(stored).metadata.get("run_id")) in runs
                }

            await _let_go(self._keeper, handle, thread, of_runs)


async def _let_go(keeper: Keeper, handle: Keepstate, thread: str, choose: Choose) -> int:
    """Deletes checkpoints and what is left of their commits, and returns how many; may run beside writers."""
    scope, gone = keeper.scope(handle, thread), 0
    while True:
        found, chosen = await _to_go(Reading(keeper, handle, thread), choose)
        some = [stored for stored in found if stored.names in chosen][-_BY_BATCH:]
        if not some:
            break
        gone += await _delete_records(scope, some)
    if gone:
        if len(found) == 0:
            await delete(keeper, handle, thread)
            return gone
        await _delete_commits(keeper, scope, thread, handle)
        keeper.standings.forget(thread)
    return gone


async def _to_go(reading: Reading, choose: Choose) -> tuple[list[Stored], set[Names]]:
    """Returns a thread's checkpoints, and which of them are to be let go of."""
    found = [stored async for stored in reading.records(None)]
    chosen = choose(found, await (await reading.unit()).now_ms())
    return found, chosen - _needed(reading, found, chosen)


def _needed(reading: Reading, found: Sequence[Stored], gone: set[Names]) -> set[Names]:
    """Returns which of the checkpoints to be let go of the others need, for their delta channels."""
    by_names = {stored.names: stored for stored in found}
    needed: set[Names] = set()
    for stored in found:
        if stored.names in gone:
            continue
        left = _without_value(reading, stored)
        at: Stored | None = stored
        while left and at is not None and at.record.parent is not None:
            at = by_names.get(at.names._replace(id=at.record.parent))
            if at is not None:
                needed.add(at.names)
                left -= set(reading.body(at).channels)
    return needed & gone


def _without_value(reading: Reading, stored: Stored) -> set[str]:
    """Returns the delta channels that a checkpoint has no value of."""
    body = reading.body(stored)
    counted: dict[str, Any] = body.metadata.get("counters_since_delta_snapshot") or {}
    return counted.keys() - set(body.channels)


async def _delete_records(scope: SpaceScope, some: Sequence[Stored]) -> int:
    """Deletes records of checkpoints, and what was written on them."""

    async def work(unit: Unit) -> None:
        keys = [checkpoint_key(stored.names.line, stored.names.id) for stored in some]
        entries = await unit.read(*keys)
        count = len(keys)
        for stored, key, entry in zip(some, keys, entries, strict=True):
            if entry is None:
                continue
            unit.delete(key)
            page = await unit.store.scan(unit.space, pending_prefix(stored.names.line, stored.names.id))
            for pending in page.entries:
                if count < limits.BATCH_WRITES - 1:
                    unit.delete(pending.key)
                    count += 1

    await scope.run(work)
    return len(some)


async def _delete_commits(keeper: Keeper, scope: SpaceScope, thread: str, handle: Keepstate) -> None:
    """Lets branches stand on what is left, grafts over the rest, and deletes what nothing leads to."""

    async def work(unit: Unit) -> None:
        ledger = keeper.ledger(scope, unit)
        left: list[Stored] = []
        async for entry in unit.scan(layout.CHECKPOINTS):
            record = read_stored(await unit.value(entry), CheckpointRecord, entry.key)
            left.append(Stored(names_of(thread, entry.key, record), record))
        is_recorded = await unit.get(layout.RECORDED) is not None
        main = RECORDED_MAIN if is_recorded else MAIN
        await _place_branches(unit, left, main)
        kept = {stored.record.commit for stored in left} | await _others(ledger, main)
        await prune(ledger, Keeping(1, None, tagged=True, commits=frozenset(kept)))

    await scope.run(work)
    await collect_history(await handle.opened(), scope.stored_name)


async def _others(ledger: Ledger, main: str) -> set[bytes]:
    """Returns the commits that branches of others lead to."""
    todo = [
        head.commit async for name, head in heads(ledger.unit, layout.BRANCHES) if not _is_mine(name, main)
    ]
    found = set(todo)
    while todo:
        fresh = [parent for parent in await ledger.parents(todo.pop()) if parent not in found]
        found.update(fresh)
        todo += fresh
    return found


def _is_mine(branch: str, main: str) -> bool:
    return branch == main or branch.startswith((LINES, FORKS))


async def _place_branches(unit: Unit, left: Sequence[Stored], main: str) -> None:
    """Puts each namespace's branch on its latest checkpoint, and others on the ends of lines."""
    wanted: dict[str, Head] = {}
    parents = {stored.names._replace(id=stored.record.parent or "") for stored in left}
    latest: dict[str, Stored] = {}
    for stored in left:
        known = latest.get(stored.names.line)
        if known is None or stored.names.id > known.names.id:
            latest[stored.names.line] = stored
    for stored in left:
        head = Head(stored.record.commit, stored.record.number)
        if latest[stored.names.line] is stored:
            wanted[short(LINES + stored.names.line) if stored.names.line else main] = head
        elif stored.names not in parents:
            wanted[fork_name(head.commit)] = head
    mine = {name: head async for name, head in heads(unit, layout.BRANCHES) if _is_mine(name, main)}
    for name in mine.keys() - wanted.keys():
        await unit.get(layout.named_key(layout.BRANCHES, name))
        unit.delete(layout.named_key(layout.BRANCHES, name))
    for name, head in wanted.items():
        if mine.get(name) != head:
            await unit.get(layout.named_key(layout.BRANCHES, name))
            put_head(unit, layout.BRANCHES, name, head)


# ---- threads


async def delete(keeper: Keeper, handle: Keepstate, thread: str) -> None:
    """Deletes all checkpoints of a thread; what else is in its space stays."""
    scope = keeper.scope(handle, thread)
    store = await handle.opened()
    keeper.standings.forget(thread)
    for part in _FOREIGN:
        if (await store.scan(scope.stored_name, part, limit=1)).entries:
            break
    else:
        await handle.drop(space_of(thread))
        return
    await _delete_own(keeper, handle, scope)


async def _delete_own(keeper: Keeper, handle: Keepstate, scope: SpaceScope) -> None:
    async def work(unit: Unit) -> int:
        count = 0
        for part in (layout.CHECKPOINTS, layout.PENDING):
            page = await unit.store.scan(unit.space, part, limit=_BY_BATCH)
            for entry in page.entries:
                await unit.get(entry.key)
                unit.delete(entry.key)
                count += 1
        return count

    while (await scope.run(work))[0]:
        pass

    async def end(unit: Unit) -> None:
        is_recorded = await unit.get(layout.RECORDED) is not None
        await _place_branches(unit, (), RECORDED_MAIN if is_recorded else MAIN)

    await scope.run(end)
    await collect_history(await handle.opened(), scope.stored_name)


async def copy(keeper: Keeper, handle: Keepstate, source: str, target: str) -> None:
    """Copies all checkpoints of a thread to another one.

    Raises:
        AlreadyExistsError: The other has some.
    """
    if source == target:
        raise InvalidError(f"thread {source!r} cannot be copied onto itself")
    reading, other = Reading(keeper, handle, source), Reading(keeper, handle, target)
    found = [stored async for stored in reading.records(None)]
    if not found:
        return
    async for stored in other.records(None):
        raise AlreadyExistsError(
            f"thread {target!r} has checkpoint {stored.names.id} already; copy to a new thread"
        )
    scope = keeper.scope(handle, target)
    await handle.space(space_of(source)).history.fork(handle.space(space_of(target)).history)
    for begin in range(0, len(found), _SOME):
        some = found[begin : begin + _SOME]

        async def work(unit: Unit, some: Sequence[Stored] = some) -> None:
            for stored in some:
                names = stored.names._replace(thread=target)
                record = msgspec.structs.replace(stored.record, names=cut_names(names))
                unit.put(checkpoint_key(names.line, names.id), packed(record))
                async for task, pending in _pending(reading, stored.names):
                    unit.put(pending_key(names.line, names.id, task), packed(pending))

        await scope.run(work)


async def _pending(reading: Reading, names: Names) -> AsyncIterator[tuple[str, PendingRecord]]:
    unit = await reading.unit()
    after: bytes | None = None
    while True:
        page = await unit.store.scan(unit.space, pending_prefix(names.line, names.id), after=after)
        for entry in page.entries:
            record = read_stored(await unit.value(entry), PendingRecord, entry.key)
            yield task_of(entry.key, record), record
        after = page.next
        if after is None:
            return


def _milliseconds(what: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    given: Any = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _LONGEST_S:
        raise InvalidError(f"`{what}` is {seconds!r}; give seconds, more than 0")
    return max(1, round(seconds * 1000))
