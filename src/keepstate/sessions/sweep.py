"""All sessions of a store: listing, and removal of ended ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

from keepstate.binding import Resource, StorageOptions, StoreBinding, space_name, subjects_in
from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.engine.kernel.positions import Page
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions.namespace import ANY_USER, SessionGenerations

_KIND: Final = "session"


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

    async def ids(
        self,
        *,
        user_id: str | None = None,
        active_since: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[str]:
        """Return one page of the ids of sessions that have not ended, the latest change first.

        The ids are read from the index of `Keepstate.find`, in four round trips: what this handle has written
        is in it, and other writers deliver within about a second. A session whose id has more than 400
        bytes is not listed. Each change counts as activity; reading does only in a session with `ttl_s`.

        Args:
            user_id: Only sessions that this user owns now.
            active_since: Only sessions that have changed since this time.
            after: The `next` of a page of the same listing: continue after that page.
            limit: The largest number of ids. A page may have fewer, and still have a `next`.

        Raises:
            CompactedError: The log of the index no longer reaches back to the cursor.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another listing.
        """
        if user_id is not None:
            check_text("user_id", user_id)
        handle, shared = self._place()
        found = await handle.find(
            kind=_KIND,
            owner=user_id,
            changed_since=active_since,
            under=_KIND if shared is None else shared,
            after=after,
            limit=limit,
        )
        here = [row.id for row in found if row.space == (shared or space_name(_KIND, row.id))]
        return Page(here, next=found.next)

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
                    "The sessions are in a shared space. Omit history_older_than, and call history.prune() "
                    "on the space."
                )
        removed = 0
        async for id in self._ids():
            generations = self._generations(id)
            removed += await generations.sweep()
            if history_older_than is not None:
                await generations.target.history.prune(older_than=history_older_than)
        return removed

    def _place(self) -> tuple[Keepstate, str | None]:
        """Return the handle on the store, and the name of the space of all sessions, or None."""
        if self._binding.handle is not None:
            return self._binding.handle, None
        passed: Any = self._binding.passed
        return passed.executor.home, passed.name

    async def _ids(self) -> AsyncIterator[str]:
        prefix = f"{_KIND}/"
        if self._binding.handle is not None:
            async for name in self._binding.handle.spaces(prefix):
                yield name[len(prefix) :]
            return
        assert self._binding.passed is not None
        async for id in subjects_in(self._binding.passed, _KIND):
            yield id

    def _generations(self, id: str) -> SessionGenerations:
        target, prefix = self._binding.locate(_KIND, id, record=True)
        return SessionGenerations(target, prefix, what=f"session {id!r}", user_id=ANY_USER, ttl_s=None)
