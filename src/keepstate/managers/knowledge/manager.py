"""Knowledge bases: their indexing progress and their sources.

A base has a document with its progress and one per source. The overview is derived from them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from keepstate.engine.kernel.stored import to_datetime, to_milliseconds
from keepstate.managers.binding import Namespace
from keepstate.managers.deadlines import check_age, subtract_age, to_store_ms
from keepstate.managers.knowledge.documents import KnowledgeDocuments, put_progress, put_timed, read_progress
from keepstate.managers.knowledge.records import (
    INDEXING_STEPS,
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
    SyncStatus,
    add_counts,
    check_progress,
    summarize_base,
)
from keepstate.managers.records import check_record, require_counts, require_integers


class KnowledgeStateManager(KnowledgeDocuments):
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
            before, run = await read_progress(base)
            kept = progress
            if before is not None:
                _check_transition(before, progress.status)
                run += progress.processed_documents < before.processed_documents
                kept = replace(
                    progress,
                    embeddings=before.embeddings if progress.embeddings is None else progress.embeddings,
                    size_bytes=before.size_bytes if progress.size_bytes is None else progress.size_bytes,
                )
            await put_progress(base, kept, run)

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
            before, run = await read_progress(base)
            if before is not None:
                _check_transition(before, status)
            known = before or IndexingProgress(base.id)
            after = replace(known, status=status, error=error, completed_at=completed_at)
            check_record("progress", after, IndexingProgress)
            await put_progress(base, after, run)
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

        kept = await base.space.documents.update(
            base.name("progress"), add, default={"value": None, "written_ms": 0}
        )
        await self._after_write()
        progress: IndexingProgress = kept["value"]
        return progress

    async def get_indexing_progress(self, knowledge_base_id: str) -> IndexingProgress | None:
        """Return the progress of a base, or None if there is none."""
        return (await read_progress(self._namespace(knowledge_base_id)))[0]

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
            await put_timed(base, source, "source", source.source_id, synced_ms=synced_ms)

        await self._run_together(base, work)

    async def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Return the state of a source, or None if there is none."""
        base = self._namespace(knowledge_base_id)
        kept = await base.space.documents.get(base.name("source", source_id))
        return None if kept is None else kept["value"]

    async def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Return the sources of a base, ordered by id."""
        return [kept["value"] async for _, kept in self._namespace(knowledge_base_id).values("source")]

    async def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Delete the state of a source, and return whether it existed."""
        base = self._namespace(knowledge_base_id)
        existed = await base.space.documents.delete(base.name("source", source_id))
        await self._after_write()
        return existed

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
        kept = [kept async for _, kept in base.values("source")]
        return [each["value"] for each in kept if _is_due(each, oldest_ms)]

    # ---- overview

    async def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Return the overview of a base, or None if there is no data."""
        base = self._namespace(knowledge_base_id)
        kept = await base.space.documents.get(base.name("progress"))
        sources = [each async for _, each in base.values("source")]
        if kept is None and not sources:
            return None
        written_ms = max(each["written_ms"] for each in (*([kept] if kept else []), *sources))
        return summarize_base(
            base.id,
            kept["value"] if kept else None,
            [each["value"] for each in sources],
            to_datetime(written_ms),
        )


async def _is_known(base: Namespace) -> bool:
    async for _ in base.names():
        return True
    return False


def _check_transition(before: IndexingProgress, status: IndexingStatus) -> None:
    if before.status is not status:
        INDEXING_STEPS.check(before.knowledge_base_id, before.status, status)


def _is_due(kept: dict[str, Any], oldest_ms: int) -> bool:
    source: SourceState = kept["value"]
    if source.sync_status is SyncStatus.SYNCING:
        written_ms: int = kept["written_ms"]
        return written_ms < oldest_ms
    never_or_long_ago = kept["synced_ms"] is None or kept["synced_ms"] < oldest_ms
    return source.sync_status is not SyncStatus.SYNCED or source.documents_pending > 0 or never_or_long_ago
