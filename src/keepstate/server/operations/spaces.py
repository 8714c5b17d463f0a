"""Operations on spaces, the index of subjects, tenants, and the store as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec

from keepstate.engine.index.rows import Found
from keepstate.engine.queue.tasks import TaskState
from keepstate.errors import NotAllowedError
from keepstate.server.operations.documents import DeletionResult
from keepstate.server.table import (
    Call,
    Cursor,
    InSpace,
    Instant,
    Operation,
    PageLimit,
    Query,
    StreamEvent,
    TaggedAnswer,
    UnderQuery,
)

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SpaceRow(msgspec.Struct, frozen=True):
    """A space in a listing."""

    name: str
    changed_at: Instant | None


class SpacePage(msgspec.Struct, frozen=True):
    """A page of spaces; `next` continues behind it, as `after`."""

    items: list[SpaceRow]
    next: str | None


class SpaceSummary(msgspec.Struct, frozen=True):
    """A space at one moment. `position` is its `ETag` without quotes, and a position of `watchDocuments`."""

    name: str
    revision: int
    position: str
    entries: int
    size_bytes: int
    tasks: dict[TaskState, int]


class Subject(msgspec.Struct, frozen=True):
    """A session, agent, workflow, queue or other subject."""

    space: str
    kind: str
    id: str
    state: str
    owner: str | None
    title: str | None
    changed_at: Instant
    due_at: Instant | None


class SubjectPage(msgspec.Struct, frozen=True):
    """A page of subjects; `next` continues behind it, as `after`."""

    items: list[Subject]
    next: str | None


class SubjectChange(msgspec.Struct, frozen=True):
    """A change of a listing of subjects."""

    kind: Literal["added", "changed", "removed"]
    found: Subject
    position: str


class TenantPage(msgspec.Struct, frozen=True):
    """A page of the ids of tenants; `next` continues behind it, as `after`."""

    items: list[str]
    next: str | None


class Size(msgspec.Struct, frozen=True):
    """The size of all spaces of a tenant, without logs."""

    entries: int
    size_bytes: int


class PresentKey(msgspec.Struct, frozen=True):
    """The key of the request, and the author that its writes have.

    `trace_url` is the address of a trace, with `{trace_id}`, if the server links to traces.
    """

    key: str
    author: str
    rights: list[str]
    tenant: str | None
    under: str
    expires_at: Instant | None
    trace_url: str | None


class SpacesQuery(UnderQuery, frozen=True, kw_only=True):
    """A listing of spaces."""

    after: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    limit: PageLimit = 100


class FindQuery(UnderQuery, frozen=True, kw_only=True):
    """A listing of subjects."""

    kind: Word | None = None
    state: Word | None = None
    owner: Word | None = None
    changed_since: Instant | None = None
    order: Literal["-changed", "changed", "due"] = "-changed"
    after: Cursor | None = None
    limit: PageLimit = 100


class FollowQuery(UnderQuery, frozen=True, kw_only=True):
    """Changes of a listing of subjects; from now on without `after`."""

    kind: Word | None = None
    state: Word | None = None
    owner: Word | None = None
    after: Cursor | None = None


class TenantsQuery(Query, frozen=True, kw_only=True):
    """A listing of tenants."""

    after: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    limit: PageLimit = 100


class AnywhereQuery(UnderQuery, frozen=True, kw_only=True):
    """No parameters but `under`, which is ignored where the operation concerns the key itself."""


async def list_spaces(call: Call, query: SpacesQuery) -> SpacePage:
    """Return one page of spaces."""
    page = await call.ks.list_spaces(call.under(query), after=query.after, limit=query.limit)
    for row in page:
        call.require_reached(row.name)
    return SpacePage([SpaceRow(row.name, row.changed_at) for row in page], page.next)


async def get_space(call: Call, query: InSpace) -> TaggedAnswer:
    """Return a space. A change between the reads is seen in all of them or makes the tag an older one."""
    space = call.space(query)
    async with space.documents.watch() as watch:
        position, revision = watch.position, watch.revision
    size = await space.size()
    tasks = await space.queue.counts()
    return TaggedAnswer(
        SpaceSummary(space.name, revision, position, size.entries, size.size_bytes, tasks), position
    )


async def drop_space(call: Call, query: InSpace) -> DeletionResult:
    """Delete a space with everything in it."""
    return DeletionResult(await call.ks.drop(query.space))


async def find_subjects(call: Call, query: FindQuery) -> SubjectPage:
    """Return one page of subjects."""
    page = await call.ks.find(
        kind=query.kind,
        state=query.state,
        owner=query.owner,
        changed_since=query.changed_since,
        under=call.under(query),
        order=query.order,
        after=query.after,
        limit=query.limit,
    )
    for row in page:
        call.require_reached(row.space)
    return SubjectPage([_subject(row) for row in page], page.next)


async def follow_subjects(call: Call, query: FollowQuery) -> AsyncIterator[StreamEvent]:
    """Yield the changes of a listing of subjects."""
    changes = call.ks.watch(
        kind=query.kind,
        state=query.state,
        owner=query.owner,
        under=call.under(query),
        after=call.last_event_id or query.after,
    )
    async for change in changes:
        call.require_reached(change.found.space)
        yield StreamEvent(
            SubjectChange(change.kind, _subject(change.found), change.position), change.position
        )


async def list_tenants(call: Call, query: TenantsQuery) -> TenantPage:
    """Return one page of the tenants that have data."""
    if call.key.tenant is not None:
        raise NotAllowedError("the key belongs to a tenant; tenants are listed with a key without a tenant")
    page = await call.server.tenants(after=query.after, limit=query.limit)
    return TenantPage([tenant.id for tenant in page], page.next)


async def get_size(call: Call, query: Query) -> Size:
    """Return the size of the tenant of the key."""
    size = await call.ks.size()
    return Size(size.entries, size.size_bytes)


async def get_self(call: Call, query: AnywhereQuery) -> PresentKey:
    """Return what the key is and may do."""
    key = call.key
    return PresentKey(
        key.name,
        call.author,
        sorted(key.rights),
        key.tenant,
        key.under,
        key.expires_at,
        call.trace_url,
    )


def _subject(found: Found) -> Subject:
    return Subject(
        found.space,
        found.kind,
        found.id,
        found.state,
        found.owner,
        found.title,
        found.changed_at,
        found.due_at,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/spaces", name="listSpaces", summary="List the spaces that hold data.",
        right="read", query=SpacesQuery, run=list_spaces, answer=SpacePage,
    ),
    Operation(
        method="GET", path="/v1/space", name="getSpace", summary="Show a space.",
        right="read", query=InSpace, run=get_space, answer=SpaceSummary, has_etag=True,
    ),
    Operation(
        method="DELETE", path="/v1/space", name="dropSpace",
        summary="Delete a space with everything in it, its history and its log.",
        right="admin", query=InSpace, run=drop_space, answer=DeletionResult, is_audited=True,
    ),
    Operation(
        method="GET", path="/v1/find", name="findSubjects",
        summary="List sessions, agents, workflows, queues and other subjects.",
        right="read", query=FindQuery, run=find_subjects, answer=SubjectPage,
    ),
    Operation(
        method="GET", path="/v1/find/watch", name="followSubjects",
        summary="Follow the changes of a listing of subjects.",
        right="read", query=FollowQuery, run=follow_subjects, answer=SubjectChange, is_stream=True,
    ),
    Operation(
        method="GET", path="/v1/tenants", name="listTenants", summary="List the tenants that have data.",
        right="admin", query=TenantsQuery, run=list_tenants, answer=TenantPage, is_audited=True,
    ),
    Operation(
        method="GET", path="/v1/tenant/size", name="getTenantSize",
        summary="Show the size of all spaces of the key's tenant.",
        right="read", query=Query, run=get_size, answer=Size,
    ),
    Operation(
        method="GET", path="/v1/self", name="getSelf", summary="Show the key of the request.",
        right="read", query=AnywhereQuery, run=get_self, answer=PresentKey,
    ),
)  # fmt: skip
