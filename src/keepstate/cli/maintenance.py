"""What keeps histories in order: prune, export, verify."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from keepstate.cli import exits
from keepstate.cli.display import counted
from keepstate.cli.session import Session, plain, refuse_nothing, shown, visible, write_json
from keepstate.errors import InvalidError, NotFoundError

_PLAIN = Session()
_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


async def prune(
    space: str,
    *,
    keep_last: Annotated[int | None, Parameter(help="Keep so many commits of each branch.")] = None,
    older_than: Annotated[
        str | None,
        Parameter(help="Let go of what is older: 90s, 30m, 12h, 30d, 8w, or a time with its zone."),
    ] = None,
    drop_tagged: Annotated[
        bool, Parameter(negative="", help="Let go of old commits with a tag as well.")
    ] = False,
    session: Session = _PLAIN,
) -> int:
    """Let go of old commits, and delete what nothing leads to any more. What is kept says the same as before.

    Args:
        space: The space.
    """
    if keep_last is None and older_than is None:
        raise InvalidError("pruning needs --keep-last N or --older-than 30d, what is to be kept")
    age = None if older_than is None else age_of(older_than)
    async with session.opened() as ks:
        await refuse_nothing(ks, space)
        done = await ks.space(space).history.prune(
            keep_last=keep_last, older_than=age, keep_tagged=not drop_tagged
        )
    if session.json:
        write_json({"commits": done.commits, "removed": done.removed})
    else:
        gone = f"{counted(done.commits, 'commit')} let go of, {done.removed:,} commits and objects deleted"
        shown().print(plain(gone))
    return exits.OK


def age_of(text: str) -> datetime | timedelta:
    """Return a span or a moment as `--older-than` gives it."""
    if span := _SPAN.fullmatch(text):
        return timedelta(**{_UNITS[span[2]]: int(span[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None:
        raise InvalidError(
            f"--older-than {text} is no time; write 90s, 30m, 12h, 30d, 8w, or 2026-11-21T10:00:00Z"
        )
    if moment.tzinfo is None:
        raise InvalidError(f"--older-than {text} says no time zone; for UTC write {moment.isoformat()}Z")
    return moment


async def export(
    space: str,
    file: Path,
    *,
    replace: Annotated[bool, Parameter(negative="", help="Replace a file that is there.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Write the whole history of a space into one file; import brings it into any store.

    Args:
        space: The space.
        file: The file.
    """
    if file.exists() and not replace:
        raise InvalidError(f"{file} is there already; give another name, or --replace")
    if not file.parent.is_dir():
        raise InvalidError(f"{file} cannot be written; there is no folder {file.parent}")
    async with session.opened() as ks:
        history = ks.space(space).history
        if not [one async for one in history.branches()]:
            raise NotFoundError(f"{space!r} has no history; see: {session.command('spaces')}")
        commits = await history.export_bundle(file)
    if session.json:
        write_json({"file": str(file), "commits": commits, "bytes": file.stat().st_size})
    else:
        shown().print(plain(f"{counted(commits, 'commit')}, {file.stat().st_size:,} bytes in {file}"))
    return exits.OK


async def verify(space: str | None = None, *, session: Session = _PLAIN) -> int:
    """Compare every byte of a history with its name; exit 5 if something is damaged.

    Args:
        space: The space; all of them if it is not given.
    """
    is_whole = True
    async with session.opened() as ks:
        if space is not None:
            await refuse_nothing(ks, space)
        spaces = (
            [each async for each in ks.everywhere()] if space is None else [(ks.tenant_id, ks.space(space))]
        )
        for tenant, one in spaces:
            found = await one.history.verify()
            name = one.name if tenant == ks.tenant_id else f"{one.name} of tenant {tenant!r}"
            is_whole = is_whole and not found.problems
            if session.json:
                told = {"commits": found.commits, "objects": found.objects, "problems": list(found.problems)}
                write_json({"tenant": tenant, "space": one.name, **told})
                continue
            if not found.commits and not found.problems and space is None:
                continue
            for problem in found.problems:
                shown().print(Text.assemble(("damaged  ", "bold red"), visible(f"{name}: {problem}")))
            sizes = f"{counted(found.commits, 'commit')}, {counted(found.objects, 'object')}"
            verdict = counted(len(found.problems), "problem") if found.problems else "all is whole"
            shown().print(plain(f"{name}: {sizes}; {verdict}"))
    return exits.OK if is_whole else exits.DAMAGED
