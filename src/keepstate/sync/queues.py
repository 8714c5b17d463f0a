"""Blocking twins of `keepstate.engine.space.queues`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from keepstate._deferral import defer_imports
from keepstate._finish import finish
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.tasks import TaskState
from keepstate.engine.space import queues as engine
from keepstate.engine.space.queues import SpaceTask
from keepstate.sync.twin import Twin

if TYPE_CHECKING:
    from keepstate.engine.queue import worker as _worker
else:
    defer_imports(globals(), _worker="keepstate.engine.queue.worker")


class Queues(Twin[engine.Queues]):
    """The queues of all spaces under a name, of the handle's tenant or of all tenants."""

    def run(
        self,
        handlers: _worker.Handler | Mapping[str, _worker.Handler],
        *,
        concurrency: int = 10,
        lease_s: float = 60,
        timeout_s: float | None = None,
        drain_s: float = 30,
        retry: Retry | None = None,
        worker: str | None = None,
        stop: _worker.StopEvent | None = None,
        idle_s: float | None = None,
    ) -> _worker.RunReport:
        """Claim tasks of all spaces and call their handlers, until SIGTERM or SIGINT; see `Queue.run`.

        Spaces with tasks take turns, and each keeps its own limits and pauses. Spaces that come later belong
        to it. The worker follows the index of `find` and makes it if there is none, which reads each space
        once. A task that a killed process has put is found after 10 seconds, or later in a store of very many
        spaces.

        Args:
            handlers, concurrency, lease_s, timeout_s, drain_s, retry, worker, stop, idle_s: As for
                `Queue.run`.

        Raises:
            ClosedError: The handle was closed.
        """
        return finish(
            self._inner.run(
                handlers,
                concurrency=concurrency,
                lease_s=lease_s,
                timeout_s=timeout_s,
                drain_s=drain_s,
                retry=retry,
                worker=worker,
                stop=stop,
                idle_s=idle_s,
            )
        )

    def counts(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state, each space at a revision of its own.

        Costs one call of the store for each space.
        """
        return finish(self._inner.counts())

    def dead(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Page[SpaceTask]:
        """Return one page of the dead tasks, space by space, in each space those first that died first.

        The spaces are those with a queue in the index of `find`, so what a process that was killed has left
        is late by one delivery, and the first call of a tenant makes the index.

        Costs the calls of a `find`, and two for each space with a task that is ready, waiting, claimed or
        dead.

        Args:
            after: The `next` of a page of the same queues: continue after that page.
            limit: The largest number of tasks in the page.
            unreadable: With `skip`, a task whose result or progress cannot be read is left out. With `raw`,
                the value is an `Unreadable`.

        Raises:
            InvalidError: The cursor belongs to other queues.
        """
        return finish(self._inner.dead(after=after, limit=limit, unreadable=unreadable))

    def pause(self, kind: str | None = None) -> int:
        """Pause each queue that has a task or a schedule now, and return their number; see `Queue.pause`.

        A space whose first task comes later is not paused.

        Args:
            kind: Pause only tasks of this kind.
        """
        return finish(self._inner.pause(kind))

    def resume(self, kind: str | None = None) -> int:
        """Undo `pause` in each space, and return the number of queues that have a task or a schedule.

        Args:
            kind: Resume only this kind.
        """
        return finish(self._inner.resume(kind))

    def requeue(self, *, kind: str | None = None, since: datetime | None = None, limit: int = 1000) -> int:
        """Make dead tasks ready again, space by space, and return their number; see `Queue.requeue`.

        Args:
            kind: Only tasks of this kind. Without `kind` and `since`, all dead tasks.
            since: Only tasks that died at this time or later.
            limit: The largest number of tasks.
        """
        return finish(self._inner.requeue(kind=kind, since=since, limit=limit))
