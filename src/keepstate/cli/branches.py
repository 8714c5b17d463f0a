"""What moves and names the commits of a space: branch, tag, merge, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast, get_args

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import commit_row, shortened, styled, write_rows
from keepstate.cli.session import Session, plain, refuse_nothing, said, shown, text_of, write_json
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.history import History
from keepstate.engine.history.merge import MergeConflict
from keepstate.engine.history.paths import format_path, parse_path
from keepstate.errors import InvalidError, MergeConflictError, NotFoundError
from keepstate.values.merge import RuleName

_PLAIN = Session()
_AUTHOR = Parameter(help="Who does this; nobody if not given.")
_MESSAGE = Parameter(help="What for.")
_AT = Parameter(help="The commit, as for log; the head of main if not given.")
_DELETE = Parameter(negative="", help="Remove the name; its commits stay until they are collected.")
_RULES: Final = get_args(RuleName)
_SHOWN: Final = 60


async def branch(
    space: str,
    name: str | None = None,
    *,
    at: Annotated[str | None, _AT] = None,
    delete: Annotated[bool, _DELETE] = False,
    session: Session = _PLAIN,
) -> int:
    """List the branches of a space, or make or delete one.

    Args:
        space: The space.
        name: The branch to make or delete.
    """
    _refuse_without_name(name, at, delete=delete)
    async with session.opened() as ks:
        history = ks.space(space).history
        if name is None:
            branches = [one async for one in history.branches()]
            if not branches:
                await refuse_nothing(ks, space)
            return await _list(
                history, [one.name for one in branches], [one.head for one in branches], session
            )
        if delete:
            return _deleted(await history.delete_branch(name), f"branch {name!r} of {space!r}", session)
        await history.branch(name, at or "main")
        return _write_commit(await history.find(name), session)


async def tag(
    space: str,
    name: str | None = None,
    *,
    at: Annotated[str | None, _AT] = None,
    delete: Annotated[bool, _DELETE] = False,
    session: Session = _PLAIN,
) -> int:
    """List the tags of a space, or make or delete one.

    Args:
        space: The space.
        name: The tag to make or delete.
    """
    _refuse_without_name(name, at, delete=delete)
    async with session.opened() as ks:
        history = ks.space(space).history
        if name is None:
            tags = [one async for one in history.tags()]
            if not tags:
                await refuse_nothing(ks, space)
            return await _list(history, [one.name for one in tags], [one.commit for one in tags], session)
        if delete:
            return _deleted(await history.delete_tag(name), f"tag {name!r} of {space!r}", session)
        await history.tag(name, at or "main")
        return _write_commit(await history.find(at or "main"), session, f"tag {name}")


def _refuse_without_name(name: str | None, at: str | None, *, delete: bool) -> None:
    if name is None and (at is not None or delete):
        raise InvalidError("--at and --delete are for one of them; give its name")
    if at is not None and delete:
        raise InvalidError("--at is for making one, --delete for removing it; leave out one of the two")


async def _list(history: History, names: Sequence[str], ids: Sequence[str], session: Session) -> int:
    commits = [await history.find(name) for name in names]
    if session.json:
        for name, id, commit in zip(names, ids, commits, strict=True):
            write_json({"name": name, "commit": id, "number": commit.number})
    elif names:
        write_rows(
            [[styled(n, "bold green"), *commit_row(commit)] for n, commit in zip(names, commits, strict=True)]
        )
    return exits.OK


def _deleted(existed: bool, what: str, session: Session) -> int:  # noqa: FBT001  it is what is told
    if not existed:
        raise NotFoundError(f"there is no {what}")
    write_json({"deleted": True}) if session.json else shown().print(plain(f"{what} is deleted"))
    return exits.OK


def _write_commit(commit: Commit, session: Session, *names: str) -> int:
    write_json(commit.to_dict()) if session.json else write_rows([commit_row(commit, *names)])
    return exits.OK


# ---- merging and going back


async def merge(
    space: str,
    source: str,
    *,
    into: Annotated[str, Parameter(help="The branch that gets what the other has.")] = "main",
    rule: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help=f"What to do where both changed the same: PATH=RULE, or RULE for all; {', '.join(_RULES)}. "
            "In a path, * is any step. May be given more than once.",
        ),
    ] = None,
    message: Annotated[str, _MESSAGE] = "",
    author: Annotated[str | None, _AUTHOR] = None,
    session: Session = _PLAIN,
) -> int:
    """Bring what another branch has changed into a branch; exit 4 if both changed the same.

    Args:
        space: The space.
        source: The branch or commit to merge.
    """
    rules = dict(map(_rule, rule or ()))
    async with session.opened() as ks:
        history = ks.space(space).history
        try:
            before = await history.find(into)
            made = await history.merge(source, into=into, rules=rules, message=message, author=author)
        except MergeConflictError as error:
            _write_conflicts(error.conflicts, into, source, session)
            raise
    if made.id == before.id:
        said().print(f"nothing to merge: {into} has all of {source}", markup=False)
    return _write_commit(made, session)


def _rule(text: str) -> tuple[tuple[Any, ...], RuleName]:
    path, _, rule = text.rpartition("=")
    if rule not in _RULES:
        raise InvalidError(
            f"--rule {text}: {rule!r} is no rule; give PATH=RULE, with one of {', '.join(_RULES)}"
        )
    return parse_path(path or "*", has_any=True), cast("RuleName", rule)


def _write_conflicts(conflicts: Sequence[MergeConflict], into: str, source: str, session: Session) -> None:
    for conflict in conflicts:
        sides = {"base": conflict.base, "ours": conflict.ours, "theirs": conflict.theirs}
        if session.json:
            authors = {"our_author": conflict.our_author, "their_author": conflict.their_author}
            there = {name: value for name, value in sides.items() if value is not MISSING}
            write_json({"path": format_path(conflict.path), **there, **authors, "reason": conflict.reason})
            continue
        names = ("before", _side(into, conflict.our_author), _side(source, conflict.their_author))
        said().print(styled(format_path(conflict.path), "bold red"), plain(f"({conflict.reason})"))
        for name, value in zip(names, sides.values(), strict=True):
            text = "(nothing)" if value is MISSING else shortened(text_of(value), _SHOWN)
            said().print(plain(f"  {name:<{max(map(len, names))}}  {text}"))

    if conflicts and not session.json:
        example = format_path(conflicts[0].path)
        said().print(
            plain(f'to decide: --rule "{example}=ours", or theirs, or another of: {", ".join(_RULES)}')
        )


def _side(name: str, author: str | None) -> str:
    return f"{name} by {author}" if author else name


async def rollback(
    space: str,
    *,
    to: Annotated[str | None, Parameter(help="The commit whose state to go back to, as for log.")] = None,
    steps: Annotated[int | None, Parameter(help="Instead: how many commits to go back.")] = None,
    branch: Annotated[str, Parameter(help="The branch.")] = "main",
    message: Annotated[str, _MESSAGE] = "",
    author: Annotated[str | None, _AUTHOR] = None,
    session: Session = _PLAIN,
) -> int:
    """Commit an earlier state of a branch again; nothing is erased.

    Args:
        space: The space.
    """
    if (to is None) == (steps is None):
        raise InvalidError("a rollback needs either --to COMMIT or --steps N")
    async with session.opened() as ks:
        history = ks.space(space).history
        made = await history.rollback(branch, to=to, steps=steps, message=message, author=author)
    return _write_commit(made, session)
