"""Damage to a store: `doctor --verify` finds it, and `repair` saves the rest.

The records come from the files of a store, or from its server.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.progress import BarColumn, TextColumn

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK
from keepstate.cli import exits
from keepstate.cli.display import counted, plain, progress, said, shown, write_json
from keepstate.cli.session import FILES, PLAIN, Session, check_url, reject_memory, trace_from_environment
from keepstate.engine.kernel.stored import describe
from keepstate.engine.repair.restorer import Apply, Restoring, skip
from keepstate.engine.repair.verifier import (
    Problem,
    Source,
    Verifier,
    log_problems,
    size_problems,
    unlike_sizes,
)
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.opening import open as open_store
from keepstate.stores.base import StoreBase
from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.protocol import ENCRYPTION_SPACE, Batch, Entry, Outcome, Put, ReportsLeaps, Store
from keepstate.stores.recovery.remains import Damage, RecoveredStore, SpaceRemains
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.keyless import KeylessStore

_PAGE = 256
_MOST_ALIKE = 5
_MOST_RECORDS = 1_000
_NUMBERS = re.compile(r"\d+(, \d+)*( …)?")

_progress = partial(
    progress, TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}")
)


# ---- records


class FileSource:
    """The readable records of a store's files, as a source for the engine."""

    def __init__(self, remains: RecoveredStore) -> None:
        self.remains = remains

    async def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space."""
        for entry in self.remains.entries(space):
            yield [entry]

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries in the order of the keys; None for absent ones."""
        return self.remains.read(space, keys)


class StoreSource:
    """The records of a store, read through the store itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space."""
        for section in range(3):
            after: bytes | None = None
            while True:
                page = await self._store.scan(space, bytes((section,)), after=after, limit=_PAGE)
                yield page.entries
                after = page.next
                if after is None:
                    break

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries as of one moment, in the order of the keys; None for absent ones."""
        return (await self._store.read(space, keys)).entries


class SpaceRecords:
    """The readable records of one space."""

    def __init__(self, remains: RecoveredStore, space: str) -> None:
        self._remains, self._space = remains, space

    def entries(self) -> Iterator[Entry]:
        """Yield all readable entries, in key order."""
        return self._remains.entries(self._space)

    def read(self, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries in the order of the keys; None for absent ones."""
        return self._remains.read(self._space, keys)


class StoreRemains:
    """The readable records of a server's store, held in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._spaces: list[SpaceRemains] = []
        self.damages: list[Damage] = []

    def added(self, space: SpaceRemains) -> dict[bytes, Entry]:
        """Add a space, and return the dict to fill with its entries in key order."""
        self._spaces.append(space)
        return self._entries.setdefault(space.name, {})

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces."""
        return self._spaces

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield a space's entries, in key order."""
        yield from self._entries[space].values()

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys; None for absent ones."""
        return [self._entries[space].get(key) for key in keys]

    def close(self) -> None:
        """Free the entries."""
        self._entries.clear()


@asynccontextmanager
async def remains_of(url: StoreUrl) -> AsyncGenerator[RecoveredStore]:
    """Yield the readable records of a store's files, which are only read. SQLite checks its file as well.

    Args:
        url: A `file:` or `sqlite:` URL.

    Raises:
        NotFoundError: The file is absent.
    """
    path = os.path.abspath(url.path)
    if url.backend == "file":
        from keepstate.stores.file.store import JOURNAL
        from keepstate.stores.recovery.file import JournalRemains

        path = os.path.join(path, JOURNAL) if os.path.isdir(path) else path
        _require_file(path)
        yield JournalRemains(path)
        return
    from keepstate.stores.recovery.sqlite import DatabaseRemains, check_integrity, copy_database

    _require_file(path)
    with TemporaryDirectory(prefix="keepstate-") as folder:
        remains = DatabaseRemains(copy_database(path, folder), name=path)
        try:
            remains.damages += check_integrity(remains.file, folder)
            yield remains
        finally:
            remains.close()


def _require_file(path: str) -> None:
    if not Path(path).is_file():
        raise NotFoundError(f"there is no store at {path}")


# ---- verification


class _Report(msgspec.Struct):
    """The result of a verification or a repair."""

    records: int = 0
    spaces: int = 0
    is_encrypted: bool = False
    expired: int = 0
    indexes: int = 0
    damages: list[Damage] = []

    def add(self, space: str, problems: Sequence[Problem]) -> None:
        """Add problems of a space's records."""
        self.damages += [Damage(problem.what, "", space, problem.key) for problem in problems]


async def verify(session: Session) -> int:
    """Read every record of a store and list the damaged ones; return exit code 5 if there are any."""
    session.reject_tenant()
    parsed = check_url(session.chosen_url())
    report = _Report()
    if parsed.backend in FILES:
        async with remains_of(parsed) as remains:
            present = [space.name for space in remains.spaces() if space.exists]
            report.damages += remains.damages
            await _verify(FileSource(remains), present, report)
            for space in remains.spaces():
                if space.exists and space.sizes is not None:
                    counted = space.sizes.emptied()
                    for entry in remains.entries(space.name):
                        counted.count(entry.key, 1, len(entry.key) + len(entry.value))
                    report.add(space.name, unlike_sizes(space.sizes, counted))
    else:
        async with open_store(session.chosen_url(), observe=trace_from_environment()) as ks:
            store, present = await _everything(ks)
            await _verify(StoreSource(store), present, report)
            for name in present:
                report.add(name, await log_problems(store, name))
                report.add(name, await size_problems(store, name))
    _show(report, f"{_found(report)} of {parsed}", session)
    return exits.DAMAGED if report.damages else exits.OK


async def _verify(source: Source, spaces: Sequence[str], report: _Report) -> None:
    report.is_encrypted = ENCRYPTION_SPACE in spaces
    with _progress(text="verifying") as tell:
        for name in spaces:
            report.spaces += 1
            verifier = Verifier(source, name, is_encrypted=report.is_encrypted)
            try:
                async for entries in source.pages(name):
                    for entry in entries:
                        report.add(name, await verifier.problems(entry))
                    report.records += len(entries)
                    tell(advance=len(entries))
            except CorruptError as error:
                report.damages.append(Damage(str(error), error.place or "", name))


async def _everything(ks: Keepstate) -> tuple[Store, list[str]]:
    """Return the store and the names of all its spaces, the one of an encrypted store's keys included."""
    present = [name async for name in ks.stored_names()]
    if isinstance(ks.store, KeylessStore):
        return ks.store.beneath, [ENCRYPTION_SPACE, *present]
    return ks.store, present


# ---- repair


async def repair(source: str, target: str, *, session: Session = PLAIN) -> int:
    """Copy all readable data of a store into a new one. Exit with 5 if some data was damaged.

    Args:
        source: The URL of the damaged store, which is only read.
        target: The URL of the new store: an absent file, or a server's store without spaces.
    """
    session.reject_tenant()
    parsed = check_url(source)
    new = check_url(target)
    reject_memory(new)
    path = Path(new.path)
    if new.backend in FILES and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InvalidError(f"{new} exists already; give an absent file")
    report = _Report()
    async with (
        _source(parsed, source) as remains,
        open_store(target, author="repair", observe=trace_from_environment()) as ks,
    ):
        if [name async for name in ks.stored_names()]:
            raise InvalidError(f"{ks.url} holds data; give an empty store")
        report.damages += remains.damages
        report.is_encrypted = any(space.name == ENCRYPTION_SPACE for space in remains.spaces())
        try:
            for space in remains.spaces():
                await _restore(remains, space, ks.store, report)
        except BaseException:
            said().print(f"keepstate: {ks.url} is incomplete; remove it", markup=False)
            raise
        where = ks.url
    _show(report, f"{_found(report)} are now in {where}", session)
    return exits.DAMAGED if report.damages else exits.OK


@asynccontextmanager
async def _source(url: StoreUrl, text: str) -> AsyncGenerator[RecoveredStore]:
    if url.backend in FILES:
        async with remains_of(url) as remains:
            yield remains
        return
    async with open_store(text, observe=trace_from_environment()) as ks:
        yield await _read_all(ks)


async def _read_all(ks: Keepstate) -> StoreRemains:
    """Read a server's store; unreadable records are listed as damages."""
    store, present = await _everything(ks)
    source = StoreSource(store)
    remains = StoreRemains()
    for name in present:
        reading = await store.read(name, [])
        leap = await store.last_leap(name) if isinstance(store, ReportsLeaps) else None
        entries = remains.added(SpaceRemains(name, reading.revision, reading.now_ms, True, leap))
        try:
            async for page in source.pages(name):
                entries.update((entry.key, entry) for entry in page)
        except CorruptError as error:
            remains.damages.append(Damage(str(error), error.place or "", name))
        remains.damages += [Damage(p.what, "", name, p.key) for p in await log_problems(store, name)]
    return remains


async def _restore(remains: RecoveredStore, space: SpaceRemains, store: Store, report: _Report) -> None:
    shown_name = names.shown(space.name)
    # The index of `find` follows from the other spaces, and the next `find` makes it from them. What is lost
    # here may be just what its rows tell of.
    if not space.exists or names.is_index(space.name):
        report.indexes += space.exists
        with _progress(text=f"skipping {shown_name}") as tell:
            await skip(store, space.name, space.revision, lambda count: tell(advance=count))
        return
    report.spaces += 1
    verifier = Verifier(FileSource(remains), space.name, is_encrypted=report.is_encrypted)
    clock_ms = SYSTEM_CLOCK.now_ms()
    ahead_ms = space.now_ms - clock_ms
    times = {"now_ms": max(space.now_ms, clock_ms), "shift_ms": ahead_ms if ahead_ms > LEAP_MS else 0}
    right_until, wrong_since = space.clock_bounds(clock_ms)
    restoring = Restoring(
        SpaceRecords(remains, space.name),
        verifier,
        **times,
        leap=space.leap,
        right_until=right_until,
        wrong_since=wrong_since,
    )
    with _progress(text=f"reading {shown_name}") as tell:
        await restoring.choose(lambda: tell(advance=1))
    with _progress(text=f"writing {shown_name}") as tell:
        await restoring.write(_applier(store), space.name, space.revision, lambda count: tell(advance=count))
    report.records += restoring.kept
    report.expired += restoring.expired
    report.add(space.name, restoring.problems)


def _applier(store: Store) -> Apply:
    """Return a function that applies batches without the limits for callers."""
    if not isinstance(store, StoreBase):
        return store.apply

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        sizes = [
            sum(len(write.key) + len(write.value) for write in batch.writes if isinstance(write, Put))
            for batch in batches
        ]
        return await store.apply_checked(batches, sizes)

    return apply


# ---- output


def _found(report: _Report) -> str:
    return f"{counted(report.records, 'record')} in {counted(report.spaces, 'space')}"


def _show(report: _Report, summary: str, session: Session) -> None:
    report.damages = list(dict.fromkeys(report.damages))
    if session.json:
        everything = {
            "whole": not report.damages,
            "records": report.records,
            "spaces": report.spaces,
            "encrypted": report.is_encrypted,
            "expired": report.expired,
            "damages": [_to_dict(damage) for damage in report.damages],
        }
        write_json(everything)
        return
    for line in _lines(report.damages):
        shown().print(plain(line))
    summary += f"; {counted(len(report.damages), 'damaged place')}" if report.damages else "; no damage"
    if report.is_encrypted:
        summary += "; values are encrypted, and only their checksums were checked"
    if report.expired:
        summary += f"; {report.expired:,} had expired and were left out"
    if report.indexes:
        left = "1 more space is" if report.indexes == 1 else f"{report.indexes:,} more spaces are"
        summary += f"; {left} the index of find, which the next find makes again"
    shown().print(plain(summary))


def _lines(damages: Sequence[Damage]) -> Iterator[str]:
    """Yield the problems of the files, a few of each kind, and then each damaged record."""
    records: dict[tuple[str | None, bytes], list[Damage]] = {}
    kinds: dict[tuple[str | None, str], list[Damage]] = {}
    for damage in damages:
        if damage.key is not None:
            records.setdefault((damage.space, damage.key), []).append(damage)
        else:
            kinds.setdefault((damage.space, _NUMBERS.sub("", damage.what)), []).append(damage)
    for alike in kinds.values():
        shown_of_kind = len(alike) if len(alike) <= _MOST_ALIKE + 1 else _MOST_ALIKE
        for damage in alike[:shown_of_kind]:
            yield _line(damage, damage.what)
        if more := len(alike) - shown_of_kind:
            yield f"         … and {more:,} more like this; --json lists them all"
    for about in islice(records.values(), _MOST_RECORDS):
        yield _line(about[0], "; ".join(damage.what for damage in about))
    if (more := len(records) - _MOST_RECORDS) > 0:
        yield f"damaged  … and {more:,} more records; --json lists them all"


def _line(damage: Damage, what: str) -> str:
    fields = _to_dict(damage)
    where = ", ".join(fields[name] for name in ("space", "key", "place") if name in fields)
    return f"damaged  {where}: {what}" if where else f"damaged  {what}"


def _to_dict(damage: Damage) -> dict[str, str]:
    fields = {"what": damage.what}
    if damage.space is not None:
        fields["space"] = names.shown(damage.space)
    if damage.key is not None:
        fields["key"] = describe(damage.key)
    if damage.place:
        fields["place"] = damage.place
    return fields
