"""Commands that keep stored data in order: prune, export, verify, migrate, sweep."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from keepstate._clock import SYSTEM_CLOCK
from keepstate.cli import exits
from keepstate.cli.display import (
    counted,
    fields_of,
    plain,
    said,
    shown,
    write_json,
    write_lines,
    write_problem,
)
from keepstate.cli.session import PLAIN, Session, require_space
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.migration import Migration
from keepstate.engine.space.migration import migrate as migrate_space
from keepstate.engine.space.restored import void_holds
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, NotFoundError
from keepstate.values.schema import register_write_version

OLDER_THAN = Parameter(help="Delete what is older: 90s, 30m, 12h, 30d, 8w, or a time with its zone.")
_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


# ---- prune and export


async def prune(
    space: str,
    *,
    keep_last: Annotated[int | None, Parameter(help="Keep N commits of each branch.")] = None,
    older_than: Annotated[str | None, OLDER_THAN] = None,
    drop_tagged: Annotated[
        bool, Parameter(negative="", help="Delete old commits with a tag as well.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Delete old commits and the data that only they use. Remaining commits are unchanged.

    Args:
        space: The space.
    """
    age = age_of(keep_last, older_than)
    async with session.opened() as ks:
        await require_space(ks, space)
        done = await ks.space(space).history.prune(
            keep_last=keep_last, older_than=age, keep_tagged=not drop_tagged
        )
    pruned = f"{counted(done.commits, 'commit')} pruned, {done.removed:,} commits and objects deleted"
    session.write(fields_of(done, "commits", "removed"), pruned)
    return exits.OK


def age_of(keep_last: int | None, older_than: str | None) -> datetime | timedelta | None:
    """Return the age or the time that `--older-than` gives; one of the two options is required."""
    if older_than is None:
        if keep_last is None:
            raise InvalidError("prune needs --keep-last N or --older-than 30d")
        return None
    return read_moment("--older-than", older_than)


def read_moment(option: str, text: str) -> datetime | timedelta:
    """Return the age or the time that an option gives."""
    if span := _SPAN.fullmatch(text):
        return timedelta(**{_UNITS[span[2]]: int(span[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            f"{option} {text} is not a time; write 90s, 30m, 12h, 30d, 8w, or 2026-11-21T10:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise InvalidError(f"{option} {text} has no time zone; for UTC write {moment.isoformat()}Z")
    return moment


def read_since(text: str) -> datetime:
    """Return the time that `--since` gives; an age is one before now."""
    moment = read_moment("--since", text)
    if isinstance(moment, timedelta):
        return to_datetime(SYSTEM_CLOCK.now_ms()) - moment
    return moment


async def export(
    space: str,
    file: Path,
    *,
    replace: Annotated[bool, Parameter(negative="", help="Replace an existing file.")] = False,
    session: Session = PLAIN,
) -> int:
    """Write the whole history of a space into one file; import reads it into any store.

    Args:
        space: The space.
        file: The file.
    """
    if file.exists() and not replace:
        raise InvalidError(f"{file} exists already; give another name, or --replace")
    if not file.parent.is_dir():
        raise InvalidError(f"{file} cannot be written; there is no folder {file.parent}")
    async with session.opened() as ks:
        history = ks.space(space).history
        if not [one async for one in history.branches()]:
            raise NotFoundError(f"{space!r} has no history; see: {session.command('spaces')}")
        commits = await history.export_bundle(file)
    size = file.stat().st_size
    text = f"{counted(commits, 'commit')}, {size:,} bytes in {file}"
    session.write({"file": str(file), "commits": commits, "bytes": size}, text)
    return exits.OK


# ---- verify


async def verify(space: str | None = None, *, session: Session = PLAIN) -> int:
    """Compare every byte of a history with its hash. Exit with 5 if data is damaged.

    Args:
        space: The space; default: all spaces.
    """
    is_whole = True
    async with session.opened() as ks:
        for name, tenant, one in await _chosen(ks, space):
            found = await one.history.verify()
            is_whole = is_whole and not found.problems
            if session.json:
                sizes = {**fields_of(found, "commits", "objects"), "problems": list(found.problems)}
                write_json({"tenant": tenant, "space": one.name, **sizes})
                continue
            if not found.commits and not found.problems and space is None:
                continue
            for problem in found.problems:
                write_problem("damaged", f"{name}: {problem}")
            counts = f"{counted(found.commits, 'commit')}, {counted(found.objects, 'object')}"
            verdict = counted(len(found.problems), "problem") if found.problems else "no damage"
            shown().print(plain(f"{name}: {counts}; {verdict}"))
    return exits.OK if is_whole else exits.DAMAGED


async def _chosen(ks: Keepstate, space: str | None) -> list[tuple[str, str | None, Space]]:
    """Return the named space, or all spaces, each after the name to print and its tenant.

    Two spaces may print the same: a name may contain the words that are added for a tenant.
    """
    if space is not None:
        await require_space(ks, space)
        return [(space, ks.tenant_id, ks.space(space))]
    return [
        (each.name if tenant == ks.tenant_id else f"{each.name} of tenant {tenant!r}", tenant, each)
        async for tenant, each in ks.everywhere()
    ]


# ---- migrate


async def migrate(
    space: str | None = None,
    *,
    under: Annotated[str, Parameter(help="Only spaces of this name, or below it.")] = "",
    to_version: Annotated[
        list[str] | None,
        Parameter(
            help="Write a class in this version: booking=1, or booking=newest. Can be repeated. "
            "Default: what --app writes."
        ),
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only list what would be rewritten.")] = False,
    session: Session = PLAIN,
) -> int:
    """Rewrite documents in the versions that --app writes, newer or older.

    The command first reads all documents, then writes. A document that cannot be converted stays as it is, is
    listed, and the exit code is 1. Other processes may read and write during the migration. You can interrupt
    it at any time; run it again to continue.

    Args:
        space: The space; default: all spaces.
    """
    if session.app is None:
        raise InvalidError("migrate needs --app MODULE, the module that registers the classes")
    if space is not None and under:
        raise InvalidError("migrate takes a space or --under, not both")
    async with session.opened() as ks:
        _choose_versions(to_version or [])
        spaces = [each for each in await _chosen(ks, space) if not under or is_under(each[2].name, under)]
        found = [
            await migrate_space(each, dry_run=True, tell=_teller(f"{name}: read")) for name, _, each in spaces
        ]
        outdated = [index for index, done in enumerate(found) if done.due]
        for number, index in enumerate(() if dry_run else outdated, 1):
            name, _, each = spaces[index]
            tell = _teller(f"{number} of {len(outdated)}  {name}: written", found[index].due)
            found[index] = await migrate_space(each, tell=tell)
            tell(found[index])
    for (name, tenant, each), done in zip(spaces, found, strict=True):
        if done.due or done.refused or done.unknown:
            _show(name, tenant, each, done, session, dry_run=dry_run)
    if not outdated and not session.json:
        _show_nothing(found)
    return exits.FAILED if any(done.refused for done in found) else exits.OK


def _choose_versions(choices: list[str]) -> None:
    """Register the versions to write, given as `booking=1`."""
    for choice in choices:
        name, _, version = choice.rpartition("=")
        if version != "newest" and not re.fullmatch(r"[1-9]\d{0,8}", version, re.ASCII):
            raise InvalidError(f"--to-version {choice} names no version; write booking=1, or booking=newest")
        register_write_version(name, None if version == "newest" else int(version))


def is_under(name: str, under: str) -> bool:
    """Return whether a space has this name, or continues it after a slash."""
    return name == under or name.startswith(under.removesuffix("/") + "/")


def _teller(what: str, total: int | None = None) -> Callable[[Migration], None]:
    """Return a function that prints the progress: of `total` documents to write, or of those read."""

    def tell(done: Migration) -> None:
        count = f"{done.documents:,}" if total is None else f"{done.written:,} of {total:,}"
        said().print(plain(f"{what} {count} documents"))

    return tell


def _show_nothing(found: list[Migration]) -> None:
    documents = counted(sum(one.documents for one in found), "document")
    if any(one.refused or one.unknown for one in found):
        shown().print(plain(f"{documents}; none can be migrated"))
    else:
        shown().print(plain(f"{documents}, all of the versions that the application writes"))


def _show(
    name: str, tenant: str | None, space: Space, done: Migration, session: Session, *, dry_run: bool
) -> None:
    if session.json:
        write_json({
            "tenant": tenant,
            "space": space.name,
            **fields_of(done, "documents", "due", "written"),
            "steps": [
                {"from": step.stored, "to": step.written, "documents": count}
                for step, count in sorted(done.steps.items())
            ],
            "lost": dict(done.lost),
            "refused": done.refused,
            "unknown": dict(done.unknown),
            "reindex": sorted(done.to_reindex),
        })  # fmt: skip
        return
    if done.due:
        written = "nothing written" if dry_run else f"{done.written:,} written"
        steps = f"{_counts(done.steps)}; {written}"
        shown().print(plain(f"{name}: {counted(done.documents, 'document')}, {steps}"))
    if done.lost:
        shown().print(plain(f"{name}: data is lost, {_counts(done.lost)}"))
    if done.to_reindex:
        shown().print(
            plain(f"{name}: reindex the collections {', '.join(sorted(done.to_reindex))} in the application")
        )
    if done.unknown:
        shown().print(
            plain(f"{name}: {_counts(done.unknown)}, whose class is not registered in this version")
        )
    for document, reason in done.refused.items():
        shown().print(plain(f"  refused {document}: {reason}"))


def _counts(numbers: Mapping[Any, int]) -> str:
    return ", ".join(f"{each} in {count}" for each, count in sorted(numbers.items()))


# ---- a restored backup


async def restored(
    *,
    yes: Annotated[
        bool, Parameter(negative="", help="Confirm it: all queues are paused, and all claims end.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Pause all queues, and end all claims and leases, after a backup was restored.

    Tasks that were claimed in the backup are ready again. Start the workers, look at the queues, and let them
    go on with queue resume.
    """
    if not yes:
        raise InvalidError(
            "restored pauses all queues and ends all claims and leases; add --yes to confirm it"
        )
    spaces = claims = leases = queues = 0
    async with session.opened() as ks:
        async for _, space in ks.everywhere():
            done = await void_holds(space.executor)
            spaces, claims, leases = spaces + 1, claims + done.claims, leases + done.leases
            queues += done.is_paused
    report = {"spaces": spaces, "paused": queues, "claims": claims, "leases": leases}
    resume = session.command("queue", "resume", "--under", "", *(() if session.tenant else ("--tenants",)))
    ended = f"{counted(claims, 'claim')} and {counted(leases, 'lease')} ended"
    lines = [
        f"{counted(spaces, 'space')}: {counted(queues, 'queue')} paused, {ended}",
        f"when you have looked at them: {resume}",
    ]
    write_json(report) if session.json else write_lines(lines)
    return exits.OK


# ---- sweep


async def sweep(*, session: Session = PLAIN) -> int:
    """Remove expired entries and unused parts of large values, and print the number of entries."""
    async with session.opened() as ks:
        removed = await ks.sweep()
    session.write({"removed": removed}, f"{counted(removed, 'entry')} removed")
    return exits.OK
