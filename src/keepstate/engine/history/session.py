"""The commits and objects of a space, as one unit of work reads and writes them, and so as one batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from keepstate._runner import reentrant_lock
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.history.archive import Archive
from keepstate.engine.history.lineage import jumped_from, lineage_of
from keepstate.engine.history.objects import HistoryObjects, ObjectCache, pack_record, unpack_object
from keepstate.engine.history.record import (
    CommitRecord,
    Graft,
    Grafts,
    Head,
    carried,
    id_of,
    put_head,
    read_grafts,
    read_head,
    read_record,
)
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, KeepstateError, NotFoundError, PrunedError
from keepstate.stores.protocol import Entry
from keepstate.values.codec import STATES, Codec
from keepstate.values.nodes import classes_in
from keepstate.values.refs import Fetching
from keepstate.values.touched import ANYTHING, Touched, touched_between

T = TypeVar("T")

_CACHED: Final = 1_024
_READ_ALONE: Final = 128
"""Number of commits that are read one by one before all others are prefetched."""
_PREFETCHED_BYTES: Final = 16 << 20


class Records:
    """An LRU cache of commits, each with the roots that it carries. Commits never change.

    Args:
        most: The largest number of commits.
    """

    def __init__(self, most: int = _CACHED) -> None:
        self._most = most
        self._by_id: dict[bytes, tuple[CommitRecord, dict[bytes, bytes]]] = {}
        self._lock = reentrant_lock()

    def get(self, id: bytes) -> tuple[CommitRecord, dict[bytes, bytes]] | None:
        """Return a commit and its roots by name, or None if it is not cached."""
        with self._lock:
            found = self._by_id.pop(id, None)
            if found is not None:
                self._by_id[id] = found
            return found

    def add(self, id: bytes, record: CommitRecord, roots: dict[bytes, bytes]) -> None:
        """Cache a commit and its roots. A full cache gives up the least recently used commit."""
        with self._lock:
            self._by_id[id] = record, roots
            if len(self._by_id) > self._most:
                del self._by_id[next(iter(self._by_id))]


class CommitPrefetch:
    """Commits that were read before they are needed, as stored, by id.

    A commit names its parents, so a walk over all commits reads them one by one, with a round trip each. A
    walk that has gone far is likely to continue. It then reads all commits of the space in the order of their
    keys, 1,024 in each round trip.
    """

    def __init__(self) -> None:
        self._stored: dict[bytes, bytes] = {}
        self._taken = 0
        self._is_done = False

    async def take(self, unit: Unit, id: bytes) -> bytes | None:
        """Return the bytes of a commit if they were prefetched. Prefetch after enough calls."""
        self._taken += 1
        if self._taken > _READ_ALONE and not self._is_done:
            self._is_done = True
            await self._prefetch(unit)
        return self._stored.pop(id, None)

    async def _prefetch(self, unit: Unit) -> None:
        size_bytes = 0
        after: bytes | None = None
        while size_bytes < _PREFETCHED_BYTES:
            page = await unit.store.scan(unit.space, layout.COMMITS, after=after, limit=1_024)
            for entry in page.entries:
                self._stored[entry.key[len(layout.COMMITS) :]] = entry.value
                size_bytes += len(entry.value)
            after = page.next
            if after is None:
                return


class HistorySession:
    """The history of a space, as one unit of work reads and writes it.

    Args:
        unit: The unit.
        records: A cache of commits.
        cache: A cache of objects.
        states: The codec of states.
        record: Whether the space is to be recorded, even if no document has changed yet.
        archive: The archive of the space, for work that only reads.
    """

    def __init__(
        self,
        unit: Unit,
        records: Records,
        cache: ObjectCache | None = None,
        states: Codec = STATES,
        *,
        record: bool = False,
        archive: Archive | None = None,
    ) -> None:
        self.unit, self.states = unit, states
        self._record, self._archive = record, archive
        self._records = records
        self._grafts: Grafts | None = None
        self._graft_numbers: list[int] | None = None
        self._archived: set[bytes] = set()  # archived commits, and their parents
        self._along: tuple[bytes, bytes] | None = None
        self._taken: dict[bytes, Entry | None] = {}
        self.objects = HistoryObjects(unit, cache, None if archive is None else partial(archive.object, unit))
        self.ahead: CommitPrefetch | None = None
        """The prefetch of work that walks over all commits."""

    @classmethod
    def of(
        cls, executor: Executor, unit: Unit, records: Records, archive: Archive | None = None
    ) -> HistorySession:
        """Return the session of a unit that an executor runs."""
        cache = cache_of(unit.store).part(ObjectCache)
        return cls(unit, records, cache, executor.home.states, record=executor.record, archive=archive)

    async def serve(self, work: Fetching[T], *, keep: bool = True) -> T:
        """Return the result of work that requests objects; see `HistoryObjects.serve`."""
        return await self.objects.serve(work, keep=keep)

    # ---- branches

    async def branch(self, name: str) -> Head | None:
        """Return the head of a branch. The unit's batch is conditional on it."""
        if name == MAIN:
            # One read for both: a caller that moves `main` next asks whether the space is recorded.
            await self.unit.read(layout.named_key(layout.BRANCHES, name), layout.RULES)
        head = await read_head(self.unit, layout.BRANCHES, name)
        if head is not None and head.jumped:
            self._along = head.commit, head.jumped
        return head

    async def require_branch(self, name: str) -> Head:
        """Return the head of a branch that must exist."""
        head = await self.branch(name)
        if head is None:
            raise NotFoundError(
                f"there is no branch {name!r} in {self.unit.space!r}; commit to it, or call branch()"
            )
        return head

    def move(self, branch: str, head: Head) -> None:
        """Move a branch to a commit."""
        put_head(self.unit, layout.BRANCHES, branch, head)

    async def is_recorded(self) -> bool:
        """Return whether `main` follows the documents of the space."""
        return read_rules(await self.unit.get(layout.RULES)).is_recorded

    async def reject_recorded(self, branch: str) -> None:
        """Raise `InvalidError` for the branch that follows the documents of a recorded space."""
        if branch == MAIN and (self._record or await self.is_recorded()):
            raise InvalidError(
                f"{self.unit.name!r} is recorded, and its {MAIN!r} follows its documents: change the "
                "documents (`rollback` and `revert` restore them), or commit to another branch"
            )

    # ---- commits

    async def record(self, id: bytes) -> CommitRecord:
        """Return a commit, and load the objects that it carries."""
        return (await self._with_roots(id))[0]

    async def _with_roots(self, id: bytes) -> tuple[CommitRecord, dict[bytes, bytes]]:
        found = self._records.get(id)
        if found is None:
            record = self.objects.cached_record(id) if self._is_head(id) else None
            stored = None
            if record is None and self.ahead is not None:
                stored = await self.ahead.take(self.unit, id)
            if stored is not None:
                record = read_record(unpack_object(stored, f"commit {id.hex()}"), id)
            elif record is None:
                record = await self.stored_record(id)
            if record is not None:
                self.objects.add_record(id, record)
                found = record, record.roots()
                self._records.add(id, *found)
            else:
                record = await self.archived_record(id)
                if record is None:
                    raise await self._missing_error(id)
                found = record, record.roots()
        self.objects.load(found[1])
        return found

    async def jumped(self, first: CommitRecord | None) -> CommitRecord | None:
        """Return the record that decides about the jump of a child of a commit; None if it was collected."""
        id = None if first is None else jumped_from(first)
        if id is None:
            return None
        found = self._records.get(id)
        if found is not None:
            return found[0]
        record = self.objects.cached_record(id)
        if record is not None:
            return record
        try:
            record = await self.stored_record(id)
        except CorruptError:  # damage of an old commit must not keep others from committing
            return None
        if record is not None:
            self._records.add(id, record, record.roots())
            self.objects.add_record(id, record)
        return record

    def _is_head(self, id: bytes) -> bool:
        """Return whether the unit has read a branch or tag that is on this commit."""
        heads = self.unit.found(layout.BRANCHES, layout.TAGS)
        return any(id in entry.value for entry in heads)

    async def _missing_error(self, id: bytes) -> KeepstateError:
        await self.unit.verify()
        place = f"commit {id.hex()} of {self.unit.space!r}"
        if self.objects.loose is not None:
            return PrunedError(f"{place} was collected; no branch or tag led to it")
        return CorruptError(f"{place} is missing; restore it from a copy", place=place)

    def read_loosely(self, id: bytes) -> None:
        """Note that no branch or tag led to the commit that is read, so it may have been collected."""
        self.objects.loose = id

    async def stored_record(self, id: bytes) -> CommitRecord | None:
        """Return a commit, or None if the space does not have it.

        The head of a branch is read together with the commit that decides about the jump of the next one.
        """
        if id in self._taken:
            entry = self._taken.pop(id)
        elif self._along is not None and self._along[0] == id:
            also = self._along[1]
            entry, self._taken[also] = await self.unit.objects([layout.COMMITS + id, layout.COMMITS + also])
        else:
            (entry,) = await self.unit.objects([layout.COMMITS + id])
        if entry is None:
            return None
        return read_record(unpack_object(await self.unit.value(entry), f"commit {id.hex()}"), id)

    # ---- parents

    async def parents(self, id: bytes) -> list[bytes]:
        """Return the parents of a commit; after pruning, the nearest kept ancestors."""
        graft = await self.graft(id)
        return (await self.record(id)).parents if graft is None else graft.parents

    async def first_parent(self, id: bytes) -> bytes | None:
        """Return the nearest kept commit before this one on its line of first parents."""
        graft = await self.graft(id)
        if graft is not None and not graft.goes_on:
            return None
        return next(iter(await self.parents(id)), None)

    async def skipped(self, id: bytes) -> int:
        """Return the number of commits that were pruned between a commit and its first parent."""
        graft = await self.graft(id)
        return graft.skipped if graft else 0

    async def grafts(self) -> Grafts:
        """Return the grafts of commits whose parents were pruned."""
        if self._grafts is None:
            self._grafts = await read_grafts(self.unit)
        return self._grafts

    async def is_pruned_between(self, low: int, high: int) -> bool:
        """Return whether any line may be pruned directly below a number from above `low` to `high`."""
        grafts = await self.grafts()
        if not grafts and not self._archived:
            return False
        if self._graft_numbers is None:
            own = {graft.number for graft in grafts.values()}
            if self._archived and self._archive is not None:
                own |= {graft.number for graft in (await self._archive.bundle(self.unit)).grafts.values()}
            self._graft_numbers = sorted(own)
        at = bisect_right(self._graft_numbers, low)
        return at < len(self._graft_numbers) and self._graft_numbers[at] <= high

    async def graft_numbers(self) -> list[int]:
        """Return the numbers of all commits with a graft, in order."""
        await self.is_pruned_between(0, 0)
        return self._graft_numbers or []

    async def graft(self, id: bytes) -> Graft | None:
        """Return the graft of a commit, if its parents were pruned and are not in the archive."""
        grafts = await self.grafts()
        graft = grafts.get(id)
        if self._archive is None or not grafts:
            return graft
        parents = (await self.record(id)).parents
        # A commit that has its parents does not need the file, which may be on another machine.
        if graft is None and id not in self._archived:
            return None
        graft = await self._archive.graft(self.unit, id, parents, graft)
        if not self._archived:
            self._graft_numbers = None  # from here on, the grafts of the archive count too
        self._archived.update(parents if graft is None else graft.parents)
        return graft

    # ---- the archive

    async def archived_record(self, id: bytes) -> CommitRecord | None:
        """Return an archived commit, for work that only reads."""
        record = None if self._archive is None else await self._archive.commit(self.unit, id)
        if record is not None:
            if not self._archived:
                self._graft_numbers = None
            self._archived.add(id)
        return record

    async def archived_ids(self, prefix: bytes) -> list[bytes]:
        """Return the archived ids with a prefix; none if the archive is not on this machine."""
        if self._archive is None:
            return []
        try:
            bundle = await self._archive.bundle(self.unit)
        except PrunedError:
            return []
        return [id for id in bundle.commits if id.startswith(prefix)]

    async def require_archive(self) -> None:
        """Raise `PrunedError` with the archive's path if it is not on this machine.

        Call it for a commit that was not found, because the archive may contain it.
        """
        if self._archive is not None:
            await self._archive.bundle(self.unit)

    # ---- writing

    async def write(
        self,
        root: bytes,
        objects: Mapping[bytes, bytes],
        *,
        parents: Sequence[bytes],
        sources: Sequence[bytes] | None = None,
        author: str | None,
        message: str,
        nonce: bytes,
        classes: Sequence[str] = (),
        made_ms: int | None = None,
        meta: Mapping[str, str] | None = None,
        touched: Touched | Fetching[Touched] | None = None,
    ) -> tuple[bytes, CommitRecord]:
        """Write a commit and return it. No branch leads to it yet.

        Args:
            root: The encoding of the state.
            objects: The objects of the state that the sources do not have, or may not have.
            parents: The parents, the branch's own first.
            sources: The commits whose objects the state reuses. The default is the parents. The unit has read
                a branch or tag that leads to each.
            author: The author.
            message: The commit message.
            nonce: Random bytes that distinguish equal commits.
            classes: The classes of the state that are neither in the objects nor in the sources.
            made_ms: The time of the commit, if it was made before now.
            meta: The caller's notes on the commit.
            touched: The places where the state differs from that of the first parent, or more; or work that
                compares them, as far as their nodes are loaded. By default the whole states are compared.
        """
        earlier: dict[bytes, bytes] = {}
        known = set(classes).union(*map(classes_in, (root, *objects.values())))
        sources = parents if sources is None else sources
        records = {id: await self._with_roots(id) for id in dict.fromkeys((*sources, *parents))}
        for source in sources:
            record, roots = records[source]
            earlier |= roots
            known.update(record.classes)
        carries = carried(root, {**earlier, **objects})
        self.objects.add({**objects, **carries})
        before = [records[parent][0] for parent in parents]
        first = before[0] if before else None
        if touched is None and first is not None:
            touched = touched_between(first.root, root)
        if touched is not None and not isinstance(touched, Touched):
            touched = self.objects.serve_loaded(touched)
        marks = (ANYTHING if touched is None else touched).encoding()
        now_ms = await self.unit.now_ms()
        now_ms = now_ms if made_ms is None else min(made_ms, now_ms)
        created_ms = max(now_ms, *[parent.created_ms for parent in before], 0)
        lineage = lineage_of(created_ms, len(parents), marks, first, await self.jumped(first))
        record = CommitRecord(
            parents=list(parents),
            root=root,
            carried=[*carries.values()],
            generation=1 + max([parent.generation for parent in before], default=0),
            created_ms=created_ms,
            author=author,
            message=message,
            nonce=nonce,
            touched=marks,
            meta=dict(sorted((meta or {}).items())),
            classes=sorted(known),
            **msgspec.structs.asdict(lineage),
        )
        encoding = record.encoding()
        id = id_of(encoding)
        self._records.add(id, record, carries)
        self.objects.add_record(id, record)
        self._put(root, objects, earlier, carries)
        self.unit.put_object(layout.COMMITS + id, pack_record(record, encoding))
        return id, record

    def _put(
        self,
        root: bytes,
        objects: Mapping[bytes, bytes],
        earlier: Mapping[bytes, bytes],
        carries: Mapping[bytes, bytes],
    ) -> None:
        for name, data in objects.items():
            if name not in carries:
                self.objects.put(name, data)
        # A root that a commit carries may never have been written as an object. An object that refers to it
        # may be part of later states that do not carry it.
        for name, data in {**earlier, **carries}.items():
            if (name not in carries and name in root) or _is_in(name, objects):
                self.objects.put(name, data)


def _is_in(name: bytes, objects: Mapping[bytes, bytes]) -> bool:
    """Return whether an object refers to a name."""
    for data in objects.values():  # noqa: SIM110  a third of the time of `any`, for each commit
        if name in data:
            return True
    return False
