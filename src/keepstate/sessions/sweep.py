"""All sessions of a store: which there are, and what becomes of those whose time is up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from os import PathLike

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError
from keepstate.home import subjects_in
from keepstate.sessions.binding import Home
from keepstate.sessions.generations import ANY_USER, SessionGenerations
from keepstate.sessions.resource import Kept
from keepstate.stores.protocol import Store


class Sessions(Kept):
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
        _mode: Mode = "async",
    ) -> None:
        self._home = self._closing = Home(persistence, space, mode=_mode)
        self._home.require_outside_transaction("looking after sessions")

    def __repr__(self) -> str:
        return f"<Sessions in {self._home!r}>"

    async def ids(self, *, user_id: str | None = None, living: bool = True) -> AsyncIterator[str]:
        """Yield the ids of sessions, in the order of their names.

        Args:
            user_id: Only the sessions that this user owns now.
            living: Only those whose time is not up; False adds ended ones of which something is left, unless
                `user_id` is given: an ended session has no owner.
        """
        if user_id is not None:
            check_text("user_id", user_id)
        async for id in self._ids():
            if (not living and user_id is None) or not await self._lives(id).is_over(user_id):
                yield id

    async def sweep(self, *, history_older_than: timedelta | None = None) -> int:
        """Remove what sessions left that are new again, and return how many documents that were.

        Sessions that live go on meanwhile. The record of a session keeps what it was, unless it is told not
        to; of one that is over there stay some hundred bytes then.

        Args:
            history_older_than: Lets go of all moments of sessions that are older, where these have spaces of
                their own; in a space that they share that is for its owner to do.
        """
        if history_older_than is not None:
            require_instance("history_older_than", history_older_than, timedelta)
            if self._home.passed is not None:
                raise InvalidError(f"the history of {self._home!r} is its owner's; prune it there")
        removed = 0
        async for id in self._ids():
            lives = self._lives(id)
            removed += await lives.sweep()
            if history_older_than is not None:
                await lives.place.history.prune(older_than=history_older_than)
        return removed

    async def _ids(self) -> AsyncIterator[str]:
        begin = "session/"
        if self._home.handle is not None:
            async for name in self._home.handle.spaces(begin):
                yield name[len(begin) :]
            return
        assert self._home.passed is not None
        async for id in subjects_in(self._home.passed, "session"):
            yield id

    def _lives(self, id: str) -> SessionGenerations:
        place, prefix = self._home.place("session", id, record=True), self._home.prefix("session", id)
        return SessionGenerations(place, prefix, what=f"session {id!r}", user_id=ANY_USER, ttl_s=None)
