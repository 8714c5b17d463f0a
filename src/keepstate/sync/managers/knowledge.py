"""Blocking twins of `keepstate.managers.knowledge.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Unpack

from keepstate._finish import finish
from keepstate.managers.knowledge import manager as managers
from keepstate.managers.knowledge.records import (
    FailedDocument,
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
)
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options


class KnowledgeStateManager(Manager[managers.KnowledgeStateManager]):
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

    def __init__(self, **storage: Unpack[ManagerStorage]) -> None:
        super().__init__(managers.KnowledgeStateManager(**inner_options(storage)))

    def list_knowledge_bases(self) -> list[str]:
        """Return the ids of all bases with data."""
        return finish(self._inner.list_knowledge_bases())

    def update_indexing_progress(self, progress: IndexingProgress) -> None:
        """Replace the progress of a base.

        `embeddings` and `size_bytes` keep their counted values if they are None. To count together with other
        workers use `add_indexing_progress`. To change only the status use `set_indexing_status`.

        Raises:
            InvalidError: The processed and failed documents are more than the total.
            TransitionError: The new status cannot follow the current one.
        """
        finish(self._inner.update_indexing_progress(progress))

    def set_indexing_status(
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
        return finish(
            self._inner.set_indexing_status(knowledge_base_id, status, error=error, completed_at=completed_at)
        )

    def add_indexing_progress(
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
        return finish(
            self._inner.add_indexing_progress(
                knowledge_base_id,
                processed=processed,
                failed=failed,
                total=total,
                embeddings=embeddings,
                size_bytes=size_bytes,
            )
        )

    def get_indexing_progress(self, knowledge_base_id: str) -> IndexingProgress | None:
        """Return the progress of a base, or None if there is none."""
        return finish(self._inner.get_indexing_progress(knowledge_base_id))

    def delete(self, knowledge_base_id: str) -> bool:
        """Remove all data of a base, and return whether there was any."""
        return finish(self._inner.delete(knowledge_base_id))

    def update_source_state(self, source: SourceState) -> None:
        """Replace the state of a source."""
        finish(self._inner.update_source_state(source))

    def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Return the state of a source, or None if there is none."""
        return finish(self._inner.get_source(knowledge_base_id, source_id))

    def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Return the sources of a base, ordered by id."""
        return finish(self._inner.get_sources(knowledge_base_id))

    def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Delete the state of a source, and return whether it existed."""
        return finish(self._inner.remove_source(knowledge_base_id, source_id))

    def needs_sync(self, knowledge_base_id: str, *, older_than: timedelta | None = None) -> list[SourceState]:
        """Return the sources of a base that should be synchronized, ordered by id.

        These are sources that are pending, stale or failed, that have pending documents, or that were never
        synchronized. A source in `SYNCING` is included only if it was not updated for `older_than`.

        Args:
            knowledge_base_id: The base.
            older_than: Include sources whose last synchronization is older.
        """
        return finish(self._inner.needs_sync(knowledge_base_id, older_than=older_than))

    def fail_document(
        self, knowledge_base_id: str, document_id: str, error: object, *, source_id: str | None = None
    ) -> FailedDocument:
        """Record a document that could not be indexed, and count it as failed if it was not listed yet.

        If the document was indexed earlier in this run, its count and sizes are subtracted.
        """
        return finish(self._inner.fail_document(knowledge_base_id, document_id, error, source_id=source_id))

    def complete_document(
        self, knowledge_base_id: str, document_id: str, *, embeddings: int = 0, size_bytes: int = 0
    ) -> None:
        """Count a document as indexed, with its sizes, and remove it from the failed documents.

        Completed again in the same run, it counts once, with its latest sizes.
        """
        finish(
            self._inner.complete_document(
                knowledge_base_id, document_id, embeddings=embeddings, size_bytes=size_bytes
            )
        )

    def get_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[FailedDocument]:
        """Return failed documents, ordered by id, starting after the id `after`."""
        return finish(self._inner.get_failed_documents(knowledge_base_id, limit=limit, after=after))

    def retry_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, lease_s: float = 300
    ) -> list[FailedDocument]:
        """Return failed documents to index again. No other caller receives them for `lease_s` seconds.

        They stay listed and counted as failed until `complete_document`. After `fail_document`, or when the
        time is over, they can be returned again.
        """
        return finish(self._inner.retry_failed_documents(knowledge_base_id, limit=limit, lease_s=lease_s))

    def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Return the overview of a base, or None if there is no data."""
        return finish(self._inner.get_knowledge_base_state(knowledge_base_id))
