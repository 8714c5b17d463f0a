"""The parts that a space has, and a transaction on it just the same."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.engine.documents.documents import Documents
from keepstate.engine.events.events import Events
from keepstate.engine.history.checkout import Checkout, Load
from keepstate.engine.history.history import History
from keepstate.engine.history.record import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.lease import Leases
from keepstate.engine.queue.queue import Queue


class Parts:
    """Each part, made when it is first asked for."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @cached_property
    def documents(self) -> Documents:
        """The named values of the space."""
        return Documents(self._executor)

    @cached_property
    def events(self) -> Events:
        """What happened in the space, in order."""
        return Events(self._executor)

    @cached_property
    def queue(self) -> Queue:
        """Tasks to be done, each completed once."""
        return Queue(self._executor)

    @cached_property
    def leases(self) -> Leases:
        """Who holds what until when."""
        return Leases(self._executor)

    @cached_property
    def history(self) -> History:
        """The commits of a state: every moment of it can be read again."""
        return History(self._executor)

    async def at(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the documents of a recorded space as they were, by name; read-only.

        Args:
            ref: The commit: an id, a branch or tag, `main~3`, `main#37`, a time or a `Commit`.
            load: True for all documents, False for none yet, or the names of some.

        Raises:
            NotFoundError: There is no such commit; nothing was recorded, if there is none at all.
        """
        return await self.history.checkout(ref, load=load)

    async def now(self) -> datetime:
        """Return the store's time, UTC, by which leases, delays and times to live run."""

        async def work(unit: Unit) -> int:
            return await unit.now_ms()

        return datetime.fromtimestamp((await self._executor.run(work))[0] / 1000, UTC)

    # ---- for the rooms above

    @property
    def executor(self) -> Executor:
        """Return the scope that its parts work in."""
        return self._executor

    @property
    def runner(self) -> Runner:
        """Return how this colour waits."""
        return self._executor.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return self._executor.clock
