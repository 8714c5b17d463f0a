"""Replies by single calls, for a writer that runs elsewhere and holds only the claim of its reply.

The lease of the reply is held by its token, and each piece of text names the event that it follows. So a call
that is sent again adds nothing twice, and a writer that was too late adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from keepstate._runner import process_name
from keepstate.engine.kernel.arguments import (
    check_author,
    check_choice,
    check_duration_ms,
    check_name,
    check_text,
    require_instance,
)
from keepstate.engine.queue.lease import Lease
from keepstate.errors import ConflictError, LeaseLostError, PrunedError
from keepstate.sessions.conversation_documents import ConversationDocuments
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.entries import Status
from keepstate.sessions.replies import ActiveReply, ReplyStream, Superseded, require_new_id, require_space

End: TypeAlias = Literal["done", "failed"]


@dataclass(frozen=True, slots=True)
class ReplyClaim:
    """The proof that a writer writes a reply.

    Attributes:
        id: The id of the reply, and of the message that it becomes.
        token: The fencing token of its lease.
        position: The number of its last event. Each piece of text changes it.
    """

    id: str
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class ReplyProgress:
    """A reply after a call.

    Attributes:
        claim: The claim for the next call.
        status: None while the reply is being written; otherwise how it has ended.
    """

    claim: ReplyClaim
    status: Status | None = None


async def begin(store: ConversationStore, id: str | None, author: str | None, lease_s: float) -> ReplyClaim:
    """Begin a reply; see `Conversation.begin_reply`."""
    space = require_space(store)
    name = space.clock.random_bytes(8).hex() if id is None else check_name("id", id)
    check_author(author)
    check_duration_ms("lease_s", lease_s)

    async def admit(documents: ConversationDocuments) -> str:
        await require_new_id(documents, store, name)
        return documents.prefix

    stream = ReplyStream(store, space, await store.together(admit, message="begin a reply"))
    holder = space.by(author or space.author or process_name())
    try:
        lease = await holder.leases.acquire(stream.lease_name, lease_s)
    except ConflictError as error:
        raise ConflictError(
            f"A reply is being written in {store!r}. Wait for its end, or call stop().",
            space=space.name,
            key=error.key,
            actual=error.actual,
        ) from error
    try:
        active = await stream.start(name, author or space.author)
    except BaseException:  # also a cancellation; raised again
        await lease.release()
        raise
    return ReplyClaim(name, lease.token, active.last)


async def extend(
    store: ConversationStore, claim: ReplyClaim, text: str, lease_s: float | None
) -> ReplyProgress:
    """Add text to a reply, and renew its lease; see `Conversation.extend_reply`."""
    check_text("text", text)
    stream, _ = await _held(store, claim, lease_s)
    if text:
        try:
            number = await stream.append(claim.position, text)
            return ReplyProgress(ReplyClaim(claim.id, claim.token, number))
        except ConflictError:
            pass  # it was sent before, or the reply has ended
    elif await stream.space.events.last(stream.name) == claim.position:
        return ReplyProgress(claim)
    try:
        later = await stream.events(claim.position)
    except PrunedError:
        return ReplyProgress(claim, await _require_end(stream, claim))
    active = await stream.read()
    if active is None or active.id != claim.id:
        return ReplyProgress(claim, await _require_end(stream, claim))
    if text and len(later) == 1 and later[0].data == text:
        return ReplyProgress(ReplyClaim(claim.id, claim.token, active.last))
    raise _moved(stream, claim, active)


async def end(
    store: ConversationStore, claim: ReplyClaim, how: End, text: str, meta: Mapping[str, Any]
) -> ReplyProgress:
    """End a reply; see `Conversation.end_reply`."""
    check_choice("how", how, "done", "failed")
    check_text("text", text)
    require_instance("meta", meta, Mapping)
    try:
        stream, lease = await _held(store, claim, None)
    except LeaseLostError:  # the lease is released at the end, so this may be the second time
        ended = await ReplyStream.of(store)
        if ended is None:
            raise
        return ReplyProgress(claim, await _require_end(ended, claim))
    active = await stream.read()
    while active is not None and active.id == claim.id:
        if how == "done" and active.last != claim.position:
            raise _moved(stream, claim, active)
        try:
            await stream.end(active.last, active.addition(how, dict(meta), active.text + text))
        except Superseded:
            if await stream.is_over():
                await stream.space.events.drop(stream.name)  # no message can come of it any more
                raise _lost(stream, claim) from None
            active = await stream.read()
        else:
            await lease.release()
            return ReplyProgress(claim, how)
    status = await _require_end(stream, claim)
    await lease.release()
    return ReplyProgress(claim, status)


async def _held(
    store: ConversationStore, claim: ReplyClaim, lease_s: float | None
) -> tuple[ReplyStream, Lease]:
    """Return the stream of a reply, and its lease, which the claim holds.

    Raises:
        LeaseLostError: The lease has expired, or the conversation does not exist.
    """
    require_instance("claim", claim, ReplyClaim)
    space = require_space(store)
    stream = await ReplyStream.of(store)
    if stream is None:
        raise LeaseLostError(f"{store!r} does not exist", space=space.name, name=claim.id, token=claim.token)
    return stream, await space.leases.resume(stream.lease_name, claim.token, ttl_s=lease_s)


async def _require_end(stream: ReplyStream, claim: ReplyClaim) -> Status:
    """Return how a reply has ended.

    Raises:
        LeaseLostError: It was ended as failed by another process, or the session has ended.
    """
    documents = await stream.store.current()
    if documents is not None and documents.prefix == stream.prefix:
        number = await documents.number_of(claim.id)
        if number is not None:
            found = await documents.read_records(await documents.record(), [number])
            status = found[number].entry(number).status if number in found else "stopped"
            if status != "failed":
                return status
    raise _lost(stream, claim)


def _lost(stream: ReplyStream, claim: ReplyClaim) -> LeaseLostError:
    return LeaseLostError(
        f"The reply {claim.id!r} of {stream.store!r} was ended as failed: its lease expired, or the session "
        "has ended. Begin another reply",
        space=stream.space.name,
        name=stream.lease_name,
        token=claim.token,
    )


def _moved(stream: ReplyStream, claim: ReplyClaim, active: ActiveReply) -> ConflictError:
    return ConflictError(
        f"The reply {claim.id!r} of {stream.store!r} is at position {active.last}, not at {claim.position}. "
        "Go on from the position of the last answer",
        space=stream.space.name,
        actual=active.last,
    )
