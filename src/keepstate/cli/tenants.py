"""Commands on whole tenants and spaces: tenants, size, drop."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import fields_of, write_json, write_table
from keepstate.cli.session import PLAIN, Session, require_space
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


async def size(space: str, *, session: Session = PLAIN) -> int:
    """Print the number of entries of a space and their size, without its log.

    Args:
        space: The space.
    """
    async with session.opened() as ks:
        await require_space(ks, space)
        found = await ks.space(space).size()
    text = f"entries {found.entries:>14,}\nbytes   {found.size_bytes:>14,}"
    session.write(fields_of(found, "entries", "size_bytes"), text)
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
