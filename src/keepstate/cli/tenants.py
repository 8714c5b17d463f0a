"""Commands on whole tenants and spaces: tenants, size, drop, erase, expunge, export and import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import counted, fields_of, plain, shown, write_json, write_table
from keepstate.cli.session import PLAIN, Session, require_space
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.export import Exported
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError

_TENANT = ("id",)
_AT_ONCE = 100


async def tenants(
    *,
    after: Annotated[str | None, Parameter(help="Start after the tenant with this id.")] = None,
    limit: Annotated[int | None, Parameter(help="List at most N tenants, instead of all.")] = None,
    session: Session = PLAIN,
) -> int:
    """List the tenants that have data."""
    session.reject_tenant()
    rows: list[tuple[object, ...]] = []
    async with session.opened() as ks:
        while limit is None or len(rows) < limit:
            page = await ks.tenants(
                after=after, limit=_AT_ONCE if limit is None else min(limit - len(rows), _AT_ONCE)
            )
            for tenant in page:
                rows.append((repr(tenant.id),))
                if session.json:
                    write_json(fields_of(tenant, *_TENANT))
            after = page.next
            if after is None:
                break
    if not session.json:
        write_table(("tenant",), rows)
    return exits.OK


async def size(
    space: str | None = None,
    *,
    each: Annotated[
        bool, Parameter(negative="", help="List each space with its size, the largest first.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Print the number of entries of a space, or of all spaces of the tenant, and their size without logs.

    Args:
        space: The space; by default all of the tenant's.
    """
    if each and space is not None:
        raise InvalidError(f"--each lists all spaces; leave out {space!r}")
    async with session.opened() as ks:
        if each:
            return await _size_each(ks, session)
        if space is None:
            found = await ks.size()
        else:
            await require_space(ks, space)
            found = await ks.space(space).size()
    report = fields_of(found, "entries", "size_bytes")
    _write_report(session, report, [f"entries {found.entries:>14,}", f"bytes   {found.size_bytes:>14,}"])
    return exits.OK


async def _size_each(ks: Keepstate, session: Session) -> int:
    """List the spaces with their sizes, the largest first."""
    sizes = [(name, await ks.space(name).size()) async for name in ks.spaces()]
    sizes.sort(key=lambda row: (-row[1].size_bytes, row[0]))
    if session.json:
        for name, found in sizes:
            write_json({"space": name, **fields_of(found, "entries", "size_bytes")})
    else:
        rows = ((name, f"{found.entries:,}", f"{found.size_bytes:,}") for name, found in sizes)
        write_table(("space", "entries", "bytes"), rows)
    return exits.OK


async def drop(
    space: str,
    *,
    yes: Annotated[
        bool, Parameter(negative="", help="Confirm it: a dropped space does not come back.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Delete a space with everything in it, its history and its log.

    Args:
        space: The space.
    """
    if not yes:
        raise InvalidError(f"drop deletes all of {space!r} for good; add --yes to confirm it")
    async with session.opened() as ks:
        was_there = await ks.drop(space)
    if not was_there:
        raise NotFoundError(f"nothing is in space {space!r}; see: {session.command('spaces')}")
    session.write({"space": space, "dropped": True}, f"{space} dropped")
    return exits.OK


async def expunge(
    space: str,
    prefix: str,
    *,
    yes: Annotated[
        bool, Parameter(negative="", help="Confirm it: nothing brings back what was expunged.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Remove everything whose name begins with a prefix from a space, with its log and its history.

    Args:
        space: The space.
        prefix: The beginning of the names.
    """
    if not yes:
        raise InvalidError(
            f"expunge removes all that begins with {prefix!r} from {space!r} for good, and ends the log "
            "of the space; add --yes to confirm it"
        )
    async with session.opened() as ks:
        await require_space(ks, space)
        write_erased(session, await ks.space(space).expunge(prefix))
    return exits.OK


async def erase(
    *,
    confirm: Annotated[str, Parameter(help="The tenant's id once more: nothing brings its data back.")],
    session: Session = PLAIN,
) -> int:
    """Erase the tenant: delete all its spaces, and rewrite the files of the store without them."""
    _require_tenant(session)
    async with session.opened() as ks:
        write_erased(session, await ks.erase(confirm=confirm))
    return exits.OK


async def erase_owner(
    owner: str,
    *,
    yes: Annotated[
        bool, Parameter(negative="", help="Confirm it: nothing brings back what was erased.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Erase the sessions and the memories of one owner, and the state of that user, in the whole tenant.

    Args:
        owner: The user, as find shows it.
    """
    if not yes:
        raise InvalidError(f"erase-owner deletes all subjects of {owner!r} for good; add --yes to confirm it")
    async with session.opened() as ks:
        write_erased(session, await ks.erase_owner(owner))
    return exits.OK


def write_erased(session: Session, erased: Erased) -> None:
    """Print the report of an erasure."""
    archives = [str(path) for path in erased.archives]
    lines = [f"{erased.spaces:,} spaces, {erased.entries:,} entries, {erased.size_bytes:,} bytes erased"]
    lines += [f"delete the archive {path}" for path in archives]
    lines += [f"not reached: {what}" for what in erased.not_reached]
    report = fields_of(erased, "spaces", "entries", "size_bytes", "not_reached") | {"archives": archives}
    _write_report(session, report, lines)


def _write_report(session: Session, report: Mapping[str, object], lines: Sequence[str]) -> None:
    if session.json:
        write_json(report)
    else:
        for line in lines:
            shown().print(plain(line))


async def export_tenant(file: Path, *, session: Session = PLAIN) -> int:
    """Write all spaces of the tenant into a new file of JSON lines; import-tenant reads it.

    Args:
        file: The file, which must not exist.
    """
    _require_tenant(session)
    async with session.opened() as ks:
        _write_exported(session, await ks.export(file))
    return exits.OK


async def export_owner(owner: str, file: Path, *, session: Session = PLAIN) -> int:
    """Write the sessions, memories and state of one owner into a new file; import-tenant reads it.

    Args:
        owner: The user, as find shows it.
        file: The file, which must not exist.
    """
    async with session.opened() as ks:
        done = await ks.export(file, owner=owner)
        if not done.spaces:
            file.unlink()  # it has no data
            unknown = "".join(f". Not included: {what}" for what in done.not_included[:-1])
            raise NotFoundError(
                f"nothing of the owner {owner!r} was found, so no file was written; `find --json` shows the "
                f"owners of each session and memory{unknown}"
            )
        _write_exported(session, done)
    return exits.OK


def _write_exported(session: Session, done: Exported) -> None:
    report = fields_of(done, "spaces", "entries", "moments", "size_bytes", "sha256", "not_included")
    contents = f"{counted(done.spaces, 'space')} with {counted(done.entries, 'entry')}"
    text = f"{contents} written, {done.size_bytes:,} bytes"
    if done.moments:
        text += f"; {counted(done.moments, 'moment')} of shared histories, to be read and not imported"
    lines = [text, *(f"the archive {path} is named only" for path in done.archives)]
    lines += [f"not included: {what}" for what in done.not_included]
    _write_report(session, report | {"archives": [str(path) for path in done.archives]}, lines)


async def import_tenant(file: Path, *, session: Session = PLAIN) -> int:
    """Write what export-tenant wrote into a tenant without data.

    Args:
        file: The file. A link is not followed.
    """
    _require_tenant(session)
    async with session.opened(makes=True) as ks:
        done = await ks.import_(file)
    report = fields_of(done, "spaces", "entries", "expired")
    contents = f"{counted(done.spaces, 'space')} with {counted(done.entries, 'entry')}"
    text = f"{contents} written; {done.expired:,} have expired"
    _write_report(session, report, [text])
    return exits.OK


def _require_tenant(session: Session) -> None:
    if session.tenant is None:
        raise InvalidError("this command is about all of one tenant; name it with --tenant")
