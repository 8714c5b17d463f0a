"""Records of a knowledge base: its indexing progress and its sources."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.engine.kernel.transitions import Transitions
from keepstate.errors import InvalidError
from keepstate.managers.arguments import require_counts
from keepstate.managers.records import record, stored_enum

MEBIBYTE: Final = 1 << 20


@stored_enum("IndexingStatus")
class IndexingStatus(Enum):
    """The status of the indexing of a knowledge base."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


@stored_enum("SyncStatus")
class SyncStatus(Enum):
    """The status of the synchronization of a source."""

    PENDING = "pending"
    SYNCING = "syncing"
    SYNCED = "synced"
    STALE = "stale"
    FAILED = "failed"


INDEXING_STEPS: Final = Transitions(
    "indexing of",
    {
        IndexingStatus.PENDING: {IndexingStatus.IN_PROGRESS, IndexingStatus.FAILED},
        IndexingStatus.IN_PROGRESS: {IndexingStatus.PAUSED, IndexingStatus.COMPLETED, IndexingStatus.FAILED},
        IndexingStatus.PAUSED: {IndexingStatus.IN_PROGRESS, IndexingStatus.COMPLETED, IndexingStatus.FAILED},
        IndexingStatus.COMPLETED: {IndexingStatus.PENDING, IndexingStatus.IN_PROGRESS},
        IndexingStatus.FAILED: {IndexingStatus.PENDING, IndexingStatus.IN_PROGRESS},
    },
)
"""Allowed transitions; the same status again is not a transition. A base may start with any status."""


@record("IndexingProgress")
class IndexingProgress:
    """The indexing progress of a knowledge base.

    Attributes:
        knowledge_base_id: The base.
        status: Set only by the caller: no count completes an indexing by itself.
        total_documents: Number of documents to index; 0 if it is not known.
        processed_documents: Number of indexed documents.
        failed_documents: Number of documents that could not be indexed.
        started_at: Start of the indexing, as the caller reports it.
        completed_at: End of the indexing, as the caller reports it.
        embeddings: Number of embeddings in the base; None keeps the counted value.
        size_bytes: Size of the base; None keeps the counted value.
        error: The reason of a failure.
    """

    knowledge_base_id: str
    status: IndexingStatus = IndexingStatus.PENDING
    total_documents: int = 0
    processed_documents: int = 0
    failed_documents: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None
    embeddings: int | None = None
    size_bytes: int | None = None
    error: str | None = None


@record("SourceState")
class SourceState:
    """One source of a knowledge base.

    Attributes:
        source_id: Id of the source in the base.
        knowledge_base_id: The base.
        sync_status: Status of its synchronization.
        last_sync: Time of its last synchronization, as the caller reports it; None for never.
        documents_synced: Number of its documents in the base.
        documents_pending: Number of its documents that are not in the base yet.
        error: The last error.
        metadata: Data of the application.
    """

    source_id: str
    knowledge_base_id: str
    sync_status: SyncStatus = SyncStatus.PENDING
    last_sync: datetime | None = None
    documents_synced: int = 0
    documents_pending: int = 0
    error: str | None = None
    metadata: dict[str, Any] | None = None


@record("FailedDocument")
class FailedDocument:
    """A document that could not be indexed.

    Attributes:
        document_id: Id of the document.
        knowledge_base_id: The base.
        error: The error of the last attempt.
        source_id: Source of the document.
        attempts: Number of failed attempts.
        failed_at: Time of the last failure, by the store's clock.
    """

    document_id: str
    knowledge_base_id: str
    error: str
    source_id: str | None = None
    attempts: int = 1
    failed_at: datetime | None = None


@record("IndexedDocument")
class IndexedDocument:
    """A document that is indexed, with its share of the base.

    Attributes:
        embeddings: Number of its embeddings.
        size_bytes: Growth of the base.
        run: Number of the run, from 0.
    """

    embeddings: int = 0
    size_bytes: int = 0
    run: int = 0


@record("KnowledgeBaseState")
class KnowledgeBaseState:
    """The overview of a knowledge base, derived from its progress and its sources.

    Attributes:
        knowledge_base_id: The base.
        total_documents: The largest of the total in the progress, the processed and failed documents, and the
            documents of all sources.
        total_embeddings: From the progress.
        last_updated: Time of the last write of any part, by the store's clock.
        storage_size_mb: From the progress, in units of 1,048,576 bytes.
        status: Status of the indexing.
        processed_documents: Number of indexed documents.
        failed_documents: Number of documents that could not be indexed.
        pending_documents: Number of documents that the sources still have to deliver.
        sources: Number of sources.
    """

    knowledge_base_id: str
    total_documents: int = 0
    total_embeddings: int = 0
    last_updated: datetime | None = None
    storage_size_mb: float = 0.0
    status: IndexingStatus = IndexingStatus.PENDING
    processed_documents: int = 0
    failed_documents: int = 0
    pending_documents: int = 0
    sources: int = 0


def summarize_base(
    knowledge_base_id: str,
    progress: IndexingProgress | None,
    sources: list[SourceState],
    last_updated: datetime | None,
) -> KnowledgeBaseState:
    """Return the overview of a base."""
    known = progress or IndexingProgress(knowledge_base_id)
    held = sum(source.documents_synced + source.documents_pending for source in sources)
    return KnowledgeBaseState(
        knowledge_base_id,
        total_documents=max(known.total_documents, known.processed_documents + known.failed_documents, held),
        total_embeddings=known.embeddings or 0,
        last_updated=last_updated,
        storage_size_mb=(known.size_bytes or 0) / MEBIBYTE,
        status=known.status,
        processed_documents=known.processed_documents,
        failed_documents=known.failed_documents,
        pending_documents=sum(source.documents_pending for source in sources),
        sources=len(sources),
    )


def add_counts(
    progress: IndexingProgress,
    *,
    processed: int = 0,
    failed: int = 0,
    total: int = 0,
    embeddings: int = 0,
    size_bytes: int = 0,
) -> IndexingProgress:
    """Add to the counts of a progress, and change `PENDING` to `IN_PROGRESS`.

    A known total rises if more documents were processed and failed than it says.

    Raises:
        InvalidError: A count would become negative.
    """
    begins = progress.status is IndexingStatus.PENDING and (processed or failed)
    all_processed = progress.processed_documents + processed
    all_failed = progress.failed_documents + failed
    all_told = progress.total_documents + total
    after = replace(
        progress,
        status=IndexingStatus.IN_PROGRESS if begins else progress.status,
        total_documents=max(all_told, all_processed + all_failed) if all_told > 0 else all_told,
        processed_documents=all_processed,
        failed_documents=all_failed,
        embeddings=(progress.embeddings or 0) + embeddings if embeddings else progress.embeddings,
        size_bytes=(progress.size_bytes or 0) + size_bytes if size_bytes else progress.size_bytes,
    )
    require_counts_valid(after)
    return after


def subtract_document(progress: IndexingProgress, gone: IndexedDocument | None) -> IndexingProgress:
    """Subtract a document from the progress, at most to 0, because an update may have reported less."""
    if gone is None:
        return progress
    return add_counts(
        progress,
        processed=-min(1, progress.processed_documents),
        embeddings=-min(gone.embeddings, progress.embeddings or 0),
        size_bytes=-min(gone.size_bytes, progress.size_bytes or 0),
    )


def require_counts_valid(progress: IndexingProgress) -> None:
    """Raise `InvalidError` unless all counts are whole numbers of 0 or more."""
    counts = ("total_documents", "processed_documents", "failed_documents", "embeddings", "size_bytes")
    require_counts(progress, *counts)


def check_progress(progress: IndexingProgress) -> None:
    """Raise `InvalidError` unless the counts are valid and agree with the total."""
    require_counts_valid(progress)
    done, total = progress.processed_documents + progress.failed_documents, progress.total_documents
    if done > total > 0:
        raise InvalidError(
            f"`total_documents` is {total}, and {progress.processed_documents} are processed and "
            f"{progress.failed_documents} failed. Pass a total of {done} or more, or 0 if it is not known."
        )
