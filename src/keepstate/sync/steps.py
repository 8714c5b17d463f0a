"""Blocking twins of `keepstate.engine.queue.steps`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.engine.queue import steps as engine
from keepstate.engine.queue.step_memory import NO_DEFAULT
from keepstate.engine.queue.step_records import Answer, Step
from keepstate.engine.queue.steps import AnyTransaction
from keepstate.errors import Suspended
from keepstate.sync.twin import Twin, receiving, transaction_twin

T = TypeVar("T")
Inner = TypeVar("Inner", bound=engine.TaskSteps)


class TaskSteps(Twin[Inner]):
    """The steps of a claimed task."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        once: bool = False,
        timeout_s: float | None = None,
        type: Any = None,
    ) -> Any:
        """Call a function, and record its result. If an earlier attempt has recorded it, return that.

        The function runs at least once: a worker that is killed before the result is recorded leaves the step
        to the next attempt. With `once`, it runs at most once. Errors are not recorded. Where an event
        loop runs, a plain function gets a thread of its own.

        Args:
            name: The name of the step in its task; 1 to 200 bytes of UTF-8. Each name is used once in an
                attempt.
            fn: The function, or coroutine function. It may not use other steps.
            args: Its arguments.
            once: Record the intent first. If a crash or an error leaves it open, the next attempt raises
                `StepUnknownError` until `Queue.settle`.
            timeout_s: Seconds after which the step fails with `TimeoutError`. A plain function goes on in its
                thread.
            type: The type to validate the result against and convert it to.

        Returns:
            A copy of the recorded result.

        Raises:
            InvalidError: The name was used before in this attempt, the call is part of another step, the
                result cannot be stored, or the task has too many steps.
            LeaseLostError: This claim no longer holds the task. Nothing was recorded.
            StepUnknownError: The step was begun with `once`, and whether it was done is unknown.
            Suspended: The handler waits for something else already.
        """
        return finish(self._inner.step(name, fn, *args, once=once, timeout_s=timeout_s, type=type))

    def transact(self, name: str, fn: Callable[[AnyTransaction], T]) -> T:
        """Call a function of a `Transaction`, and apply its writes together with its result, exactly once.

        Args:
            name: The name of the step; see `step`.
            fn: The function, or coroutine function. On conflict, also with a heartbeat, it is called again
                with a new transaction. It may not use other steps.

        Returns:
            A copy of the recorded result.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task. Nothing was applied.
        """
        return finish(self._inner.transact(name, receiving(transaction_twin, fn)))

    def spawn(self, name: str, payload: object, *, kind: str, **put: Any) -> str:
        """Put another task, once, and return its id: that of this task, `/` and the name, if no task has it.

        Args:
            name: The name of the step; see `step`.
            payload: The payload of the other task.
            kind: Its kind.
            put: Other arguments of `Queue.put`.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task. Nothing was put.
        """
        return finish(self._inner.spawn(name, payload, kind=kind, **put))

    def sleep(self, name: str, seconds: float | None = None, *, until: datetime | None = None) -> None:
        """Wait for a time. Above 5 seconds, the attempt ends and the task waits without a worker.

        The time counts from the first attempt that comes here.

        Args:
            name: The name of the step; see `step`.
            seconds: The duration.
            until: The time until which to wait; give this or `seconds`.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task.
            Suspended: The attempt ends here.
        """
        finish(self._inner.sleep(name, seconds, until=until))

    def receive(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Return the first message that `Queue.send` sent to this task by this name.

        Without one, the attempt ends and the task waits without a worker. The message is received once, and
        later attempts get it too.

        Args:
            name: The name of the step and of the message.
            timeout_s: Seconds to wait, from the first attempt that comes here.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task.
            Suspended: The attempt ends here.
            TimeoutError: No message came in time. Later attempts raise it too.
        """
        return finish(self._inner.receive(name, timeout_s=timeout_s))

    def results(self, *ids: str) -> list[Any]:
        """Return the results of other tasks of the space, in the order of their ids.

        If one has not ended, the attempt ends, and the task waits without a worker until all have. The
        results are recorded like that of a step.

        Args:
            ids: The ids of at most 100 tasks, such as those that `spawn` returned.

        Raises:
            InvalidError: There are none or too many ids, or as for `step`.
            LeaseLostError: This claim no longer holds the task.
            NotFoundError: A task does not exist.
            Suspended: The attempt ends here.
            TaskCancelledError: A task was cancelled.
            TaskFailedError: A task is dead.
        """
        return finish(self._inner.results(*ids))

    def ask(
        self,
        name: str,
        question: str,
        *,
        default: Any = NO_DEFAULT,
        subject: object = None,
        schema: object = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
    ) -> Answer:
        """Ask people, once, and return the answer. Without one, the attempt ends and the task waits.

        The id of the approval is that of this task, `/` and the name. The author of the worker's handle
        asks. The first attempt that comes here decides about question, subject and times.

        Args:
            name: The name of the step; see `step`.
            question: The question.
            default: The answer if none comes in time. It has no `by`. Default: an error.
            subject: The thing that is decided about. Use that of the answer to go on.
            schema: The schema of the answer; see `Approvals.ask`.
            to: The people and groups who may answer.
            need: The number of different people who have to say yes.
            expires_s: Seconds for which people may answer.

        Raises:
            ApprovalClosedError: It was withdrawn, or has expired and there is no `default`. Later attempts
                raise it too.
            InvalidError: As for `step` and `Approvals.ask`.
            LeaseLostError: This claim no longer holds the task. Nothing was asked.
            Suspended: The attempt ends here.
        """
        return finish(
            self._inner.ask(
                name,
                question,
                default=default,
                subject=subject,
                schema=schema,
                to=to,
                need=need,
                expires_s=expires_s,
            )
        )

    def suspend(self, suspension: Suspended) -> None:
        """Return the task to the queue until what its handler waits for, as if it had not been claimed.

        `Queue.run` calls it for a handler that raised `Suspended`. Running steps end first.

        Args:
            suspension: What the handler raised.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.suspend(suspension))

    def steps(self) -> list[Step]:
        """Return the steps that are recorded, in the order of recording."""
        return finish(self._inner.steps())
