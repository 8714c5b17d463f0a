"""Export of a tenant into one file of JSON lines, and import into a tenant that has no data.

```
{"keepstate": "export", "format": 1, "tenant": "acme"}
{"space": "run/1", "revision": 7, "entries": 3}
{"document": "plan", "value": {"step": 1}, "version": 3, "created": 2}
{"event": "main", "value": {"said": "hello"}, "key": "0102…", "stored": "hKR…", "version": 4, "created": 4}
{"moment": "06f2…", "at": "2026-05-04T09:00:00+00:00", "documents": {"plan": {"step": 0}}}
{"end": 3, "sha256": "9f86…"}
```

Each line but the first, the last and those of spaces and moments is an entry. `value` is for readers.
`stored`, in base64, is what is imported. It is left out if the value's own encoding is the stored one; and
`key`, in hexadecimal, if it follows from the name of the document. The last line has the digest of all bytes
before it.
A moment of a shared history is only in the export of an owner, and is not imported; see `owner_history`.

An import reads the whole file first. It marks the tenant's record, so that writers are rejected until it is
complete, and brings each space through the same revisions. So versions, tokens and positions of events stay
the same. Leases are left out, and so are spaces of keepstate's own, which follow from the others.
"""

from __future__ import annotations

import base64
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK
from keepstate._files import make_file, open_own, sync_folder
from keepstate._runner import Runner
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.grants import TenantRecord, read_record, record_space, write_record
from keepstate.engine.kernel.large_values import read_whole
from keepstate.engine.space.erasure import read_archive
from keepstate.engine.space.readable_entries import is_readable, read_entry
from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    InvalidError,
    KeepstateError,
    NotFoundError,
    UnsupportedError,
)
from keepstate.stores.protocol import (
    Batch,
    Check,
    Conflict,
    Delete,
    Entry,
    NamesObjects,
    Put,
    Store,
    Write,
)
from keepstate.values import codec, limits
from keepstate.values.key import pack

FORMAT: Final = 1
_ATTEMPTS: Final = 16
_GRANT_BYTES: Final = 16
_AT_ONCE: Final = 64
_AT_ONCE_BYTES: Final = 4 << 20
_LINE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Exported:
    """Report of an export.

    Attributes:
        spaces: The number of spaces.
        entries: The number of entries.
        size_bytes: The size of the file.
        sha256: The digest of the file's lines before the last one, as in that line.
        archives: Files with archived history of these spaces, which the export only names.
        not_included: Data of the owner that is not in the file, in words. Empty for a whole tenant.
        moments: The number of moments of shared histories, in the export of an owner.
    """

    spaces: int
    entries: int
    size_bytes: int
    sha256: str
    archives: list[Path]
    not_included: list[str] = field(default_factory=list[str])
    moments: int = 0


@dataclass(frozen=True, slots=True)
class Imported:
    """Report of an import.

    Attributes:
        spaces: The number of spaces.
        entries: The number of entries.
        expired: The number of entries that have expired since the export.
    """

    spaces: int
    entries: int
    expired: int


class _Line(msgspec.Struct, omit_defaults=True):
    """One line of the file."""

    keepstate: str | None = None
    format: int | None = None
    tenant: str | None = None
    space: str | None = None
    revision: int | None = None
    entries: int | None = None
    document: str | None = None
    event: str | None = None
    moment: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    stored: str | None = None
    version: int | None = None
    created: int | None = None
    expires_at_ms: int | None = None
    end: int | None = None
    sha256: str | None = None


_decoder = msgspec.json.Decoder(_Line)
_encoder = msgspec.json.Encoder()


# ---- export


class Source(NamedTuple):
    """A space to export.

    Attributes:
        space: Its stored name.
        select: Returns the entries that are exported, of all entries; None exports all.
        moments: Yields the moments of its history that are exported.
    """

    space: str
    select: Callable[[Sequence[Entry]], list[Entry]] | None
    moments: Callable[[], AsyncIterator[Mapping[str, Any]]] | None = None


async def export_tenant(store: Store, tenant: str, path: str) -> Exported:
    """Write all spaces of a tenant into a new file, each of one revision, and return a report.

    Raises:
        AlreadyExistsError: The file exists.
        ConflictError: A space changed all the time while it was read.
        UnsupportedError: The store is encrypted.
    """
    return await write_export(store, {"tenant": tenant}, _whole(store, tenant), path)


async def _whole(store: Store, tenant: str) -> AsyncIterator[Source]:
    async for space in _spaces(store, tenant):
        yield Source(space, None)


async def write_export(
    store: Store, head: Mapping[str, str | None], sources: AsyncIterator[Source], path: str
) -> Exported:
    """Write spaces into a new file; see `export_tenant`.

    Args:
        store: The store.
        head: What the first line says of the file.
        sources: The spaces, in the order of their names.
        path: The file.
    """
    if isinstance(store, NamesObjects) and store.object_name(record_space(""), b"") is not None:
        raise UnsupportedError(
            "the store is encrypted, and names parts of its values by its own key; "
            "`keepstate repair` copies it with its encryption"
        )
    if os.path.lexists(path):
        raise AlreadyExistsError(f"{path} exists already; name a new file")
    unfinished = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    try:
        with os.fdopen(make_file(unfinished), "wb") as file:
            exported = await _write(store, head, sources, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, path)  # fails if the name exists by now, even as a link
        except FileExistsError:
            raise AlreadyExistsError(f"{path} was created meanwhile; name a new file") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
    sync_folder(os.path.dirname(os.path.abspath(path)))
    return exported


async def _write(
    store: Store, head: Mapping[str, str | None], sources: AsyncIterator[Source], file: BinaryIO
) -> Exported:
    digest, written = sha256(), 0
    spaces = entries = moments = 0
    archives: set[Path] = set()

    def write(line: Mapping[str, Any]) -> None:
        nonlocal written
        encoded = _encoder.encode(line) + b"\n"
        digest.update(encoded)
        written += len(encoded)
        file.write(encoded)

    write({"keepstate": "export", "format": FORMAT, **head})
    async for space, select, moments_of in sources:
        revision, found = await _read_space(store, space)
        if select is not None:
            found = select(found)
            if not found:
                continue
            revision = max(entry.version for entry in found)
        if (select is None or moments_of) and (archive := await read_archive(store, space)) is not None:
            archives.add(Path(archive))
        write({"space": names.parts_of(space)[1], "revision": revision, "entries": len(found)})
        for entry in found:
            write(await _line_of(store, space, entry))
        if moments_of is not None:
            async for moment in moments_of():
                write(moment)
                moments += 1
        spaces, entries = spaces + 1, entries + len(found)
    last = _encoder.encode({"end": entries, "sha256": digest.hexdigest()}) + b"\n"
    file.write(last)
    size_bytes = written + len(last)
    return Exported(spaces, entries, size_bytes, digest.hexdigest(), sorted(archives), moments=moments)


async def _spaces(store: Store, tenant: str) -> AsyncIterator[str]:
    after: str | None = None
    while page := await store.spaces(names.beginning(tenant), after=after):
        after = page[-1]
        for space in page:
            if not names.is_reserved(space):
                yield space


async def _read_space(store: Store, space: str) -> tuple[int, list[Entry]]:
    """Return all entries of a space at one revision, without grants and leases."""
    for _ in range(_ATTEMPTS):
        found: list[Entry] = []
        revisions: set[int] = set()
        for section in (b"\x00", b"\x01", b"\x02"):
            after: bytes | None = None
            while len(revisions) <= 1:
                page = await store.scan(space, section, after=after)
                revisions.add(page.revision)
                found += page.entries
                if (after := page.next) is None:
                    break
        if len(revisions) == 1:
            left_out = (layout.GRANTS, layout.LEASES)
            return revisions.pop(), [entry for entry in found if not entry.key.startswith(left_out)]
    raise ConflictError(
        f"{names.shown(space)} changed all the time while it was read; export while fewer writers run",
        space=space,
    )


async def _line_of(store: Store, space: str, entry: Entry) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if is_readable(entry.key):
        line = read_entry(entry.key, await read_whole(store, space, entry))
    name = line.get("document")
    if name is None or layout.named_key(layout.DOCUMENTS, name) != entry.key:
        line["key"] = entry.key.hex()
    if name is None or not _is_own_encoding(line["value"], entry.value):
        line["stored"] = base64.b64encode(entry.value).decode()
    line |= {"version": entry.version, "created": entry.created}
    if entry.expires_at_ms is not None:
        line["expires_at_ms"] = entry.expires_at_ms
    return line


def _is_own_encoding(value: object, stored: bytes) -> bool:
    """Return whether a value that was read from JSON is stored as these bytes."""
    try:
        return codec.encode(msgspec.json.decode(_encoder.encode(value))) == stored
    except (KeepstateError, msgspec.MsgspecError, TypeError):
        return False


# ---- import


@dataclass(slots=True)
class _ExportedSpace:
    name: str
    revision: int
    begins_at: int
    entries: int


async def import_tenant(store: Store, runner: Runner, tenant: str, path: str) -> Imported:
    """Write what a file holds into a tenant without data, and return a report.

    Raises:
        AlreadyExistsError: The tenant has data, or had a space of these that was dropped, or another file is
            being imported.
        CorruptError: The file is truncated, or was changed. Nothing was written.
        InvalidError: It is not an export, or of a newer format, or is a link.
        NotFoundError: The file does not exist.
    """
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist; name a file that `export` wrote") from error
    with os.fdopen(descriptor, "rb") as file:
        spaces, digest = await runner.call(_verify, file, path)
        beginning = names.beginning(tenant)
        stored = [names.stored_name(tenant, space.name) for space in spaces]
        if too_long := [name for name in stored if len(name.encode()) > limits.SPACE_BYTES]:
            raise InvalidError(f"{names.shown(too_long[0])} would have too long a name; take a shorter id")
        await _begin(store, beginning, tenant, digest, stored)
        entries = expired = 0
        for space, stored_name in zip(spaces, stored, strict=True):
            found = await runner.call(_read_entries, file, space, path)
            expired += await _fill(store, stored_name, space.revision, found, digest)
            entries += len(found)
        await _end(store, beginning, digest)
        return Imported(len(spaces), entries - expired, expired)


def _verify(file: BinaryIO, path: str) -> tuple[list[_ExportedSpace], str]:
    """Return the spaces in a file, and its digest, after reading all of it."""
    digest, place, entries = sha256(), 0, 0
    spaces: list[_ExportedSpace] = []
    ended: _Line | None = None
    for number, encoded in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), 1):
        where = f"{path} at line {number}"
        if ended is not None:
            raise CorruptError(f"{where} is after the end of the export", place=where)
        line = _decode(encoded, where)
        if number == 1:
            _check_first(line, path)
        elif line.end is not None:
            ended = line
            continue
        elif line.space is not None:
            if line.revision is None or line.entries is None or not 0 < line.revision <= limits.COUNT:
                raise CorruptError(f"{where} has no revision or number of entries", place=where)
            if spaces and line.space.encode() <= spaces[-1].name.encode():
                raise CorruptError(f"{where} has a space out of order", place=where)
            spaces.append(_ExportedSpace(line.space, line.revision, place + len(encoded), line.entries))
        elif line.moment is None:
            entries += 1
        digest.update(encoded)
        place += len(encoded)
    if ended is None:
        raise CorruptError(
            f"{path} is truncated: its last line is missing; export again. Nothing was written", place=path
        )
    if ended.sha256 != digest.hexdigest() or ended.end != entries:
        raise CorruptError(
            f"{path} was changed: its content does not match its last line. Nothing was written", place=path
        )
    if sum(space.entries for space in spaces) != entries:
        raise CorruptError(f"{path} has another number of entries than its spaces tell", place=path)
    return spaces, digest.hexdigest()


def _check_first(line: _Line, path: str) -> None:
    if line.keepstate != "export" or line.format is None:
        raise InvalidError(f"{path} is not an export of a tenant")
    if line.format > FORMAT:
        raise InvalidError(f"{path} has format {line.format} of a newer keepstate; upgrade keepstate")


def _decode(encoded: bytes, where: str) -> _Line:
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{where} is damaged: {error}. Nothing was written", place=where) from error


def _read_entries(file: BinaryIO, space: _ExportedSpace, path: str) -> list[Entry]:
    entries: list[Entry] = []
    file.seek(space.begins_at)
    for _ in range(space.entries):
        where = f"{path} at byte {file.tell()}"
        line = _decode(file.readline(_LINE_BYTES), where)
        try:
            entries.append(_entry_of(line, space.revision))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise CorruptError(f"{where} is not an entry: {error}", place=where) from error
    return entries


def _entry_of(line: _Line, revision: int) -> Entry:
    version, created = line.version or 0, line.created or 0
    if not 0 < created <= version <= revision:
        raise ValueError(f"versions {created} and {version} do not fit revision {revision}")
    key = bytes.fromhex(line.key or "")
    if not key:
        key = layout.named_key(layout.DOCUMENTS, line.document or "")
    if line.stored is not None:
        value = base64.b64decode(line.stored, validate=True)
    elif line.value is not msgspec.UNSET and line.document is not None:
        value = codec.encode(msgspec.json.decode(line.value))
    else:
        raise ValueError("it has no value")
    if key.startswith((layout.GRANTS, layout.LEASES)):
        raise ValueError("it is a lease or a grant, which are not exported")
    return Entry(key, value, version, created, line.expires_at_ms)


async def _begin(store: Store, beginning: str, tenant: str, digest: str, stored: Sequence[str]) -> None:
    """Mark the record, unless this import is under way already."""
    while True:
        record, version, life = await read_record(store, beginning)
        if record is not None and record.importing == digest:
            return
        if record is not None and (record.importing is not None or record.erasing is not None):
            raise AlreadyExistsError(
                f"tenant {tenant!r} is being erased, or another file is being imported into it; "
                "complete that, or erase the tenant"
            )
        async for space in _spaces(store, tenant):
            raise AlreadyExistsError(
                f"tenant {tenant!r} has data, such as {names.shown(space)}; "
                "import into a new one, or erase it"
            )
        for space in stored:
            if (await store.read(space, [])).revision:
                raise AlreadyExistsError(
                    f"{names.shown(space)} was dropped here, and its revisions cannot be used twice; "
                    "import under another id, or into another store"
                )
        if await write_record(store, beginning, _importing(record, life, digest), version):
            return


def _importing(record: TenantRecord | None, life: int, digest: str | None) -> TenantRecord:
    return msgspec.structs.replace(record or TenantRecord(life), importing=digest)


async def _end(store: Store, beginning: str, digest: str) -> None:
    """Let writers in. The record stays: without it, another life of the tenant would begin."""
    record, version, life = await read_record(store, beginning)
    while record is not None and record.importing == digest:
        if await write_record(store, beginning, _importing(record, life, None), version):
            return
        record, version, life = await read_record(store, beginning)


async def _fill(store: Store, space: str, revision: int, entries: Sequence[Entry], digest: str) -> int:
    """Bring a space to what was exported; return the number of entries that have expired meanwhile.

    The first revision is that of a grant, as in each space of a tenant. A call that was interrupted has left
    the first revisions, and is continued after them.
    """
    grant = await _grant(store, space, digest)
    timed = [entry for entry in entries if entry.expires_at_ms is not None]
    begun = (await store.read(space, [])).revision
    await _apply(store, _batches(space, entries, grant, begun, revision))
    now_ms = (await store.read(space, [])).now_ms
    puts = [
        Put(entry.key, entry.value, ttl_ms=entry.expires_at_ms - now_ms)
        for entry in timed
        if entry.expires_at_ms is not None and entry.expires_at_ms > now_ms
    ]
    for put in puts:
        await _apply(store, [Batch(space, [put], [grant])])
    return len(timed) - len(puts)


async def _grant(store: Store, space: str, digest: str) -> Check:
    """Return a check of the import's grant, after the tenant's record has told that the import goes on."""
    page = await store.scan(space, layout.GRANTS, limit=1)
    if page.entries:
        check = Check(page.entries[0].key, created=page.entries[0].created)
    else:
        key = layout.GRANTS + pack(SYSTEM_CLOCK.random_bytes(_GRANT_BYTES))
        check = Check(key, created=1)
        await _apply(store, [Batch(space, [Put(key, b"")], at=0)])
    beginning = names.tenant_beginning(space)
    assert beginning is not None
    record, _, _ = await read_record(store, beginning)
    if record is None or record.importing != digest:
        await store.drop(space, at=1)
        raise ConflictError(f"{names.shown(space)} is no longer imported: its tenant was erased", space=space)
    return check


def _batches(space: str, entries: Sequence[Entry], grant: Check, begun: int, last: int) -> Iterator[Batch]:
    """Yield the batch of each revision above `begun`, up to the last one."""
    by_revision: defaultdict[int, list[Put]] = defaultdict(list)
    for entry in entries:
        if entry.expires_at_ms is None:
            created, version = max(entry.created, 2), max(entry.version, 2)
            by_revision[version].append(Put(entry.key, entry.value))
            if created < version:
                by_revision[created].append(Put(entry.key, b""))  # replaced at its version
    for revision in range(max(begun, 1) + 1, max(last, *by_revision, 1) + 1):
        writes: list[Write] = [*by_revision.get(revision, ())]
        yield Batch(space, writes or [Delete(layout.UNUSED)], [grant], at=revision - 1)


async def _apply(store: Store, batches: Iterable[Batch]) -> None:
    """Apply batches in order, many at once."""
    ahead: list[Batch] = []
    size = 0
    for batch in batches:
        ahead.append(batch)
        size += sum(len(write.value) for write in batch.writes if isinstance(write, Put))
        if len(ahead) == _AT_ONCE or size >= _AT_ONCE_BYTES:
            await _send(store, ahead)
            ahead, size = [], 0
    await _send(store, ahead)


async def _send(store: Store, batches: Sequence[Batch]) -> None:
    for outcome in await store.apply(batches) if batches else ():
        if isinstance(outcome, Conflict):
            raise ConflictError(
                f"another process writes to {names.shown(batches[0].space)} while it is imported; call again",
                space=batches[0].space,
                actual=outcome.actual,
            )
        if isinstance(outcome, KeepstateError):
            raise outcome
