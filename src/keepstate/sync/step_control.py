"""Blocking twins of `keepstate.engine.queue.step_control`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.queue import step_control as engine
from keepstate.engine.queue.step_calls import RecordedStep
from keepstate.engine.queue.step_records import Step
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.StepControl)


class StepControl(Twin[Inner]):
    """Changes the steps of tasks of a space, whether or not the tasks are held."""

    def steps(self, id: str) -> list[Step]:
        """Return the recorded steps of a task, in the order of recording.

        Raises:
            NotFoundError: No task has this id.
        """
        return finish(self._inner.steps(id))

    def step_result(self, id: str, name: str) -> RecordedStep:
        """Return a step of a task with its result; `is_done` is False while it has none.

        Raises:
            NotFoundError: The task does not exist, or has no such step.
        """
        return finish(self._inner.step_result(id, name))

    def settle(self, id: str, name: str, result: object) -> None:
        """Tell the result of a step with `once` that was begun, and whose end is unknown.

        A dead task goes on after `requeue`.

        Args:
            id: The id of the task.
            name: The name of the step.
            result: The result of the step, or `NOT_DONE` to let it run in the next attempt.

        Raises:
            NotFoundError: The task does not exist, or the step was not begun.
            TransitionError: The step is not open, or the attempt that began it still holds the task.
        """
        finish(self._inner.settle(id, name, result))
