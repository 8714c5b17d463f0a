"""Operations on the branches of a history: the graph of commits, edits of a state, and merges.

A preview of a merge commits to a branch of a transaction that is never applied, so it is judged by the same
code as the merge, and writes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

import msgspec

from keepstate.engine.history.history import History
from keepstate.engine.history.merge import MergeConflict, MergeRules
from keepstate.engine.space.space import Transaction
from keepstate.errors import ConflictError, InvalidError, MergeConflictError, NotFoundError
from keepstate.server.operations.history import (
    Change,
    Message,
    NamedCommit,
    Ref,
    StoredCommit,
    show_change,
    show_commit,
)
from keepstate.server.operations.values import Body, read_steps, read_value, show
from keepstate.server.table import Call, InSpace, Label, Operation, PageLimit, decode_json
from keepstate.values.types import MISSING

RuleName = Literal[
    "refuse", "ours", "theirs", "counter", "maximum", "minimum", "append", "union", "last_writer"
]
PathBody = Annotated[list[Any], msgspec.Meta(min_length=1, max_length=200)]
Meta = Annotated[dict[str, str], msgspec.Meta(max_length=64)]
_PREVIEW: Final = "keepstate-preview"
"""The branch of a preview. It exists only in its transaction."""


class CommitGraph(msgspec.Struct, frozen=True):
    """The latest commits of all branches and tags, by time, each before its parents."""

    items: list[StoredCommit]
    branches: list[NamedCommit]
    tags: list[NamedCommit]
    is_complete: bool


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edit of a state: of the value at `path`, exactly one of the others.

    `value` replaces or adds it; the length of a list as the last step adds an item. `remove` removes it.
    `keep` cuts a list to so many items.
    """

    path: PathBody
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    remove: bool = False
    keep: Annotated[int, msgspec.Meta(ge=0)] | None = None


class NewCommit(Body, frozen=True, kw_only=True):
    """Edits to commit to a branch: one that is created `at` a commit, or one with the `expected_head`."""

    branch: Label
    edits: Annotated[list[Edit], msgspec.Meta(max_length=100)]
    at: Ref | None = None
    expected_head: Ref | None = None
    message: Message = ""
    meta: Meta = msgspec.field(default_factory=dict[str, str])


class MergeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for conflicts at a path and below. null in a path is any step, and [] is everything."""

    path: Annotated[list[Any], msgspec.Meta(max_length=200)]
    rule: RuleName


Rules = Annotated[list[MergeRule], msgspec.Meta(max_length=100)]


class MergeRequest(Body, frozen=True, kw_only=True):
    """A merge of a revision into a branch."""

    source: Ref
    into: Label = "main"
    message: Message = ""
    rules: Rules = msgspec.field(default_factory=list[MergeRule])


class PreviewQuery(InSpace, frozen=True, kw_only=True):
    """A merge to preview. `rules` is a JSON array of `{"path": […], "rule": "…"}`, as `merge` takes it."""

    source: Ref
    into: Label = "main"
    rules: Annotated[str, msgspec.Meta(max_length=16_384)] = "[]"
    limit: PageLimit = 100


class GraphQuery(InSpace, frozen=True, kw_only=True):
    """The number of commits to show."""

    limit: PageLimit = 300


class Side(msgspec.Struct, frozen=True):
    """A value of one side of a conflict."""

    value: Any


class Conflict(msgspec.Struct, frozen=True):
    """A value that both sides changed differently. A side without the value is null."""

    path: Any
    base: Side | None
    ours: Side | None
    theirs: Side | None
    our_author: str | None
    their_author: str | None
    reason: str


class MergePreview(msgspec.Struct, frozen=True):
    """The result of a merge before it is made: its conflicts or, without any, the changes of the branch."""

    source: StoredCommit
    into: StoredCommit
    base: StoredCommit | None
    conflicts: list[Conflict]
    changes: list[Change]
    is_complete: bool


async def get_graph(call: Call, query: GraphQuery) -> CommitGraph:
    """Return the latest commits of all branches and tags."""
    history = call.space(query).history
    found = await history.latest(query.limit + 1)
    return CommitGraph(
        [show_commit(each) for each in found[: query.limit]],
        [NamedCommit(each.name, each.head, each.number) async for each in history.branches()],
        [NamedCommit(each.name, each.commit) async for each in history.tags()],
        is_complete=len(found) <= query.limit,
    )


async def commit_edits(call: Call, query: InSpace, body: NewCommit) -> StoredCommit:
    """Commit edits of the state of a branch."""
    if body.at is not None and body.expected_head is not None:
        raise InvalidError("`at` and `expected_head` were both given; a new branch has no head to expect")
    paths = [read_path(edit.path) for edit in body.edits]

    async def work(tx: Transaction) -> StoredCommit | ConflictError:
        history = tx.history
        if body.at is not None:
            await history.branch(body.branch, body.at)
        elif body.branch not in [each.name async for each in history.branches()]:
            raise NotFoundError(f"branch {body.branch!r} does not exist; pass `at` to create it")
        moved = await _moved(history, body)
        if moved is not None:
            return moved  # another attempt would not help
        present = await _present(history, body.branch, paths)
        draft = await history.begin(body.branch, load=present)
        state = {name: draft[name] for name in present}
        for edit, path in zip(body.edits, paths, strict=True):
            apply_edit(state, path, edit)
        draft.update(state)
        for name in present:
            if name not in state:
                del draft[name]
        return show_commit(await draft.commit(message=body.message, meta=body.meta))

    made = (await call.space(query).apply(work)).value
    if isinstance(made, ConflictError):
        raise made
    return made


async def _moved(history: History, body: NewCommit) -> ConflictError | None:
    """Return the error of a branch that has another head than the expected one."""
    if body.expected_head is None:
        return None
    expected, head = await history.find(body.expected_head), await history.find(body.branch)
    if expected.id == head.id:
        return None
    return ConflictError(
        f"branch {body.branch!r} is at {head.id[:10]}, not at {expected.id[:10]} as expected; read it again"
    )


async def _present(history: History, branch: str, paths: list[tuple[Any, ...]]) -> list[str]:
    """Return the first steps of the paths that the state has, which are what a draft loads."""
    checkout = await history.checkout(branch, load=False)
    names = list(dict.fromkeys(path[0] for path in paths))
    return await checkout._load_present(names)  # pyright: ignore[reportPrivateUsage]


def read_path(steps: list[Any]) -> tuple[Any, ...]:
    """Return a path into a state.

    Raises:
        InvalidError: It does not begin with text.
    """
    path = read_steps(steps)
    if not isinstance(path[0], str):
        raise InvalidError(f"the path {steps!r} begins with {path[0]!r}; the keys of a state are text")
    return path


def apply_edit(state: dict[str, Any], path: tuple[Any, ...], edit: Edit) -> None:
    """Apply an edit to a state that has the value at the first step of its path, if there is one.

    Raises:
        InvalidError: The path does not lead to a list or dict, or the edit is not exactly one of its kinds.
        NotFoundError: The path does not exist.
    """
    if (edit.value is not msgspec.UNSET) + edit.remove + (edit.keep is not None) != 1:
        raise InvalidError(f"the edit of {path!r} needs exactly one of `value`, `remove` and `keep`")
    inside: Any = state
    for at in range(1, len(path)):
        inside = _item(inside, path[:at])
    last = path[-1]
    if edit.value is not msgspec.UNSET and _is_new(inside, path):
        value = read_value(edit.value)
        parts = _parts(inside)
        if isinstance(parts, list):
            parts.append(value)
        else:
            inside[last] = value
    elif edit.keep is not None:
        cut = _parts(_item(inside, path))
        if not isinstance(cut, list):
            raise InvalidError(f"the value at {path!r} is not a list; only a list can be cut")
        del cut[edit.keep :]
    else:
        _item(inside, path)
        if edit.remove:
            del inside[last]
        else:
            inside[last] = read_value(edit.value)


def _parts(container: object) -> list[object] | dict[object, object] | None:
    """Return a list or dict as such; None for another value."""
    if not isinstance(container, list | dict):
        return None
    return cast("list[object] | dict[object, object]", container)


def _is_new(container: object, path: tuple[Any, ...]) -> bool:
    """Return whether a value at a path would be an item that its container does not have."""
    parts = _parts(container)
    if isinstance(parts, list):
        return type(path[-1]) is int and path[-1] == len(parts)
    return parts is not None and path[-1] not in parts


def _item(container: object, path: tuple[Any, ...]) -> Any:
    """Return the item of a list or dict that the last step of a path names."""
    step, parts = path[-1], _parts(container)
    if parts is None:
        raise InvalidError(
            f"{path!r} leads into a value that is not a list or dict; replace that value whole"
        )
    is_index = type(step) is int and 0 <= step < len(parts)
    if not (is_index if isinstance(parts, list) else step in parts):
        raise NotFoundError(f"the state has no value at {path!r}")
    return parts[step]


async def merge(call: Call, query: InSpace, body: MergeRequest) -> StoredCommit:
    """Merge a revision into a branch."""
    history = call.space(query).history
    rules = _rules(body.rules)
    return show_commit(await history.merge(body.source, into=body.into, message=body.message, rules=rules))


class _Discarded(Exception):  # noqa: N818 - nothing went wrong
    """Ends the transaction of a preview; nothing is written."""


async def preview_merge(call: Call, query: PreviewQuery) -> MergePreview:
    """Return what a merge would do."""
    rules = _rules(decode_json(query.rules.encode(), Rules))
    space = call.space(query)
    found: MergePreview | None = None
    try:
        async with space.transaction() as tx:
            found = await _preview(tx.history, query, rules)
            raise _Discarded
    except _Discarded:
        assert found is not None
        return found


async def _preview(history: History, query: PreviewQuery, rules: MergeRules) -> MergePreview:
    source, into = await history.find(query.source), await history.find(query.into)
    base = await history.merge_base(source, into)
    await history.branch(_PREVIEW, query.into)
    conflicts: list[Conflict] = []
    changes: list[Change] = []
    is_complete = True
    try:
        await history.merge(source, into=_PREVIEW, rules=rules)
        found = await history.diff(into, _PREVIEW, limit=query.limit + 1)
        changes = [show_change(each) for each in found[: query.limit]]
        is_complete = len(found) <= query.limit
    except MergeConflictError as error:
        told: list[MergeConflict] = list(error.conflicts)
        conflicts = [_conflict(each) for each in told[: query.limit]]
        is_complete = len(told) <= query.limit
    shown = None if base is None else show_commit(base)
    return MergePreview(show_commit(source), show_commit(into), shown, conflicts, changes, is_complete)


def _rules(given: list[MergeRule]) -> MergeRules:
    return {read_steps(rule.path): rule.rule for rule in given}


def _conflict(each: MergeConflict) -> Conflict:
    sides = (each.base, each.ours, each.theirs)
    base, ours, theirs = (None if side is MISSING else Side(show(side)) for side in sides)
    return Conflict(
        show(list(each.path)), base, ours, theirs, each.our_author, each.their_author, each.reason
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/history/graph", name="getGraph",
        summary="List the latest commits of all branches and tags.", right="read", query=GraphQuery,
        run=get_graph, answer=CommitGraph,
    ),
    Operation(
        method="POST", path="/v1/history/commit", name="commitEdits",
        summary="Commit edits of a state to a branch, which may be new.", right="write", query=InSpace,
        run=commit_edits, answer=StoredCommit, body=NewCommit,
    ),
    Operation(
        method="GET", path="/v1/history/merge", name="previewMerge",
        summary="Show what a merge would do, and its conflicts.", right="read", query=PreviewQuery,
        run=preview_merge, answer=MergePreview,
    ),
    Operation(
        method="POST", path="/v1/history/merge", name="merge", summary="Merge a revision into a branch.",
        right="write", query=InSpace, run=merge, answer=StoredCommit, body=MergeRequest,
    ),
)  # fmt: skip
