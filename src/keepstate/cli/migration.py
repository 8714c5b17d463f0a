"""Brings what is stored up to the versions of an application's classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import counted
from keepstate.cli.session import Session, plain, refuse_nothing, said, shown, write_json
from keepstate.engine.space.migration import Migration
from keepstate.engine.space.migration import migrate as migrated
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError

_PLAIN = Session()


async def migrate(
    space: str | None = None,
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would be written anew.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Write documents anew whose objects are stored in older versions of the classes that --app registers.

    All are looked at first: one of a newer version than the application's is refused, and nothing is written.
    Others may read and write meanwhile. It may be ended at any time, and goes on when it is called again.

    Args:
        space: The space; all of them if it is not given.
    """
    if session.app is None:
        raise InvalidError("migrating needs --app MODULE, the module that registers the classes")
    async with session.opened() as ks:
        if space is not None:
            await refuse_nothing(ks, space)
        if space is None:
            spaces = {_shown(tenant, one): one async for tenant, one in ks.everywhere()}
        else:
            spaces = {space: ks.space(space)}
        found = {
            name: await migrated(one, dry_run=True, tell=_progress(f"{name}: looked at"))
            for name, one in spaces.items()
        }
        todo = [name for name, one in found.items() if one.older]
        for place, name in enumerate(todo, 1):
            if not dry_run:
                began = f"{place} of {len(todo)}  {name}: written"
                tell = _progress(began, found[name].due)
                found[name] = await migrated(spaces[name], tell=tell)
                tell(found[name])
    for name, one in found.items():
        if one.older or one.newer or one.unknown:
            _tell(name, one, session)
    if not todo and not session.json:
        _tell_nothing(list(found.values()))
    return exits.FAILED if any(one.left for one in found.values()) else exits.OK


def _progress(began: str, of: int | None = None) -> Callable[[Migration], None]:
    """Return what tells how far it has come: of what is to be written, or of what is there."""

    def tell(done: Migration) -> None:
        count = done.documents if of is None else done.written
        whole = "" if of is None else f" of {of:,}"
        said().print(plain(f"{began} {count:,}{whole} documents"))

    return tell


def _shown(tenant: str | None, space: Space) -> str:
    return space.name if tenant is None else f"{space.name} of tenant {tenant!r}"


def _tell_nothing(found: list[Migration]) -> None:
    looked = counted(sum(one.documents for one in found), "document")
    if any(one.newer or one.unknown for one in found):
        shown().print(plain(f"{looked}; nothing is older than what the application writes"))
    else:
        shown().print(plain(f"{looked}, all of the newest versions"))


def _tell(name: str, done: Migration, session: Session) -> None:
    if session.json:
        told = {"documents": done.documents, "older": dict(done.older), "written": done.written}
        told |= {"left": done.left, "newer": dict(done.newer), "unknown": dict(done.unknown)}
        write_json({"space": name, **told})
        return
    if done.older:
        older = f", {_counts(done.older)}; {done.written:,} written"
        shown().print(plain(f"{name}: {counted(done.documents, 'document')}{older}"))
    if done.newer:
        above = "above the version that the application writes; they stay as they are"
        shown().print(plain(f"{name}: {_counts(done.newer)}, {above}"))
    if done.unknown:
        shown().print(plain(f"{name}: {_counts(done.unknown)}, for which nothing is registered"))
    for document, reason in done.left.items():
        shown().print(plain(f"  left {document}: {reason}"))


def _counts(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{each} in {count}" for each, count in sorted(versions.items()))
