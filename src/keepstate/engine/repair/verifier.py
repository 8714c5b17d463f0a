"""Verification of every record of a space.

Values are decoded to builtin form, so no class of the application is needed. Records that belong together are
read in one read, so concurrent writes are not mistaken for damage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from keepstate.engine.documents.record import split_record
from keepstate.engine.documents.write_rules import decode_rules
from keepstate.engine.events.folds import FoldRecord
from keepstate.engine.events.record import Cursor, EventRecord
from keepstate.engine.history.record import decode_grafts
from keepstate.engine.history.verification import HistoryVerifier, stored_head, verify_commit, verify_object
from keepstate.engine.index.carrier import DropMark, Mark, OwnerErasure
from keepstate.engine.index.rows import MetaRecord, Row
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.grants import TenantRecord
from keepstate.engine.kernel.large_values import MANIFEST_BYTE, parse_manifest, scan_pages
from keepstate.engine.kernel.stored import decode_stored, strip_checksum
from keepstate.engine.kernel.subjects import ChangeTime
from keepstate.engine.queue import tasks, ticks
from keepstate.engine.queue.attempts import AttemptRecord
from keepstate.engine.queue.rules import decode_rules as decode_queue_rules
from keepstate.engine.queue.step_records import decode_step
from keepstate.engine.usage.records import day_and_model, decode_ledger, decode_used
from keepstate.errors import CompactedError, CorruptError, InvalidError
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Entry, Store
from keepstate.values import codec
from keepstate.values.key import BY_KEY, OBJECTS, WITH_VALUES, Stamp, pack, stamp_suffix, unpack
from keepstate.values.refs import DIGEST_SIZE

_READ_AT_ONCE: Final = 8
"""Number of records that fit into one answer, whatever their size."""
_COUNTINGS: Final = 5
_SEALED_BITS: Final = 0x3F
_LEAST_SEALED: Final = 42
"""Size of the shortest encrypted value."""


class Problem(msgspec.Struct, frozen=True):
    """A damaged or incomplete record."""

    key: bytes
    what: str
    is_alone: bool = True
    """True if the record itself is damaged; False if a record that belongs to it is missing."""


class Source(Protocol):
    """A source of records."""

    def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space, in key order."""
        ...

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries, all at one revision; None for an absent one."""
        ...


class Verifier:
    """Verifies the records of one space.

    Args:
        source: The source of the records.
        space: The space.
        is_encrypted: Whether the store is encrypted. Then only the application can decode its values.
    """

    def __init__(self, source: Source, space: str, *, is_encrypted: bool = False) -> None:
        self._source, self._space, self.is_encrypted = source, space, is_encrypted
        self._history = HistoryVerifier(lambda keys: source.read(space, keys), self._whole)

    async def problems(self, entry: Entry) -> list[Problem]:
        """Return the problems of a record; none if it was replaced meanwhile."""
        try:
            return await self._problems(entry)
        except (CorruptError, InvalidError, msgspec.MsgspecError, ValueError) as error:
            return [Problem(entry.key, " ".join(str(error).split()))]

    async def _problems(self, entry: Entry) -> list[Problem]:
        key = entry.key
        if self.is_encrypted:
            return [] if _is_sealed(entry.value) else [Problem(key, "it is not encrypted, and its store is")]
        for part, decode in _DECODERS.items():
            if key.startswith(part):
                decode(key, entry.value)
        for part, decode in _WHOLE_DECODERS.items():
            if key.startswith(part) and (whole := await self._whole(entry)) is not None:
                decode(key, whole)
        for parts, verify in (
            ((layout.EVENTS,), self._event),
            ((layout.HEADS,), self._head),
            ((layout.HAPPENED,), self._happened),
            ((layout.TASKS,), self._task),
            ((layout.PAYLOADS, layout.RESULTS), self._owned),
            ((layout.SCHEDULES,), self._schedule),
            ((layout.PLANNED, layout.TICKS), self._of_schedule),
            ((layout.BRANCHES, layout.TAGS), self._branch_or_tag),
            (tuple(layout.INDEXES.values()), self._index),
        ):
            if key.startswith(parts):
                return await verify(entry)
        return []

    async def _whole(self, entry: Entry) -> bytes | None:
        """Return the whole value of a record, or None if the record was replaced meanwhile."""
        if not entry.value.startswith(MANIFEST_BYTE):
            return entry.value
        manifest = parse_manifest(entry.value, "the record")
        assert manifest is not None
        pieces: list[bytes] = []
        for name in manifest.parts:
            now, part = await self._source.read(self._space, [entry.key, layout.PARTS + name])
            if now is None or now.version != entry.version:
                return None
            if part is None:
                raise CorruptError(f"its part {name.hex()} is missing")
            pieces.append(part.value)
        whole = b"".join(pieces)
        if len(whole) != manifest.size_bytes or sha256(whole).digest() != manifest.digest:
            raise CorruptError("its parts do not match its digest")
        return whole

    # ---- events

    async def _event(self, entry: Entry) -> list[Problem]:
        stream, stamp = _event_key(entry.key)
        if stamp.revision > entry.version:
            raise CorruptError("its position is above the revision that wrote it")
        now, head = await self._source.read(self._space, [entry.key, layout.stream_key(layout.HEADS, stream)])
        record = decode_stored(entry.value, EventRecord, "the record") if head is None else None
        if record is not None and record.is_drop:
            return []
        if now is not None and (head is None or head.version < stamp.revision):
            return [Problem(entry.key, "the head of its stream is lost", is_alone=False)]
        return []

    async def _head(self, entry: Entry) -> list[Problem]:
        stream = _one_text(entry.key[len(layout.HEADS) :])
        if len(entry.value) != 2:
            raise CorruptError("it is not the head of a stream")
        return await self._pointer(entry, stream, f"the last event of stream {stream!r} is lost")

    async def _happened(self, entry: Entry) -> list[Problem]:
        stream, _ = unpack(entry.key[len(layout.HAPPENED) :])
        if type(stream) is not str or len(entry.value) != 2:
            raise CorruptError("it does not contain the position of an event")
        return await self._pointer(entry, stream, f"its event of stream {stream!r} is lost")

    async def _pointer(self, entry: Entry, stream: str, lost: str) -> list[Problem]:
        """Verify that the event exists whose index in the entry's own batch is the entry's value."""
        stamp = stamp_suffix(entry.version, int.from_bytes(entry.value, "big"))
        event_key = layout.stream_key(layout.EVENTS, stream) + stamp
        now, event = await self._source.read(self._space, [entry.key, event_key])
        if event is None and now is not None and now.version == entry.version:
            return [Problem(entry.key, lost, is_alone=False)]
        return []

    # ---- tasks

    async def _task(self, entry: Entry) -> list[Problem]:
        record = tasks.decode_record(entry.value, "the record")
        if entry.key != tasks.task_key(record.id) or record.state not in tasks.STATES:
            raise CorruptError("it is the record of another task")
        keys = (
            tasks.index_key(record, entry.version),
            tasks.payload_key(record.id),
            tasks.result_key(record.id),
        )
        now, index, payload, result = await self._source.read(self._space, [entry.key, *keys])
        if now is None or now.version != entry.version:
            return []
        lost = {
            f"its place among the {record.state} tasks is lost": index is None,
            "its payload is lost": payload is None,
            "its result is lost": result is None and record.has_result,
        }
        return [Problem(entry.key, what, is_alone=False) for what, is_lost in lost.items() if is_lost]

    async def _index(self, entry: Entry) -> list[Problem]:
        task_id = tasks.id_in(entry)
        now, stored = await self._source.read(self._space, [entry.key, tasks.task_key(task_id)])
        if now is None or now.version != entry.version or now.expires_at_ms is not None:
            return []
        if stored is None:
            return [Problem(entry.key, f"its task {task_id!r} is lost", is_alone=False)]
        record = tasks.decode_record(stored.value, f"task {task_id!r}")
        if tasks.index_key(record, stored.version) != entry.key:
            return [Problem(entry.key, f"its task {task_id!r} has another index entry", is_alone=False)]
        return []

    async def _owned(self, entry: Entry) -> list[Problem]:
        """Verify that the task of a payload or result exists."""
        part = layout.PAYLOADS if entry.key.startswith(layout.PAYLOADS) else layout.RESULTS
        task_id = _one_text(entry.key[len(part) :])
        now, stored = await self._source.read(self._space, [entry.key, tasks.task_key(task_id)])
        if stored is None and now is not None and now.expires_at_ms is None:
            return [Problem(entry.key, f"its task {task_id!r} is lost", is_alone=False)]
        return []

    # ---- schedules

    async def _schedule(self, entry: Entry) -> list[Problem]:
        record = ticks.decode_schedule(entry.value, "the record")
        if entry.key != ticks.schedule_key(record.name):
            raise CorruptError("it is the record of another schedule")
        keys = [entry.key, ticks.planned_key(record.name)]
        if record.due_ms is not None:
            keys.append(ticks.tick_key(record.due_ms, record.name))
        now, planned, *index = await self._source.read(self._space, keys)
        if now is None or now.version != entry.version:
            return []
        lost = {"its payload is lost": planned is None, "its place among the due ones is lost": None in index}
        return [Problem(entry.key, what, is_alone=False) for what, is_lost in lost.items() if is_lost]

    async def _of_schedule(self, entry: Entry) -> list[Problem]:
        """Verify that the schedule of a payload or index entry exists."""
        if entry.key.startswith(layout.TICKS):
            due_ms, name = ticks.tick_in(entry.key)
        else:
            due_ms, name = None, _one_text(entry.key[len(layout.PLANNED) :])
        now, stored = await self._source.read(self._space, [entry.key, ticks.schedule_key(name)])
        if now is None or now.version != entry.version:
            return []
        if stored is None:
            return [Problem(entry.key, f"its schedule {name!r} is lost", is_alone=False)]
        record = ticks.decode_schedule(stored.value, f"schedule {name!r}")
        if due_ms is not None and due_ms != record.due_ms:
            return [Problem(entry.key, f"its schedule {name!r} has another index entry", is_alone=False)]
        return []

    # ---- history

    async def _branch_or_tag(self, entry: Entry) -> list[Problem]:
        lost = await self._history.lost_below(entry.key, stored_head(entry))
        return [Problem(key, what, is_alone=False) for key, what in lost.items()]


# ---- records that need no other one


def _decode_part(key: bytes, value: bytes) -> None:
    if sha256(value).digest()[:DIGEST_SIZE] != key[len(layout.PARTS) :]:
        raise CorruptError("its content does not match its name")


def _decode_event(key: bytes, whole: bytes) -> None:
    _event_key(key)
    codec.to_builtin(decode_stored(whole, EventRecord, "the record").data)


_DECODERS: Final[Mapping[bytes, Callable[[bytes, bytes], object]]] = {
    layout.PARTS: _decode_part,
    layout.CURSORS: lambda _, value: Cursor.of(value, "a projection"),
    layout.LEASES: lambda _, value: codec.to_builtin(value),
    layout.RULES: lambda _, value: decode_rules(value),
    layout.QUEUE_RULES: lambda _, value: decode_queue_rules(value),
    layout.ARCHIVE: lambda _, value: decode_stored(value, str, "the name of the archive"),
    layout.STEPS: lambda _, value: decode_step(value, "the record"),
    layout.ATTEMPTS: lambda _, value: decode_stored(value, list[AttemptRecord], "the record"),
    layout.EXPIRING: lambda _, value: decode_stored(value, list[str], "the record"),
    layout.OUTBOX: lambda _, value: decode_stored(value, ChangeTime, "the record"),
    layout.CARRIED: lambda _, value: decode_stored(value, ChangeTime, "the record"),
    layout.INDEX_META: lambda _, value: decode_stored(value, MetaRecord, "the record"),
    layout.ROWS: lambda _, value: decode_stored(value, Row, "the record"),
    layout.CARRYING: lambda _, value: decode_stored(value, Mark, "the record"),
    layout.DROPPING: lambda _, value: decode_stored(value, DropMark, "the record"),
    layout.LEDGERS: lambda _, value: decode_ledger(value, "the record"),
    layout.USED: lambda key, value: (day_and_model(key), decode_used(value, "the record")),
    layout.ERASING: lambda _, value: decode_stored(value, OwnerErasure, "the record"),
    layout.TENANT: lambda _, value: decode_stored(value, TenantRecord, "the record of the tenant"),
}
"""Raise an error for a damaged record, given its key and value; by key prefix."""

_WHOLE_DECODERS: Final[Mapping[bytes, Callable[[bytes, bytes], object]]] = {
    layout.DOCUMENTS: lambda key, whole: codec.to_builtin(split_record(key, whole)[1]),
    layout.CHECKPOINTS: lambda _, whole: strip_checksum(whole, "the record"),
    layout.PENDING: lambda _, whole: strip_checksum(whole, "the record"),
    layout.EVENTS: _decode_event,
    layout.FOLDS: lambda _, whole: codec.to_builtin(decode_stored(whole, FoldRecord, "the record").state),
    layout.PAYLOADS: lambda _, whole: codec.to_builtin(whole),
    layout.RESULTS: lambda _, whole: codec.to_builtin(whole),
    layout.PLANNED: lambda _, whole: codec.to_builtin(whole),
    layout.STEP_VALUES: lambda _, whole: codec.to_builtin(whole),
    layout.MESSAGES: lambda _, whole: codec.to_builtin(whole),
    layout.COMMITS: verify_commit,
    layout.STATES: verify_object,
    layout.GRAFTS: lambda _, whole: decode_grafts(whole),
}
"""The same for values that may be stored in parts, given the whole value."""


def _event_key(key: bytes) -> tuple[str, Stamp]:
    match unpack(key[len(layout.EVENTS) :]):
        case (str(stream), Stamp() as stamp):
            return stream, stamp
        case _:
            raise CorruptError("its key is not that of an event")


def _one_text(packed: bytes) -> str:
    match unpack(packed):
        case (str(text),):
            return text
        case _:
            raise CorruptError("its key is not that of one name")


def head_for(event: Entry) -> tuple[bytes, bytes]:
    """Return the key and value of the head of a stream whose last event is this one."""
    stream, stamp = _event_key(event.key)
    return layout.HEADS + pack(stream), stamp.index.to_bytes(2, "big")


def _is_sealed(value: bytes) -> bool:
    """Return whether a value looks encrypted."""
    return len(value) >= _LEAST_SEALED and value[0] & _SEALED_BITS == codec.SEALED[0]


async def log_problems(store: Store, space: str) -> list[Problem]:
    """Return the keys whose log and entry contradict each other.

    Keys without an entry are skipped, because an expired entry is logged only when it is removed.
    """
    last: dict[bytes, _Logged] = {}
    try:
        page = await store.changes(space, 0)
    except CompactedError as error:
        page = await store.changes(space, error.floor or 0)
    upto = -1
    while page.upto > upto:
        upto = page.upto
        for change in page.items:
            new = None if change.new is None else crc32(change.new)
            last[change.key] = _Logged(change.revision, change.deleted, new)
        page = await store.changes(space, upto)
    problems: list[Problem] = []
    keys = sorted(last)
    for start in range(0, len(keys), _READ_AT_ONCE):
        some = keys[start : start + _READ_AT_ONCE]
        reading = await store.read(space, some)
        for key, entry in zip(some, reading.entries, strict=True):
            if entry is not None and entry.version <= upto:
                problems += _unlike_log(entry, last[key])
    return problems


async def size_problems(store: Store, space: str) -> list[Problem]:
    """Return the parts of a space whose size, as the store keeps it, is not that of their entries.

    While other callers write, the comparison is repeated; it is given up if the space never stands still.
    """
    for _ in range(_COUNTINGS):
        before = await store.sizes(space)
        kept = PartSizes({part: [*size] for part, size in before.parts.items()})
        counted = kept.emptied()
        for section in (OBJECTS, BY_KEY, WITH_VALUES):
            async for page in scan_pages(store, space, bytes((section,))):
                for entry in page:
                    counted.count(entry.key, 1, len(entry.key) + len(entry.value))
        if (after := await store.sizes(space)).revision == before.revision and after.parts == before.parts:
            return unlike_sizes(kept, counted)
    return []


def unlike_sizes(kept: PartSizes, counted: PartSizes) -> list[Problem]:
    """Return the parts whose size is not as counted."""
    return [Problem(part, "its size is not that of its entries") for part in kept.differing(counted)]


class _Logged(NamedTuple):
    """The last change of a key: its revision, and the checksum of its value, if the log has the value."""

    revision: int
    deleted: bool
    new: int | None


def _unlike_log(entry: Entry, logged: _Logged) -> list[Problem]:
    what = ""
    if logged.deleted or entry.version != logged.revision:
        said = "deleted it" if logged.deleted else "wrote it last"
        what = f"it is of revision {entry.version}, and the log {said} at {logged.revision}"
    elif logged.new is not None and logged.new != crc32(entry.value):
        what = f"its value differs from the one that was logged at revision {logged.revision}"
    return [Problem(entry.key, what)] if what else []
