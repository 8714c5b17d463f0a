"""Documents of knowledge bases: indexed documents with their sizes, and failed ones.

A base has a record for each of its documents: its size when it was indexed, or the error of its last attempt.

Invariant: a document that is completed twice in one run counts once. A run begins when an update reports
fewer processed documents than were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from keepstate.engine.kernel.arguments import check_duration_ms, check_text
from keepstate.engine.kernel.stored import to_datetime, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.engine.space.joint_work import read_ahead
from keepstate.errors import InvalidError
from keepstate.managers.binding import Namespace
from keepstate.managers.knowledge.records import (
    FailedDocument,
    IndexedDocument,
    IndexingProgress,
    add_counts,
    check_count,
)
from keepstate.managers.manager import Manager
from keepstate.values import limits

_AT_ONCE: Final = 300


class KnowledgeDocuments(Manager):
    """The document operations of `KnowledgeStateManager`."""

    async def fail_document(
        self, knowledge_base_id: str, document_id: str, error: object, *, source_id: str | None = None
    ) -> FailedDocument:
        """Record a document that could not be indexed, and count it as failed if it was not listed yet.

        If the document was indexed earlier in this run, its count and sizes are subtracted.
        """
        if source_id is not None:
            check_text("source_id", source_id)

        async def work(base: Namespace) -> FailedDocument:
            before, run = await read_progress(base, document_id)
            kept = await base.space.documents.get(base.name("failed", document_id))
            failed = FailedDocument(
                document_id,
                base.id,
                format_error(error),
                source_id=source_id or (kept["value"].source_id if kept else None),
                attempts=kept["value"].attempts + 1 if kept else 1,
                failed_at=await base.space.now(),
            )
            await put_timed(base, failed, "failed", document_id, hidden_ms=0)
            gone = await _pop_indexed(base, document_id, run)
            if kept is None or gone is not None:
                progress = _subtract(before or IndexingProgress(base.id), gone)
                await put_progress(base, add_counts(progress, failed=int(kept is None)), run)
            return failed

        return await self._run_together(self._namespace(knowledge_base_id), work)

    async def complete_document(
        self, knowledge_base_id: str, document_id: str, *, embeddings: int = 0, size_bytes: int = 0
    ) -> None:
        """Count a document as indexed, with its sizes, and remove it from the failed documents.

        Completed again in the same run, it counts once, with its latest sizes.
        """
        brought = IndexedDocument(
            check_count("embeddings", embeddings), check_count("size_bytes", size_bytes)
        )

        async def work(base: Namespace) -> None:
            before, run = await read_progress(base, document_id)
            had_failed = await base.space.documents.delete(base.name("failed", document_id))
            known = before or IndexingProgress(base.id)
            # A new run may count none although the document was still listed.
            fewer = min(int(had_failed), known.failed_documents)
            known = _subtract(known, await _pop_indexed(base, document_id, run))
            after = add_counts(
                known, processed=1, failed=-fewer, embeddings=embeddings, size_bytes=size_bytes
            )
            await put_timed(base, replace(brought, run=run), "indexed", document_id)
            await put_progress(base, after, run)

        await self._run_together(self._namespace(knowledge_base_id), work)

    async def get_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[FailedDocument]:
        """Return failed documents, ordered by id, starting after the id `after`."""
        limits.admit_count("limit", limit)
        if after is not None:
            check_text("after", after)
        found: list[FailedDocument] = []
        async for _, kept in self._namespace(knowledge_base_id).values("failed", after=after):
            found.append(kept["value"])
            if len(found) == limit:
                break
        return found

    async def retry_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, lease_s: float = 300
    ) -> list[FailedDocument]:
        """Return failed documents to index again. No other caller receives them for `lease_s` seconds.

        They stay listed and counted as failed until `complete_document`. After `fail_document`, or when the
        time is over, they can be returned again.
        """
        if type(limit) is not int or not 0 < limit <= _AT_ONCE:
            raise InvalidError(f"`limit` is {limit!r}. Pass 1 to {_AT_ONCE}.")
        base, lease_ms = self._namespace(knowledge_base_id), check_duration_ms("lease_s", lease_s)

        async def hand_out(base: Namespace, names: Sequence[str]) -> list[FailedDocument]:
            now_ms = to_milliseconds(await base.space.now())
            entries = await base.space.documents.entries(*(base.name("failed", name) for name in names))
            kept = [each.value for each in entries.values() if each.value["hidden_ms"] <= now_ms]
            for each in kept:
                name = each["value"].document_id
                await put_timed(base, each["value"], "failed", name, hidden_ms=now_ms + lease_ms)
            return [each["value"] for each in kept]

        found: list[FailedDocument] = []
        now_ms, after = to_milliseconds(await base.space.now()), None
        while (most := limit - len(found)) and (names := await _find_retryable(base, now_ms, after, most)):
            found += await self._run_together(base, partial(hand_out, names=names))
            after = names[-1]
        return found

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Delete old records of indexed documents; a document that is completed again counts again."""

        async def remove(base: Namespace, names: Sequence[str]) -> int:
            entries = await base.space.documents.entries(*names)
            old = [name for name, each in entries.items() if to_datetime(each.value["written_ms"]) < before]
            return sum([await base.space.documents.delete(name) for name in old])

        names = [namespace.name("indexed", name) async for name in namespace.names("indexed")]
        removed = 0
        for begin in range(0, len(names), _AT_ONCE):
            removed += await self._run_together(
                namespace, partial(remove, names=names[begin : begin + _AT_ONCE])
            )
        return removed


async def _find_retryable(base: Namespace, now_ms: int, after: str | None, most: int) -> list[str]:
    """Return the first failed documents after `after` that are not handed out."""
    names: list[str] = []
    async for name, kept in base.values("failed", after=after):
        if kept["hidden_ms"] <= now_ms:
            names.append(name)
            if len(names) == most:
                break
    return names


async def read_progress(base: Namespace, *document_ids: str) -> tuple[IndexingProgress | None, int]:
    """Return the progress of a base and the number of its run. Prefetches the records of these documents."""
    notes = [base.name(kind, id) for id in document_ids for kind in ("failed", "indexed")]
    if notes:
        await read_ahead(base.space, documents=[base.name("progress"), *notes])
    kept = await base.space.documents.get(base.name("progress"))
    return (None, 0) if kept is None else (kept["value"], kept.get("run", 0))


async def put_timed(base: Namespace, value: object, *segments: str, **more: int | None) -> None:
    """Store a value with the current time and more fields."""
    written_ms = to_milliseconds(await base.space.now())
    await base.space.documents.put(base.name(*segments), {"value": value, "written_ms": written_ms, **more})


async def put_progress(base: Namespace, progress: IndexingProgress, run: int) -> None:
    """Store the progress of a base and the number of its run."""
    await put_timed(base, progress, "progress", run=run)


async def _pop_indexed(base: Namespace, document_id: str, run: int) -> IndexedDocument | None:
    """Delete the record of a document that was indexed in this run, and return it."""
    name = base.name("indexed", document_id)
    kept = await base.space.documents.get(name)
    if kept is None or kept["value"].run != run:
        return None
    await base.space.documents.delete(name)
    indexed: IndexedDocument = kept["value"]
    return indexed


def _subtract(progress: IndexingProgress, gone: IndexedDocument | None) -> IndexingProgress:
    """Subtract a document from the progress, at most to 0, because an update may have reported less."""
    if gone is None:
        return progress
    return add_counts(
        progress,
        processed=-min(1, progress.processed_documents),
        embeddings=-min(gone.embeddings, progress.embeddings or 0),
        size_bytes=-min(gone.size_bytes, progress.size_bytes or 0),
    )
