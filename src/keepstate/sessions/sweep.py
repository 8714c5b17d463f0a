"""All sessions of a store: listing, and removal of ended ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Unpack

from keepstate.binding import Resource, StorageOptions, StoreBinding, subjects_in
from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.errors import InvalidError
from keepstate.sessions.namespace import ANY_USER, SessionGenerations


class Sessions(Resource):
    """The sessions of all users of a store, or of a shared space; for the application itself.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the sessions are in memory that this process shares.
        space: Instead: the space that contains all sessions.
    """

    def __init__(self, **storage: Unpack[StorageOptions]) -> None:
        self._binding = self._closing = StoreBinding(storage)
        self._binding.require_outside_transaction("Sessions")

    def __repr__(self) -> str:
        return f"<Sessions in {self._binding!r}>"

    async def ids(self, *, user_id: str | None = None, living: bool = True) -> AsyncIterator[str]:
        """Yield the ids of sessions, ordered by name.

        Args:
            user_id: Only sessions that this user owns now.
            living: Only sessions that have not ended; False adds ended sessions with documents left, unless
                `user_id` is given, because an ended session has no owner.
        """
        if user_id is not None:
            check_text("user_id", user_id)
        async for id in self._ids():
            if (not living and user_id is None) or not await self._generations(id).is_over(user_id):
                yield id

    async def sweep(self, *, history_older_than: timedelta | None = None) -> int:
        """Delete the documents of ended sessions, and return their number.

        Live sessions continue undisturbed. The history of a session still has the deleted documents, unless
        `history_older_than` is given; an ended session then still occupies some hundred bytes.

        Args:
            history_older_than: Also deletes history older than this, for sessions with spaces of their own. A
                shared space is pruned by its owner.
        """
        if history_older_than is not None:
            require_instance("history_older_than", history_older_than, timedelta)
            if self._binding.passed is not None:
                raise InvalidError(
                    f"{self._binding!r} is a shared space. Omit history_older_than, and call history.prune() "
                    "on the space."
                )
        removed = 0
        async for id in self._ids():
            generations = self._generations(id)
            removed += await generations.sweep()
            if history_older_than is not None:
                await generations.target.history.prune(older_than=history_older_than)
        return removed

    async def _ids(self) -> AsyncIterator[str]:
        prefix = "session/"
        if self._binding.handle is not None:
            async for name in self._binding.handle.spaces(prefix):
                yield name[len(prefix) :]
            return
        assert self._binding.passed is not None
        async for id in subjects_in(self._binding.passed, "session"):
            yield id

    def _generations(self, id: str) -> SessionGenerations:
        target, prefix = self._binding.locate("session", id, record=True)
        return SessionGenerations(target, prefix, what=f"session {id!r}", user_id=ANY_USER, ttl_s=None)
