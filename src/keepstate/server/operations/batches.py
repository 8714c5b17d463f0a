"""Batches, and leases: several operations that apply together or not at all, and locks that fence them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from keepstate.engine.queue.queue import Claim
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, LeaseLostError
from keepstate.server.conditions import Conditions
from keepstate.server.limits import LONGEST_WAIT_S
from keepstate.server.operations.documents import merge_patch
from keepstate.server.operations.events import StreamName
from keepstate.server.operations.tasks import NewTask, Token, put_in
from keepstate.server.operations.values import Body, Seconds, read_value, write_once
from keepstate.server.problems import RefusedError
from keepstate.server.table import (
    Call,
    Cursor,
    InSpace,
    Instant,
    Label,
    Operation,
    PageLimit,
    Prefix,
    Text,
    decode_json,
)
from keepstate.values.json_exchange import from_json, to_json


class PutPart(Body, frozen=True, kw_only=True, tag_field="do", tag="put"):
    """Write a document. `if_version` is its version; an empty text means that it must not exist."""

    key: Text
    value: msgspec.Raw
    if_version: str | None = None
    ttl_s: Seconds | None = None


class PatchPart(Body, frozen=True, kw_only=True, tag_field="do", tag="patch"):
    """Change a document by a merge patch."""

    key: Text
    patch: msgspec.Raw
    if_version: str | None = None


class DeletePart(Body, frozen=True, kw_only=True, tag_field="do", tag="delete"):
    """Delete a document."""

    key: Text
    if_version: str | None = None


class AppendPart(Body, frozen=True, kw_only=True, tag_field="do", tag="append"):
    """Append events to a stream."""

    events: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=490)]
    stream: StreamName = "main"
    ids: list[Text | None] | None = None
    type: Text | None = None


class PutTaskPart(NewTask, frozen=True, kw_only=True, tag_field="do", tag="put_task"):
    """Put a task."""


class CompletePart(Body, frozen=True, kw_only=True, tag_field="do", tag="complete_task"):
    """Complete a claimed task. The key needs the right `work` too."""

    id: Label
    token: Token
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Part = PutPart | PatchPart | DeletePart | AppendPart | PutTaskPart | CompletePart


class LeaseClaim(Body, frozen=True, kw_only=True):
    """A lease that must be held when the batch is applied."""

    name: Text
    token: Token


class StepClaim(Body, frozen=True, kw_only=True):
    """The step of a claimed task that a batch is. The key needs the right `work` too."""

    id: Label
    token: Token
    name: Label


class Batch(Body, frozen=True, kw_only=True):
    """Operations that apply together, in order: as a step of a task exactly once."""

    operations: Annotated[list[Part], msgspec.Meta(min_length=1, max_length=400)]
    message: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    lease: LeaseClaim | None = None
    step: StepClaim | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """The result of one operation: for a task its id, for a deletion whether there was something."""

    id: str | None = None
    existed: bool | None = None


class Applied(msgspec.Struct, frozen=True):
    """The revision of the batch, 0 if it changed nothing, and a result for each operation."""

    revision: int
    results: list[BatchResult]


class LeaseRequest(Body, frozen=True, kw_only=True):
    """A lease to acquire, for `ttl_s` seconds."""

    name: Text
    ttl_s: Seconds
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = 0


class RenewRequest(LeaseClaim, frozen=True, kw_only=True):
    """A held lease to renew, for `ttl_s` seconds from now."""

    ttl_s: Seconds


class HeldLease(msgspec.Struct, frozen=True):
    """A lease that the caller holds. Its name and token prove it."""

    name: str
    token: int
    ttl_s: float


class ReleaseResult(msgspec.Struct, frozen=True):
    """The result of a release: whether the lease was still held."""

    was_held: bool


class LeaseRow(msgspec.Struct, frozen=True):
    """A held lease in a listing."""

    name: str
    holder: str | None
    expires_at: Instant | None


class LeasePage(msgspec.Struct, frozen=True):
    """A page of held leases; `next` continues behind it, as `after`."""

    items: list[LeaseRow]
    next: str | None


class LeasesQuery(InSpace, frozen=True, kw_only=True):
    """A listing of held leases."""

    prefix: Prefix = ""
    after: Cursor | None = None
    limit: PageLimit = 100


async def apply_batch(call: Call, query: InSpace, body: Batch) -> Applied:
    """Apply operations together."""
    is_work = body.step is not None or any(isinstance(part, CompletePart) for part in body.operations)
    if is_work and not call.key.allows("work"):
        raise RefusedError(403, "forbidden", f"the key {call.key.name!r} does not have the right 'work'")
    space = call.space(query)
    if body.message:
        space = space.by(message=body.message)

    async def work(tx: Transaction) -> list[BatchResult]:
        return [await _apply(call, tx, part) for part in body.operations]

    if sum(each is not None for each in (body.lease, body.step, call.idempotency_key)) > 1:
        raise RefusedError(
            422, "invalid", "a batch takes a lease, a step or an Idempotency-Key; give one of them"
        )
    if body.step is not None:
        return await _apply_as_step(space, body.step, work)
    if body.lease is None:
        results, revision = await write_once(call, space, "applyBatch", work, list[BatchResult])
        return Applied(revision, results)
    return await _apply_fenced(space, body.lease, work)


async def _apply_fenced(space: Space, held: LeaseClaim, work: Any) -> Applied:
    lease = await space.leases.resume(held.name, held.token)
    while True:
        try:
            async with space.transaction(lease=lease) as tx:
                results: list[BatchResult] = await work(tx)
            return Applied(tx.revision, results)
        except LeaseLostError:
            raise
        except ConflictError as conflict:
            if not conflict.retryable:
                raise


async def _apply_as_step(space: Space, step: StepClaim, work: Any) -> Applied:
    """Apply a batch together with its step; if the step is recorded, return the recorded results."""
    transactions: list[Transaction] = []

    async def apply(tx: Transaction) -> Any:
        transactions.append(tx)
        return msgspec.to_builtins(await work(tx))

    task = await space.queue.attach(Claim(step.id, step.token))
    results = msgspec.convert(await task.transact(step.name, apply), list[BatchResult])
    return Applied(transactions[-1].revision if transactions else 0, results)


async def _apply(call: Call, tx: Transaction, part: Part) -> BatchResult:
    if isinstance(part, PutPart | PatchPart | DeletePart) and part.if_version is not None:
        entry = await tx.documents.entry(part.key)
        wanted = (
            Conditions(none_match="*") if part.if_version == "" else Conditions(frozenset({part.if_version}))
        )
        version = None if entry is None else entry.printed_version
        wanted.check(version, is_read=False, may_read=call.key.allows("read"))
    match part:
        case PutPart():
            await tx.documents.put(part.key, read_value(part.value), ttl_s=part.ttl_s)
        case PatchPart():
            patch = decode_json(part.patch)
            await tx.documents.update(part.key, lambda old: from_json(merge_patch(to_json(old), patch)))
        case DeletePart():
            return BatchResult(existed=await tx.documents.delete(part.key))
        case AppendPart():
            events = [read_value(raw) for raw in part.events]
            await tx.events.append(*events, stream=part.stream, id=part.ids, type=part.type)
        case PutTaskPart():
            return BatchResult(id=(await put_in(tx.queue, part)).id)
        case CompletePart():
            await tx.queue.complete(Claim(part.id, part.token), read_value(part.result))
    return BatchResult()


async def acquire_lease(call: Call, query: InSpace, body: LeaseRequest) -> HeldLease:
    """Acquire a lease."""
    lease = await call.space(query).leases.acquire(body.name, body.ttl_s, wait_s=body.wait_s)
    return HeldLease(lease.name, lease.token, lease.ttl_s)


async def renew_lease(call: Call, query: InSpace, body: RenewRequest) -> HeldLease:
    """Renew a lease."""
    lease = await call.space(query).leases.resume(body.name, body.token, ttl_s=body.ttl_s)
    return HeldLease(lease.name, lease.token, lease.ttl_s)


async def release_lease(call: Call, query: InSpace, body: LeaseClaim) -> ReleaseResult:
    """Release a lease. One that was lost is not an error."""
    try:
        lease = await call.space(query).leases.resume(body.name, body.token)
    except LeaseLostError:
        return ReleaseResult(was_held=False)
    return ReleaseResult(await lease.release())


async def list_leases(call: Call, query: LeasesQuery) -> LeasePage:
    """Return one page of held leases. Tokens are not shown: they prove who holds a lease."""
    page = await call.space(query).leases.held(query.prefix, after=query.after, limit=query.limit)
    return LeasePage([LeaseRow(each.name, each.holder, each.expires_at) for each in page], page.next)


OPERATIONS = (
    Operation(
        method="POST", path="/v1/batch", name="applyBatch",
        summary="Apply several operations together or not at all.", right="write", query=InSpace,
        run=apply_batch, answer=Applied, body=Batch, takes_key=True,
    ),
    Operation(
        method="GET", path="/v1/leases", name="listLeases", summary="List held leases.", right="read",
        query=LeasesQuery, run=list_leases, answer=LeasePage,
    ),
    Operation(
        method="POST", path="/v1/leases/acquire", name="acquireLease",
        summary="Acquire a lease, and wait up to 20 seconds for it.", right="write", query=InSpace,
        run=acquire_lease, answer=HeldLease, body=LeaseRequest, is_wait=True,
    ),
    Operation(
        method="POST", path="/v1/leases/renew", name="renewLease", summary="Renew a held lease.",
        right="write", query=InSpace, run=renew_lease, answer=HeldLease, body=RenewRequest,
    ),
    Operation(
        method="POST", path="/v1/leases/release", name="releaseLease", summary="Release a held lease.",
        right="write", query=InSpace, run=release_lease, answer=ReleaseResult, body=LeaseClaim,
    ),
)  # fmt: skip
