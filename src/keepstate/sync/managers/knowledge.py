"""Blocking twins of `keepstate.managers.knowledge.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from os import PathLike

from keepstate._finish import finish
from keepstate.managers.backends import Backend
from keepstate.managers.knowledge import manager as managers
from keepstate.managers.knowledge.records import (
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    SourceState,
)
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.knowledge_documents import KnowledgeDocuments
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class KnowledgeStateManager(KnowledgeDocuments[managers.KnowledgeStateManager]):
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

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            managers.KnowledgeStateManager(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    def list_knowledge_bases(self) -> list[str]:
        """Return the ids of all bases of which something is known."""
        return finish(self._inner.list_knowledge_bases())

    def update_indexing_progress(self, progress: IndexingProgress) -> None:
        """Say how far a base is indexed, in place of what was said before.

        `embeddings` and `size_bytes` stay as they were counted where they are None. To count along with other
        workers use `add_indexing_progress`, and to say nothing of counts `set_indexing_status`.

        Raises:
            InvalidError: More documents are processed and failed than there are in total.
            TransitionError: Its status cannot follow the present one.
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
        """Say where an indexing stands, and return that with its counts, of which none is lost or changed.

        Args:
            knowledge_base_id: Which base; one of which nothing was known begins with this.
            status: Where it stands.
            error: Why it failed; what was said before is forgotten.
            completed_at: When it ended, as the caller says; what was said before is forgotten.

        Raises:
            TransitionError: The status cannot follow the present one.
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
        """Return how far a base is indexed, or None if nobody has said."""
        return finish(self._inner.get_indexing_progress(knowledge_base_id))

    def delete(self, knowledge_base_id: str) -> bool:
        """Remove all that is known of a base, and return whether that was something."""
        return finish(self._inner.delete(knowledge_base_id))

    def update_source_state(self, source: SourceState) -> None:
        """Say where a source stands, in place of what was said before."""
        finish(self._inner.update_source_state(source))

    def get_source(self, knowledge_base_id: str, source_id: str) -> SourceState | None:
        """Return where a source stands, or None if nobody has said."""
        return finish(self._inner.get_source(knowledge_base_id, source_id))

    def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """Return the sources of a base, by id."""
        return finish(self._inner.get_sources(knowledge_base_id))

    def remove_source(self, knowledge_base_id: str, source_id: str) -> bool:
        """Forget a source, and return whether it was known."""
        return finish(self._inner.remove_source(knowledge_base_id, source_id))

    def needs_sync(self, knowledge_base_id: str, *, older_than: timedelta | None = None) -> list[SourceState]:
        """Return the sources of a base that should be synchronized, by id.

        Those that are pending, stale or failed, have documents pending or were never synchronized; one that
        is being synchronized only if nothing was heard of it for `older_than`.

        Args:
            knowledge_base_id: Which base.
            older_than: Also those whose last synchronization is longer ago.
        """
        return finish(self._inner.needs_sync(knowledge_base_id, older_than=older_than))

    def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """Return a base at a glance, or None if nothing is known of it."""
        return finish(self._inner.get_knowledge_base_state(knowledge_base_id))
