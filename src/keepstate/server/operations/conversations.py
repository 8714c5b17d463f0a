"""Operations on the conversation of a session: read, append, follow with live replies, and stop a reply.

A key reaches the sessions of all users in the spaces that it reaches, so a server of an application decides
which user sees which session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec

from keepstate.errors import NotFoundError
from keepstate.server.operations.history import Ref
from keepstate.server.operations.tasks import Token
from keepstate.server.operations.values import Body, Seconds, read_value, show
from keepstate.server.table import (
    Call,
    Cursor,
    InSession,
    Instant,
    Label,
    Operation,
    StreamEvent,
)
from keepstate.sessions import ANY_USER, Conversation, ReplyClaim, ReplyProgress, Session
from keepstate.sessions.entries import Entry
from keepstate.sessions.following import ChatChange
from keepstate.sessions.forks import Fork

Place = Annotated[str, msgspec.Meta(min_length=1, max_length=2_048)]


class ConversationEntry(msgspec.Struct, frozen=True):
    """A message of a conversation, and what is stored with it."""

    number: int
    id: str | None
    message: Any
    at: Instant
    author: str | None
    meta: Any
    status: Literal["done", "stopped", "failed"]


class ConversationPage(msgspec.Struct, frozen=True):
    """Messages in order; `next` continues behind them, as `after`, and `previous` in front, as `before`."""

    items: list[ConversationEntry]
    next: str | None
    previous: str | None


class NewMessage(Body, frozen=True, kw_only=True):
    """A message in the form of any library. With an id that was used before, it is not added again."""

    message: msgspec.Raw
    id: Label | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class StoredFork(msgspec.Struct, frozen=True):
    """A fork: its parent, null for the conversation; the last message that both share; and its last."""

    name: str
    parent: str | None
    at: int
    last: int


class Forks(msgspec.Struct, frozen=True):
    """The forks of a session, by name, also forks of forks."""

    items: list[StoredFork]


class NewFork(Body, frozen=True, kw_only=True):
    """A fork that begins at a message, by default the newest."""

    name: Label
    at: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ForkMergeRequest(Body, frozen=True, kw_only=True):
    """A fork to merge: with a `summary`, by one message that tells of it; otherwise, all its messages.

    `prefer` decides about messages that both sides edited.
    """

    name: Label
    summary: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)] | None = None
    prefer: Literal["ours", "theirs"] | None = None


class MergedFork(msgspec.Struct, frozen=True):
    """The number of messages that were added, and the number of the message that tells of the fork."""

    added: int
    number: int | None


class AppendedMessage(msgspec.Struct, frozen=True):
    """The number of a message."""

    number: int


class ReplyRequest(Body, frozen=True, kw_only=True):
    """A reply to begin. It fails unless text or nothing is added to it every `lease_s` seconds."""

    id: Label | None = None
    lease_s: Seconds = 30


class ReplyState(msgspec.Struct, frozen=True):
    """The proof that the caller writes a reply, for the next call; `status` is None until it has ended."""

    id: str
    token: int
    position: str
    status: Literal["done", "stopped", "failed"] | None = None


class HeldReply(Body, frozen=True, kw_only=True):
    """The proof of the last call, and the next piece of text."""

    id: Label
    token: Token
    position: Annotated[str, msgspec.Meta(min_length=1, max_length=20, pattern="^[0-9]+$")]
    text: Annotated[str, msgspec.Meta(max_length=1_048_576)] = ""


class ReplyDelta(HeldReply, frozen=True, kw_only=True):
    """A piece of text, and the seconds until the next one."""

    lease_s: Seconds = 30


class ReplyEnd(HeldReply, frozen=True, kw_only=True):
    """The last piece of text, and notes to store with the message. A failed reply is seen by no model."""

    how: Literal["done", "failed"] = "done"
    meta: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict[str, msgspec.Raw])


class StopResult(msgspec.Struct, frozen=True):
    """The result of a stop: whether a reply was being written."""

    stopped: bool


class ConversationChange(msgspec.Struct, frozen=True):
    """A change of a conversation. With `is_cut`, the message is too large for a stream: read it."""

    kind: Literal["message", "edited", "removed", "started", "delta", "stopped", "failed"]
    number: int | None
    id: str | None
    text: str
    entry: ConversationEntry | None
    position: str
    is_cut: bool = False


class ConversationQuery(InSession, frozen=True, kw_only=True):
    """A conversation, or a fork of it."""

    fork: Label | None = None


class PageQuery(ConversationQuery, frozen=True, kw_only=True):
    """A page of messages: the newest ones without `after`. With `ref`, as they were at that moment."""

    before: Place | None = None
    after: Place | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=400)] = 50
    ref: Ref | None = None


class FollowQuery(ConversationQuery, frozen=True, kw_only=True):
    """All messages, and then each change as it comes; with `deltas`, replies while they are written.

    It goes on behind the position `after`, or behind the message with the number `after_number`.
    """

    after: Cursor | None = None
    after_number: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deltas: bool = True


async def get_conversation(call: Call, query: PageQuery) -> ConversationPage:
    """Return a page of messages."""
    page = await (await _conversation(call, query)).page(
        before=query.before, after=query.after, limit=query.limit, at=query.ref
    )
    return ConversationPage([_entry(entry) for entry in page], page.next, page.previous)


async def append_message(call: Call, query: ConversationQuery, body: NewMessage) -> AppendedMessage:
    """Append a message."""
    number = await (await _conversation(call, query)).append(
        read_value(body.message), id=body.id, author=call.author, meta=read_value(body.meta)
    )
    return AppendedMessage(number)


async def list_forks(call: Call, query: InSession) -> Forks:
    """Return the forks of a session."""
    found = await (await _talk(call, query)).forks()
    return Forks([_stored_fork(each) for each in found])


async def create_fork(call: Call, query: ConversationQuery, body: NewFork) -> StoredFork:
    """Create a fork of a conversation, or of a fork of it."""
    talk = await _conversation(call, query)
    await talk.fork(body.name, at=body.at)
    found = {each.name: each for each in await talk.forks()}.get(body.name)
    if found is None:  # the session has ended meanwhile
        raise NotFoundError(f"fork {body.name!r} does not exist in session {query.session!r}")
    return _stored_fork(found)


async def merge_fork(call: Call, query: ConversationQuery, body: ForkMergeRequest) -> MergedFork:
    """Merge a fork into the conversation that it was created from."""
    talk = await _conversation(call, query)
    if body.summary is None:
        return MergedFork(await talk.merge(body.name, prefer=body.prefer), None)
    number = await talk.get_fork(body.name).merge_back(summary=body.summary, author=call.author)
    return MergedFork(1, number)


async def begin_reply(call: Call, query: ConversationQuery, body: ReplyRequest) -> ReplyState:
    """Begin a reply, which followers read while it is written."""
    talk = await _conversation(call, query)
    claim = await talk.begin_reply(id=body.id, author=call.author, lease_s=body.lease_s)
    return _proof(ReplyProgress(claim))


async def extend_reply(call: Call, query: ConversationQuery, body: ReplyDelta) -> ReplyState:
    """Add a piece of text to a reply, and renew its lease."""
    talk = await _conversation(call, query)
    return _proof(await talk.extend_reply(_claim(body), body.text, lease_s=body.lease_s))


async def end_reply(call: Call, query: ConversationQuery, body: ReplyEnd) -> ReplyState:
    """End a reply: it becomes a message."""
    talk = await _conversation(call, query)
    meta = {name: read_value(raw) for name, raw in body.meta.items()}
    return _proof(await talk.end_reply(_claim(body), body.how, text=body.text, meta=meta))


def _stored_fork(fork: Fork) -> StoredFork:
    return StoredFork(fork.name, fork.parent, fork.at, fork.last)


def _claim(body: HeldReply) -> ReplyClaim:
    return ReplyClaim(body.id, body.token, int(body.position))


def _proof(progress: ReplyProgress) -> ReplyState:
    claim = progress.claim
    return ReplyState(claim.id, claim.token, str(claim.position), progress.status)


async def stop_reply(call: Call, query: ConversationQuery) -> StopResult:
    """End the reply that is being written."""
    return StopResult(await (await _conversation(call, query)).stop(by=call.author))


async def follow_conversation(call: Call, query: FollowQuery) -> AsyncIterator[StreamEvent]:
    """Yield all messages, and then each change."""
    after = call.last_event_id or query.after or query.after_number
    async for change in (await _conversation(call, query)).follow(after=after, deltas=query.deltas):
        yield StreamEvent(_change(change), change.position, short=_cut(change))


async def _conversation(call: Call, query: ConversationQuery) -> Conversation:
    talk = await _talk(call, query)
    return talk if query.fork is None else talk.get_fork(query.fork)


async def _talk(call: Call, query: InSession) -> Conversation:
    return Session(query.session, user_id=ANY_USER, persistence=await call.sessions()).conversation


def _entry(entry: Entry) -> ConversationEntry:
    return ConversationEntry(
        entry.number,
        entry.id,
        show(entry.message),
        entry.at,
        entry.author,
        show(entry.meta),
        entry.status,
    )


def _change(change: ChatChange) -> ConversationChange:
    entry = None if change.entry is None else _entry(change.entry)
    return ConversationChange(change.kind, change.number, change.id, change.text, entry, change.position)


def _cut(change: ChatChange) -> ConversationChange:
    return ConversationChange(change.kind, change.number, change.id, "", None, change.position, is_cut=True)


OPERATIONS = (
    Operation(
        method="GET", path="/v1/conversation", name="getConversation",
        summary="Read messages of a conversation.", right="read", query=PageQuery,
        run=get_conversation, answer=ConversationPage,
    ),
    Operation(
        method="POST", path="/v1/conversation", name="appendMessage",
        summary="Append a message to a conversation.", right="write", query=ConversationQuery,
        run=append_message, answer=AppendedMessage, body=NewMessage,
    ),
    Operation(
        method="GET", path="/v1/conversation/forks", name="listForks",
        summary="List the forks of a conversation.", right="read", query=InSession, run=list_forks,
        answer=Forks,
    ),
    Operation(
        method="POST", path="/v1/conversation/fork", name="createFork",
        summary="Create a fork of a conversation.", right="write", query=ConversationQuery,
        run=create_fork, answer=StoredFork, body=NewFork,
    ),
    Operation(
        method="POST", path="/v1/conversation/merge", name="mergeFork",
        summary="Merge a fork into its conversation, whole or by a summary.", right="write",
        query=ConversationQuery, run=merge_fork, answer=MergedFork, body=ForkMergeRequest,
    ),
    Operation(
        method="GET", path="/v1/conversation/follow", name="followConversation",
        summary="Follow a conversation, with replies while they are written.", right="read",
        query=FollowQuery, run=follow_conversation, answer=ConversationChange, is_stream=True,
    ),
    Operation(
        method="POST", path="/v1/conversation/reply", name="beginReply",
        summary="Begin a reply, which followers read while it is written.", right="write",
        query=ConversationQuery, run=begin_reply, answer=ReplyState, body=ReplyRequest,
    ),
    Operation(
        method="POST", path="/v1/conversation/reply/extend", name="extendReply",
        summary="Add a piece of text to a reply, and renew its lease.", right="write",
        query=ConversationQuery, run=extend_reply, answer=ReplyState, body=ReplyDelta,
    ),
    Operation(
        method="POST", path="/v1/conversation/reply/end", name="endReply",
        summary="End a reply: it becomes a message.", right="write", query=ConversationQuery,
        run=end_reply, answer=ReplyState, body=ReplyEnd,
    ),
    Operation(
        method="POST", path="/v1/conversation/stop", name="stopReply",
        summary="End the reply that is being written.", right="write", query=ConversationQuery,
        run=stop_reply, answer=StopResult,
    ),
)  # fmt: skip
