"""What is known of a knowledge base: how far it is indexed, and its sources."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.errors import InvalidError
from keepstate.managers.records import admit_counts, member, record
from keepstate.managers.transitions import Transitions

MEBIBYTE: Final = 1 << 20


@member("IndexingStatus")
class IndexingStatus(Enum):
    """Where the indexing of a knowledge base stands."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


@member("SyncStatus")
class SyncStatus(Enum):
    """Where the synchronization of a source stands."""

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
"""What may follow what; the same status again is no step. A base may begin with any."""


@record("IndexingProgress")
class IndexingProgress:
    """How far a knowledge base is indexed.

    Attributes:
        knowledge_base_id: Which one.
        status: Said by the caller only: no count completes an indexing by itself.
        total_documents: How many there are to be indexed; 0 if that is not known yet.
        processed_documents: How many are.
        failed_documents: How many could not be.
        started_at: When indexing began, as the caller says.
        embeddings: How many embeddings the base holds; None leaves what was counted.
        size_bytes: How large the base is; None leaves what was counted.
        error: Why it failed.
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
        source_id: Its name in the base.
        knowledge_base_id: Which base.
        sync_status: Where its synchronization stands.
        last_sync: When it was last synchronized, as the caller says; None for never.
        documents_synced: How many of its documents are in the base.
        documents_pending: How many are not yet.
        error: What went wrong the last time.
        metadata: Whatever the application wants to keep with it.
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
        document_id: Its name.
        knowledge_base_id: Which base it should be in.
        error: What the last attempt said.
        source_id: Where it comes from.
        attempts: How often it has failed.
        failed_at: When it did so last, by the store's clock.
    """

    document_id: str
    knowledge_base_id: str
    error: str
    source_id: str | None = None
    attempts: int = 1
    failed_at: datetime | None = None


@record("IndexedDocument")
class Indexed:
    """A document that is indexed, with what it has brought to its base.

    Attributes:
        embeddings: How many embeddings.
        size_bytes: By how much the base has grown.
        run: In which run, counted from 0.
    """

    embeddings: int = 0
    size_bytes: int = 0
    run: int = 0


@record("KnowledgeBaseState")
class KnowledgeBaseState:
    """A knowledge base at a glance, derived from its progress and its sources.

    Attributes:
        knowledge_base_id: Which one.
        total_documents: The largest of what progress says there is, what it has dealt with, and what the
            sources hold together.
        total_embeddings: As counted with the progress.
        last_updated: When anything of it was last written, by the store's clock.
        storage_size_mb: As counted with the progress, in units of 1,048,576 bytes.
        status: Of the indexing.
        processed_documents: How many are indexed.
        failed_documents: How many could not be.
        pending_documents: How many the sources still have to deliver.
        sources: How many sources it has.
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


def overview_of(
    knowledge_base_id: str,
    progress: IndexingProgress | None,
    sources: list[SourceState],
    last_updated: datetime | None,
) -> KnowledgeBaseState:
    """Return a base at a glance."""
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


def grown(
    progress: IndexingProgress,
    *,
    processed: int = 0,
    failed: int = 0,
    total: int = 0,
    embeddings: int = 0,
    size_bytes: int = 0,
) -> IndexingProgress:
    """Return progress with what was done since; what was pending is in progress then.

    A total that is known goes up where more was done than there was to do.

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
    admit_progress(after)
    return after


def admit_progress(progress: IndexingProgress) -> None:
    """Raise `InvalidError` unless all counts are whole numbers of 0 or more."""
    counts = ("total_documents", "processed_documents", "failed_documents", "embeddings", "size_bytes")
    admit_counts(progress, *counts)


def admit_told(progress: IndexingProgress) -> None:
    """Raise `InvalidError` unless the counts can be so, all together."""
    admit_progress(progress)
    done, total = progress.processed_documents + progress.failed_documents, progress.total_documents
    if done > total > 0:
        raise InvalidError(
            f"`total_documents` is {total}, and {progress.processed_documents} are processed and "
            f"{progress.failed_documents} failed; give a total of {done} or more, or 0 if it is not known"
        )


def admit_brought(name: str, count: object) -> int:
    """Return a count that must be a whole number of 0 or more."""
    if type(count) is not int or count < 0:
        raise InvalidError(f"`{name}` is {count!r}; it must be a whole number, 0 or more")
    return count
