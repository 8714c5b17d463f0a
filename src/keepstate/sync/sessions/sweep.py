"""Blocking twins of `keepstate.sessions.sweep`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Unpack

from keepstate._finish import finish, finish_each
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

    def ids(self, *, user_id: str | None = None, living: bool = True) -> Iterator[str]:
        """Yield the ids of sessions, ordered by name.

        Args:
            user_id: Only sessions that this user owns now.
            living: Only sessions that have not ended; False adds ended sessions with documents left, unless
                `user_id` is given, because an ended session has no owner.
        """
        return finish_each(self._inner.ids(user_id=user_id, living=living))

    def sweep(self, *, history_older_than: timedelta | None = None) -> int:
        """Delete the documents of ended sessions, and return their number.

        Live sessions continue undisturbed. The history of a session still has the deleted documents, unless
        `history_older_than` is given; an ended session then still occupies some hundred bytes.

        Args:
            history_older_than: Also deletes history older than this, for sessions with spaces of their own. A
                shared space is pruned by its owner.
        """
        return finish(self._inner.sweep(history_older_than=history_older_than))
