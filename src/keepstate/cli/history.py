"""Commands that show the history of a space: log, show, diff, blame."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.chat import brief, write_state, write_value
from keepstate.cli.display import (
    change,
    commit_fields,
    commit_row,
    counted,
    fields_of,
    items_of,
    plain,
    room,
    said,
    styled,
    visible,
    write_json,
    write_none,
    write_rows,
)
from keepstate.cli.session import PLAIN, Session, is_there
from keepstate.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from keepstate.engine.history import checkout as _checkout
    from keepstate.engine.history import commits as _commits
    from keepstate.engine.history import history as _history
    from keepstate.engine.history import outline as _outline
    from keepstate.engine.history import paths as _paths
    from keepstate.engine.space import keepstate as _engine
else:
    defer_imports(
        globals(),
        _checkout="keepstate.engine.history.checkout",
        _commits="keepstate.engine.history.commits",
        _history="keepstate.engine.history.history",
        _outline="keepstate.engine.history.outline",
        _paths="keepstate.engine.history.paths",
        _engine="keepstate.engine.space.keepstate",
    )


_LIMIT: Final = 100
_MARGIN: Final = 5
_NAMED: Final = 20
"""An error about an absent key names at most this many keys of the state."""
_RANGE: Final = re.compile(r"(-?\d+)?:(-?\d+)?")


async def log(
    space: str,
    ref: str = "main",
    *,
    limit: Annotated[int, Parameter(help="List at most N commits.")] = _LIMIT,
    first: Annotated[
        int | None, Parameter(help="Start with the commit of this number, as in main#37.")
    ] = None,
    after: Annotated[str | None, Parameter(help="Start after this commit of the log: the next page.")] = None,
    reverse: Annotated[bool, Parameter(negative="", help="List the earliest commits first.")] = False,
    path: Annotated[str | None, Parameter(help="List only commits that changed this part.")] = None,
    author: Annotated[str | None, Parameter(help="List only commits of this author.")] = None,
    text: Annotated[str | None, Parameter(help="List only commits whose message contains this.")] = None,
    meta: Annotated[
        list[str] | None,
        Parameter(negative="", help="List only commits with the note KEY=VALUE. May be repeated."),
    ] = None,
    session: Session = PLAIN,
) -> int:
    """List a commit and those before it.

    Args:
        space: The space.
        ref: A branch, a tag, an id or its beginning, main~3, main#37, or main@TIME.
    """
    steps = None if path is None else _paths.parse_path(path)
    notes = dict(map(_note, meta or ()))
    async with session.opened() as ks:
        history = ks.space(space).history
        head = await history.find(ref)
        found = history.log(
            ref,
            after=after,
            first=first,
            limit=limit,
            reverse=reverse,
            path=steps,
            author=author,
            text=text,
            meta=notes,
        )
        commits = [commit async for commit in found]
        names = await _names(history)
    if session.json:
        for commit in commits:
            write_json(commit_fields(commit))
        return exits.OK
    write_rows([commit_row(commit, *names.get(commit.id, ())) for commit in commits])
    if len(commits) == limit and limit < head.generation:
        said().print(f"the {'first' if reverse else 'last'} {limit:,}; --limit N shows more", markup=False)
    return exits.OK


def _note(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidError(f"--meta {text}: write it as KEY=VALUE")
    return key, value


async def _names(history: _history.History) -> dict[str, list[str]]:
    """Return the names of branches and tags by the commits that they point to."""
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
    full: Annotated[bool, Parameter(negative="", help="Print everything in full.")] = False,
    items: Annotated[
        str | None, Parameter(help="Print these items of the list only: 10:20, or -20: for the last 20.")
    ] = None,
    outline: Annotated[
        bool, Parameter(negative="", help="Print keys or indexes, and how large each value is.")
    ] = False,
    after: Annotated[int | None, Parameter(help="Continue an outline after this place.")] = None,
    limit: Annotated[int, Parameter(help="Print at most N items of an outline.")] = _LIMIT,
    session: Session = PLAIN,
) -> int:
    """Print the state of a commit, or a part of it; messages in readable form.

    Args:
        space: The space.
        ref: The commit, as for log.
        path: The part, such as messages[3].meta; write a key with dots as ['a.b'].
    """
    steps = () if path is None else _paths.parse_path(path)
    if items is not None and (outline or path is None):
        raise InvalidError("--items prints items of the list at a path; give the path, and no --outline")
    if after is not None and not outline:
        raise InvalidError("--after continues an outline; give --outline too")
    if outline:
        return await _show_outline(space, ref, steps, after, limit, session)
    bounds = None if items is None else _bounds(items)
    async with session.opened() as ks:
        found = await _checked_out(ks, space, ref, load=path is None)
        if bounds is not None:
            value: Any = await found.slice(steps, *bounds)
        else:
            value = dict(found) if path is None else await _fetched(ks, space, found, path, steps)
    if session.json:
        write_json({"commit": commit_fields(found.commit), "path": path, "value": value})
        return exits.OK
    write_rows([commit_row(found.commit)])
    if path is None:
        write_state(value, lambda path: session.command("show", space, ref, path), full=full)
    else:
        write_value(value, full=full)
    return exits.OK


def _bounds(text: str) -> tuple[int | None, int | None]:
    """Return the bounds in `10:20`."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise InvalidError(f"--items {text}: write it as 10:20, 10: or -20:")
    start, stop = found.groups()
    return int(start) if start else None, int(stop) if stop else None


async def _show_outline(
    space: str, ref: str, steps: tuple[Any, ...], after: int | None, limit: int, session: Session
) -> int:
    async with session.opened() as ks:
        found = await _checked_out(ks, space, ref, load=False)
        outline = await found.outline(steps, after=after, limit=limit)
    if session.json:
        children = [{"step": step, **_child(value)} for step, value in outline.children.items()]
        write_json(
            {
                "path": _paths.format_path(steps),
                **fields_of(outline, "kind", "count", "next"),
                "children": children,
            }
        )
        return exits.OK
    write_rows(
        [
            [
                styled(_paths.format_path((step,)), "bold"),
                Text(_sized(value), "dim")
                if isinstance(value, _outline.ValueSummary)
                else plain(brief(value, room())),
            ]
            for step, value in outline.children.items()
        ]
    )
    if outline.next is not None:
        hint = f"{len(outline.children):,} of {outline.count:,}; --after {outline.next} shows more"
        said().print(hint, markup=False)
    return exits.OK


def _child(value: object) -> dict[str, Any]:
    return fields_of(value, "kind", "count") if isinstance(value, _outline.ValueSummary) else {"value": value}


def _sized(summary: _outline.ValueSummary) -> str:
    """Return a summary as text, such as `list of 3 items`."""
    if summary.kind in ("object", "large"):
        return f"{'object' if summary.kind == 'object' else 'value'} of {counted(summary.count, 'byte')}"
    return f"{summary.kind} of {counted(summary.count, 'item')}"


async def _checked_out(ks: _engine.Keepstate, space: str, ref: str, *, load: bool) -> _checkout.Checkout:
    try:
        return await ks.space(space).history.checkout(ref, load=load)
    except NotFoundError as error:
        if await is_there(ks, space):
            raise
        raise NotFoundError(f"there is no space {space!r}; `keepstate spaces` lists them") from error


async def _fetched(
    ks: _engine.Keepstate, space: str, found: _checkout.Checkout, path: str, steps: tuple[Any, ...]
) -> Any:
    try:
        return await found.fetch(steps)
    except NotFoundError as error:
        text = str(error.args[0])
        whole = await ks.space(space).history.checkout(found.commit.id)
        if "." in path:
            text += "; a key with dots is written ['a.b']"
        if steps and steps[0] not in whole:
            names = [visible(name) for name in whole]
            more = ", …" if len(names) > _NAMED else ""
            text += f"; the state has {', '.join(names[:_NAMED]) or 'nothing'}{more}"
        raise NotFoundError(f"{text} (commit {found.commit.id[:10]} of {space!r})") from error


async def diff(
    space: str,
    a: str,
    b: str = "main",
    *,
    path: Annotated[str | None, Parameter(help="Compare this part only, such as messages[3].")] = None,
    limit: Annotated[int | None, Parameter(help="Print at most N differences.")] = None,
    session: Session = PLAIN,
) -> int:
    """Print the changes from one commit's state to another's.

    Args:
        space: The space.
        a: The first commit, as for log.
        b: The second commit.
    """
    steps = None if path is None else _paths.parse_path(path)
    async with session.opened() as ks:
        differences = await ks.space(space).history.diff(a, b, path=steps, limit=limit)
    if session.json:
        for one in differences:
            now = {"path": _paths.format_path(one.path), "steps": list(one.path)}
            before = {"old_path": _paths.format_path(one.old_path), "old_steps": list(one.old_path)}
            write_json({**now, **before, **fields_of(one, "kind", "old", "new")})
        return exits.OK
    if not differences:
        write_none()
        return exits.OK
    widest = max(len(_paths.format_path(_path(one))) for one in differences)
    write_rows([_row(one, widest + _MARGIN) for one in differences])
    at_least = "the first " if len(differences) == limit else ""
    said().print(f"{at_least}{counted(len(differences), 'difference')} from {a} to {b}", markup=False)
    return exits.OK


def _path(one: _commits.Difference) -> tuple[Any, ...]:
    return one.old_path if one.kind == "removed" else one.path


def _row(one: _commits.Difference, indent: int) -> list[Text]:
    path = _paths.format_path(_path(one))
    if one.kind in ("added", "removed"):
        sign, value, color = ("+", one.new, "green") if one.kind == "added" else ("-", one.old, "red")
        return [
            Text(sign, f"bold {color}"),
            styled(path, "bold"),
            styled(brief(value, room() - indent), color),
        ]
    what = change(one.old, one.new, indent)
    if one.kind == "reordered":
        what = Text.assemble(("keys in another order: ", "dim"), what)
    return [Text("~", "bold yellow"), styled(path, "bold"), what]


async def blame(
    space: str,
    path: str | None = None,
    *,
    at: Annotated[str, Parameter(help="The commit to start from, as for log.")] = "main",
    each: Annotated[
        bool, Parameter(negative="", help="Show each item of the list or dict at the path.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Show which commit last set a value. Without a path, show it for each key of the state.

    Args:
        space: The space.
        path: The part, such as messages[3].meta; write a key with dots as ['a.b'].
    """
    steps = () if path is None else _paths.parse_path(path)
    async with session.opened() as ks:
        history = ks.space(space).history
        found = await _checked_out(ks, space, at, load=path is None)
        value: Any = dict(found) if path is None else await _fetched(ks, space, found, path, steps)
        parts = [((*steps, key), item) for key, item in items_of(value)] if each or path is None else []
        rows: list[list[Text]] = []
        async for where, part, blamed in _blamed(history, found.commit, parts or [(steps, value)]):
            if session.json:
                found_at = {"path": _paths.format_path(where), "steps": list(where), "value": part}
                write_json({**found_at, "commit": commit_fields(blamed.commit), "exact": blamed.is_exact})
            else:
                rows.append(_blame_row(where, part, blamed))
    if not session.json:
        write_rows(rows)
    return exits.OK


async def _blamed(
    history: _history.History, commit: _commits.Commit, parts: list[tuple[tuple[Any, ...], Any]]
) -> AsyncIterator[tuple[tuple[Any, ...], Any, _commits.Blame]]:
    ref = commit.id if commit.number is None else f"{commit.branch}#{commit.number}"
    for where, part in parts:
        if where:
            yield where, part, await history.blame(where, ref)


def _blame_row(where: tuple[Any, ...], value: Any, blamed: _commits.Blame) -> list[Text]:
    commit = commit_row(blamed.commit)[:-1]
    if not blamed.is_exact:
        commit[0] = Text.assemble(("≤ ", "dim"), commit[0])
    return [styled(_paths.format_path(where), "bold"), *commit, plain(brief(value, 60))]
