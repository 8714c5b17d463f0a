"""Blocking twins of `keepstate.engine.queue.rules`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.queue import rules as engine
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.rules import ActiveRules, Limit
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.RuleControl)


class RuleControl(Twin[Inner]):
    """Reads and changes the rules of the queue of a space, or of a transaction on it."""

    def rules(self) -> ActiveRules:
        """Return the rules that hold now: pauses, limits, aging and retries."""
        return finish(self._inner.rules())

    def configure(
        self, *, limits: Sequence[Limit] = (), aging_s: float | None = None, retry: Retry | None = None
    ) -> None:
        """Set the rules of the queue, stored for all workers, instead of those set before.

        Rules hold for every claim from now on, in every process. Tasks that are held go on: under a limit
        that is lowered below their number, none starts until enough of them have ended.

        Args:
            limits: Bounds on the tasks that run at once or start within some time, at most 20. A task that
                one of them holds back is stepped over and holds back no other one.
            aging_s: Let this many seconds of waiting count as one point of priority. Without it, tasks of a
                lower priority wait for all tasks of a higher one.
            retry: The rules for errors where a worker or a call of `fail` gives none. Classes of errors are
                stored by their names, and its `rules` have none themselves. Without it, they are `Retry()`.
        """
        finish(self._inner.configure(limits=limits, aging_s=aging_s, retry=retry))

    def pause(self, kind: str | None = None) -> None:
        """Claim no more tasks, in no process, until `resume`. Tasks that are held go on.

        Tasks can still be put, and taken by their id.

        Args:
            kind: Pause only tasks of this kind, at most 100 kinds at a time.
        """
        finish(self._inner.pause(kind))

    def resume(self, kind: str | None = None) -> None:
        """Undo `pause`. Claims that wait for a task wake at once.

        Args:
            kind: Resume only this kind. A kind that was paused by itself stays paused if the queue is
                resumed.
        """
        finish(self._inner.resume(kind))
