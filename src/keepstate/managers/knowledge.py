"""Knowledge bases: how far they are indexed, their sources, and what of them failed.

A base has a document with its progress and one for each source, and for each document of its own a note of
what became of that: what it brought when it was indexed, or why it could not be. The overview is derived.

Invariant: a document that is completed twice in one run counts once. A run begins when an update tells of
fewer processed documents than were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from keepstate.engine.admission import admit_text
from keepstate.engine.tasks import told
from keepstate.engine.times import milliseconds
from keepstate.engine.together import read_ahead
from keepstate.errors import InvalidError
from keepstate.managers.deadlines import admit_age, ago, milliseconds_of, moment_of, store_ms
from keepstate.managers.knowledge_records import (
    INDEXING_STEPS,
    FailedDocument,
    Indexed,
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
    SyncStatus,
    admit_brought,
    admit_told,
    grown,
    overview_of,
)
from keepstate.managers.manager import Manager
from keepstate.managers.place import Folder
from keepstate.managers.records import admit_counts, admit_integers, admit_record
from keepstate.values import limits

_AT_ONCE: Final = 300


class KnowledgeStateManager(Manager):
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
        """Returns the ids of all bases of which something is known."""
        return [id for id in await self._ids() if await _is_known(self._folder(id))]

    # ---- progress

    async def update_indexing_progress(self, progress: IndexingProgress) -> None:
        """Says how far a base is indexed, in place of what was said before.

        `embeddings` and `size_bytes` stay as they were counted where they are None. To count along with other
        workers use `add_indexing_progress`, and to say nothing of counts `set_indexing_status`.

        Raises:
            InvalidError: More documents are processed and failed than there are in total.
            TransitionError: Its status cannot follow the present one.
        """
        admit_record("progress", progress, IndexingProgress)
        admit_told(progress)

        async def work(base: Folder) -> None:
            before, run = await _standing(base)
            kept = progress
            if before is not None:
                _check_step(before, progress.status)
                run += progress.processed_documents < before.processed_documents
                kept = replace(
                    progress,
                    embeddings=before.embeddings if progress.embeddings is None else progress.embeddings,
                    size_bytes=before.size_bytes if progress.size_bytes is None else progress.size_bytes,
                )
            await _put_progress(base, kept, run)

        await self._together(self._folder(progress.knowledge_base_id), work)

    async def set_indexing_status(
        self,
        knowledge_base_id: str,
        status: IndexingStatus,
        *,
        error: str | None = None,
        completed_at: datetime | None = None,
    ) -> IndexingProgress:
        """Says where an indexing stands, and returns that with its counts, of which none is lost or changed.

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
            before, run = await _standing(base)
            if before is not None:
                _check_step(before, status)
            known = before or IndexingProgress(base.id)
            after = replace(known, status=status, error=error, completed_at=completed_at)
            admit_record("progress", after, IndexingProgress)
            await _put_progress(base, after, run)
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
        """Adds to how far a base is indexed, and returns it; whoever else adds at once, no count is lost.

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
        now_ms = milliseconds_of(await base.space.now())

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
        """Returns how far a base is indexed, or None if nobody has said."""
        return (await _standing(self._folder(knowledge_base_id)))[0]

    async def delete(self, knowledge_base_id: str) -> bool:
        """Removes all that is known of a base, and returns whether that was something."""
        return await self._forget(self._folder(knowledge_base_id))

    # ---- sources

    async def update_source_state(self, source: SourceState) -> None:
        """Says where a source stands, in place of what was said before."""
        admit_record("source", source, SourceState)
        admit_counts(source, "documents_synced", "documents_pending")
        base = self._folder(source.knowledge_base_id)

        async def work(base: Folder) -> None:
            synced_ms = None
            if source.last_sync is not None:
                synced_ms = store_ms(source.last_sync, self._clock, await base.space.now())
            await _put(base, source, "source", source.source_id, synced_ms=synced_ms)

        await self._together(base, work)

    async def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Returns where a source stands, or None if nobody has said."""
        base = self._folder(knowledge_base_id)
        kept = await base.space.documents.get(base.name("source", source_id))
        return None if kept is None else kept["value"]

    async def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Returns the sources of a base, by id."""
        return [kept["value"] async for _, kept in self._folder(knowledge_base_id).values("source")]

    async def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Forgets a source, and returns whether it was known."""
        base = self._folder(knowledge_base_id)
        existed = await base.space.documents.delete(base.name("source", source_id))
        await self._wrote()
        return existed

    async def needs_sync(
        self, knowledge_base_id: str, *, older_than: timedelta | None = None
    ) -> list[SourceState]:
        """Returns the sources of a base that should be synchronized, by id.

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
            oldest_ms = milliseconds_of(ago(older_than, await base.space.now()))
        kept = [kept async for _, kept in base.values("source")]
        return [each["value"] for each in kept if _is_due(each, oldest_ms)]

    # ---- documents that failed

    async def fail_document(
        self, knowledge_base_id: str, document_id: str, error: object, *, source_id: str | None = None
    ) -> FailedDocument:
        """Lists a document that could not be indexed, and counts it as failed if it was not listed yet.

        One that was indexed before in this run no longer counts as that, nor does what it had brought.
        """
        if source_id is not None:
            admit_text("source_id", source_id)

        async def work(base: Folder) -> FailedDocument:
            before, run = await _standing(base, document_id)
            kept = await base.space.documents.get(base.name("failed", document_id))
            failed = FailedDocument(
                document_id,
                base.id,
                told(error),
                source_id=source_id or (kept["value"].source_id if kept else None),
                attempts=kept["value"].attempts + 1 if kept else 1,
                failed_at=await base.space.now(),
            )
            await _put(base, failed, "failed", document_id, hidden_ms=0)
            gone = await _take_indexed(base, document_id, run)
            if kept is None or gone is not None:
                progress = _less(before or IndexingProgress(base.id), gone)
                await _put_progress(base, grown(progress, failed=int(kept is None)), run)
            return failed

        return await self._together(self._folder(knowledge_base_id), work)

    async def complete_document(
        self, knowledge_base_id: str, document_id: str, *, embeddings: int = 0, size_bytes: int = 0
    ) -> None:
        """Counts a document as indexed, with what it has brought; one that had failed is listed no longer.

        Again in the same run it counts once, with what it has brought the last time.
        """
        brought = Indexed(admit_brought("embeddings", embeddings), admit_brought("size_bytes", size_bytes))

        async def work(base: Folder) -> None:
            before, run = await _standing(base, document_id)
            had_failed = await base.space.documents.delete(base.name("failed", document_id))
            known = before or IndexingProgress(base.id)
            # A run that began anew may count none, while the document was still listed.
            fewer = min(int(had_failed), known.failed_documents)
            known = _less(known, await _take_indexed(base, document_id, run))
            after = grown(known, processed=1, failed=-fewer, embeddings=embeddings, size_bytes=size_bytes)
            await _put(base, replace(brought, run=run), "indexed", document_id)
            await _put_progress(base, after, run)

        await self._together(self._folder(knowledge_base_id), work)

    async def get_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[FailedDocument]:
        """Returns documents that could not be indexed, by id, behind that of `after`."""
        limits.admit_count("limit", limit)
        if after is not None:
            admit_text("after", after)
        found: list[FailedDocument] = []
        async for _, kept in self._folder(knowledge_base_id).values("failed", after=after):
            found.append(kept["value"])
            if len(found) == limit:
                break
        return found

    async def retry_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, lease_s: float = 300
    ) -> list[FailedDocument]:
        """Hands out documents to be indexed once more; no other caller gets them within `lease_s` seconds.

        They stay listed, and counted as failed, until `complete_document`; after `fail_document`, or when the
        time is over, they can be handed out again.
        """
        if type(limit) is not int or not 0 < limit <= _AT_ONCE:
            raise InvalidError(f"`limit` is {limit!r}; it is 1 to {_AT_ONCE}")
        base, lease_ms = self._folder(knowledge_base_id), milliseconds("lease_s", lease_s)

        async def hand_out(base: Folder, names: Sequence[str]) -> list[FailedDocument]:
            now_ms = milliseconds_of(await base.space.now())
            entries = await base.space.documents.entries(*(base.name("failed", name) for name in names))
            kept = [each.value for each in entries.values() if each.value["hidden_ms"] <= now_ms]
            for each in kept:
                name = each["value"].document_id
                await _put(base, each["value"], "failed", name, hidden_ms=now_ms + lease_ms)
            return [each["value"] for each in kept]

        found: list[FailedDocument] = []
        now_ms = milliseconds_of(await base.space.now())
        ripe = [name async for name, kept in base.values("failed") if kept["hidden_ms"] <= now_ms]
        while ripe and len(found) < limit:
            most = limit - len(found)
            names, ripe = ripe[:most], ripe[most:]
            found += await self._together(base, partial(hand_out, names=names))
        return found

    # ---- at a glance

    async def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Returns a base at a glance, or None if nothing is known of it."""
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
            moment_of(written_ms),
        )

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Forgets which documents were indexed before then: one that is completed again counts again."""

        async def remove(base: Folder, names: Sequence[str]) -> int:
            entries = await base.space.documents.entries(*names)
            old = [name for name, each in entries.items() if moment_of(each.value["written_ms"]) < before]
            return sum([await base.space.documents.delete(name) for name in old])

        names = [folder.name("indexed", name) async for name in folder.names("indexed")]
        removed = 0
        for begin in range(0, len(names), _AT_ONCE):
            removed += await self._together(folder, partial(remove, names=names[begin : begin + _AT_ONCE]))
        return removed


async def _is_known(base: Folder) -> bool:
    async for _ in base.names():
        return True
    return False


async def _standing(base: Folder, *document_ids: str) -> tuple[IndexingProgress | None, int]:
    """Returns how far a base is indexed, and in which run; these documents are read along."""
    notes = [base.name(kind, id) for id in document_ids for kind in ("failed", "indexed")]
    if notes:
        await read_ahead(base.space, documents=[base.name("progress"), *notes])
    kept = await base.space.documents.get(base.name("progress"))
    return (None, 0) if kept is None else (kept["value"], kept.get("run", 0))


def _check_step(before: IndexingProgress, status: IndexingStatus) -> None:
    if before.status is not status:
        INDEXING_STEPS.check(before.knowledge_base_id, before.status, status)


async def _take_indexed(base: Folder, document_id: str, run: int) -> Indexed | None:
    """Forgets that a document was indexed in this run, and returns what it had brought."""
    name = base.name("indexed", document_id)
    kept = await base.space.documents.get(name)
    if kept is None or kept["value"].run != run:
        return None
    await base.space.documents.delete(name)
    indexed: Indexed = kept["value"]
    return indexed


def _less(progress: IndexingProgress, gone: Indexed | None) -> IndexingProgress:
    """Returns progress without a document; an update may have told of fewer than it had brought."""
    if gone is None:
        return progress
    return grown(
        progress,
        processed=-min(1, progress.processed_documents),
        embeddings=-min(gone.embeddings, progress.embeddings or 0),
        size_bytes=-min(gone.size_bytes, progress.size_bytes or 0),
    )


async def _put(base: Folder, value: object, *segments: str, **beside: int | None) -> None:
    """Keeps a value with the time of writing it."""
    written_ms = milliseconds_of(await base.space.now())
    await base.space.documents.put(base.name(*segments), {"value": value, "written_ms": written_ms, **beside})


async def _put_progress(base: Folder, progress: IndexingProgress, run: int) -> None:
    await _put(base, progress, "progress", run=run)


def _is_due(kept: dict[str, Any], oldest_ms: int) -> bool:
    source: SourceState = kept["value"]
    if source.sync_status is SyncStatus.SYNCING:
        written_ms: int = kept["written_ms"]
        return written_ms < oldest_ms
    never_or_long_ago = kept["synced_ms"] is None or kept["synced_ms"] < oldest_ms
    return source.sync_status is not SyncStatus.SYNCED or source.documents_pending > 0 or never_or_long_ago
