"""Looks at every record of a space and says which are not what some part of the engine has written.

Values are decoded to builtin form, so no class of the application is needed. A record that others belong to
is read together with them, in one read, so that a store which is written to meanwhile is not called damaged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from keepstate.engine.documents.record import split_record
from keepstate.engine.events.folds import FoldRecord
from keepstate.engine.events.record import Cursor, EventRecord
from keepstate.engine.history.record import decode_grafts
from keepstate.engine.history.recording.expiry import read_flag
from keepstate.engine.history.verification import HistoryVerifier, stored_head, verify_commit, verify_object
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import MANIFEST_BYTE, parse_manifest
from keepstate.engine.kernel.stored import decode_stored, strip_checksum
from keepstate.engine.queue import tasks
from keepstate.errors import CompactedError, CorruptError, InvalidError
from keepstate.stores.protocol import Entry, Store
from keepstate.values import codec
from keepstate.values.key import Stamp, pack, stamp_suffix, unpack
from keepstate.values.refs import DIGEST_SIZE

_READ_AT_ONCE: Final = 8
"""As many as always fit into one answer."""
_SEALED_BITS: Final = 0x3F
_LEAST_SEALED: Final = 42
"""No encrypted value is shorter."""


class Problem(msgspec.Struct, frozen=True):
    """A record that is not whole."""

    key: bytes
    what: str
    is_alone: bool = True
    """Whether the record itself is damaged; else it is whole, and one that belongs to it is not there."""


class Source(Protocol):
    """Where the records are."""

    def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space, in key order."""
        ...

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries as of one moment, None for absent ones."""
        ...


class Verifier:
    """Verifies the records of one space.

    Args:
        source: Where they are.
        space: The space.
        is_encrypted: Whether the store is, so that only its application can tell what a value is.
    """

    def __init__(self, source: Source, space: str, *, is_encrypted: bool = False) -> None:
        self._source, self._space, self.is_encrypted = source, space, is_encrypted
        self._history = HistoryVerifier(lambda keys: source.read(space, keys), self._whole)

    async def problems(self, entry: Entry) -> list[Problem]:
        """Return what is wrong with a record; nothing if it was replaced meanwhile."""
        try:
            return await self._problems(entry)
        except (CorruptError, InvalidError, msgspec.MsgspecError, ValueError) as error:
            return [Problem(entry.key, " ".join(str(error).split()))]

    async def _problems(self, entry: Entry) -> list[Problem]:
        key = entry.key
        if self.is_encrypted:
            return [] if _is_sealed(entry.value) else [Problem(key, "it is not encrypted, and its store is")]
        for part, verify in (
            (layout.DOCUMENTS, self._document),
            (layout.PARTS, self._part),
            (layout.EVENTS, self._event),
            (layout.HEADS, self._head),
            (layout.HAPPENED, self._happened),
            (layout.FOLDS, self._fold),
            (layout.CURSORS, self._cursor),
            (layout.TASKS, self._task),
            (layout.PAYLOADS, self._owned),
            (layout.RESULTS, self._owned),
            (layout.LEASES, self._lease),
            (layout.COMMITS, self._commit),
            (layout.STATES, self._object),
            (layout.BRANCHES, self._branch_or_tag),
            (layout.TAGS, self._branch_or_tag),
            (layout.GRAFTS, self._grafts),
            (layout.RECORDED, self._recorded),
            (layout.ARCHIVE, self._archive),
            (layout.EXPIRING, self._expiring),
            (layout.CHECKPOINTS, self._summed),
            (layout.PENDING, self._summed),
        ):
            if key.startswith(part):
                return await verify(entry)
        return await self._index(entry) if key.startswith(tuple(layout.INDEXES.values())) else []

    # ---- values

    async def _whole(self, entry: Entry) -> bytes | None:
        """Return a record's value put together; None if the record was replaced meanwhile."""
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
            raise CorruptError("its parts are not what was written")
        return whole

    async def _document(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            _, encoded = split_record(entry.key, whole)
            codec.to_builtin(encoded)
        return []

    async def _summed(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            strip_checksum(whole, "the record")
        return []

    async def _part(self, entry: Entry) -> list[Problem]:
        if sha256(entry.value).digest()[:DIGEST_SIZE] != entry.key[len(layout.PARTS) :]:
            raise CorruptError("its content is not what it is named by")
        return []

    # ---- events

    async def _event(self, entry: Entry) -> list[Problem]:
        stream, stamp = _event_key(entry.key)
        if stamp.revision > entry.version:
            raise CorruptError("its position is above the revision that wrote it")
        stored = await self._whole(entry)
        if stored is not None:
            record = decode_stored(stored, EventRecord, "the record")
            codec.to_builtin(record.data)
        now, head = await self._source.read(self._space, [entry.key, layout.stream_key(layout.HEADS, stream)])
        if now is not None and (head is None or head.version < stamp.revision):
            return [Problem(entry.key, "the head of its stream is lost", is_alone=False)]
        return []

    async def _head(self, entry: Entry) -> list[Problem]:
        stream = _one_text(entry.key[len(layout.HEADS) :])
        if len(entry.value) != 2:
            raise CorruptError("it is no head of a stream")
        last = layout.stream_key(layout.EVENTS, stream) + stamp_suffix(
            entry.version, int.from_bytes(entry.value, "big")
        )
        now, event = await self._source.read(self._space, [entry.key, last])
        if event is None and now is not None and now.version == entry.version:
            return [Problem(entry.key, f"the last event of stream {stream!r} is lost", is_alone=False)]
        return []

    async def _happened(self, entry: Entry) -> list[Problem]:
        stream, _ = unpack(entry.key[len(layout.HAPPENED) :])
        if type(stream) is not str or len(entry.value) != 2:
            raise CorruptError("it does not say where an event stands")
        place = layout.stream_key(layout.EVENTS, stream) + stamp_suffix(
            entry.version, int.from_bytes(entry.value, "big")
        )
        now, event = await self._source.read(self._space, [entry.key, place])
        if event is None and now is not None and now.version == entry.version:
            return [
                Problem(entry.key, f"the event of stream {stream!r} that it tells of is lost", is_alone=False)
            ]
        return []

    async def _fold(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            codec.to_builtin(decode_stored(whole, FoldRecord, "the record").state)
        return []

    async def _cursor(self, entry: Entry) -> list[Problem]:
        Cursor.of(entry.value, "a projection")
        return []

    # ---- tasks

    async def _task(self, entry: Entry) -> list[Problem]:
        record = tasks.decode_record(entry.value, "the record")
        if entry.key != tasks.task_key(record.id) or record.state not in tasks.STATES:
            raise CorruptError("it is another task's record")
        place = tasks.index_key(record, entry.version)
        payload, result = tasks.payload_key(record.id), tasks.result_key(record.id)
        now, index, about, came_to = await self._source.read(self._space, [entry.key, place, payload, result])
        if now is None or now.version != entry.version:
            return []
        problems: list[Problem] = []
        if index is None:
            problems.append(Problem(entry.key, f"its place among the {record.state} tasks is lost", False))
        if about is None and record.state != "done":
            problems.append(Problem(entry.key, "its payload is lost", is_alone=False))
        if came_to is None and record.has_result:
            problems.append(Problem(entry.key, "its result is lost", is_alone=False))
        return problems

    async def _index(self, entry: Entry) -> list[Problem]:
        task_id = entry.value.decode("utf-8", "surrogatepass")
        now, stored = await self._source.read(self._space, [entry.key, tasks.task_key(task_id)])
        if now is None or now.version != entry.version or now.expires_at_ms is not None:
            return []
        if stored is None:
            return [Problem(entry.key, f"its task {task_id!r} is lost", is_alone=False)]
        record = tasks.decode_record(stored.value, f"task {task_id!r}")
        if tasks.index_key(record, stored.version) != entry.key:
            return [Problem(entry.key, f"its task {task_id!r} stands elsewhere", is_alone=False)]
        return []

    async def _owned(self, entry: Entry) -> list[Problem]:
        """Verify a payload or result."""
        whole = await self._whole(entry)
        if whole is not None:
            codec.to_builtin(whole)
        part = layout.PAYLOADS if entry.key.startswith(layout.PAYLOADS) else layout.RESULTS
        task_id = _one_text(entry.key[len(part) :])
        now, stored = await self._source.read(self._space, [entry.key, tasks.task_key(task_id)])
        if stored is None and now is not None and now.expires_at_ms is None:
            return [Problem(entry.key, f"its task {task_id!r} is lost", is_alone=False)]
        return []

    async def _lease(self, entry: Entry) -> list[Problem]:
        codec.to_builtin(entry.value)
        return []

    # ---- history

    async def _commit(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            verify_commit(entry.key, whole)
        return []

    async def _object(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            verify_object(entry.key, whole)
        return []

    async def _branch_or_tag(self, entry: Entry) -> list[Problem]:
        lost = await self._history.lost_below(entry.key, stored_head(entry))
        return [Problem(key, what, is_alone=False) for key, what in lost.items()]

    async def _grafts(self, entry: Entry) -> list[Problem]:
        whole = await self._whole(entry)
        if whole is not None:
            decode_grafts(whole)
        return []

    async def _recorded(self, entry: Entry) -> list[Problem]:
        read_flag(entry)
        return []

    async def _archive(self, entry: Entry) -> list[Problem]:
        decode_stored(entry.value, str, "the name of the archive")
        return []

    async def _expiring(self, entry: Entry) -> list[Problem]:
        decode_stored(entry.value, list[str], "the record")
        return []


def _event_key(key: bytes) -> tuple[str, Stamp]:
    match unpack(key[len(layout.EVENTS) :]):
        case (str(stream), Stamp() as stamp):
            return stream, stamp
        case _:
            raise CorruptError("its key is no event's")


def _one_text(packed: bytes) -> str:
    match unpack(packed):
        case (str(text),):
            return text
        case _:
            raise CorruptError("its key is not that of one name")


def head_for(event: Entry) -> tuple[bytes, bytes]:
    """Return key and value of the head of a stream that ends with this event."""
    stream, stamp = _event_key(event.key)
    return layout.HEADS + pack(stream), stamp.index.to_bytes(2, "big")


def _is_sealed(value: bytes) -> bool:
    """Whether a value may be an encrypted one."""
    return len(value) >= _LEAST_SEALED and value[0] & _SEALED_BITS == codec.SEALED[0]


async def log_problems(store: Store, space: str) -> list[Problem]:
    """Return the keys for which the log and the entries of a space say different things.

    A key without an entry is passed over: it may have expired, which the log tells only when it is removed.
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


class _Logged(NamedTuple):
    """The last change of a key: its revision, and the checksum of the value, where the log has it."""

    revision: int
    deleted: bool
    new: int | None


def _unlike_log(entry: Entry, logged: _Logged) -> list[Problem]:
    what = ""
    if logged.deleted or entry.version != logged.revision:
        said = "deleted it" if logged.deleted else "wrote it last"
        what = f"it is of revision {entry.version}, and the log {said} at {logged.revision}"
    elif logged.new is not None and logged.new != crc32(entry.value):
        what = f"its value is not the one that the log has of revision {logged.revision}"
    return [Problem(entry.key, what)] if what else []
