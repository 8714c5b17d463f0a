"""Operations on approvals: ask people, list what is pending, answer, and withdraw.

A key answers only as itself, or as `<key>/<person>`. It belongs to no group.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from keepstate.engine.approvals.records import Approval, ApprovalState, EventKind
from keepstate.errors import NotFoundError
from keepstate.server.operations.values import Body, Seconds, read_value, show
from keepstate.server.table import Call, Cursor, InSpace, Instant, Label, Note, Operation, PageLimit


class StoredVote(msgspec.Struct, frozen=True):
    """A yes of one person."""

    by: str
    at: Instant
    note: str
    group: str | None


class StoredApproval(msgspec.Struct, frozen=True):
    """A question to people, and its answer if there is one. `digest` is the `saw` of an answer."""

    id: str
    state: ApprovalState
    question: str
    subject: Any
    schema: Any
    digest: str
    to: list[str]
    need: int
    votes: list[StoredVote]
    asked_by: str | None
    asked_at: Instant
    expires_at: Instant | None
    task: str | None
    answer: Any
    is_approved: bool | None
    note: str
    closed_at: Instant | None
    closed_by: str | None
    reason: str


class ApprovalPage(msgspec.Struct, frozen=True):
    """A page of pending approvals; `next` continues behind it, as `after`."""

    items: list[StoredApproval]
    next: str | None


class LogLine(msgspec.Struct, frozen=True):
    """A line of the log of an approval."""

    kind: EventKind
    at: Instant
    by: str | None
    note: str


class ApprovalLog(msgspec.Struct, frozen=True):
    """The log of an approval, in order."""

    items: list[LogLine]


class Question(Body, frozen=True, kw_only=True):
    """A question. Asked again under one id, it is the same approval."""

    question: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    id: Label | None = None
    subject: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    to: Annotated[tuple[Label, ...], msgspec.Meta(max_length=100)] = ()
    need: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    expires_s: Seconds | None = None
    task: Label | None = None


class ApprovalAnswer(Body, frozen=True, kw_only=True):
    """An answer, with the digest of what its person saw."""

    id: Label
    value: msgspec.Raw
    saw: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    note: Note = ""


class WithdrawRequest(Body, frozen=True, kw_only=True):
    """An approval to close without an answer."""

    id: Label
    reason: Note = ""


class PendingQuery(InSpace, frozen=True, kw_only=True):
    """A listing of pending approvals; `to` lists those that one person may answer."""

    to: Label | None = None
    after: Cursor | None = None
    limit: PageLimit = 100


class ApprovalQuery(InSpace, frozen=True, kw_only=True):
    """An approval."""

    id: Label


async def list_approvals(call: Call, query: PendingQuery) -> ApprovalPage:
    """Return one page of pending approvals."""
    page = await call.space(query).approvals.pending(
        to=query.to, after=query.after, limit=query.limit, unreadable="raw"
    )
    return ApprovalPage([_approval(each) for each in page], page.next)


async def get_approval(call: Call, query: ApprovalQuery) -> StoredApproval:
    """Return an approval."""
    found = await call.space(query).approvals.get(query.id)
    if found is None:
        raise NotFoundError(f"approval {query.id!r} does not exist in space {query.space!r}")
    return _approval(found)


async def get_log(call: Call, query: ApprovalQuery) -> ApprovalLog:
    """Return what happened to an approval."""
    lines = await call.space(query).approvals.log(query.id)
    return ApprovalLog([LogLine(line.kind, line.at, line.by, line.note) for line in lines])


async def ask(call: Call, query: InSpace, body: Question) -> StoredApproval:
    """Ask people."""
    approval = await call.space(query).approvals.ask(
        body.question,
        id=body.id,
        subject=read_value(body.subject),
        schema=read_value(body.schema),
        to=body.to,
        need=body.need,
        expires_s=body.expires_s,
        task=body.task,
    )
    return _for_caller(call, approval)


async def answer(call: Call, query: InSpace, body: ApprovalAnswer) -> StoredApproval:
    """Answer an approval as the author of the request."""
    approval = await call.space(query).approvals.answer(
        body.id, read_value(body.value), by=call.author, note=body.note, saw=body.saw
    )
    return _for_caller(call, approval)


async def withdraw(call: Call, query: InSpace, body: WithdrawRequest) -> StoredApproval:
    """Close an approval without an answer."""
    approvals = call.space(query).approvals
    return _for_caller(call, await approvals.withdraw(body.id, by=call.author, reason=body.reason))


def _for_caller(call: Call, found: Approval) -> StoredApproval:
    """Return an approval, without what others have written if the key may not read."""
    approval = _approval(found)
    if call.key.allows("read"):
        return approval
    approval = msgspec.structs.replace(approval, question="", subject=None, schema=None, digest="", votes=[])
    if found.closed_by == call.author:
        return approval
    return msgspec.structs.replace(approval, answer=None, is_approved=None, note="", reason="")


def _approval(found: Approval) -> StoredApproval:
    given = found.answer
    return StoredApproval(
        found.id,
        found.state,
        found.question,
        show(found.subject if found.unreadable is None else found.unreadable),
        show(found.schema),
        found.digest,
        list(found.to),
        found.need,
        [StoredVote(vote.by, vote.at, vote.note, vote.group) for vote in found.votes],
        found.asked_by,
        found.asked_at,
        found.expires_at,
        found.task,
        None if given is None else show(given.value),
        None if given is None else given.approved,
        "" if given is None else given.note,
        found.closed_at,
        found.closed_by,
        found.reason,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/approvals", name="listApprovals", summary="List pending approvals.",
        right="read", query=PendingQuery, run=list_approvals, answer=ApprovalPage,
    ),
    Operation(
        method="POST", path="/v1/approvals", name="ask", summary="Ask people.", right="write",
        query=InSpace, run=ask, answer=StoredApproval, body=Question,
    ),
    Operation(
        method="GET", path="/v1/approval", name="getApproval", summary="Read an approval.",
        right="read", query=ApprovalQuery, run=get_approval, answer=StoredApproval,
    ),
    Operation(
        method="GET", path="/v1/approval/log", name="getApprovalLog",
        summary="List what happened to an approval.", right="read", query=ApprovalQuery, run=get_log,
        answer=ApprovalLog,
    ),
    Operation(
        method="POST", path="/v1/approval/answer", name="answer", summary="Answer an approval.",
        right="answer", query=InSpace, run=answer, answer=StoredApproval, body=ApprovalAnswer,
        is_audited=True,
    ),
    Operation(
        method="POST", path="/v1/approval/withdraw", name="withdraw",
        summary="Close an approval without an answer.", right="write", query=InSpace, run=withdraw,
        answer=StoredApproval, body=WithdrawRequest,
    ),
)  # fmt: skip
