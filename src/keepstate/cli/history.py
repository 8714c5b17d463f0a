"""Commands on the history of a space: log, show, diff, blame, branch, tag, merge, rollback."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args

from cyclopts import Parameter
from rich.text import Text

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.chat import brief, write_state, write_value
from keepstate.cli.display import (
    change,
    commit_row,
    counted,
    fields_of,
    items_of,
    plain,
    room,
    said,
    shortened,
    styled,
    text_of,
    visible,
    write_json,
    write_rows,
)
from keepstate.cli.session import PLAIN, Session, is_there, require_space
from keepstate.errors import InvalidError, MergeConflictError, NotFoundError

if TYPE_CHECKING:
    from keepstate.engine.documents import documents as _documents
    from keepstate.engine.history import checkout as _checkout
    from keepstate.engine.history import commits as _commits
    from keepstate.engine.history import history as _history
    from keepstate.engine.history import merge as _merge
    from keepstate.engine.history import outline as _outline
    from keepstate.engine.history import paths as _paths
    from keepstate.engine.space import keepstate as _engine
    from keepstate.values import merge as _merging
else:
    defer_imports(
        globals(),
        _documents="keepstate.engine.documents.documents",
        _checkout="keepstate.engine.history.checkout",
        _commits="keepstate.engine.history.commits",
        _history="keepstate.engine.history.history",
        _merge="keepstate.engine.history.merge",
        _outline="keepstate.engine.history.outline",
        _paths="keepstate.engine.history.paths",
        _engine="keepstate.engine.space.keepstate",
        _merging="keepstate.values.merge",
    )


_LIMIT: Final = 100
_MARGIN: Final = 5
_NAMED: Final = 20
"""An error about an absent key names at most this many keys of the state."""
_SIDE: Final = 60
_AUTHOR = Parameter(help="The author of the commit; default: none.")
_MESSAGE = Parameter(help="The message of the commit.")
_AT = Parameter(help="The commit, as for log; default: the head of main.")
_DELETE = Parameter(negative="", help="Delete the name; its commits stay until they are collected.")
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
            write_json(commit.to_dict())
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
        write_json({"commit": found.commit.to_dict(), "path": path, "value": value})
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
    if differences:
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
                write_json({**found_at, "commit": blamed.commit.to_dict(), "exact": blamed.is_exact})
            else:
                rows.append(_blame_row(where, part, blamed))
    if rows:
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


# ---- branches and tags


async def branch(
    space: str,
    name: str | None = None,
    *,
    at: Annotated[str | None, _AT] = None,
    delete: Annotated[bool, _DELETE] = False,
    session: Session = PLAIN,
) -> int:
    """List the branches of a space, or make or delete one.

    Args:
        space: The space.
        name: The branch to make or delete.
    """
    return await _name_commits("branch", space, name, at, session, delete=delete)


async def tag(
    space: str,
    name: str | None = None,
    *,
    at: Annotated[str | None, _AT] = None,
    delete: Annotated[bool, _DELETE] = False,
    session: Session = PLAIN,
) -> int:
    """List the tags of a space, or make or delete one.

    Args:
        space: The space.
        name: The tag to make or delete.
    """
    return await _name_commits("tag", space, name, at, session, delete=delete)


async def _name_commits(
    kind: Literal["branch", "tag"],
    space: str,
    name: str | None,
    at: str | None,
    session: Session,
    *,
    delete: bool,
) -> int:
    """List the branches or tags of a space, or make or delete one."""
    if name is None and (at is not None or delete):
        raise InvalidError("--at and --delete need a name; give one")
    if at is not None and delete:
        raise InvalidError("--at makes a name and --delete removes one; leave out one of them")
    async with session.opened() as ks:
        history, is_tag = ks.space(space).history, kind == "tag"
        if name is None:
            names = [each.name async for each in (history.tags() if is_tag else history.branches())]
            return await _list(ks, space, names, session)
        if delete:
            what = f"{kind} {name!r} of {space!r}"
            if not await (history.delete_tag(name) if is_tag else history.delete_branch(name)):
                raise NotFoundError(f"there is no {what}")
            session.write({"deleted": True}, f"{what} is deleted")
            return exits.OK
        await (history.tag if is_tag else history.branch)(name, at or "main")
        commit = await history.find(at or "main" if is_tag else name)
        return _write_commit(commit, session, *([f"tag {name}"] if is_tag else []))


async def _list(ks: _engine.Keepstate, space: str, names: Sequence[str], session: Session) -> int:
    """Print branches or tags with their commits."""
    if not names:
        await require_space(ks, space)
    rows: list[list[Text]] = []
    for name in names:
        commit = await ks.space(space).history.find(name)
        if session.json:
            write_json({"name": name, "commit": commit.id, "number": commit.number})
        else:
            rows.append([styled(name, "bold green"), *commit_row(commit)])
    write_rows(rows)
    return exits.OK


def _write_commit(commit: _commits.Commit, session: Session, *names: str) -> int:
    write_json(commit.to_dict()) if session.json else write_rows([commit_row(commit, *names)])
    return exits.OK


# ---- merge and rollback


def _rules() -> tuple[str, ...]:
    return get_args(_merging.RuleName)


async def merge(
    space: str,
    source: str,
    *,
    into: Annotated[str, Parameter(help="The branch that receives the changes.")] = "main",
    rule: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help=f"What to do if both changed a value: PATH=RULE, or RULE for all; {', '.join(_rules())}. "
            "In a path, * is any step. May be repeated.",
        ),
    ] = None,
    message: Annotated[str, _MESSAGE] = "",
    author: Annotated[str | None, _AUTHOR] = None,
    session: Session = PLAIN,
) -> int:
    """Merge the changes of another branch into a branch. Exit with 4 if both changed the same value.

    Args:
        space: The space.
        source: The branch or commit to merge.
    """
    rules = dict(map(_rule, rule or ()))
    async with session.opened() as ks:
        history = ks.space(space).history
        try:
            before = await history.find(into)
            commit = await history.merge(source, into=into, rules=rules, message=message, author=author)
        except MergeConflictError as error:
            _write_conflicts(error.conflicts, into, source, session)
            raise
    if commit.id == before.id:
        said().print(f"nothing to merge: {into} has all commits of {source}", markup=False)
    return _write_commit(commit, session)


def _rule(text: str) -> tuple[tuple[Any, ...], _merging.RuleName]:
    path, _, rule = text.rpartition("=")
    if rule not in _rules():
        raise InvalidError(
            f"--rule {text}: {rule!r} is not a rule; give PATH=RULE, with one of {', '.join(_rules())}"
        )
    return _paths.parse_path(path or "*", has_any=True), cast("_merging.RuleName", rule)


def _write_conflicts(
    conflicts: Sequence[_merge.MergeConflict], into: str, source: str, session: Session
) -> None:
    for conflict in conflicts:
        sides = fields_of(conflict, "base", "ours", "theirs")
        if session.json:
            authors = fields_of(conflict, "our_author", "their_author")
            present = {name: value for name, value in sides.items() if value is not _documents.MISSING}
            write_json(
                {"path": _paths.format_path(conflict.path), **present, **authors, "reason": conflict.reason}
            )
            continue
        names = ("before", _side(into, conflict.our_author), _side(source, conflict.their_author))
        said().print(styled(_paths.format_path(conflict.path), "bold red"), plain(f"({conflict.reason})"))
        for name, value in zip(names, sides.values(), strict=True):
            text = "(nothing)" if value is _documents.MISSING else shortened(text_of(value), _SIDE)
            said().print(plain(f"  {name:<{max(map(len, names))}}  {text}"))

    if conflicts and not session.json:
        example = _paths.format_path(conflicts[0].path)
        said().print(
            plain(f'to decide: --rule "{example}=ours", or theirs, or another of: {", ".join(_rules())}')
        )


def _side(name: str, author: str | None) -> str:
    return f"{name} by {author}" if author else name


async def rollback(
    space: str,
    *,
    to: Annotated[str | None, Parameter(help="The commit to go back to, as for log.")] = None,
    steps: Annotated[int | None, Parameter(help="The number of commits to go back, instead of --to.")] = None,
    branch: Annotated[str, Parameter(help="The branch.")] = "main",
    message: Annotated[str, _MESSAGE] = "",
    author: Annotated[str | None, _AUTHOR] = None,
    session: Session = PLAIN,
) -> int:
    """Commit an earlier state of a branch again. Nothing is erased.

    Args:
        space: The space.
    """
    if (to is None) == (steps is None):
        raise InvalidError("a rollback needs either --to COMMIT or --steps N")
    async with session.opened() as ks:
        history = ks.space(space).history
        commit = await history.rollback(branch, to=to, steps=steps, message=message, author=author)
    return _write_commit(commit, session)
