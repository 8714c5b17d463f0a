"""Operations on documents: list, read, write, change, delete and watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, cast

import msgspec

from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.documents.watch import DocumentChange
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import NotFoundError
from keepstate.server.operations.values import Done, Seconds, read_value, show
from keepstate.server.table import (
    MERGE_PATCH,
    Call,
    Cursor,
    InSpace,
    Instant,
    Operation,
    PageLimit,
    Prefix,
    StreamEvent,
    TaggedAnswer,
    Text,
    decode_json,
)
from keepstate.values.json_exchange import from_json, to_json

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class Document(msgspec.Struct, frozen=True):
    """A document. `version` is its `ETag` without quotes."""

    key: str
    value: Any
    version: str | None
    expires_at: Instant | None
    size_bytes: int


class DocumentPage(msgspec.Struct, frozen=True):
    """A page of documents; `next` continues behind it, as `after`."""

    items: list[Document]
    next: str | None


class Written(msgspec.Struct, frozen=True):
    """A document that was written. `version` is None if another write has replaced it since."""

    key: str
    version: str | None


class DeletionResult(msgspec.Struct, frozen=True):
    """The result of a deletion: whether there was something to delete."""

    existed: bool


class WatchedChange(msgspec.Struct, frozen=True):
    """A change of a document. With `is_cut`, the values are too large for a stream: read the document."""

    key: str
    kind: Literal["created", "updated", "deleted"]
    old: Any
    new: Any
    position: str
    is_cut: bool = False


class DocumentQuery(InSpace, frozen=True, kw_only=True):
    """The space and the name of a document."""

    key: Text


class PutQuery(DocumentQuery, frozen=True, kw_only=True):
    """A document, and the seconds after which it expires."""

    ttl_s: Seconds | None = None


class ListQuery(InSpace, frozen=True, kw_only=True):
    """A listing of documents by pattern and prefix."""

    pattern: Pattern = "*"
    prefix: Prefix = ""
    after: Cursor | None = None
    limit: PageLimit = 100
    reverse: bool = False
    values: bool = True


class WatchQuery(InSpace, frozen=True, kw_only=True):
    """Changes of the documents that match a pattern; from now on without `after`."""

    pattern: Pattern = "*"
    after: Cursor | None = None


async def list_documents(call: Call, query: ListQuery) -> DocumentPage:
    """Return one page of documents."""
    page = await call.space(query).documents.page(
        query.pattern,
        prefix=query.prefix,
        after=query.after,
        reverse=query.reverse,
        limit=query.limit,
        values=query.values,
        unreadable="raw",
    )
    return DocumentPage([_document(entry) for entry in page], page.next)


async def get_document(call: Call, query: DocumentQuery) -> TaggedAnswer:
    """Return a document."""
    entry = await call.space(query).documents.entry(query.key)
    if entry is None:
        raise _missing(query)
    return TaggedAnswer(_document(entry), entry.printed_version)


async def put_document(call: Call, query: PutQuery, body: msgspec.Raw) -> TaggedAnswer:
    """Write a document, under the conditions of the request."""
    space, value = call.space(query), read_value(body)
    if not call.conditions:
        version = await space.documents.put(query.key, value, ttl_s=query.ttl_s)
    else:

        async def work(tx: Transaction) -> None:
            await _judge(call, tx, query.key)
            await tx.documents.put(query.key, value, ttl_s=query.ttl_s)

        version = (await space.apply(work)).revision
    return await _written(space, query.key, version)


async def patch_document(call: Call, query: DocumentQuery, body: msgspec.Raw) -> TaggedAnswer:
    """Change a document by a merge patch of RFC 7396."""
    space = call.space(query)
    patch = decode_json(body)
    from_json(patch)  # raises an error for a wrong form before anything is read

    async def work(tx: Transaction) -> None:
        await _judge(call, tx, query.key)

        def change(old: Any) -> Any:
            return from_json(merge_patch(to_json(old), patch))

        await tx.documents.update(query.key, change)

    applied = await space.apply(work)
    return await _written(space, query.key, applied.revision)


async def delete_document(call: Call, query: DocumentQuery) -> DeletionResult:
    """Delete a document, under the conditions of the request."""

    async def work(tx: Transaction) -> bool:
        await _judge(call, tx, query.key)
        return await tx.documents.delete(query.key)

    return DeletionResult((await call.space(query).apply(work)).value)


async def watch_documents(call: Call, query: WatchQuery) -> AsyncIterator[StreamEvent]:
    """Yield each change of documents."""
    after = call.last_event_id or query.after
    async with call.space(query).documents.watch(query.pattern, after=after, unreadable="raw") as watch:
        # Before the first change there is a position too, so a reader that is cut off then misses nothing.
        yield StreamEvent(Done(), watch.position, "ready")
        async for change in watch:
            yield StreamEvent(_changed(change), change.position, short=_cut(change))


def merge_patch(target: Any, patch: Any) -> Any:
    """Return a JSON value changed by a merge patch of RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else dict[str, Any]()
    for name, part in cast("dict[str, Any]", patch).items():
        if part is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), part)
    return merged


async def _judge(call: Call, tx: Transaction, key: str) -> None:
    """Compare the conditions with the document, in the transaction whose batch checks the read."""
    if call.conditions:
        entry = await tx.documents.entry(key)
        version = None if entry is None else entry.printed_version
        call.conditions.check(version, is_read=False, may_read=call.key.allows("read"))


async def _written(space: Space, key: str, version: int) -> TaggedAnswer:
    entry = await space.documents.entry(key)
    printed = entry.printed_version if entry is not None and entry.version == version else None
    return TaggedAnswer(Written(key, printed), printed)


def _document(entry: DocumentEntry[Any]) -> Document:
    return Document(entry.key, show(entry.value), entry.printed_version, entry.expires_at, entry.size_bytes)


def _changed(change: DocumentChange) -> WatchedChange:
    return WatchedChange(change.key, change.kind, show(change.old), show(change.new), change.position)


def _cut(change: DocumentChange) -> WatchedChange:
    return WatchedChange(change.key, change.kind, None, None, change.position, is_cut=True)


def _missing(query: DocumentQuery) -> NotFoundError:
    return NotFoundError(f"document {query.key!r} does not exist in space {query.space!r}")


OPERATIONS = (
    Operation(
        method="GET", path="/v1/documents", name="listDocuments", summary="List documents of a space.",
        right="read", query=ListQuery, run=list_documents, answer=DocumentPage,
    ),
    Operation(
        method="GET", path="/v1/document", name="getDocument", summary="Read a document.",
        right="read", query=DocumentQuery, run=get_document, answer=Document, has_etag=True,
    ),
    Operation(
        method="PUT", path="/v1/document", name="putDocument",
        summary="Write a document. The body is its value.",
        right="write", query=PutQuery, run=put_document, answer=Written, body=msgspec.Raw, has_etag=True,
    ),
    Operation(
        method="PATCH", path="/v1/document", name="patchDocument",
        summary="Change a document by a merge patch.", right="write", query=DocumentQuery,
        run=patch_document, answer=Written, body=msgspec.Raw, media=MERGE_PATCH, has_etag=True,
    ),
    Operation(
        method="DELETE", path="/v1/document", name="deleteDocument", summary="Delete a document.",
        right="write", query=DocumentQuery, run=delete_document, answer=DeletionResult, has_etag=True,
    ),
    Operation(
        method="GET", path="/v1/documents/watch", name="watchDocuments",
        summary="Follow the changes of documents.", right="read", query=WatchQuery, run=watch_documents,
        answer=WatchedChange, is_stream=True,
    ),
)  # fmt: skip
