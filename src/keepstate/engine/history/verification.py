"""Verification and size of a history.

A record on its own is compared with its name. Missing records are looked for from branches and tags only,
because a collector may have deleted a part of what no branch or tag leads to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from keepstate.engine.history.commits import HistoryStats, Verified
from keepstate.engine.history.lineage import check_graft, check_lineage, head_of
from keepstate.engine.history.objects import key_maker, serve_work, unpack_object
from keepstate.engine.history.paths import decode_steps, format_path
from keepstate.engine.history.record import (
    CommitRecord,
    Grafts,
    Head,
    decode_grafts,
    heads,
    read_record,
    scan_entries,
)
from keepstate.engine.history.session import CommitPrefetch, HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import parse_manifest
from keepstate.engine.kernel.stored import decode_stored, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry, Store
from keepstate.values.merkle import check_object, reach
from keepstate.values.refs import Kind, Ref, name_of
from keepstate.values.touched import untold

_READ_AT_ONCE = 8

Read = Callable[[Sequence[bytes]], Awaitable[Sequence[Entry | None]]]
ReadWhole = Callable[[Entry], Awaitable[bytes | None]]


# ---- a whole history


async def survey(store: Store, space: str) -> HistoryStats:
    """Return the size of a history. Concurrent writes may or may not be counted."""
    counts: dict[bytes, int] = {}
    size_bytes = 0
    for part in (layout.BRANCHES, layout.TAGS, layout.COMMITS, layout.STATES):
        counts[part] = 0
        async for entry in scan_entries(store, space, part):
            counts[part] += 1
            if part in (layout.COMMITS, layout.STATES):
                size_bytes += _size_bytes(entry)
    branches, tags, commits, objects = counts.values()
    return HistoryStats(branches, tags, commits, objects, size_bytes)


def _size_bytes(entry: Entry) -> int:
    manifest = parse_manifest(entry.value, describe(entry.key))
    return len(entry.key) + len(entry.value) + (manifest.size_bytes if manifest else 0)


async def verify(unit: Unit) -> Verified:
    """Return the damage in everything that branches and tags lead to."""
    session = HistorySession(unit, Records())
    session.ahead = CommitPrefetch()
    problems: list[str] = []
    todo: list[bytes] = []
    for part, what in ((layout.BRANCHES, "branch"), (layout.TAGS, "tag")):
        try:
            async for name, head in heads(unit, part):
                todo.append(head.commit)
                right = head_of(head.commit, await session.record(head.commit))
                if right.number != head.number:
                    problems.append(
                        f"{what} {name!r} counts {head.number} commits, and there are {right.number}"
                    )
                elif head.jumped not in (b"", right.jumped):
                    problems.append(f"{what} {name!r} names another commit for the next jump than its commit")
        except CorruptError as error:
            problems.append(str(error))
    commits, objects = set(todo), set[bytes]()
    while todo:
        id = todo.pop()
        try:
            record = await session.record(id)
            roots = RootCheck(record.roots())
            await session.serve(reach([record.root], objects, roots.look), keep=False)
            await _require_objects(session, roots.referred)
            objects.difference_update(roots.carried)  # another commit may not carry them
            for parent in await session.parents(id):
                if parent not in commits:
                    commits.add(parent)
                    todo.append(parent)
            await _verify_lineage(session, id, record)
        except CorruptError as error:
            problems.append(f"commit {id.hex()}: {error}")
    return Verified(len(commits), len(objects), tuple(dict.fromkeys(problems)))


async def _require_objects(session: HistorySession, names: Collection[bytes]) -> None:
    """Raise `CorruptError` unless the space has these objects."""
    if names:
        key = key_maker(session.unit)
        for name, entry in zip(names, await session.unit.objects([key(name) for name in names]), strict=True):
            if entry is None:
                raise CorruptError(f"object {name.hex()} is missing")


class RootCheck:
    """The roots that a commit carries, and the roots to which other objects refer.

    The space needs these as objects too, because a commit that has the other objects may not carry the roots.
    """

    def __init__(self, carried: dict[bytes, bytes]) -> None:
        self.carried = carried
        self.referred = set[bytes]()

    def look(self, ref: Ref, data: bytes) -> None:
        """Compare an object with its name, and note the roots to which it refers.

        Raises:
            CorruptError: The object has another name.
        """
        check_object(ref, data)
        self.referred.update(name for name in self.carried if name in data)


async def _verify_lineage(session: HistorySession, id: bytes, record: CommitRecord) -> None:
    """Compare a record's facts about its ancestors, and its marks, with the commits themselves.

    Raises:
        CorruptError: They differ. Marks may say too much; that is not damage.
    """
    graft = await session.graft(id)
    if graft is not None:
        check_graft(graft, record, [await session.record(parent) for parent in graft.parents])
        return
    parents = [await session.record(parent) for parent in record.parents]
    first = parents[0] if parents else None
    check_lineage(record, parents, await session.jumped(first))
    if first is not None:
        missing = await session.serve(untold(record.own_touched(), first.root, record.root), keep=False)
        if missing:
            raise CorruptError(f"it changed {format_path(decode_steps(missing[0]))}, and does not say so")


# ---- records, one by one


def verify_commit(key: bytes, stored: bytes) -> None:
    """Raise `CorruptError` unless the bytes are the commit that the key names."""
    read_record(unpack_object(stored, "the record"), key[len(layout.COMMITS) :])


def verify_object(key: bytes, stored: bytes) -> None:
    """Raise `CorruptError` unless the bytes are the object that the key names, of any kind."""
    encoding = unpack_object(stored, "the record")
    if key[len(layout.STATES) :] not in {name_of(kind, encoding) for kind in Kind}:
        raise CorruptError("its content does not match its name")


def stored_head(entry: Entry) -> Head:
    """Return the head in an entry."""
    return decode_stored(entry.value, Head, "the record")


class HistoryVerifier:
    """Follows branches and tags to everything that they lead to. Each commit is verified once.

    Args:
        read: Returns entries of the space, all at one revision.
        read_whole: Returns the whole value of an entry, or None if the entry was replaced meanwhile.
    """

    def __init__(self, read: Read, read_whole: ReadWhole) -> None:
        self._read, self._read_whole = read, read_whole
        self._objects = set[bytes]()
        self._lines: dict[bytes, tuple[bytes | None, int]] = {}
        """The first parent of each verified commit, and the number of commits that were pruned before it."""
        self._heads: dict[bytes, Head] = {}
        """A head on each verified commit."""
        self._broken: dict[bytes, str] = {}
        self._grafts: Grafts | None = None
        self._pruned_at: int | None = None

    async def lost_below(self, key: bytes, head: Head) -> dict[bytes, str]:
        """Return descriptions of what a branch or tag leads to and is missing or damaged, by commit key.

        Damage of the head itself is listed under `key`. Nothing is returned if the branch or tag moved
        meanwhile, or the history was pruned.
        """
        if self._grafts is None:
            await self._read_grafts()
        fresh = await self._verify_ancestors(head.commit)
        lost = {layout.COMMITS + id: self._broken[id] for id in fresh if id != head.commit}
        number = self._depth(head.commit)
        if head.commit in self._broken:
            lost[key] = f"its commit is damaged or incomplete: {self._broken[head.commit]}"
        elif number is not None and not number == head.number == self._heads[head.commit].number:
            lost[key] = f"it counts {head.number} commits, and there are {number}"
        elif head.jumped not in (b"", self._heads[head.commit].jumped):
            lost[key] = "it names another commit for the next jump than its commit"
        if not lost:
            return {}
        now, grafts = await self._read([key, layout.GRAFTS])
        if now is None or stored_head(now) != head or _version(grafts) != self._pruned_at:
            self._grafts = None
            return {}
        return lost

    async def _read_grafts(self) -> None:
        (entry,) = await self._read([layout.GRAFTS])
        stored = None if entry is None else await self._read_whole(entry)
        self._pruned_at = _version(entry)
        self._grafts = {} if stored is None else decode_grafts(stored)

    async def _verify_ancestors(self, head: bytes) -> list[bytes]:
        """Verify a commit and its ancestors, and return the newly verified ones that are not intact."""
        fresh: list[bytes] = []
        todo = [head]
        while todo:
            id = todo.pop()
            if id in self._lines:
                continue
            self._lines[id] = None, 0
            try:
                record = await self._record(id)
                parents = self._follow(id, record)
                await self._reach(record)
                todo += parents
            except CorruptError as error:
                self._broken[id] = str(error)
                fresh.append(id)
        return fresh

    def _follow(self, id: bytes, record: CommitRecord) -> list[bytes]:
        self._heads[id] = head_of(id, record)
        graft = (self._grafts or {}).get(id)
        parents = record.parents if graft is None else graft.parents
        goes_on = bool(parents) and (graft is None or graft.goes_on)
        self._lines[id] = parents[0] if goes_on else None, graft.skipped if graft else 0
        return parents

    def _depth(self, id: bytes) -> int | None:
        """Return the number of a commit by first parents, or None if one of them is not intact."""
        count = 0
        at: bytes | None = id
        while at is not None:
            if at in self._broken:
                return None
            at, skipped = self._lines.get(at, (None, 0))
            count += 1 + skipped
        return count

    async def _record(self, id: bytes) -> CommitRecord:
        (entry,) = await self._read([layout.COMMITS + id])
        return read_record(await self._unpacked(entry, f"commit {id.hex()}"), id)

    async def _unpacked(self, entry: Entry | None, what: str) -> bytes:
        stored = None if entry is None else await self._read_whole(entry)
        if stored is None:
            raise CorruptError(f"{what} is missing")
        return unpack_object(stored, what)

    async def _reach(self, record: CommitRecord) -> None:
        roots = record.roots()

        async def fetch(wanted: Collection[Ref]) -> dict[bytes, bytes]:
            found = {ref.name: roots[ref.name] for ref in wanted if ref.name in roots}
            missing = [ref.name for ref in wanted if ref.name not in roots]
            for begin in range(0, len(missing), _READ_AT_ONCE):
                names = missing[begin : begin + _READ_AT_ONCE]
                entries = await self._read([layout.STATES + name for name in names])
                for name, entry in zip(names, entries, strict=True):
                    found[name] = await self._unpacked(entry, f"object {name.hex()}")
            return found

        deep = RootCheck(roots)
        await serve_work(reach([record.root], self._objects, deep.look), fetch)
        for name in deep.referred:
            await self._unpacked((await self._read([layout.STATES + name]))[0], f"object {name.hex()}")
        self._objects.difference_update(roots)  # another commit may not carry them


def _version(entry: Entry | None) -> int | None:
    return None if entry is None else entry.version
