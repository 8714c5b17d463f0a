"""Blocking twins of `keepstate.sessions.sweep`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Unpack

from keepstate._finish import finish
from keepstate.engine.kernel.positions import Page
from keepstate.sessions import sweep as sessions
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options


class Sessions(Resource[sessions.Sessions]):
    """The sessions of all users of a store, or of a shared space; for the application itself.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the sessions are in memory that this process shares.
        space: Instead: the space that contains all sessions.
    """

    def __init__(self, **storage: Unpack[StorageOptions]) -> None:
        super().__init__(sessions.Sessions(**inner_options(storage)))

    def ids(
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
        return finish(self._inner.ids(user_id=user_id, active_since=active_since, after=after, limit=limit))

    def sweep(self, *, history_older_than: timedelta | None = None) -> int:
        """Delete the documents of ended sessions, and return their number.

        Live sessions continue undisturbed. The history of a session still has the deleted documents, unless
        `history_older_than` is given; an ended session then still occupies some hundred bytes.

        Args:
            history_older_than: Also deletes history older than this, for sessions with spaces of their own. A
                shared space is pruned by its owner.
        """
        return finish(self._inner.sweep(history_older_than=history_older_than))
