"""Blocking twins of `keepstate.engine.queue.task_control`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.engine.queue import task_control as engine
from keepstate.engine.queue.tasks import Put
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.TaskControl)


class TaskControl(Twin[Inner]):
    """Changes the tasks of a space, or of a transaction on it, whether or not they are held."""

    def send(self, id: str, name: str, value: object, *, send_id: str | None = None) -> bool:
        """Send a message to a task, and wake the task if it waits for one of this name.

        The task has at most 200 messages that it has not received. What it has not received when it ends is
        deleted.

        Args:
            id: The id of the task.
            name: The name by which the task receives the message; 1 to 200 bytes of UTF-8.
            value: Any value that the codec stores.
            send_id: An id that makes the sending idempotent for a day; at most 512 bytes of UTF-8.

        Returns:
            Whether the message was stored; False if one with this `send_id` was sent before.

        Raises:
            NotFoundError: No task has this id.
            TransitionError: The task has ended.
        """
        return finish(self._inner.send(id, name, value, send_id=send_id))

    def cancel(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Cancel a task that has not ended, and return whether there was such a task.

        A worker that holds it loses it at once. Tasks that wait for it become dead.

        Args:
            id: The id of the task.
            by: The canceller; the author of the handle by default.
            reason: The reason; stored as text, cut to 16 KiB.
        """
        return finish(self._inner.cancel(id, by=by, reason=reason))

    def requeue(
        self, *ids: str, kind: str | None = None, since: datetime | None = None, limit: int = 1000
    ) -> int:
        """Make dead tasks ready again, with all their attempts, and return their number.

        A task that is dead because of another one waits for that one again; both are requeued by one call.
        At most 100 tasks are requeued in one batch.

        Args:
            ids: The ids of the tasks. Without ids, all dead tasks, or those of `kind` or `since` a time.
            kind: Only tasks of this kind.
            since: Only tasks that died at this time or later.
            limit: The largest number of tasks, those that died first.

        Raises:
            InvalidError: Neither ids nor `kind` nor `since` are given, or ids together with one of them.
            NotFoundError: No dead task has one of the ids.
            TransitionError: A task of these ids waits for a dead one that is not requeued.
        """
        return finish(self._inner.requeue(*ids, kind=kind, since=since, limit=limit))

    def rerun(
        self,
        id: str,
        *,
        from_step: str | None = None,
        result: object | Missing = MISSING,
        as_id: str | None = None,
    ) -> Put:
        """Run an ended task again, with the same payload, and without its steps.

        Args:
            id: The id of the task.
            from_step: Keep the steps that were recorded before this one, and run again from there. A copy
                takes at most 400 steps of 4 MiB in all.
            result: Keep this step too, with this result instead of its own. The handler gets it.
            as_id: Run a copy under this id instead, whatever the state of the task. If the id has a task
                already, it is kept, and `added` is False.

        Raises:
            InvalidError: `result` is given without `from_step`, or for a step that sleeps or asks.
            NotFoundError: No task has this id, or the task has no such step.
            TransitionError: The task has not ended, and `as_id` is not given.
        """
        return finish(self._inner.rerun(id, from_step=from_step, result=result, as_id=as_id))

    def remove(self, id: str) -> bool:
        """Delete a task that has ended, and return whether it existed. Its id can be used again.

        Raises:
            TransitionError: The task has not ended.
        """
        return finish(self._inner.remove(id))

    def discard(self, id: str) -> bool:
        """Delete a task in any state, and return whether it existed.

        A worker that holds it loses it. Tasks that wait for it become dead.
        """
        return finish(self._inner.discard(id))
