"""The parts that a space has, and a transaction on it just the same."""

from __future__ import annotations

from functools import cached_property

from keepstate.engine.documents import Documents
from keepstate.engine.events import Events
from keepstate.engine.history.history import History
from keepstate.engine.lease import Leases
from keepstate.engine.queue import Queue
from keepstate.engine.scope import Scope


class Parts:
    """Each part, made when it is first asked for."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @cached_property
    def documents(self) -> Documents:
        """The named values of the space."""
        return Documents(self._scope)

    @cached_property
    def events(self) -> Events:
        """What happened in the space, in order."""
        return Events(self._scope)

    @cached_property
    def queue(self) -> Queue:
        """Tasks to be done, each completed once."""
        return Queue(self._scope)

    @cached_property
    def leases(self) -> Leases:
        """Who holds what until when."""
        return Leases(self._scope)

    @cached_property
    def history(self) -> History:
        """The commits of a state: every moment of it can be read again."""
        return History(self._scope)
