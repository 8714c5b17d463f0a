"""Expunging a prefix from a shared space: its entries, their places in indexes, their log and their history.

1. The entries whose names begin with the prefix are deleted, in batches as any other change is.
2. In a recorded space, each branch and tag gets a new commit without them, which names no author and has no
   message. The commits below are pruned, and what nothing leads to is collected.
3. The subjects among them leave the index of `find`.
4. A revision without changes is taken, and the logs of the space and of the index are trimmed up to it.
5. The files of the store are scrubbed.

Each step finds by itself what is left to do, so a call that was interrupted is completed by the next one. It
is not isolated from writers: what they write under the prefix during the call may remain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from keepstate import names
from keepstate.engine.approvals.approvals import Approvals
from keepstate.engine.documents.write_rules import read_rules, records_prefix
from keepstate.engine.history.lineage import head_of
from keepstate.engine.history.paths import CODEC
from keepstate.engine.history.record import EMPTY_STATE, NONCE_BYTES, Head, heads, put_head
from keepstate.engine.history.recording.states import change_documents
from keepstate.engine.history.retention import Keeping, collect_history, prune
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.index.carrier import Carrier, Location, NoIndexError
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.blobs import Blobs
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.large_values import collect_parts
from keepstate.engine.kernel.stored import decode_stored, decode_text, describe
from keepstate.engine.kernel.subjects import APPROVAL, CARRIED, HOMED, OUTBOXES, Subject, subject_in
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.queue import Queue
from keepstate.engine.queue.schedules import Schedules
from keepstate.engine.space.erasure import Erased, read_archive, scrub
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry, TrimsLogs
from keepstate.values import limits
from keepstate.values.contents import open_contents
from keepstate.values.diff import unlike_keys
from keepstate.values.key import pack, unpack
from keepstate.values.merkle import MerkleValue
from keepstate.values.refs import together

_BY_NAME: Final = (layout.LEASES, layout.BRANCHES, layout.TAGS)
"""Parts whose keys end with a name."""
STREAMS: Final = (
    *(layout.EVENTS, layout.HEADS, layout.HAPPENED, layout.DROPPED, layout.FOLDS, layout.CURSORS),
)
"""Parts whose keys begin with the name of a stream."""
CHECKPOINTS: Final = (layout.CHECKPOINTS, layout.PENDING)
"""Parts whose keys begin with the name of a line of checkpoints."""
TASKS: Final = (
    *(layout.TASKS, layout.PAYLOADS, layout.RESULTS, layout.STEPS, layout.STEP_VALUES),
    *(layout.ATTEMPTS, layout.MESSAGES, layout.SENT, layout.FOLLOWERS, layout.ENDING),
)
"""Parts whose keys begin with the id of a task."""
SCHEDULES: Final = (layout.SCHEDULES, layout.PLANNED)
"""Parts whose keys begin with the name of a schedule."""
APPROVALS: Final = (layout.APPROVALS, layout.ASKED, layout.ASKING, layout.DECIDED)
"""Parts whose keys begin with the id of an approval."""
USAGE: Final = (layout.LEDGERS, layout.USED, layout.SPENT)
"""Parts whose keys begin with the name of an account of usage."""
_MAIN: Final = layout.named_key(layout.BRANCHES, layout.MAIN)
_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 2 << 20
_PASSES: Final = 8
"""The number of searches for entries; after that, writers add them faster than they are deleted."""
_NO_LOG: Final = "the log of the store, which cannot be trimmed"


class _Tally:
    """The entries that were deleted."""

    def __init__(self) -> None:
        self.entries = self.size_bytes = 0

    def count(self, *entries: Entry) -> None:
        """Count deleted entries."""
        self.entries += len(entries)
        self.size_bytes += sum(len(entry.key) + len(entry.value) for entry in entries)


async def expunge(executor: SpaceExecutor, prefix: str, *, scrubs: bool = True) -> Erased:
    """Remove all entries of a space whose names begin with a prefix, and report it.

    Args:
        executor: The executor of the space.
        prefix: The prefix.
        scrubs: Whether to remove the deleted bytes from the store's files; a caller that does not, does it
            once after several calls.

    Raises:
        InvalidError: The prefix is empty, or longer than 440 bytes.
    """
    executor.require_outside_transaction("expunging")
    if not 0 < len(prefix.encode()) <= layout.LONGEST_NAME:
        raise InvalidError(
            f"`prefix` has {len(prefix.encode())} bytes; give 1 to {layout.LONGEST_NAME}, or drop the "
            f"space to delete all of {executor.name!r}"
        )
    store, stored, tally = await executor.store(), executor.stored_name, _Tally()
    archive = await read_archive(store, stored)
    if (await store.sizes(stored)).parts:
        for _ in range(_PASSES):
            before = tally.entries
            await _delete_entries(executor, prefix, tally)
            if tally.entries == before:
                break
        await _forget_history(executor, prefix)
        await collect_parts(store, stored, await checks_for(store, stored))
        carrier = Carrier(store, names.parts_of(stored)[0], executor.clock)
        await _forget_subjects(executor, carrier, prefix)
        await _trim(executor, carrier)
    left = await scrub(store) if scrubs else []
    if not isinstance(store, TrimsLogs):
        left.append(_NO_LOG)
    archives = [] if archive is None else [Path(archive)]
    return Erased(int(tally.entries > 0), tally.entries, tally.size_bytes, archives, left)


# ---- entries


async def _delete_entries(executor: SpaceExecutor, prefix: str, tally: _Tally) -> None:
    """Delete the entries that are there now."""
    await _delete_documents(executor, prefix, tally)
    await _delete_tasks(executor, prefix, tally)
    await _delete_approvals(executor, prefix, tally)
    async for entries in _pages(executor, prefix, SCHEDULES):
        tally.count(*entries)
    async for entries in _pages(executor, prefix, SCHEDULES[:1]):
        for entry in entries:
            await Schedules(executor).delete(_first_name(layout.SCHEDULES, entry.key))
    async for entries in _pages(executor, prefix, (*STREAMS, *CHECKPOINTS, *USAGE)):
        await _delete(executor, entries, tally)
    for part in _BY_NAME:
        await _delete_named(executor, part, prefix, tally)
    blobs = Blobs(executor, limits.LARGEST_QUOTA)
    for name in await blobs.names(prefix):
        await blobs.delete(name)
        tally.entries += 1
    await _forget_expiring(executor, prefix)


async def _delete_documents(executor: SpaceExecutor, prefix: str, tally: _Tally) -> None:
    """Delete documents with their places in the indexes of their collections."""
    found: list[Entry] = []
    async for _, entry in executor.scan(layout.name_prefix(layout.DOCUMENTS, prefix)):
        found.append(entry)
    places = await _places(executor, prefix)
    batch: list[Entry] = []
    for entry in found:
        if batch and (len(batch) == _AT_ONCE or _size(batch) + len(entry.value) > _AT_ONCE_BYTES):
            await _delete_records(executor, batch, places, tally)
            batch = []
        batch.append(entry)
    if batch:
        await _delete_records(executor, batch, places, tally)
    # A place without its record: a build of the index wrote it, or a call that was interrupted left it.
    for record, stale in (await _places(executor, prefix)).items():
        await _delete_stale(executor, record, stale)


def _size(entries: Sequence[Entry]) -> int:
    return sum(len(entry.value) for entry in entries)


async def _places(executor: SpaceExecutor, prefix: str) -> dict[bytes, list[bytes]]:
    """Return the keys of the places of records in indexes, by the key of the record."""
    rules = read_rules((await (await executor.store()).read(executor.stored_name, [layout.RULES])).entries[0])
    start, found = layout.name_prefix(layout.DOCUMENTS, prefix), defaultdict[bytes, list[bytes]](list)
    for name in rules.collections:
        own = records_prefix(name)
        if not (own.startswith(start) or start.startswith(own)):
            continue
        async for _, entry in executor.scan(layout.INDEX + pack(name)):
            record = f"{name}/{decode_text(entry.value, describe(entry.key))}"
            if record.startswith(prefix):
                found[layout.named_key(layout.DOCUMENTS, record)].append(entry.key)
    return found


async def _delete_records(
    executor: SpaceExecutor, entries: Sequence[Entry], places: Mapping[bytes, Sequence[bytes]], tally: _Tally
) -> None:
    """Delete documents, each only at the version that was read, so that its places are the present ones."""
    versions = {entry.key: entry.version for entry in entries}

    async def work(unit: Unit) -> list[Entry]:
        gone = [
            entry
            for entry in await unit.read(*versions)
            if entry is not None and (entry.version == versions[entry.key] or not places)
        ]
        await unit.get(layout.RULES)
        for entry in gone:
            unit.delete(entry.key)
            unit.permit(entry.key)
            for place in places.get(entry.key, ()):
                unit.delete(place)
        return gone

    tally.count(*(await executor.run(work, attempts=None))[0])


async def _delete_stale(executor: SpaceExecutor, record: bytes, places: Sequence[bytes]) -> None:
    async def work(unit: Unit) -> None:
        if await unit.get(record) is None:
            for place in places:
                unit.delete(place)

    await executor.run(work, attempts=None)


async def _delete_tasks(executor: SpaceExecutor, prefix: str, tally: _Tally) -> None:
    queue = Queue(executor)
    async for entries in _pages(executor, prefix, TASKS):
        tally.count(*entries)
    async for entries in _pages(executor, prefix, (layout.TASKS,)):
        for entry in entries:
            await queue.discard(_first_name(layout.TASKS, entry.key))
    left = _Tally()
    async for entries in _pages(executor, prefix, TASKS):
        # A task of another name may be put meanwhile; only what belongs to no task is deleted here.
        await _delete(executor, [e for e in entries if not e.key.startswith(layout.TASKS)], left)
    followers: list[Entry] = []
    async for _, entry in executor.scan(layout.FOLLOWERS):
        _, follower = unpack(entry.key[len(layout.FOLLOWERS) :])
        if isinstance(follower, str) and follower.startswith(prefix):
            followers.append(entry)
    for start in range(0, len(followers), _AT_ONCE):
        await _delete(executor, followers[start : start + _AT_ONCE], left)


async def _delete_approvals(executor: SpaceExecutor, prefix: str, tally: _Tally) -> None:
    """Delete approvals with their logs. A task of another name that waits for one becomes ready."""
    approvals = Approvals(executor)
    async for entries in _pages(executor, prefix, APPROVALS):
        tally.count(*entries)
    async for entries in _pages(executor, prefix, (layout.APPROVALS,)):
        for entry in entries:
            await approvals.discard(_first_name(layout.APPROVALS, entry.key))
    left = _Tally()
    async for entries in _pages(executor, prefix, APPROVALS[1:]):
        await _delete(executor, entries, left)


async def _delete_named(executor: SpaceExecutor, part: bytes, prefix: str, tally: _Tally) -> None:
    found: list[Entry] = []
    is_recorded = await _is_recorded(executor)
    async for _, entry in executor.scan(layout.name_prefix(part, prefix)):
        if not (is_recorded and entry.key == _MAIN):  # it follows the documents
            found.append(entry)
    for start in range(0, len(found), _AT_ONCE):
        await _delete(executor, found[start : start + _AT_ONCE], tally)


async def _delete(executor: SpaceExecutor, entries: Sequence[Entry], tally: _Tally) -> None:
    async def work(unit: Unit) -> list[Entry]:
        gone = [entry for entry in await unit.read(*(entry.key for entry in entries)) if entry is not None]
        for entry in gone:
            unit.delete(entry.key)
        return gone

    if entries:
        tally.count(*(await executor.run(work, attempts=None))[0])


async def _pages(
    executor: SpaceExecutor, prefix: str, parts: Sequence[bytes]
) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries of some parts whose first name begins with a prefix, page by page."""
    for part in parts:
        page: list[Entry] = []
        async for _, entry in executor.scan(part + pack(prefix)[:-1]):
            if page and (len(page) == _AT_ONCE or _size(page) + len(entry.value) > _AT_ONCE_BYTES):
                yield page
                page = []
            page.append(entry)
        if page:
            yield page


def _first_name(part: bytes, key: bytes) -> str:
    name, *_ = unpack(key[len(part) :])
    assert isinstance(name, str)
    return name


async def _forget_expiring(executor: SpaceExecutor, prefix: str) -> None:
    """Remove names from the index of the recorded documents that expire."""
    found: list[Entry] = []
    async for _, entry in executor.scan(layout.EXPIRING):
        if any(name.startswith(prefix) for name in _expiring_in(entry)):
            found.append(entry)

    async def work(unit: Unit) -> None:
        for entry in await unit.read(*(entry.key for entry in found)):
            if entry is None:
                continue
            left = [name for name in _expiring_in(entry) if not name.startswith(prefix)]
            if left:
                unit.put(entry.key, msgspec.msgpack.encode(left))
            else:
                unit.delete(entry.key)

    if found:
        await executor.run(work, attempts=None)


def _expiring_in(entry: Entry) -> list[str]:
    return decode_stored(entry.value, list[str], entry.key)


# ---- history


async def _is_recorded(executor: SpaceExecutor) -> bool:
    store = await executor.store()
    return read_rules((await store.read(executor.stored_name, [layout.RULES])).entries[0]).is_recorded


async def _forget_history(executor: SpaceExecutor, prefix: str) -> None:
    """Leave no moment of a recorded space but the present ones of its branches and tags."""
    store, stored = await executor.store(), executor.stored_name
    if await _is_recorded(executor):
        for part in (layout.BRANCHES, layout.TAGS):
            for name in [name async for name, _ in heads(Unit(store, stored, executor.name), part)]:
                await _commit_afresh(executor, part, name, prefix)

        async def drop_old(unit: Unit) -> int:
            keeping = Keeping(last=1, since_ms=None, tagged=True)
            return await prune(HistorySession.of(executor, unit, Records()), keeping)

        await executor.run(drop_old, attempts=None)
    if (await store.scan(stored, layout.COMMITS, limit=1)).entries:
        await collect_history(store, stored)


async def _commit_afresh(executor: SpaceExecutor, part: bytes, name: str, prefix: str) -> None:
    """Commit the state of a branch or tag again, without the documents of the prefix.

    `main` follows the documents, which are deleted already.
    """

    async def work(unit: Unit) -> None:
        session = HistorySession.of(executor, unit, Records())
        await unit.get(layout.RULES)
        entry = await unit.get(layout.named_key(part, name))
        if entry is None:
            return
        head = decode_stored(entry.value, Head, entry.key)
        root = (await session.record(head.commit)).root
        state = MerkleValue(root, {})
        if entry.key != _MAIN and (gone := await _named(session, root, prefix)):
            state = await session.serve(change_documents(root, {}, gone))
        nonce = executor.clock.random_bytes(NONCE_BYTES)
        id, record = await session.write(
            state.encoding, state.objects, parents=[head.commit], author=None, message="", nonce=nonce
        )
        put_head(unit, part, name, head_of(id, record))

    await executor.run(work, attempts=None)


async def _named(session: HistorySession, root: bytes, prefix: str) -> list[str]:
    """Return the names of the documents of a state that begin with a prefix."""
    nothing, contents = await session.serve(together([open_contents(EMPTY_STATE), open_contents(root)]))
    entries = await session.serve(unlike_keys(nothing, contents))
    found = [CODEC.assemble(entry.key, {}) for _, entry in entries if entry is not None]
    return [name for name in found if isinstance(name, str) and name.startswith(prefix)]


# ---- the index of subjects, and the log


async def _forget_subjects(executor: SpaceExecutor, carrier: Carrier, prefix: str) -> None:
    """Remove the subjects of the prefix from the index, and their marks from the space."""
    found: dict[Location, list[Entry]] = defaultdict(list)
    for part in (OUTBOXES, CARRIED):
        async for _, entry in executor.scan(part):
            subject = subject_in(part, entry)
            if _name_of(subject).startswith(prefix):
                found[executor.name, subject].append(entry)
    try:
        if await carrier.meta() is None:
            for entries in found.values():
                await _delete(executor, entries, _Tally())
        if await carrier.meta() is not None:  # also one that was made meanwhile, of what was there before
            await carrier.carry(found, rebuilds=True)
            await carrier.deliver()  # also what a process left that was killed while it carried them
    except NoIndexError:
        return  # the tenant is being erased


def _name_of(subject: Subject) -> str:
    """Return the beginning of the names of a subject's entries; an empty one for a queue."""
    if subject.kind in HOMED:
        return f"{subject.kind}/{names.escape(subject.id)}/"
    return subject.id if subject.kind == APPROVAL else ""


async def _trim(executor: SpaceExecutor, carrier: Carrier) -> None:
    """Trim the logs of the space and of the index, so that the deleted values are not in them."""
    store = carrier.store

    async def advance(unit: Unit) -> None:
        unit.delete(layout.UNUSED)

    await executor.run(advance, attempts=None)
    if isinstance(store, TrimsLogs):
        await store.trim(executor.stored_name)
        if await carrier.advance():
            await store.trim(carrier.space)
