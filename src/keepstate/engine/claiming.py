"""How tasks are claimed: the best ready one first, due and forgotten ones on the way.

A claim looks at a page of ready tasks without guarding it: two workers may look at the same page. What each
takes, its batch checks by key; whoever is second gets a conflict and picks another at random, so that a crowd
spreads over the page instead of running after one task.

Where a worker is choosy, one read shows all that a page of tasks is about, and the claim stands on that read:
it costs a scan, a read and a batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from keepstate.engine import layout, tasks
from keepstate.engine.document_record import decoded, read_record
from keepstate.engine.hearing import hear
from keepstate.engine.scope import Scope, SpaceScope, called
from keepstate.engine.tasks import TaskRecord
from keepstate.engine.unit import UNWRITTEN, Unit
from keepstate.errors import ConflictError, InvalidError, NotFoundError, TransitionError
from keepstate.stores.protocol import ABSENT, Entry, Store
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.transaction import Transaction

_PAGE = 32
_MATCHED_FIRST, _MATCHED_PAGE = 8, 100
"""How many tasks to ask for at once whether they match: few while the first ones may."""
_TIMED_PAGE = 64
_LONGEST_WAIT_S = 1.0
_TIMED_EVERY_S = 0.25
"""How often to look for due and forgotten tasks while enough others are ready."""

Claimed = tuple[TaskRecord, Any]
Match = Callable[[str, Any], bool]
"""Says of a task's id and payload whether a worker can do it."""
Choice = Callable[[str, Any, Mapping[str, Any]], bool]
"""Says the same, given those documents, by name, that the wish names and that are there."""
Also = Callable[["Transaction", str, str | None], Any]
"""Does more in the batch that claims: gets its transaction, the task's id, and who held it before."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker asks for.

    Attributes:
        worker: Who claims.
        lease_ms: For how long.
        match: Takes only tasks for which it answers true.
        documents: The names of documents that `match` is given, and that `also` can read at no cost.
        also: Does more in the batch that claims: for the task of this id, which another held before.
    """

    worker: str
    lease_ms: int
    match: Choice | None = None
    documents: Sequence[str] = ()
    also: Callable[[Unit, str, str | None], Awaitable[None]] | None = None


class Claims:
    """Claims tasks of one space."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._timed_at_s: float | None = None

    async def claim(self, wish: Wish, count: int, wait_s: float) -> list[Claimed]:
        """Returns up to `count` tasks with their payloads, after waiting for the first if need be."""
        store = await self._scope.store()
        clock = self._scope.clock
        deadline_s = clock.monotonic_s() + wait_s
        unfit: set[bytes] = set()
        versions: list[int] = []
        # To hear of changes costs more than a claim: on a server, a thread or task that subscribes.
        found = await self._claim_now(store, wish, count, unfit)
        if found or wait_s <= 0:
            return found
        async with hear(store, self._scope.stored_name) as hints:
            while True:
                if wish.documents and (now := await self._versions(store, wish.documents)) != versions:
                    versions = now
                    unfit.clear()  # what did not fit may fit what the documents say now
                found = await self._claim_now(store, wish, count, unfit)
                left_s = deadline_s - clock.monotonic_s()
                if found or left_s <= 0:
                    return found
                await hints.wait(min(left_s, _LONGEST_WAIT_S, await self._next_due_s(store)))

    async def _versions(self, store: Store, documents: Sequence[str]) -> list[int]:
        reading = await store.read(self._scope.stored_name, _keys(documents))
        return [ABSENT if entry is None else entry.version for entry in reading.entries]

    async def _claim_now(self, store: Store, wish: Wish, count: int, unfit: set[bytes]) -> list[Claimed]:
        found: list[Claimed] = []
        refused: set[bytes] = set()
        missed: set[bytes] = set()
        limit = _PAGE if wish.match is None else _MATCHED_FIRST
        crowded = False
        await self._wake(store, force=False)
        after: bytes | None = None
        while len(found) < count:
            page = await store.scan(self._scope.stored_name, layout.READY, after=after, limit=limit)
            passed = refused | unfit
            candidates = [entry for entry in page.entries if entry.key not in passed]
            seen: dict[bytes, Unit] = {}
            if wish.match is not None and candidates:
                seen = await self._look_at(store, candidates, wish.documents)
                unfit |= await self._unfit(candidates, seen, wish.match, wish.documents)
                candidates = [entry for entry in candidates if entry.key not in unfit]
            if not candidates:
                if page.next is not None:
                    after, limit = page.next, max(limit, _MATCHED_PAGE)
                elif await self._wake(store, force=True):
                    after = None
                else:
                    return found
                continue
            pick = int(self._scope.clock.spread() * len(candidates)) if crowded else 0
            entry = candidates[pick]
            claimed = await self._take(entry, wish, seen.get(entry.key))
            crowded = claimed is None
            if claimed is not None:
                found.append(claimed)
            elif entry.key in missed:
                refused.add(entry.key)  # twice somebody else's, or an index entry whose task is gone
            else:
                missed.add(entry.key)
        return found

    async def _look_at(
        self, store: Store, candidates: Sequence[Entry], documents: Sequence[str]
    ) -> dict[bytes, Unit]:
        """Returns by key what has read each candidate; as many in one read as its limit of bytes allows."""
        unit = Unit(store, self._scope.stored_name, self._scope.name)
        ids = [tasks.id_in(entry) for entry in candidates]
        try:
            await unit.read(*_keys(documents), *map(tasks.task_key, ids), *map(tasks.payload_key, ids))
        except InvalidError:
            if len(candidates) == 1:
                raise
            half = len(candidates) // 2
            first = await self._look_at(store, candidates[:half], documents)
            return first | await self._look_at(store, candidates[half:], documents)
        return {entry.key: unit for entry in candidates}

    async def _unfit(
        self,
        candidates: Sequence[Entry],
        seen: Mapping[bytes, Unit],
        match: Choice,
        documents: Sequence[str],
    ) -> set[bytes]:
        """Returns the keys of those that do not match."""
        unfit: set[bytes] = set()
        given: dict[Unit, dict[str, Any]] = {}
        for index in candidates:
            unit, task_id = seen[index.key], tasks.id_in(index)
            if unit not in given:
                given[unit] = await self._documents(unit, documents)
            about = unit.found(tasks.payload_key(task_id))
            if about is None or self._record(unit.found(tasks.task_key(task_id)), index) is None:
                continue  # it has moved on, as taking it will find
            payload = decoded(self._scope, about.key, await unit.value(about))
            if not await called(match, task_id, payload, given[unit]):
                unfit.add(index.key)
        return unfit

    async def _documents(self, unit: Unit, names: Sequence[str]) -> dict[str, Any]:
        entries = await unit.read(*_keys(names))
        return {
            name: (await read_record(self._scope, unit, entry)).value
            for name, entry in zip(names, entries, strict=True)
            if entry is not None
        }

    def _record(self, stored: Entry | None, index: Entry) -> TaskRecord | None:
        """Returns the record of a task if it still stands where the index entry says."""
        if stored is None:
            return None
        record = tasks.opened(stored.value, f"task {tasks.id_in(index)!r} of {self._scope.name!r}")
        stands = record.state == "ready" and tasks.place_of(record, stored.version) == index.key
        return record if stands else None

    async def _take(self, index: Entry, wish: Wish, seen: Unit | None) -> Claimed | None:
        """Returns the claimed task, None if somebody else was first.

        Args:
            index: Its index entry.
            wish: What is asked for.
            seen: What has read the task, if that was done to choose it; its batch then stands on that read.
        """
        task_id = tasks.id_in(index)
        keys = (tasks.task_key(task_id), tasks.payload_key(task_id))

        async def work(unit: Unit) -> Claimed | None:
            if seen is not None and seen.revision is not None:
                known = {key: seen.found(key) for key in (*keys, *_keys(wish.documents))}
                unit.stand_on(seen.losses)
                unit.suppose(known, seen.revision, await seen.now_ms())
            stored, about = await unit.read(*keys)
            record = self._record(stored, index)
            if record is None or about is None:
                return None
            payload = decoded(self._scope, about.key, await unit.value(about))
            unit.delete(index.key)
            record = await _held(unit, record, wish)
            return record, payload

        try:
            return (await self._scope.run(work, attempts=1))[0]
        except ConflictError:
            return None

    async def take(self, task_id: str, wish: Wish) -> Claimed:
        """Returns one task by its id, claimed although it may not be its turn.

        Raises:
            ConflictError: Somebody holds it.
            NotFoundError: There is none.
            TransitionError: It is done or dead, or dead now: the lease of its last attempt has run out.
        """

        async def work(unit: Unit) -> Claimed | ConflictError | TransitionError:
            stored, about = await unit.read(tasks.task_key(task_id), tasks.payload_key(task_id))
            if stored is None:
                raise NotFoundError(f"no task of {self._scope.name!r} has the id {task_id!r}")
            record = tasks.opened(stored.value, f"task {task_id!r} of {self._scope.name!r}")
            if about is None or record.state in ("done", "dead"):
                raise self._over(record)
            now_ms = await unit.now_ms()
            if record.state == "claimed" and now_ms < record.due_at_ms:
                return ConflictError(
                    f"task {task_id!r} of {self._scope.name!r} is held by {record.worker!r}; try later",
                    space=self._scope.name,
                    key=stored.key,
                    actual=stored.version,
                )
            if record.state == "ready" and stored.version == UNWRITTEN:
                raise InvalidError(f"task {task_id!r} is put by this transaction; claim it after its end")
            if _is_spent(record):
                return self._over(self._ready_or_dead(unit, stored.key, record, now_ms))
            unit.delete(tasks.place_of(record, stored.version))
            payload = decoded(self._scope, about.key, await unit.value(about))
            return await _held(unit, record, wish), payload

        taken, _ = await self._scope.run(work)
        # Raised by the work, a conflict would be tried again and again, and a death would not be written.
        if isinstance(taken, ConflictError | TransitionError):
            raise taken
        return taken

    def _over(self, record: TaskRecord) -> TransitionError:
        return TransitionError(
            f"task {record.id!r} of {self._scope.name!r} is {record.state} and cannot be claimed",
            current=record.state,
            wanted="claimed",
        )

    # ---- waiting and claimed tasks whose time has come

    async def _wake(self, store: Store, *, force: bool) -> bool:
        """Makes tasks ready whose delay or lease is over, and says whether there were any."""
        now_s = self._scope.clock.monotonic_s()
        if not force and self._timed_at_s is not None and now_s - self._timed_at_s < _TIMED_EVERY_S:
            return False
        self._timed_at_s = now_s
        now_ms = (await store.read(self._scope.stored_name, [])).now_ms
        woken = False
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._scope.stored_name, part, limit=_TIMED_PAGE)
            due = [entry for entry in page.entries if tasks.time_in(part, entry.key)[0] <= now_ms]
            if due:
                woken = await self._make_ready(due) or woken
        return woken

    async def _make_ready(self, due: list[Entry]) -> bool:
        async def work(unit: Unit) -> bool:
            names = [tasks.id_in(entry) for entry in due]
            stored = await unit.read(*(tasks.task_key(name) for name in names))
            now_ms = await unit.now_ms()
            moved = False
            for index, entry in zip(due, stored, strict=True):
                if entry is None:
                    continue
                record = tasks.opened(entry.value, f"a task record of {self._scope.name!r}")
                if record.place == index.key and record.due_at_ms <= now_ms:
                    self._ready_or_dead(unit, entry.key, record, now_ms)
                    moved = True
            return moved

        try:
            return (await self._scope.run(work, attempts=4))[0]
        except ConflictError:
            return True

    @staticmethod
    def _ready_or_dead(unit: Unit, key: bytes, record: TaskRecord, now_ms: int) -> TaskRecord:
        """Writes a task under its key as one whose delay or lease is over, and returns its record."""
        unit.delete(record.place)
        if _is_spent(record):
            place = tasks.timed_key(layout.DEAD, now_ms, record.id)
            error = f"the lease of worker {record.worker!r} ran out in attempt {record.attempt}"
            record = msgspec.structs.replace(record, state="dead", due_at_ms=now_ms, place=place, error=error)
            unit.put(place, _named(record))
        else:
            prefix = tasks.ready_prefix(record.priority)
            stamp_index = unit.append(prefix, _named(record))
            record = msgspec.structs.replace(record, state="ready", place=prefix, stamp_index=stamp_index)
        unit.put(key, msgspec.msgpack.encode(record))
        return record

    async def _next_due_s(self, store: Store) -> float:
        """Returns in how many seconds the next waiting or claimed task is due."""
        now_ms = (await store.read(self._scope.stored_name, [])).now_ms
        soonest = float(limits.TTL_MS)
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._scope.stored_name, part, limit=1)
            for entry in page.entries:
                soonest = min(soonest, tasks.time_in(part, entry.key)[0] - now_ms)
        return max(soonest / 1000, 0.001)


def _keys(documents: Sequence[str]) -> list[bytes]:
    return [layout.named_key(layout.DOCUMENTS, name) for name in documents]


def _is_spent(record: TaskRecord) -> bool:
    """Whether the end of its lease is the end of the task."""
    return record.state == "claimed" and record.attempt >= record.max_attempts


def _named(record: TaskRecord) -> bytes:
    """Returns what an index entry of a task holds."""
    return record.id.encode("utf-8", "surrogatepass")


async def _held(unit: Unit, record: TaskRecord, wish: Wish) -> TaskRecord:
    """Returns a task's record as that of who claims it now; its old index entry is the caller's to remove."""
    until_ms, former = await unit.now_ms() + wish.lease_ms, record.worker
    place = tasks.timed_key(layout.CLAIMED, until_ms, record.id)
    record = msgspec.structs.replace(
        record,
        state="claimed",
        attempt=record.attempt + 1,
        token=record.token + 1,
        due_at_ms=until_ms,
        worker=wish.worker,
        place=place,
    )
    unit.put(place, _named(record))
    unit.put(tasks.task_key(record.id), msgspec.msgpack.encode(record))
    if wish.also is not None:
        await wish.also(unit, record.id, former)
    return record


def without_documents(match: Match) -> Choice:
    """Returns a choice that looks at no documents."""
    return lambda task_id, payload, _: match(task_id, payload)


def joining(scope: Scope, also: Also | None) -> Callable[[Unit, str, str | None], Awaitable[None]] | None:
    """Returns what a caller wants to be done along with a claim, as work of the unit that claims."""
    if also is None or not isinstance(scope, SpaceScope):
        return None
    from keepstate.engine.transaction import join  # which has a queue itself

    return lambda unit, task_id, former: join(scope, unit, lambda tx: also(tx, task_id, former))
