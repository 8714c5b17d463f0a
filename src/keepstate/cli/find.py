"""Commands on subjects: find lists sessions, workflows, queues and the like; reindex corrects the index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import counted, fields_of, plain, said, utc, write_json, write_table
from keepstate.cli.maintenance import read_since
from keepstate.cli.session import PLAIN, Session
from keepstate.engine.index.rows import Found
from keepstate.engine.kernel.subjects import KINDS
from keepstate.engine.space.health import each_tenant
from keepstate.errors import InvalidError
from keepstate.names import ALL, OWN

_LIMIT = 100
_HEADS = ("kind", "id", "state", "owner", "changed", "due", "space", "title")


async def find(
    under: str = "",
    *,
    kind: Annotated[str | None, Parameter(help=f"Only this kind: {', '.join(KINDS)}.")] = None,
    state: Annotated[str | None, Parameter(help="Only in this state.")] = None,
    owner: Annotated[str | None, Parameter(help="Only of this user.")] = None,
    since: Annotated[
        str | None,
        Parameter(help="Only changed since then: 90s, 30m, 12h, 30d, 8w, or a time with its zone."),
    ] = None,
    order: Annotated[
        Literal["changed", "due"] | None,
        Parameter(help="The earliest change first, or what is due, the earliest first."),
    ] = None,
    tenants: Annotated[
        bool, Parameter(negative="", help="List those of all tenants, tenant by tenant.")
    ] = False,
    after: Annotated[
        str | None, Parameter(help="Continue behind the page that ended with this cursor.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="List at most N, instead of 100.")] = None,
    session: Session = PLAIN,
) -> int:
    """List sessions, agents, workflows, queues and other subjects, the latest change first.

    Args:
        under: List only those in this space and those below it: user/1 also lists user/1/…, but not user/10.
    """
    if tenants and session.tenant is not None:
        raise InvalidError("--tenants lists the subjects of all tenants; give no --tenant")
    moment = None if since is None else read_since(since)
    async with session.opened() as ks:
        page = await ks.find(
            kind=kind,
            state=state,
            owner=owner,
            changed_since=moment,
            under=under,
            order=order or "-changed",
            tenant=ALL if tenants else OWN,
            after=after,
            limit=_LIMIT if limit is None else limit,
        )
    if session.json:
        for found in page:
            write_json(fields_of(found, *Found.__slots__))
        if page.next is not None:
            write_json({"next": page.next})
        return exits.OK
    _write_rows(page, tenants=tenants)
    if page.next is not None:
        options = {
            "--kind": kind,
            "--state": state,
            "--owner": owner,
            "--since": None if moment is None else moment.isoformat(),
            "--order": order,
            "--after": page.next,
            "--limit": None if limit is None else str(limit),
        }
        _write_more(session, under, options, tenants=tenants)
    return exits.OK


def _write_rows(page: Iterable[Found], *, tenants: bool) -> None:
    if not tenants:
        write_table(_HEADS, map(_row, page))
        return
    rows = (("-" if found.tenant is None else repr(found.tenant), *_row(found)) for found in page)
    write_table(("tenant", *_HEADS), rows)


def _write_more(session: Session, under: str, options: dict[str, str | None], *, tenants: bool) -> None:
    """Print the command that continues after a page."""
    given = [word for name, text in options.items() if text is not None for word in (name, text)]
    words = [word for word in (under, *given, "--tenants" if tenants else "") if word]
    said().print(plain(f"there are more: {session.command('find', *words)}"))


async def reindex(
    *,
    tenants: Annotated[bool, Parameter(negative="", help="Also correct the indexes of all tenants.")] = False,
    session: Session = PLAIN,
) -> int:
    """Compare the index of find with all spaces, and correct it. Writers need not stop."""
    if tenants and session.tenant is not None:
        raise InvalidError("--tenants is for all tenants; give no --tenant")
    async with session.opened() as ks:
        count = await ks.reindex()
        if tenants:
            async for handle in each_tenant(ks):
                count += await handle.reindex()
    session.write({"corrected": count}, f"{counted(count, 'error')} corrected")
    return exits.OK


def _row(found: Found) -> tuple[object, ...]:
    return (
        *(found.kind, found.id, found.state, found.owner or ""),
        *(utc(found.changed_at), "" if found.due_at is None else utc(found.due_at)),
        *(found.space, found.title or ""),
    )
