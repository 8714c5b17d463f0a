"""Blocking twins of `keepstate.sessions.sweep`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from os import PathLike

from keepstate._finish import finish, finish_each
from keepstate.sessions import sweep as sessions
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.twin import inner_of


class Sessions(Kept[sessions.Sessions]):
    """The sessions of all users of a store, or of a space that they share: for the application itself.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` it is in memory that this process shares.
        space: Instead: the space that all sessions are in.
    """

    def __init__(
        self,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | None = None,
    ) -> None:
        super().__init__(
            sessions.Sessions(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space) if isinstance(space, Space) else space,
                _mode="blocking",
            )
        )

    def ids(self, *, user_id: str | None = None, living: bool = True) -> Iterator[str]:
        """Yield the ids of sessions, in the order of their names.

        Args:
            user_id: Only the sessions that this user owns now.
            living: Only those whose time is not up; False adds ended ones of which something is left, unless
                `user_id` is given: an ended session has no owner.
        """
        return finish_each(self._inner.ids(user_id=user_id, living=living))

    def sweep(self, *, history_older_than: timedelta | None = None) -> int:
        """Remove what sessions left that are new again, and return how many documents that were.

        Sessions that live go on meanwhile. The record of a session keeps what it was, unless it is told not
        to; of one that is over there stay some hundred bytes then.

        Args:
            history_older_than: Lets go of all moments of sessions that are older, where these have spaces of
                their own; in a space that they share that is for its owner to do.
        """
        return finish(self._inner.sweep(history_older_than=history_older_than))
