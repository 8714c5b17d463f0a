"""Knowledge bases: their indexing progress, their sources, and their documents.

A base has a stored document with its progress and one per source; the overview is derived from them. It also
has one for each of its documents: the size when it was indexed, or the error of its last attempt.

Invariant: a document that is completed twice in one run counts once. A run begins when an update reports
fewer processed documents than were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.arguments import check_duration_ms, check_text
from keepstate.engine.kernel.stored import to_datetime, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.engine.space.joint_work import read_ahead
from keepstate.managers.arguments import (
    check_age,
    require_counts,
    require_integers,
    subtract_age,
    to_store_ms,
)
from keepstate.managers.binding import CHANGED_AT_ONCE, Namespace, change_pages
from keepstate.managers.knowledge.records import (
    INDEXING_STEPS,
    FailedDocument,
    IndexedDocument,
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
    SyncStatus,
    add_counts,
    check_progress,
    subtract_document,
    summarize_base,
)
from keepstate.managers.manager import Manager
from keepstate.managers.records import check_record
from keepstate.values import limits


class KnowledgeStateManager(Manager):
    """Knowledge bases that any number of workers index concurrently.

    A base never finishes, so `cleanup` only deletes old records of indexed documents. `delete` removes a
    base.

    Args:
        persistence: Storage of the bases; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all bases, in place of a store.
    """

    _kind: ClassVar[str] = "kb"
    _records: bool = False

    async def list_knowledge_bases(self) -> list[str]:
        """Return the ids of all bases with data."""
        return [id for id in await self._ids() if await _is_known(self._namespace(id))]

    # ---- progress

    async def update_indexing_progress(self, progress: IndexingProgress) -> None:
        """Replace the progress of a base.

        `embeddings` and `size_bytes` keep their counted values if they are None. To count together with other
        workers use `add_indexing_progress`. To change only the status use `set_indexing_status`.

        Raises:
            InvalidError: The processed and failed documents are more than the total.
            TransitionError: The new status cannot follow the current one.
        """
        check_record("progress", progress, IndexingProgress)
        check_progress(progress)

        async def work(base: Namespace) -> None:
            before, run = await _read_progress(base)
            kept = progress
            if before is not None:
                INDEXING_STEPS.check_update(base.id, before.status, progress.status)
                run += progress.processed_documents < before.processed_documents
                kept = replace(
                    progress,
                    embeddings=before.embeddings if progress.embeddings is None else progress.embeddings,
                    size_bytes=before.size_bytes if progress.size_bytes is None else progress.size_bytes,
                )
            await _put_progress(base, kept, run)

        await self._run_together(self._namespace(progress.knowledge_base_id), work)

    async def set_indexing_status(
        self,
        knowledge_base_id: str,
        status: IndexingStatus,
        *,
        error: str | None = None,
        completed_at: datetime | None = None,
    ) -> IndexingProgress:
        """Set the status of an indexing, and return its progress. All counts stay as they are.

        Args:
            knowledge_base_id: The base. A base without data starts with this status.
            status: The new status.
            error: The reason of a failure; replaces the last one.
            completed_at: Time of completion, as the caller reports it; replaces the last one.

        Raises:
            TransitionError: The new status cannot follow the current one.
        """
        check_record("status", status, IndexingStatus)

        async def work(base: Namespace) -> IndexingProgress:
            before, run = await _read_progress(base)
            if before is not None:
                INDEXING_STEPS.check_update(base.id, before.status, status)
            known = before or IndexingProgress(base.id)
            after = replace(known, status=status, error=error, completed_at=completed_at)
            check_record("progress", after, IndexingProgress)
            await _put_progress(base, after, run)
            return after

        return await self._run_together(self._namespace(knowledge_base_id), work)

    async def add_indexing_progress(
        self,
        knowledge_base_id: str,
        *,
        processed: int = 0,
        failed: int = 0,
        total: int = 0,
        embeddings: int = 0,
        size_bytes: int = 0,
    ) -> IndexingProgress:
        """Add to the counts of a base, and return its progress. Concurrent calls lose no count.

        A base without data starts as `IN_PROGRESS`, and a `PENDING` one changes to it. No count completes an
        indexing. If more documents were processed or failed than the known total, the total rises with them.

        Args:
            knowledge_base_id: The base.
            processed: Number of documents that were indexed.
            failed: Number of documents that could not be indexed.
            total: Number of documents to index in addition.
            embeddings: Number of new embeddings in the base.
            size_bytes: Growth of the base.

        Raises:
            InvalidError: A count would become negative.
        """
        require_integers(
            processed=processed, failed=failed, total=total, embeddings=embeddings, size_bytes=size_bytes
        )
        base = self._namespace(knowledge_base_id)
        now_ms = to_milliseconds(await base.space.now())

        def add(kept: dict[str, Any]) -> dict[str, Any]:
            before = kept["value"] or IndexingProgress(base.id)
            after = add_counts(
                before,
                processed=processed,
                failed=failed,
                total=total,
                embeddings=embeddings,
                size_bytes=size_bytes,
            )
            return {**kept, "value": after, "written_ms": max(now_ms, kept["written_ms"])}

        kept = await base.collection().update("progress", add, default={"value": None, "written_ms": 0})
        await self._after_write()
        progress: IndexingProgress = kept["value"]
        return progress

    async def get_indexing_progress(self, knowledge_base_id: str) -> IndexingProgress | None:
        """Return the progress of a base, or None if there is none."""
        return (await _read_progress(self._namespace(knowledge_base_id)))[0]

    async def delete(self, knowledge_base_id: str) -> bool:
        """Remove all data of a base, and return whether there was any."""
        return await self._forget(self._namespace(knowledge_base_id))

    # ---- sources

    async def update_source_state(self, source: SourceState) -> None:
        """Replace the state of a source."""
        check_record("source", source, SourceState)
        require_counts(source, "documents_synced", "documents_pending")
        base = self._namespace(source.knowledge_base_id)

        async def work(base: Namespace) -> None:
            synced_ms = None
            if source.last_sync is not None:
                synced_ms = to_store_ms(source.last_sync, self._clock, await base.space.now())
            await _put_timed(base, source, "source", source.source_id, synced_ms=synced_ms)

        await self._run_together(base, work)

    async def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Return the state of a source, or None if there is none."""
        kept = await self._sources(knowledge_base_id).get(source_id)
        return None if kept is None else kept["value"]

    async def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Return the sources of a base, ordered by id."""
        return [kept["value"] async for kept in self._sources(knowledge_base_id).values()]

    async def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Delete the state of a source, and return whether it existed."""
        existed = await self._sources(knowledge_base_id).delete(source_id)
        await self._after_write()
        return existed

    def _sources(self, knowledge_base_id: str) -> Collection[dict[str, Any]]:
        return self._namespace(knowledge_base_id).collection("source")

    async def needs_sync(
        self, knowledge_base_id: str, *, older_than: timedelta | None = None
    ) -> list[SourceState]:
        """Return the sources of a base that should be synchronized, ordered by id.

        These are sources that are pending, stale or failed, that have pending documents, or that were never
        synchronized. A source in `SYNCING` is included only if it was not updated for `older_than`.

        Args:
            knowledge_base_id: The base.
            older_than: Include sources whose last synchronization is older.
        """
        base = self._namespace(knowledge_base_id)
        oldest_ms = 0
        if older_than is not None:
            check_age("older_than", older_than)
            oldest_ms = to_milliseconds(subtract_age(older_than, await base.space.now()))
        sources = base.collection("source")
        return [kept["value"] async for kept in sources.values() if _is_due(kept, oldest_ms)]

    # ---- documents

    async def fail_document(
        self, knowledge_base_id: str, document_id: str, error: object, *, source_id: str | None = None
    ) -> FailedDocument:
        """Record a document that could not be indexed, and count it as failed if it was not listed yet.

        If the document was indexed earlier in this run, its count and sizes are subtracted.
        """
        if source_id is not None:
            check_text("source_id", source_id)

        async def work(base: Namespace) -> FailedDocument:
            before, run = await _read_progress(base, document_id)
            kept = await base.get("failed", document_id)
            known = kept["value"] if kept else FailedDocument(document_id, base.id, "", attempts=0)
            failed: FailedDocument = replace(
                known,
                error=format_error(error),
                source_id=source_id or known.source_id,
                attempts=known.attempts + 1,
                failed_at=await base.space.now(),
            )
            await _put_timed(base, failed, "failed", document_id, hidden_ms=0)
            gone = await _pop_indexed(base, document_id, run)
            if kept is None or gone is not None:
                progress = subtract_document(before or IndexingProgress(base.id), gone)
                await _put_progress(base, add_counts(progress, failed=int(kept is None)), run)
            return failed

        return await self._run_together(self._namespace(knowledge_base_id), work)

    async def complete_document(
        self, knowledge_base_id: str, document_id: str, *, embeddings: int = 0, size_bytes: int = 0
    ) -> None:
        """Count a document as indexed, with its sizes, and remove it from the failed documents.

        Completed again in the same run, it counts once, with its latest sizes.
        """
        require_integers(embeddings=embeddings, size_bytes=size_bytes)
        brought = IndexedDocument(embeddings, size_bytes)
        require_counts(brought, "embeddings", "size_bytes")

        async def work(base: Namespace) -> None:
            before, run = await _read_progress(base, document_id)
            had_failed = await base.delete("failed", document_id)
            known = before or IndexingProgress(base.id)
            # A new run may count none although the document was still listed.
            fewer = min(int(had_failed), known.failed_documents)
            known = subtract_document(known, await _pop_indexed(base, document_id, run))
            after = add_counts(
                known, processed=1, failed=-fewer, embeddings=embeddings, size_bytes=size_bytes
            )
            await _put_timed(base, replace(brought, run=run), "indexed", document_id)
            await _put_progress(base, after, run)

        await self._run_together(self._namespace(knowledge_base_id), work)

    async def get_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[FailedDocument]:
        """Return failed documents, ordered by id, starting after the id `after`."""
        limits.admit_count("limit", limit)
        if after is not None:
            check_text("after", after)
        found: list[FailedDocument] = []
        async for _, kept in self._namespace(knowledge_base_id).collection("failed").items(after):
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
        limits.admit_count("limit", limit, most=CHANGED_AT_ONCE)
        base, lease_ms = self._namespace(knowledge_base_id), check_duration_ms("lease_s", lease_s)

        async def hand_out(base: Namespace, names: Sequence[str]) -> list[FailedDocument]:
            now_ms = to_milliseconds(await base.space.now())
            kept = await base.collection("failed").get_each(*names)
            found = [each["value"] for each in kept.values() if each["hidden_ms"] <= now_ms]
            for each in found:
                await _put_timed(base, each, "failed", each.document_id, hidden_ms=now_ms + lease_ms)
            return found

        found: list[FailedDocument] = []
        now_ms, after = to_milliseconds(await base.space.now()), None
        while (most := limit - len(found)) and (names := await _find_retryable(base, now_ms, after, most)):
            found += await self._run_together(base, partial(hand_out, names=names))
            after = names[-1]
        return found

    # ---- overview

    async def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Return the overview of a base, or None if there is no data."""
        base = self._namespace(knowledge_base_id)
        kept = await base.get("progress")
        sources = [each async for each in base.collection("source").values()]
        if kept is None and not sources:
            return None
        written_ms = max(each["written_ms"] for each in (*([kept] if kept else []), *sources))
        return summarize_base(
            base.id,
            kept["value"] if kept else None,
            [each["value"] for each in sources],
            to_datetime(written_ms),
        )

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Delete old records of indexed documents; a document that is completed again counts again."""

        async def remove(base: Namespace, ids: Sequence[str]) -> int:
            indexed = base.collection("indexed")
            kept = await indexed.get_each(*ids)
            old = [id for id, each in kept.items() if to_datetime(each["written_ms"]) < before]
            return sum([await indexed.delete(id) for id in old])

        ids = [id async for id in namespace.collection("indexed").ids()]
        return await change_pages(self._run_together, namespace, ids, remove)


async def _find_retryable(base: Namespace, now_ms: int, after: str | None, most: int) -> list[str]:
    """Return the first failed documents after `after` that are not handed out."""
    names: list[str] = []
    async for name, kept in base.collection("failed").items(after):
        if kept["hidden_ms"] <= now_ms:
            names.append(name)
            if len(names) == most:
                break
    return names


async def _read_progress(base: Namespace, *document_ids: str) -> tuple[IndexingProgress | None, int]:
    """Return the progress of a base and the number of its run. Prefetches the records of these documents."""
    notes = [base.name(kind, id) for id in document_ids for kind in ("failed", "indexed")]
    if notes:
        await read_ahead(base.space, documents=[base.name("progress"), *notes])
    kept = await base.get("progress")
    return (None, 0) if kept is None else (kept["value"], kept.get("run", 0))


async def _put_timed(base: Namespace, value: object, *segments: str, **more: int | None) -> None:
    """Store a value with the current time and more fields."""
    written_ms = to_milliseconds(await base.space.now())
    await base.put({"value": value, "written_ms": written_ms, **more}, *segments)


async def _put_progress(base: Namespace, progress: IndexingProgress, run: int) -> None:
    """Store the progress of a base and the number of its run."""
    await _put_timed(base, progress, "progress", run=run)


async def _pop_indexed(base: Namespace, document_id: str, run: int) -> IndexedDocument | None:
    """Delete the record of a document that was indexed in this run, and return it."""
    name = base.name("indexed", document_id)
    kept = await base.space.documents.get(name)
    if kept is None or kept["value"].run != run:
        return None
    await base.space.documents.delete(name)
    indexed: IndexedDocument = kept["value"]
    return indexed


async def _is_known(base: Namespace) -> bool:
    async for _ in base.collection().ids():
        return True
    return False


def _is_due(kept: dict[str, Any], oldest_ms: int) -> bool:
    source: SourceState = kept["value"]
    if source.sync_status is SyncStatus.SYNCING:
        written_ms: int = kept["written_ms"]
        return written_ms < oldest_ms
    never_or_long_ago = kept["synced_ms"] is None or kept["synced_ms"] < oldest_ms
    return source.sync_status is not SyncStatus.SYNCED or source.documents_pending > 0 or never_or_long_ago
