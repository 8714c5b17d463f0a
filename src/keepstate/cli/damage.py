"""Damage to a store: `doctor --verify` finds it, `repair` saves the rest."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path

import msgspec
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK
from keepstate.cli import exits
from keepstate.cli.damaged_records import FileSource, SpaceRecords, StoreRemains, StoreSource, remains_of
from keepstate.cli.session import FILES, Session, checked, plain, refuse_memory, said, shown, write_json
from keepstate.engine.kernel.stored import describe
from keepstate.engine.repair.restorer import Apply, Restoring, skip
from keepstate.engine.repair.verifier import Problem, Source, Verifier, log_problems
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, InvalidError
from keepstate.opening import open as open_store
from keepstate.stores.base import StoreBase
from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.protocol import ENCRYPTION_SPACE, Batch, Outcome, Put, ReportsLeaps, Store
from keepstate.stores.recovery.remains import Damage, RecoveredStore, SpaceRemains
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.keyless import KeylessStore

_PLAIN = Session()
_MOST_ALIKE = 5
_MOST_RECORDS = 1_000
_NUMBERS = re.compile(r"\d+(, \d+)*( …)?")


class _Report(msgspec.Struct):
    """What was found."""

    records: int = 0
    spaces: int = 0
    is_encrypted: bool = False
    expired: int = 0
    damages: list[Damage] = []

    def take(self, space: str, problems: Sequence[Problem]) -> None:
        """Add problems of a space's records."""
        self.damages += [Damage(problem.what, "", space, problem.key) for problem in problems]


async def verify(session: Session) -> int:
    """Read every record of a store and list what is damaged; exit 5 if something is."""
    session.refuse_tenant()
    parsed = checked(session.chosen_url())
    report = _Report()
    with _progress("verifying") as (bar, task):
        if parsed.backend in FILES:
            async with remains_of(parsed) as remains:
                names = [space.name for space in remains.spaces() if space.exists]
                report.damages += remains.damages
                await _verify(FileSource(remains), names, report, bar, task)
        else:
            async with open_store(session.chosen_url()) as ks:
                store, names = await _everything(ks)
                await _verify(StoreSource(store), names, report, bar, task)
                for name in names:
                    report.take(name, await log_problems(store, name))
    _show(report, f"{report.records:,} records in {report.spaces:,} spaces of {parsed}", session)
    return exits.DAMAGED if report.damages else exits.OK


async def _verify(source: Source, names: Sequence[str], report: _Report, bar: Progress, task: TaskID) -> None:
    report.is_encrypted = ENCRYPTION_SPACE in names
    for name in names:
        report.spaces += 1
        verifier = Verifier(source, name, is_encrypted=report.is_encrypted)
        try:
            async for entries in source.pages(name):
                for entry in entries:
                    report.take(name, await verifier.problems(entry))
                report.records += len(entries)
                bar.update(task, advance=len(entries))
        except CorruptError as error:
            report.damages.append(Damage(str(error), error.place or "", name))


async def _everything(ks: Keepstate) -> tuple[Store, list[str]]:
    """Return a store and all its spaces, of an encrypted one the record too."""
    names = [name async for name in ks.stored_names()]
    if isinstance(ks.store, KeylessStore):
        return ks.store.beneath, [ENCRYPTION_SPACE, *names]
    return ks.store, names


async def repair(source: str, target: str, *, session: Session = _PLAIN) -> int:
    """Write what is whole of a damaged store into a new one, and list what is not: exit 5 if there is any.

    Args:
        source: The URL of the damaged store, which is not touched.
        target: The URL of the new one: a file that is not there yet, or a server's store without a space.
    """
    session.refuse_tenant()
    parsed = checked(source)
    new = checked(target)
    refuse_memory(new)
    _refuse_present(new)
    report = _Report()
    async with _source(parsed, source) as remains, open_store(target, author="repair") as ks:
        if [name async for name in ks.stored_names()]:
            raise InvalidError(f"{ks.url} holds something; give a store that holds nothing")
        report.damages += remains.damages
        report.is_encrypted = any(space.name == ENCRYPTION_SPACE for space in remains.spaces())
        try:
            for space in remains.spaces():
                await _restore(remains, space, ks.store, report)
        except BaseException:
            said().print(f"keepstate: {ks.url} is incomplete; remove it", markup=False)
            raise
        where = ks.url
    _show(report, f"{report.records:,} records in {report.spaces:,} spaces are now in {where}", session)
    return exits.DAMAGED if report.damages else exits.OK


def _refuse_present(target: StoreUrl) -> None:
    if target.backend not in FILES:
        return
    path = Path(target.path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InvalidError(f"{target} is there already; give a file that is not")


@asynccontextmanager
async def _source(url: StoreUrl, text: str) -> AsyncGenerator[RecoveredStore]:
    if url.backend in FILES:
        async with remains_of(url) as remains:
            yield remains
        return
    async with open_store(text) as ks:
        yield await _read_all(ks)


async def _read_all(ks: Keepstate) -> StoreRemains:
    """Read a server's store; what it does not give is named."""
    store, names = await _everything(ks)
    source = StoreSource(store)
    remains = StoreRemains()
    for name in names:
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
    if not space.exists:
        with _progress(f"passing over {names.shown(space.name)}") as (bar, task):
            await skip(store, space.name, space.revision, lambda count: bar.update(task, advance=count))
        return
    report.spaces += 1
    verifier = Verifier(FileSource(remains), space.name, is_encrypted=report.is_encrypted)
    clock_ms = SYSTEM_CLOCK.now_ms()
    ahead_ms = space.now_ms - clock_ms
    times = {"now_ms": max(space.now_ms, clock_ms), "shift_ms": ahead_ms if ahead_ms > LEAP_MS else 0}
    restoring = Restoring(SpaceRecords(remains, space.name), verifier, **times, leap=space.leap)
    with _progress(f"looking at {names.shown(space.name)}") as (bar, task):
        await restoring.choose(lambda: bar.update(task, advance=1))
    with _progress(f"writing {names.shown(space.name)}") as (bar, task):
        await restoring.write(
            _applier(store), space.name, space.revision, lambda count: bar.update(task, advance=count)
        )
    report.records += restoring.kept
    report.expired += restoring.expired
    report.take(space.name, restoring.problems)


def _applier(store: Store) -> Apply:
    """Return what applies batches without asking whether a caller may give as much."""
    if not isinstance(store, StoreBase):
        return store.apply

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        sizes = [
            sum(len(write.key) + len(write.value) for write in batch.writes if isinstance(write, Put))
            for batch in batches
        ]
        return await store.apply_checked(batches, sizes)

    return apply


# ---- what people see


@contextmanager
def _progress(what: str) -> Generator[tuple[Progress, TaskID]]:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}")
    console, is_seen = said(), said().is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not is_seen) as bar:
        yield bar, bar.add_task(plain(what).plain, total=None)


def _show(report: _Report, summary: str, session: Session) -> None:
    report.damages = list(dict.fromkeys(report.damages))
    if session.json:
        everything = {
            "whole": not report.damages,
            "records": report.records,
            "spaces": report.spaces,
            "encrypted": report.is_encrypted,
            "expired": report.expired,
            "damages": [_told(damage) for damage in report.damages],
        }
        write_json(everything)
        return
    for line in _lines(report.damages):
        shown().print(plain(line))
    shown().print(plain(summary + _remarks(report)))


def _lines(damages: Sequence[Damage]) -> Iterator[str]:
    """Yield what is wrong with the files, a few of each kind, and then each record that is not whole."""
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
    told = _told(damage)
    where = ", ".join(told[name] for name in ("space", "key", "place") if name in told)
    return f"damaged  {where}: {what}" if where else f"damaged  {what}"


def _remarks(report: _Report) -> str:
    parts = [f"; {len(report.damages):,} places are damaged" if report.damages else "; all is whole"]
    if report.is_encrypted:
        parts.append("; values are encrypted, and only their checksums were looked at")
    if report.expired:
        parts.append(f"; {report.expired:,} had expired and were left out")
    return "".join(parts)


def _told(damage: Damage) -> dict[str, str]:
    """Return a damage in words."""
    told = {"what": damage.what}
    if damage.space is not None:
        told["space"] = names.shown(damage.space)
    if damage.key is not None:
        told["key"] = describe(damage.key)
    if damage.place:
        told["place"] = damage.place
    return told
