"""Knowledge bases: how far they are indexed, and their sources.

A base has a document with its progress and one for each source. The overview is derived.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from keepstate.engine.kernel.times import to_datetime, to_milliseconds
from keepstate.managers.binding import Folder
from keepstate.managers.deadlines import admit_age, ago, store_ms
from keepstate.managers.knowledge.documents import KnowledgeDocuments, put_beside, put_progress, standing_of
from keepstate.managers.knowledge.records import (
    INDEXING_STEPS,
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
    SyncStatus,
    admit_told,
    grown,
    overview_of,
)
from keepstate.managers.records import admit_counts, admit_integers, admit_record


class KnowledgeStateManager(KnowledgeDocuments):
    """Knowledge bases being indexed, by any number of workers at once.

    No base is ever over: `cleanup` forgets only which documents were indexed longer ago, and `delete` removes
    a base.

    Args:
        persistence: Where to keep what is known of them; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep it in.
    """

    _kind: ClassVar[str] = "kb"
    _records: bool = False

    async def list_knowledge_bases(self) -> list[str]:
        """Return the ids of all bases of which something is known."""
        return [id for id in await self._ids() if await _is_known(self._folder(id))]

    # ---- progress

    async def update_indexing_progress(self, progress: IndexingProgress) -> None:
        """Say how far a base is indexed, in place of what was said before.

        `embeddings` and `size_bytes` stay as they were counted where they are None. To count along with other
        workers use `add_indexing_progress`, and to say nothing of counts `set_indexing_status`.

        Raises:
            InvalidError: More documents are processed and failed than there are in total.
            TransitionError: Its status cannot follow the present one.
        """
        admit_record("progress", progress, IndexingProgress)
        admit_told(progress)

        async def work(base: Folder) -> None:
            before, run = await standing_of(base)
            kept = progress
            if before is not None:
                _check_step(before, progress.status)
                run += progress.processed_documents < before.processed_documents
                kept = replace(
                    progress,
                    embeddings=before.embeddings if progress.embeddings is None else progress.embeddings,
                    size_bytes=before.size_bytes if progress.size_bytes is None else progress.size_bytes,
                )
            await put_progress(base, kept, run)

        await self._together(self._folder(progress.knowledge_base_id), work)

    async def set_indexing_status(
        self,
        knowledge_base_id: str,
        status: IndexingStatus,
        *,
        error: str | None = None,
        completed_at: datetime | None = None,
    ) -> IndexingProgress:
        """Say where an indexing stands, and return that with its counts, of which none is lost or changed.

        Args:
            knowledge_base_id: Which base; one of which nothing was known begins with this.
            status: Where it stands.
            error: Why it failed; what was said before is forgotten.
            completed_at: When it ended, as the caller says; what was said before is forgotten.

        Raises:
            TransitionError: The status cannot follow the present one.
        """
        admit_record("status", status, IndexingStatus)

        async def work(base: Folder) -> IndexingProgress:
            before, run = await standing_of(base)
            if before is not None:
                _check_step(before, status)
            known = before or IndexingProgress(base.id)
            after = replace(known, status=status, error=error, completed_at=completed_at)
            admit_record("progress", after, IndexingProgress)
            await put_progress(base, after, run)
            return after

        return await self._together(self._folder(knowledge_base_id), work)

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
        """Add to how far a base is indexed, and return it; whoever else adds at once, no count is lost.

        A base of which nothing was known begins with it, `IN_PROGRESS`; a `PENDING` one goes on to that. No
        count completes an indexing. Where more documents were dealt with than there were to be, the total, if
        it is known, goes up with them.

        Args:
            knowledge_base_id: Which base.
            processed: Documents that were indexed.
            failed: Documents that could not be.
            total: Documents that are to be.
            embeddings: Embeddings that the base has now in addition.
            size_bytes: By how much it has grown.

        Raises:
            InvalidError: A count would become negative.
        """
        admit_integers(
            processed=processed, failed=failed, total=total, embeddings=embeddings, size_bytes=size_bytes
        )
        base = self._folder(knowledge_base_id)
        now_ms = to_milliseconds(await base.space.now())

        def add(kept: dict[str, Any]) -> dict[str, Any]:
            before = kept["value"] or IndexingProgress(base.id)
            after = grown(
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
        await self._wrote()
        progress: IndexingProgress = kept["value"]
        return progress

    async def get_indexing_progress(self, knowledge_base_id: str) -> IndexingProgress | None:
        """Return how far a base is indexed, or None if nobody has said."""
        return (await standing_of(self._folder(knowledge_base_id)))[0]

    async def delete(self, knowledge_base_id: str) -> bool:
        """Remove all that is known of a base, and return whether that was something."""
        return await self._forget(self._folder(knowledge_base_id))

    # ---- sources

    async def update_source_state(self, source: SourceState) -> None:
        """Say where a source stands, in place of what was said before."""
        admit_record("source", source, SourceState)
        admit_counts(source, "documents_synced", "documents_pending")
        base = self._folder(source.knowledge_base_id)

        async def work(base: Folder) -> None:
            synced_ms = None
            if source.last_sync is not None:
                synced_ms = store_ms(source.last_sync, self._clock, await base.space.now())
            await put_beside(base, source, "source", source.source_id, synced_ms=synced_ms)

        await self._together(base, work)

    async def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Return where a source stands, or None if nobody has said."""
        base = self._folder(knowledge_base_id)
        kept = await base.space.documents.get(base.name("source", source_id))
        return None if kept is None else kept["value"]

    async def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Return the sources of a base, by id."""
        return [kept["value"] async for _, kept in self._folder(knowledge_base_id).values("source")]

    async def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Forget a source, and return whether it was known."""
        base = self._folder(knowledge_base_id)
        existed = await base.space.documents.delete(base.name("source", source_id))
        await self._wrote()
        return existed

    async def needs_sync(
        self, knowledge_base_id: str, *, older_than: timedelta | None = None
    ) -> list[SourceState]:
        """Return the sources of a base that should be synchronized, by id.

        Those that are pending, stale or failed, have documents pending or were never synchronized; one that
        is being synchronized only if nothing was heard of it for `older_than`.

        Args:
            knowledge_base_id: Which base.
            older_than: Also those whose last synchronization is longer ago.
        """
        base = self._folder(knowledge_base_id)
        oldest_ms = 0
        if older_than is not None:
            admit_age("older_than", older_than)
            oldest_ms = to_milliseconds(ago(older_than, await base.space.now()))
        kept = [kept async for _, kept in base.values("source")]
        return [each["value"] for each in kept if _is_due(each, oldest_ms)]

    # ---- at a glance

    async def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Return a base at a glance, or None if nothing is known of it."""
        base = self._folder(knowledge_base_id)
        kept = await base.space.documents.get(base.name("progress"))
        sources = [each async for _, each in base.values("source")]
        if kept is None and not sources:
            return None
        written_ms = max(each["written_ms"] for each in (*([kept] if kept else []), *sources))
        return overview_of(
            base.id,
            kept["value"] if kept else None,
            [each["value"] for each in sources],
            to_datetime(written_ms),
        )


async def _is_known(base: Folder) -> bool:
    async for _ in base.names():
        return True
    return False


def _check_step(before: IndexingProgress, status: IndexingStatus) -> None:
    if before.status is not status:
        INDEXING_STEPS.check(before.knowledge_base_id, before.status, status)


def _is_due(kept: dict[str, Any], oldest_ms: int) -> bool:
    source: SourceState = kept["value"]
    if source.sync_status is SyncStatus.SYNCING:
        written_ms: int = kept["written_ms"]
        return written_ms < oldest_ms
    never_or_long_ago = kept["synced_ms"] is None or kept["synced_ms"] < oldest_ms
    return source.sync_status is not SyncStatus.SYNCED or source.documents_pending > 0 or never_or_long_ago
