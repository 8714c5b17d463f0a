"""Brings what is stored up to the versions of an application's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.session import Session, plain, refuse_nothing, said, shown, write_json
from keepstate.cli.showing import counted
from keepstate.engine.migrating import Migration
from keepstate.engine.migrating import migrate as migrated
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
        names = [name async for name in ks.spaces(space or "") if space in (None, name)]
        found = {
            name: await migrated(ks.space(name), dry_run=True, tell=_progress(f"{name}: looked at"))
            for name in names
        }
        todo = [name for name, one in found.items() if one.older]
        for place, name in enumerate(todo, 1):
            if not dry_run:
                began = f"{place} of {len(todo)}  {name}: written"
                tell = _progress(began, found[name].due)
                found[name] = await migrated(ks.space(name), tell=tell)
                tell(found[name])
    for name in todo:
        _tell(name, found[name], session)
    if not todo and not session.json:
        looked = sum(one.documents for one in found.values())
        shown().print(plain(f"{counted(looked, 'document')}, all of the newest versions"))
    return exits.FAILED if any(one.left for one in found.values()) else exits.OK


def _progress(began: str, of: int | None = None) -> Callable[[Migration], None]:
    """Returns what tells how far it has come: of what is to be written, or of what is there."""

    def tell(done: Migration) -> None:
        count = done.documents if of is None else done.written
        whole = "" if of is None else f" of {of:,}"
        said().print(plain(f"{began} {count:,}{whole} documents"))

    return tell


def _tell(name: str, done: Migration, session: Session) -> None:
    if session.json:
        told = {"documents": done.documents, "older": dict(done.older), "written": done.written}
        write_json({"space": name, **told, "left": done.left})
        return
    older = ", ".join(f"{each} in {count}" for each, count in sorted(done.older.items()))
    shown().print(plain(f"{name}: {counted(done.documents, 'document')}, {older}; {done.written:,} written"))
    for document, reason in done.left.items():
        shown().print(plain(f"  left {document}: {reason}"))
