"""Blocking twins of `keepstate.engine.space.parts`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.history.checkout import Load
from keepstate.engine.history.record import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.engine.space import parts as engine
from keepstate.sync.checkout import Checkout
from keepstate.sync.documents import Documents
from keepstate.sync.events import Events
from keepstate.sync.history import History
from keepstate.sync.lease import Leases
from keepstate.sync.queue import Queue
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Parts)


class Parts(Twin[Inner]):
    """Each part, made when it is first asked for."""

    @cached_property
    def documents(self) -> Documents:
        """The named values of the space."""
        return Documents(self._inner.documents)

    @cached_property
    def events(self) -> Events:
        """What happened in the space, in order."""
        return Events(self._inner.events)

    @cached_property
    def queue(self) -> Queue:
        """Tasks to be done, each completed once."""
        return Queue(self._inner.queue)

    @cached_property
    def leases(self) -> Leases:
        """Who holds what until when."""
        return Leases(self._inner.leases)

    @cached_property
    def history(self) -> History:
        """The commits of a state: every moment of it can be read again."""
        return History(self._inner.history)

    def at(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the documents of a recorded space as they were, by name; read-only.

        Args:
            ref: The commit: an id, a branch or tag, `main~3`, `main#37`, a time or a `Commit`.
            load: True for all documents, False for none yet, or the names of some.

        Raises:
            NotFoundError: There is no such commit; nothing was recorded, if there is none at all.
        """
        return Checkout(finish(self._inner.at(ref, load=load)))

    def now(self) -> datetime:
        """Return the store's time, UTC, by which leases, delays and times to live run."""
        return finish(self._inner.now())
