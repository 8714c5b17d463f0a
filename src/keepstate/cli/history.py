"""The history of a space: log, show, diff, blame."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from keepstate.cli import exits
from keepstate.cli.display import (
    brief,
    change,
    commit_row,
    counted,
    items_of,
    room,
    styled,
    write_rows,
    write_state,
    write_value,
)
from keepstate.cli.session import Session, is_there, plain, said, visible, write_json
from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commits import Blame, Commit, Difference
from keepstate.engine.history.history import History
from keepstate.engine.history.paths import format_path, parse_path
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import NotFoundError

_PLAIN = Session()
_LIMIT = 100
_MARGIN = 5
_NAMED = 20
"""So many of a state's keys are told to who has named another one."""


async def log(
    space: str,
    ref: str = "main",
    *,
    limit: Annotated[int, Parameter(help="How many commits at the most.")] = _LIMIT,
    session: Session = _PLAIN,
) -> int:
    """List a commit and those before it.

    Args:
        space: The space.
        ref: A branch, a tag, an id or its beginning, main~3, main#37, or main@TIME.
    """
    async with session.opened() as ks:
        history = ks.space(space).history
        head = await history.find(ref)
        commits = [commit async for commit in history.log(ref, limit=limit)]
        names = await _names(history)
    if session.json:
        for commit in commits:
            write_json(commit.to_dict())
        return exits.OK
    write_rows([commit_row(commit, *names.get(commit.id, ())) for commit in commits])
    if len(commits) == limit and limit < head.generation:
        said().print(f"the last {limit:,}; --limit N shows more", markup=False)
    return exits.OK


async def _names(history: History) -> dict[str, list[str]]:
    """Return branches and tags by the commits that they stand on."""
    names: dict[str, list[str]] = {}
    async for branch in history.branches():
        names.setdefault(branch.head, []).append(branch.name)
    async for tag in history.tags():
        names.setdefault(tag.commit, []).append(f"tag {tag.name}")
    return names


async def show(
    space: str,
    ref: str = "main",
    path: str | None = None,
    *,
    full: Annotated[bool, Parameter(negative="", help="Cut nothing.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Print the state of a commit, or a part of it; messages in a form to be read.

    Args:
        space: The space.
        ref: The commit, as for log.
        path: Which part, as messages[3].meta; a key with dots is written ['a.b'].
    """
    steps = () if path is None else parse_path(path)
    async with session.opened() as ks:
        found = await _checked_out(ks, space, ref, load=path is None)
        value: Any = dict(found) if path is None else await _fetched(ks, space, found, path, steps)
    if session.json:
        write_json({"commit": found.commit.to_dict(), "path": path, "value": value})
        return exits.OK
    write_rows([commit_row(found.commit)])
    if path is None:
        write_state(value, lambda path: session.command("show", space, ref, path), full=full)
    else:
        write_value(value, full=full)
    return exits.OK


async def _checked_out(ks: Keepstate, space: str, ref: str, *, load: bool) -> Checkout:
    try:
        return await ks.space(space).history.checkout(ref, load=load)
    except NotFoundError as error:
        if await is_there(ks, space):
            raise
        raise NotFoundError(f"there is no space {space!r}; `keepstate spaces` lists them") from error


async def _fetched(ks: Keepstate, space: str, found: Checkout, path: str, steps: tuple[Any, ...]) -> Any:
    try:
        return await found.fetch(steps)
    except NotFoundError as error:
        told = str(error.args[0])
        whole = await ks.space(space).history.checkout(found.commit.id)
        if "." in path:
            told += "; a key with dots is written ['a.b']"
        if steps and steps[0] not in whole:
            names = [visible(name) for name in whole]
            more = ", …" if len(names) > _NAMED else ""
            told += f"; the state has {', '.join(names[:_NAMED]) or 'nothing'}{more}"
        raise NotFoundError(f"{told} (commit {found.commit.id[:10]} of {space!r})") from error


async def diff(space: str, a: str, b: str = "main", *, session: Session = _PLAIN) -> int:
    """Print what leads from one commit's state to another's.

    Args:
        space: The space.
        a: The commit to begin with, as for log.
        b: The commit to end with.
    """
    async with session.opened() as ks:
        differences = await ks.space(space).history.diff(a, b)
    if session.json:
        for one in differences:
            write_json(
                {
                    "path": format_path(one.path),
                    "steps": list(one.path),
                    "kind": one.kind,
                    "old": one.old,
                    "new": one.new,
                }
            )
        return exits.OK
    if differences:
        widest = max(len(format_path(one.path)) for one in differences)
        write_rows([_row(one, widest + _MARGIN) for one in differences])
    said().print(f"{counted(len(differences), 'difference')} from {a} to {b}", markup=False)
    return exits.OK


def _row(one: Difference, indent: int) -> list[Text]:
    path = format_path(one.path)
    if one.kind == "added":
        return [
            Text("+", "bold green"),
            styled(path, "bold"),
            styled(brief(one.new, room() - indent), "green"),
        ]
    if one.kind == "removed":
        return [Text("-", "bold red"), styled(path, "bold"), styled(brief(one.old, room() - indent), "red")]
    what = change(one.old, one.new, indent)
    if one.kind == "reordered":
        what = Text.assemble(("keys in another order: ", "dim"), what)
    return [Text("~", "bold yellow"), styled(path, "bold"), what]


async def blame(
    space: str,
    path: str | None = None,
    *,
    at: Annotated[str, Parameter(help="The commit to look from, as for log.")] = "main",
    each: Annotated[bool, Parameter(negative="", help="For each item of the list or dict there.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Say which commit gave a part of the state its value; without a path, for each key of the state.

    Args:
        space: The space.
        path: Which part, as messages[3].meta; a key with dots is written ['a.b'].
    """
    steps = () if path is None else parse_path(path)
    async with session.opened() as ks:
        history = ks.space(space).history
        found = await _checked_out(ks, space, at, load=path is None)
        value: Any = dict(found) if path is None else await _fetched(ks, space, found, path, steps)
        parts = [((*steps, key), item) for key, item in items_of(value)] if each or path is None else []
        rows: list[list[Text]] = []
        async for where, part, blamed in _blamed(history, found.commit, parts or [(steps, value)]):
            if session.json:
                told = {"path": format_path(where), "steps": list(where), "value": part}
                write_json({**told, "commit": blamed.commit.to_dict(), "exact": blamed.is_exact})
            else:
                rows.append(_blame_row(where, part, blamed))
    if rows:
        write_rows(rows)
    return exits.OK


async def _blamed(
    history: History, commit: Commit, parts: list[tuple[tuple[Any, ...], Any]]
) -> AsyncIterator[tuple[tuple[Any, ...], Any, Blame]]:
    ref = commit.id if commit.number is None else f"{commit.branch}#{commit.number}"
    for where, part in parts:
        if where:
            yield where, part, await history.blame(where, ref)


def _blame_row(where: tuple[Any, ...], value: Any, blamed: Blame) -> list[Text]:
    commit = commit_row(blamed.commit)[:-1]
    if not blamed.is_exact:
        commit[0] = Text.assemble(("≤ ", "dim"), commit[0])
    return [styled(format_path(where), "bold"), *commit, plain(brief(value, 60))]
