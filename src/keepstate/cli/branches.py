"""Commands that move branches and tags of a history: branch, tag, merge, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args

from cyclopts import Parameter
from rich.text import Text

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.display import (
    commit_fields,
    commit_row,
    fields_of,
    plain,
    said,
    shortened,
    styled,
    text_of,
    write_json,
    write_rows,
)
from keepstate.cli.session import PLAIN, Session, require_space
from keepstate.errors import InvalidError, MergeConflictError, NotFoundError

if TYPE_CHECKING:
    from keepstate.engine.documents import documents as _documents
    from keepstate.engine.history import commits as _commits
    from keepstate.engine.history import history as _history
    from keepstate.engine.history import merge as _merge
    from keepstate.engine.history import paths as _paths
    from keepstate.engine.space import keepstate as _engine
    from keepstate.values import merge as _merging
else:
    defer_imports(
        globals(),
        _documents="keepstate.engine.documents.documents",
        _commits="keepstate.engine.history.commits",
        _history="keepstate.engine.history.history",
        _merge="keepstate.engine.history.merge",
        _paths="keepstate.engine.history.paths",
        _engine="keepstate.engine.space.keepstate",
        _merging="keepstate.values.merge",
    )


_SIDE: Final = 60
_AUTHOR = Parameter(help="The author of the commit; default: none.")
_MESSAGE = Parameter(help="The message of the commit.")
_AT = Parameter(help="The commit, as for log; default: the head of main.")
_DELETE = Parameter(negative="", help="Delete the name; its commits stay until they are collected.")


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
        history = ks.space(space).history
        if name is None:
            listed = history.tags() if kind == "tag" else history.branches()
            return await _list(ks, space, [each.name async for each in listed], session)
        if delete:
            return await _delete(history, kind, space, name, session)
        ref = at or "main"
        if kind == "tag":
            await history.tag(name, ref)
            return _write_commit(await history.find(ref), session, f"tag {name}")
        await history.branch(name, ref)
        return _write_commit(await history.find(name), session)


async def _delete(
    history: _history.History, kind: Literal["branch", "tag"], space: str, name: str, session: Session
) -> int:
    what = f"{kind} {name!r} of {space!r}"
    if not await (history.delete_tag(name) if kind == "tag" else history.delete_branch(name)):
        raise NotFoundError(f"there is no {what}")
    session.write({"deleted": True}, f"{what} is deleted")
    return exits.OK


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
    if not session.json:
        write_rows(rows)
    return exits.OK


def _write_commit(commit: _commits.Commit, session: Session, *names: str) -> int:
    write_json(commit_fields(commit)) if session.json else write_rows([commit_row(commit, *names)])
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
