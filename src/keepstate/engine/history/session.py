"""What one operation reads and writes of a history: within one unit of work, so in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from keepstate.engine.history.grafts import Graft, Grafts, read_grafts
from keepstate.engine.history.heads import MAIN, Head, put_head, read_head
from keepstate.engine.history.objects import Kept, Known, UnitObjects, packed_record, unpacked
from keepstate.engine.history.prefetch import CommitPrefetch
from keepstate.engine.history.record import CommitRecord, carried, id_of, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, KeepstateError, NotFoundError, PrunedError
from keepstate.values.codec import STATES, Codec
from keepstate.values.nodes import classes_in
from keepstate.values.refs import Fetching

if TYPE_CHECKING:
    from keepstate.engine.history.archive import Archive

T = TypeVar("T")

_REMEMBERED = 1_024


class Records:
    """Commits that were read lately, each with the roots that it carries; they never change.

    Args:
        most: How many.
    """

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._by_id: dict[bytes, tuple[CommitRecord, dict[bytes, bytes]]] = {}

    def get(self, id: bytes) -> tuple[CommitRecord, dict[bytes, bytes]] | None:
        """Return a commit and its roots by name, if it is remembered."""
        return self._by_id.get(id)

    def add(self, id: bytes, record: CommitRecord, roots: dict[bytes, bytes]) -> None:
        """Remember a commit and its roots, and forget all others when they have become many."""
        if len(self._by_id) >= self._most:
            self._by_id = {}
        self._by_id[id] = record, roots


class HistorySession:
    """The commits and objects of a space, as one unit of work reads and writes them.

    Args:
        unit: The unit.
        records: Commits that are remembered.
        kept: Objects that are at hand.
        states: What encodes and decodes states.
        record: Whether the space is to be recorded, even if no document has been changed yet.
        archive: What was moved into a file, for work that only reads.
    """

    def __init__(
        self,
        unit: Unit,
        records: Records,
        kept: Kept | None = None,
        states: Codec = STATES,
        *,
        record: bool = False,
        archive: Archive | None = None,
    ) -> None:
        self.unit, self.states = unit, states
        self._record, self._archive = record, archive
        self._records = records
        self._grafts: Grafts | None = None
        self._archived: set[bytes] = set()  # and what comes before those
        self._objects = UnitObjects(unit, archive)
        self.known = Known(self._objects, kept)
        self.ahead = CommitPrefetch()

    async def serve(self, work: Fetching[T], *, keep: bool = True) -> T:
        """Return the result of work that asks for objects; without `keep` they are not kept at hand."""
        return await self.known.serve(work, keep=keep)

    # ---- reading

    async def branch(self, name: str) -> Head | None:
        """Return a branch's head; what is written stands on it."""
        if name == MAIN:
            # Asked for together, so that who moves it learns in the same round whether it may.
            await self.unit.read(layout.named_key(layout.BRANCHES, name), layout.RECORDED)
        return await read_head(self.unit, layout.BRANCHES, name)

    async def refuse_recorded(self, branch: str) -> None:
        """Raise `InvalidError` for the branch that follows the documents of a recorded space."""
        if branch == MAIN and (self._record or await self.is_recorded()):
            raise InvalidError(
                f"{self.unit.name!r} is recorded, and its {MAIN!r} follows its documents: change those "
                "(`rollback` and `revert` put them back), or commit to another branch"
            )

    async def is_recorded(self) -> bool:
        """Whether `main` follows the documents of the space."""
        return await self.unit.get(layout.RECORDED) is not None

    async def there(self, name: str) -> Head:
        """Return the head of a branch that must be there."""
        head = await self.branch(name)
        if head is None:
            raise NotFoundError(
                f"there is no branch {name!r} in {self.unit.space!r}; commit to it, or branch it off"
            )
        return head

    async def record(self, id: bytes) -> CommitRecord:
        """Return a commit, the objects that it carries at hand."""
        return (await self._with_roots(id))[0]

    async def _with_roots(self, id: bytes) -> tuple[CommitRecord, dict[bytes, bytes]]:
        found = self._records.get(id)
        if found is None:
            stored = await self.ahead.take(self.unit, id)
            if stored is not None:
                record: CommitRecord | None = read_record(unpacked(stored, f"commit {id.hex()}"), id)
            else:
                record = await self.stored_record(id)
            if record is not None:
                found = record, record.roots()
                self._records.add(id, *found)
            else:
                record = await self.archived_record(id)
                if record is None:
                    raise await self._missing(id)
                found = record, record.roots()
        self.known.add(found[1])
        return found

    async def _missing(self, id: bytes) -> KeepstateError:
        await self.unit.verify()
        place = f"commit {id.hex()} of {self.unit.space!r}"
        if self._objects.loose is not None:
            return PrunedError(f"{place} was collected; nothing led to it")
        return CorruptError(f"{place} is missing; restore it from a copy", place=place)

    async def grafts(self) -> Grafts:
        """Return the grafts of commits whose parents were pruned."""
        if self._grafts is None:
            self._grafts = await read_grafts(self.unit)
        return self._grafts

    async def parents(self, id: bytes) -> list[bytes]:
        """Return the commits before one, or what pruning has left of them."""
        graft = await self.graft(id)
        return (await self.record(id)).parents if graft is None else graft.parents

    async def first_parent(self, id: bytes) -> bytes | None:
        """Return the commit before one on its line of first parents, the nearest that is kept."""
        graft = await self.graft(id)
        if graft is not None and not graft.goes_on:
            return None
        return next(iter(await self.parents(id)), None)

    async def skipped(self, id: bytes) -> int:
        """Return how many commits were pruned between one and its first parent."""
        graft = await self.graft(id)
        return graft.skipped if graft else 0

    async def graft(self, id: bytes) -> Graft | None:
        """Return what stands in place of a commit's parents, if they were pruned and are in no archive."""
        grafts = await self.grafts()
        graft = grafts.get(id)
        if self._archive is None or not grafts:
            return graft
        parents = (await self.record(id)).parents
        # The file is not opened for a commit that is kept with its parents: it may be elsewhere.
        if graft is None and id not in self._archived:
            return None
        graft = await self._archive.graft(self.unit, id, parents, graft)
        self._archived.update(parents if graft is None else graft.parents)
        return graft

    def read_loosely(self, id: bytes) -> None:
        """Note that no branch or tag led to the commit that is read, so that it may have been collected."""
        self._objects.loose = id

    async def stored_record(self, id: bytes) -> CommitRecord | None:
        """Return a commit if it is there."""
        (entry,) = await self.unit.objects([layout.COMMITS + id])
        if entry is None:
            return None
        return read_record(unpacked(await self.unit.value(entry), f"commit {id.hex()}"), id)

    async def archived_record(self, id: bytes) -> CommitRecord | None:
        """Return a commit that was moved into the archive, for work that only reads."""
        record = None if self._archive is None else await self._archive.commit(self.unit, id)
        if record is not None:
            self._archived.add(id)
        return record

    async def archived_ids(self, prefix: bytes) -> list[bytes]:
        """Return the ids in the archive that begin so; none where that is not here."""
        if self._archive is None:
            return []
        try:
            bundle = await self._archive.bundle(self.unit)
        except PrunedError:
            return []
        return [id for id in bundle.commits if id.startswith(prefix)]

    async def ask_for_archive(self) -> None:
        """Raise `PrunedError` that names the archive if that is not here: what is not found may be in it."""
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
    ) -> tuple[bytes, CommitRecord]:
        """Write a commit and return it; no branch is on it yet.

        Args:
            root: The state's encoding.
            objects: What of the state is not among that of the sources, or cannot be sure to be.
            parents: The commits before it, the branch's own first.
            sources: Whose objects the state takes over, if not the parents'. A branch or tag that leads to
                each was read.
            author: Who makes it.
            message: What for.
            nonce: What tells it from another that says the same.
            classes: Those of the state that are neither in the objects nor in the sources.
            made_ms: When it was made, if that was before now.
        """
        earlier: dict[bytes, bytes] = {}
        known = set(classes).union(*map(classes_in, (root, *objects.values())))
        sources = parents if sources is None else sources
        there = {id: await self._with_roots(id) for id in dict.fromkeys((*sources, *parents))}
        for source in sources:
            taken, roots = there[source]
            earlier |= roots
            known.update(taken.classes)
        carries = carried(root, {**earlier, **objects})
        before = [there[parent][0] for parent in parents]
        now_ms = await self.unit.now_ms()
        now_ms = now_ms if made_ms is None else min(made_ms, now_ms)
        record = CommitRecord(
            parents=list(parents),
            root=root,
            carried=[*carries.values()],
            generation=1 + max((parent.generation for parent in before), default=0),
            created_ms=max(now_ms, *(parent.created_ms for parent in before), 0),
            author=author,
            message=message,
            nonce=nonce,
            classes=sorted(known),
        )
        encoding = record.encoding()
        id = id_of(encoding)
        self._records.add(id, record, carries)
        self._put(root, objects, earlier, carries)
        self.unit.put_object(layout.COMMITS + id, packed_record(record, encoding))
        self.known.add({**objects, **carries})
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
                self._objects.put(name, data)
        # What stood in a source's own record was perhaps never an object by itself.
        for name, data in earlier.items():
            if name not in carries and any(name in referring for referring in (root, *objects.values())):
                self._objects.put(name, data)

    def move(self, branch: str, head: Head) -> None:
        """Put a branch on a commit."""
        put_head(self.unit, layout.BRANCHES, branch, head)
