"""Blocking twins of `keepstate.engine.queue.queue`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic

from keepstate._deferral import defer_imports
from keepstate._finish import finish, finish_each
from keepstate.engine.queue import queue as engine
from keepstate.engine.queue.claim_requests import Match
from keepstate.engine.queue.queue import Claim
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.step_calls import RecordedStep
from keepstate.engine.queue.tasks import DONE_KEPT_MS, IfPresent, Payload, Put
from keepstate.sync.rules import RuleControl
from keepstate.sync.step_control import StepControl
from keepstate.sync.steps import TaskSteps
from keepstate.sync.task_control import TaskControl
from keepstate.sync.task_reads import TaskReads
from keepstate.sync.twin import inner_of

if TYPE_CHECKING:
    from keepstate.engine.queue import worker as _worker
else:
    defer_imports(globals(), _worker="keepstate.engine.queue.worker")


class Queue(
    TaskReads[engine.Queue], TaskControl[engine.Queue], RuleControl[engine.Queue], StepControl[engine.Queue]
):
    """The tasks of a space, or of a transaction on it."""

    def put(
        self,
        payload: object,
        *,
        id: str | None = None,
        kind: str = "",
        key: str | None = None,
        priority: int = 0,
        delay_s: float = 0,
        at: datetime | None = None,
        after: Sequence[str] = (),
        max_attempts: int = 5,
        expires_s: float | None = None,
        keep_s: float | None = DONE_KEPT_MS / 1000,
        if_present: IfPresent = "keep",
    ) -> Put:
        """Add a task. `added` of the result is False if the id had a task already.

        Args:
            payload: The task's payload; any value that the codec stores.
            id: An id that makes the put idempotent, until `keep_s` after the task was completed or cancelled.
            kind: The kind of work, at most 200 bytes of UTF-8, by which workers can claim.
            key: The subject of the work, such as a customer; 1 to 200 bytes of UTF-8. The index has it
                too.
            priority: Tasks with a higher priority are claimed first; equal ones in order of arrival.
            delay_s: Seconds before the task can be claimed.
            at: The time from which the task can be claimed, instead of `delay_s`.
            after: The ids of at most 100 tasks that have to be done before this one. If one of them becomes
                dead or is cancelled, this task becomes dead.
            max_attempts: The number of failed attempts after which the task is dead.
            expires_s: Seconds after which the task is dead unless a worker has begun it.
            keep_s: Seconds for which the task, its payload and its result are stored once it is done or
                cancelled; None for ever.
            if_present: The rule for an id that has a task: `keep` the existing task in any state, `replace`
                it unless a worker holds it, or `raise`.

        Raises:
            AlreadyExistsError: The id has a task, and `if_present` is `raise`.
            NotFoundError: `after` names a task that does not exist.
            TransitionError: A worker holds that task, or other tasks wait for it and this one would wait too,
                and `if_present` is `replace`.
        """
        return finish(
            self._inner.put(
                payload,
                id=id,
                kind=kind,
                key=key,
                priority=priority,
                delay_s=delay_s,
                at=at,
                after=after,
                max_attempts=max_attempts,
                expires_s=expires_s,
                keep_s=keep_s,
                if_present=if_present,
            )
        )

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        wait_s: float = 0,
        match: Match | None = None,
        kinds: Sequence[str] | None = None,
    ) -> list[Task]:
        """Claim up to `count` tasks for a worker, and return them; an empty list if there are none.

        A task that cannot be read, for example because its class is of newer code, is skipped with a logged
        warning. If `match` raises or the call is cancelled, the tasks claimed so far are released.

        Args:
            worker: The name of the worker.
            lease_s: Seconds until the lease expires, unless a heartbeat renews it.
            count: The largest number of tasks to claim.
            wait_s: Seconds to wait for the first task.
            match: A function of a task's id and payload that returns whether to claim the task.
            kinds: The kinds of tasks to claim, which costs nothing; the default is all.

        Raises:
            InvalidError: There are only tasks that this process cannot read, and there is no `match`.
        """
        return [
            Task(each)
            for each in finish(
                self._inner.claim(
                    worker, lease_s=lease_s, count=count, wait_s=wait_s, match=match, kinds=kinds
                )
            )
        ]

    def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Claim one task by its id, regardless of order and delay, and return it.

        Raises:
            ConflictError: A worker holds the task.
            NotFoundError: No task has this id.
            TransitionError: The task has ended, became dead because its last attempt's lease expired, or
                waits for other tasks.
        """
        return Task(finish(self._inner.take(id, worker, lease_s=lease_s)))

    def work(
        self,
        worker: str,
        *,
        lease_s: float = 60,
        wait_s: float | None = None,
        match: Match | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[Task]:
        """Yield tasks one by one, each claimed on demand. Raises the errors of `claim`.

        Args:
            worker: The name of the worker.
            lease_s: Seconds until the lease of each task expires.
            wait_s: End the iteration after this many seconds without a task. The default never ends.
            match: As for `claim`.
            kinds: As for `claim`.
        """
        return (
            Task(each)
            for each in finish_each(
                self._inner.work(worker, lease_s=lease_s, wait_s=wait_s, match=match, kinds=kinds)
            )
        )

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
        """Claim tasks and call their handlers, until the process is asked to stop by SIGTERM or SIGINT.

        A handler is a function of the `Task`. A coroutine function runs in the event loop, a plain function
        in a thread, where the methods of the task block. What the handler returns is the result of the task.
        If it raises, the task fails, and is tried again by `retry`. Leases are renewed by a thread of their
        own. If the task is cancelled or lost, the handler is cancelled, and what it returns is dropped.

        A signal that the application handles itself is left to it; set `stop` then. At the end, handlers have
        `drain_s` to finish. Tasks that are left are released, which uses no attempt.

        Args:
            handlers: A handler for all tasks, or handlers by kind. Tasks of other kinds are not claimed.
            concurrency: The largest number of tasks at once.
            lease_s: Seconds after which another worker may claim a task of this one if this one has died.
            timeout_s: Seconds after which an attempt fails. A thread cannot be ended: its result is dropped.
            drain_s: Seconds that handlers have to finish at the end.
            retry: The rules for errors, instead of those of `configure`. Without any, it pauses for 1, 2, 4 …
                seconds, up to 5 minutes.
            worker: The name of the worker. Default: the process and the machine.
            stop: An `Event` that ends the worker once it is set.
            idle_s: End the worker after this many seconds without a task.

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

    def heartbeat(self, task: Task | Claim, lease_s: float, *, progress: object = None) -> None:
        """Renew the lease of a task for `lease_s` seconds from now.

        Args:
            task: The task, or its claim.
            lease_s: Seconds until the lease expires.
            progress: A value of at most 4 KiB that listings show, for example how far the work is. None
                leaves the last one.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(
            self._inner.heartbeat(
                inner_of(task) if isinstance(task, Task) else task, lease_s, progress=progress
            )
        )

    def complete(self, task: Task | Claim, result: object = None) -> None:
        """Complete a task with a result. Completing it again under the same claim does nothing.

        A transaction that completes it again is rejected, because its other writes were made before.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.complete(inner_of(task) if isinstance(task, Task) else task, result))

    def fail(
        self, task: Task | Claim, error: object, retry_in_s: float | None = None, *, is_final: bool = False
    ) -> None:
        """Return a task to the queue as failed, to be retried later; dead if its attempts are used up.

        Args:
            task: The task, or its claim.
            error: The error; stored as text, cut to 16 KiB.
            retry_in_s: Seconds until the task can be claimed again. The default is decided by the `retry` of
                `configure`: 1 s, 2 s, 4 s … up to 5 minutes, and a tenth more or less, unless it was set.
            is_final: Whether the task is dead at once, because another attempt cannot succeed.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(
            self._inner.fail(
                inner_of(task) if isinstance(task, Task) else task, error, retry_in_s, is_final=is_final
            )
        )

    def release(self, task: Task | Claim) -> None:
        """Return a task to the queue as if it had not been claimed, after the others of its priority.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.release(inner_of(task) if isinstance(task, Task) else task))

    def attach(self, claim: Claim, *, lease_s: float = 60) -> Task:
        """Return the task that a claim holds, for a worker that has only the claim.

        Use one object for one attempt: only it knows which names of steps the attempt has used.

        Args:
            claim: The id of the task and the token of its claim.
            lease_s: The default of the object's heartbeats. The lease itself stays.

        Raises:
            LeaseLostError: The claim no longer holds the task.
        """
        return Task(finish(self._inner.attach(claim, lease_s=lease_s)))

    def begin_step(self, claim: Claim, name: str, *, once: bool = False) -> RecordedStep:
        """Return the recorded result of a step, or let a worker elsewhere run it and call `record_step`.

        Again under the same claim, it gives the same answer. A worker uses each name once in an attempt.

        Args:
            claim: The id of the task and the token of its claim.
            name: The name of the step.
            once: Record the intent first. If the attempt ends before the result is recorded, the next one
                gets `StepUnknownError` until `settle`.

        Raises:
            InvalidError: The task has too many steps, or another kind of step with this name.
            LeaseLostError: The claim no longer holds the task.
            StepUnknownError: The step was begun with `once`, and whether it was done is unknown.
        """
        return finish(self._inner.begin_step(claim, name, once=once))

    def record_step(self, claim: Claim, name: str, result: object) -> RecordedStep:
        """Record the result of a step that a worker elsewhere has run, and return the recorded one.

        A result that is recorded already stays.

        Raises:
            InvalidError: As for `begin_step`, or the result cannot be stored.
            LeaseLostError: The claim no longer holds the task. Nothing was recorded.
            StepUnknownError: Another attempt has begun the step with `once`.
        """
        return finish(self._inner.record_step(claim, name, result))


class Task(TaskSteps[engine.Task[Payload]], Generic[Payload]):
    """A claimed task, held until its lease expires. `Task[Topic]` tells a type checker that of its payload.

    Attributes:
        id: The task's id.
        payload: A copy of the task's payload.
        attempt: Attempt number, starting at 1.
        max_attempts: The number of failed attempts after which the task is dead.
        token: The fencing token. Each later holder gets a larger one.
        worker: The worker that holds the task.
        lease_s: Seconds from each heartbeat until the lease expires.
        kind: The kind given to `put`.
        key: The key given to `put`.
        space: The name of the space, without its tenant.
        tenant: The tenant that the space belongs to, or None.
        cancelled: Whether this process knows that the task was cancelled. A worker learns it at once.
        traceparent: The `traceparent` of the notes of the put, by `open(meta=…)`; None without one.
        is_dead: Whether `fail` has made the task dead.
    """

    @property
    def id(self) -> str:
        """The task's id."""
        return self._inner.id

    @property
    def payload(self) -> Payload:
        """A copy of the task's payload."""
        return self._inner.payload

    @property
    def attempt(self) -> int:
        """Attempt number, starting at 1."""
        return self._inner.attempt

    @property
    def max_attempts(self) -> int:
        """The number of failed attempts after which the task is dead."""
        return self._inner.max_attempts

    @property
    def token(self) -> int:
        """The fencing token. Each later holder gets a larger one."""
        return self._inner.token

    @property
    def worker(self) -> str | None:
        """The worker that holds the task."""
        return self._inner.worker

    @property
    def lease_s(self) -> float:
        """Seconds from each heartbeat until the lease expires."""
        return self._inner.lease_s

    @property
    def kind(self) -> str:
        """The kind given to `put`."""
        return self._inner.kind

    @property
    def key(self) -> str | None:
        """The key given to `put`."""
        return self._inner.key

    @property
    def space(self) -> str:
        """The name of the space, without its tenant."""
        return self._inner.space

    @property
    def tenant(self) -> str | None:
        """The tenant that the space belongs to, or None."""
        return self._inner.tenant

    @property
    def cancelled(self) -> bool:
        """Whether this process knows that the task was cancelled. A worker learns it at once."""
        return self._inner.cancelled

    @property
    def traceparent(self) -> str | None:
        """The `traceparent` of the notes of the put, by `open(meta=…)`; None without one."""
        return self._inner.traceparent

    @property
    def is_dead(self) -> bool:
        """Whether `fail` has made the task dead."""
        return self._inner.is_dead

    def heartbeat(self, lease_s: float | None = None, *, progress: object = None) -> None:
        """Renew the lease for `lease_s` seconds from now; see `Queue.heartbeat`."""
        finish(self._inner.heartbeat(lease_s, progress=progress))

    def complete(self, result: object = None) -> None:
        """Complete the task with a result; see `Queue.complete`. Running steps end first.

        Raises:
            InvalidError: The handler has caught `Suspended`.
        """
        finish(self._inner.complete(result))

    def fail(self, error: object, retry_in_s: float | None = None, *, is_final: bool = False) -> None:
        """Return the task to the queue as failed; see `Queue.fail`. Running steps end first."""
        finish(self._inner.fail(error, retry_in_s, is_final=is_final))

    def release(self) -> None:
        """Return the task to the queue as if it had not been claimed; see `Queue.release`."""
        finish(self._inner.release())

    def later(self, seconds: float) -> None:
        """Return the task to the queue for some seconds, as if it had not been claimed.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.later(seconds))
