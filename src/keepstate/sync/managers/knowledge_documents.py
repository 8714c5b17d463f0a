"""Blocking twins of `keepstate.managers.knowledge.documents`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.knowledge import documents as managers
from keepstate.managers.knowledge.records import FailedDocument
from keepstate.sync.managers.manager import Manager

Inner = TypeVar("Inner", bound=managers.KnowledgeDocuments)


class KnowledgeDocuments(Manager[Inner]):
    """The document operations of `KnowledgeStateManager`."""

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
