"""Operations on the history of a space: commits, states, differences, branches, and what changes them.

A path is a JSON array of keys and indexes, such as `["messages", 3]`; `[]` is the whole state. A revision is
a branch, a tag, an id or its beginning, `main~3`, `main#37` or `main@TIME`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commits import Blame, Commit, Difference
from keepstate.engine.history.outline import ValueSummary
from keepstate.errors import InvalidError
from keepstate.server.operations.documents import DeletionResult
from keepstate.server.operations.values import Body, read_steps, show
from keepstate.server.table import (
    Call,
    InSpace,
    Instant,
    Label,
    Operation,
    PageLimit,
    TaggedAnswer,
    decode_json,
)

Ref = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
JsonPath = Annotated[
    str,
    msgspec.Meta(
        min_length=2, max_length=4_096, description='A JSON array, such as ["messages", 3]', examples=["[]"]
    ),
]
Message = Annotated[str, msgspec.Meta(max_length=65_536)]
Notes = Annotated[
    str,
    msgspec.Meta(max_length=2_048, description='A JSON object, such as {"model": "large"}'),
]
Place = Annotated[int, msgspec.Meta(ge=0)]


class StoredCommit(msgspec.Struct, frozen=True):
    """A commit. Its id is a digest of its content, so it never changes."""

    id: str
    number: int | None
    parents: list[str]
    branch: str | None
    created_at: Instant
    author: str | None
    message: str
    meta: dict[str, str]


class CommitPage(msgspec.Struct, frozen=True):
    """A page of commits; `next` continues behind it, as `after`."""

    items: list[StoredCommit]
    next: str | None


class StateEntry(msgspec.Struct, frozen=True):
    """An item of a list or dict: its value if that is small, otherwise its kind and its number of items."""

    step: Any
    value: Any = None
    kind: str | None = None
    count: int | None = None


class State(msgspec.Struct, frozen=True):
    """A part of a state. A list or dict has a page of `items`; `next` continues it, as `after`."""

    commit: StoredCommit
    kind: Literal["list", "dict", "value"]
    value: Any = None
    count: int | None = None
    items: tuple[StateEntry, ...] = ()
    next: int | None = None


class StatePart(msgspec.Struct, frozen=True):
    """A range of a list of a state."""

    commit: StoredCommit
    items: list[Any]


class Change(msgspec.Struct, frozen=True):
    """A difference between two states."""

    path: Any
    old_path: Any
    kind: Literal["added", "removed", "changed", "reordered"]
    old: Any
    new: Any


class Differences(msgspec.Struct, frozen=True):
    """The first differences between two states."""

    items: list[Change]
    is_complete: bool


class BlamedCommit(msgspec.Struct, frozen=True):
    """The commit that gave a part its value; a later one may be told if earlier ones were pruned."""

    commit: StoredCommit
    is_exact: bool


class BlamedCommits(msgspec.Struct, frozen=True):
    """The latest commits that changed a part of the state, the latest first."""

    items: list[BlamedCommit]


class NamedCommit(msgspec.Struct, frozen=True):
    """A branch or a tag, and its commit. A tag has no number."""

    name: str
    commit: str
    number: int | None = None


class References(msgspec.Struct, frozen=True):
    """The branches and tags of a history."""

    branches: list[NamedCommit]
    tags: list[NamedCommit]


class NewName(Body, frozen=True, kw_only=True):
    """A name for a commit."""

    name: Label
    at: Ref = "main"


class RollbackRequest(Body, frozen=True, kw_only=True):
    """An earlier state to commit again: a revision, or the number of commits to go back."""

    branch: Label = "main"
    to: Ref | None = None
    steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    message: Message = ""


class RevertRequest(Body, frozen=True, kw_only=True):
    """A commit whose changes are to be undone."""

    ref: Ref
    branch: Label = "main"
    message: Message = ""


class RefQuery(InSpace, frozen=True, kw_only=True):
    """A commit."""

    ref: Ref = "main"


class LogQuery(RefQuery, frozen=True, kw_only=True):
    """A log, from a commit, behind the commit `after`, or from the commit of the number `first` on."""

    after: Ref | None = None
    first: Annotated[int, msgspec.Meta(ge=1)] | None = None
    limit: PageLimit = 100
    reverse: bool = False
    path: JsonPath | None = None
    author: Label | None = None
    text: Label | None = None
    meta: Notes | None = None


class StateQuery(RefQuery, frozen=True, kw_only=True):
    """A part of a state."""

    path: JsonPath = "[]"
    after: Place | None = None
    limit: PageLimit = 100


class SliceQuery(RefQuery, frozen=True, kw_only=True):
    """A range of a list of a state: `limit` items from the place `start` on."""

    path: JsonPath
    start: Place = 0
    limit: PageLimit = 100


class DiffQuery(InSpace, frozen=True, kw_only=True):
    """Two commits, and the part of their states to compare."""

    a: Ref
    b: Ref
    path: JsonPath | None = None
    limit: PageLimit = 100


class BlameQuery(RefQuery, frozen=True, kw_only=True):
    """A part of a state."""

    path: JsonPath


class ChangesQuery(BlameQuery, frozen=True, kw_only=True):
    """A part of a state, and the number of its changes to show."""

    limit: PageLimit = 20


class NameQuery(InSpace, frozen=True, kw_only=True):
    """A branch or tag."""

    name: Label


async def get_log(call: Call, query: LogQuery) -> CommitPage:
    """Return one page of commits."""
    commits = call.space(query).history.log(
        query.ref,
        after=query.after,
        first=query.first,
        limit=query.limit,
        reverse=query.reverse,
        path=None if query.path is None else _path(query.path),
        author=query.author,
        text=query.text,
        meta=None if query.meta is None else decode_json(query.meta.encode(), dict[str, str]),
    )
    items = [show_commit(commit) async for commit in commits]
    return CommitPage(items, items[-1].id if len(items) == query.limit else None)


async def get_commit(call: Call, query: RefQuery) -> TaggedAnswer:
    """Return a commit."""
    commit = await call.space(query).history.find(query.ref)
    return TaggedAnswer(show_commit(commit), commit.id)


async def get_state(call: Call, query: StateQuery) -> TaggedAnswer:
    """Return a part of the state of a commit."""
    checkout = await call.space(query).history.checkout(query.ref, load=False)
    path = _steps(query.path)
    try:
        outline = await checkout.outline(path, after=query.after, limit=query.limit)
    except InvalidError:
        if not path:
            raise
        return _tagged(
            checkout, State(show_commit(checkout.commit), "value", show(await checkout.fetch(path)))
        )
    items = tuple(_child(step, value) for step, value in outline.children.items())
    state = State(show_commit(checkout.commit), outline.kind, None, outline.count, items, outline.next)
    return _tagged(checkout, state)


async def get_slice(call: Call, query: SliceQuery) -> TaggedAnswer:
    """Return a range of a list of a state."""
    checkout = await call.space(query).history.checkout(query.ref, load=False)
    items = await checkout.slice(_path(query.path), query.start, query.start + query.limit)
    return _tagged(checkout, StatePart(show_commit(checkout.commit), [show(item) for item in items]))


async def get_diff(call: Call, query: DiffQuery) -> Differences:
    """Return the differences from one state to another."""
    found = await call.space(query).history.diff(
        query.a,
        query.b,
        path=None if query.path is None else _path(query.path),
        limit=query.limit + 1,
    )
    return Differences(
        [show_change(each) for each in found[: query.limit]], is_complete=len(found) <= query.limit
    )


async def get_blame(call: Call, query: BlameQuery) -> BlamedCommit:
    """Return the commit that gave a part of a state its value."""
    return _origin(await call.space(query).history.blame(_path(query.path), query.ref))


async def list_changes(call: Call, query: ChangesQuery) -> BlamedCommits:
    """Return the latest commits that changed a part of the state."""
    history = call.space(query).history
    found = history.changes_of(_path(query.path), query.ref, limit=query.limit)
    return BlamedCommits([_origin(each) async for each in found])


async def list_references(call: Call, query: InSpace) -> References:
    """Return the branches and tags."""
    history = call.space(query).history
    return References(
        [NamedCommit(each.name, each.head, each.number) async for each in history.branches()],
        [NamedCommit(each.name, each.commit) async for each in history.tags()],
    )


async def create_branch(call: Call, query: InSpace, body: NewName) -> NamedCommit:
    """Create a branch."""
    branch = await call.space(query).history.branch(body.name, body.at)
    return NamedCommit(branch.name, branch.head, branch.number)


async def delete_branch(call: Call, query: NameQuery) -> DeletionResult:
    """Delete a branch."""
    return DeletionResult(await call.space(query).history.delete_branch(query.name))


async def create_tag(call: Call, query: InSpace, body: NewName) -> NamedCommit:
    """Create a tag."""
    tag = await call.space(query).history.tag(body.name, body.at)
    return NamedCommit(tag.name, tag.commit)


async def delete_tag(call: Call, query: NameQuery) -> DeletionResult:
    """Delete a tag."""
    return DeletionResult(await call.space(query).history.delete_tag(query.name))


async def roll_back(call: Call, query: InSpace, body: RollbackRequest) -> StoredCommit:
    """Commit an earlier state again."""
    history = call.space(query).history
    return show_commit(
        await history.rollback(body.branch, to=body.to, steps=body.steps, message=body.message)
    )


async def revert(call: Call, query: InSpace, body: RevertRequest) -> StoredCommit:
    """Undo one commit, and keep later changes."""
    history = call.space(query).history
    return show_commit(await history.revert(body.ref, branch=body.branch, message=body.message))


def _steps(text: str) -> tuple[Any, ...]:
    return read_steps(decode_json(text.encode(), list[Any]))


def _path(text: str) -> tuple[Any, ...]:
    steps = _steps(text)
    if not steps:
        raise InvalidError("`path` is []; name a part of the state")
    return steps


def _tagged(checkout: Checkout, content: Any) -> TaggedAnswer:
    return TaggedAnswer(content, checkout.commit.id)


def show_commit(commit: Commit) -> StoredCommit:
    """Return a commit as JSON types."""
    return StoredCommit(
        commit.id,
        commit.number,
        list(commit.parents),
        commit.branch,
        commit.created_at,
        commit.author,
        commit.message,
        dict(commit.meta),
    )


def _child(step: object, value: object) -> StateEntry:
    if isinstance(value, ValueSummary):
        return StateEntry(show(step), None, value.kind, value.count)
    return StateEntry(show(step), show(value))


def show_change(each: Difference) -> Change:
    """Return a difference as JSON types."""
    return Change(show(list(each.path)), show(list(each.old_path)), each.kind, show(each.old), show(each.new))


def _origin(found: Blame) -> BlamedCommit:
    return BlamedCommit(show_commit(found.commit), found.is_exact)


OPERATIONS = (
    Operation(
        method="GET", path="/v1/history/log", name="getLog",
        summary="List a commit and those before it.", right="read", query=LogQuery, run=get_log,
        answer=CommitPage,
    ),
    Operation(
        method="GET", path="/v1/history/commit", name="getCommit", summary="Show a commit.",
        right="read", query=RefQuery, run=get_commit, answer=StoredCommit, has_etag=True,
    ),
    Operation(
        method="GET", path="/v1/history/state", name="getState",
        summary="Show a part of the state of a commit.", right="read", query=StateQuery, run=get_state,
        answer=State, has_etag=True,
    ),
    Operation(
        method="GET", path="/v1/history/slice", name="getSlice",
        summary="Read a range of a list of a state.", right="read", query=SliceQuery, run=get_slice,
        answer=StatePart, has_etag=True,
    ),
    Operation(
        method="GET", path="/v1/history/diff", name="getDiff",
        summary="Compare the states of two commits.", right="read", query=DiffQuery, run=get_diff,
        answer=Differences,
    ),
    Operation(
        method="GET", path="/v1/history/blame", name="getBlame",
        summary="Show which commit gave a part of a state its value.", right="read", query=BlameQuery,
        run=get_blame, answer=BlamedCommit,
    ),
    Operation(
        method="GET", path="/v1/history/changes", name="listChanges",
        summary="List the commits that changed a part of a state.", right="read", query=ChangesQuery,
        run=list_changes, answer=BlamedCommits,
    ),
    Operation(
        method="GET", path="/v1/history/references", name="listReferences",
        summary="List the branches and tags.", right="read", query=InSpace, run=list_references,
        answer=References,
    ),
    Operation(
        method="POST", path="/v1/history/branch", name="createBranch", summary="Create a branch.",
        right="write", query=InSpace, run=create_branch, answer=NamedCommit, body=NewName,
    ),
    Operation(
        method="DELETE", path="/v1/history/branch", name="deleteBranch", summary="Delete a branch.",
        right="write", query=NameQuery, run=delete_branch, answer=DeletionResult,
    ),
    Operation(
        method="POST", path="/v1/history/tag", name="createTag", summary="Create a tag.",
        right="write", query=InSpace, run=create_tag, answer=NamedCommit, body=NewName,
    ),
    Operation(
        method="DELETE", path="/v1/history/tag", name="deleteTag", summary="Delete a tag.",
        right="write", query=NameQuery, run=delete_tag, answer=DeletionResult,
    ),
    Operation(
        method="POST", path="/v1/history/rollback", name="rollBack",
        summary="Commit an earlier state again.", right="write", query=InSpace, run=roll_back,
        answer=StoredCommit, body=RollbackRequest,
    ),
    Operation(
        method="POST", path="/v1/history/revert", name="revert",
        summary="Undo one commit, and keep later changes.", right="write", query=InSpace, run=revert,
        answer=StoredCommit, body=RevertRequest,
    ),
)  # fmt: skip
