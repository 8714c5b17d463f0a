"""A worker: it claims tasks, calls handlers, and ends each claim by what became of the call.

A handler that returns completes its task, one that raises fails it. `Suspended` returns the task to the
queue. If a task was cancelled or taken over, its handler is cancelled, and the result is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from keepstate._activity import Activity, ActivityOutcome, StopSignals, call_in_loop, call_in_thread, run_loop
from keepstate._runner import Signal, process_name
from keepstate.engine.kernel.arguments import check_duration_ms, check_name, check_wait, require_instance
from keepstate.engine.kernel.executor import Executor, Home, OwnedHome, is_coroutine_function
from keepstate.engine.kernel.observation import Observation, Operation
from keepstate.engine.kernel.shield import run_shielded
from keepstate.engine.queue import tasks
from keepstate.engine.queue.held_tasks import Held, HeldTask, HeldTasks
from keepstate.engine.queue.retry import Retry
from keepstate.errors import (
    ClosedError,
    InvalidError,
    KeepstateError,
    LeaseLostError,
    StoreUnavailableError,
    Suspended,
)
from keepstate.values import limits

_MOST_AT_ONCE: Final = 1_000
_LONGEST_CLAIM_S: Final = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CANCELLING_S: Final = 1.0
"""Seconds that a cancelled handler may take to end, before its task is given up without it."""

Handler: TypeAlias = Callable[[Any], Any]
"""Works on a task: a coroutine function of a `Task`, or a plain function, which runs in a thread."""

_log = logging.getLogger("keepstate.worker")


class StopEvent(Protocol):
    """A flag that asks a worker to end, such as an `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return whether the worker is to end."""
        ...


@dataclass
class RunReport:
    """The report of a worker.

    Attributes:
        ended: `stopped` by a signal or by `stop`, or `idle` because there was nothing to do for `idle_s`.
        completed: The number of completed tasks.
        failed: The number of attempts that failed.
        waiting: The number of attempts that ended because their task waits.
        released: The number of tasks that were returned to the queue unfinished.
        cancelled: The number of tasks that were cancelled while their handler ran.
        lost: The number of tasks whose claim was lost, for example because their lease expired.
    """

    ended: Literal["stopped", "idle"] = "stopped"
    completed: int = 0
    failed: int = 0
    waiting: int = 0
    released: int = 0
    cancelled: int = 0
    lost: int = 0

    def __str__(self) -> str:
        counts = [f"{getattr(self, each.name)} {each.name}" for each in fields(self)[1:]]
        return f"{self.ended}: {', '.join(counts)}"


class WorkedTask(HeldTask, Protocol):
    """A claimed task, as a worker uses it."""

    kind: str
    attempt: int
    traceparent: str | None
    cancelled: bool
    suspension: Suspended | None
    ended_as: str | None
    is_dead: bool

    @property
    def executor(self) -> Executor:
        """The executor of the task's space."""
        ...

    async def complete(self, result: object = None) -> None:
        """Complete the task."""
        ...

    async def fail(self, error: object, retry_in_s: float | None = None, *, is_final: bool = False) -> None:
        """Fail the task."""
        ...

    async def release(self) -> None:
        """Release the task."""
        ...

    async def suspend(self, suspension: Suspended) -> None:
        """Return the task to the queue until something happens."""
        ...


Claim: TypeAlias = Callable[..., Awaitable[Sequence[WorkedTask]]]
"""Claims tasks for `worker`, with the options `lease_s`, `count`, `wait_s` and `kinds`."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The arguments of `Queue.run`, checked.

    Attributes:
        handlers: The handlers by kind; under None the one of all kinds.
        concurrency: The largest number of tasks at once.
        lease_s: Seconds until each lease expires unless it is renewed.
        timeout_s: Seconds that an attempt may take.
        drain_s: Seconds that handlers have to end after the worker was asked to stop.
        retry: The rules for errors; None for those of each queue.
        worker: The name of the worker.
        stop: A flag that asks the worker to stop.
        idle_s: Seconds without a task after which the worker ends.
    """

    handlers: Mapping[str | None, Handler]
    concurrency: int
    lease_s: float
    timeout_s: float | None
    drain_s: float
    retry: Retry | None
    worker: str
    stop: StopEvent | None
    idle_s: float | None

    @property
    def kinds(self) -> list[str] | None:
        """The kinds of tasks to claim; None for all."""
        return None if None in self.handlers else [kind for kind in self.handlers if kind is not None]


def check_options(
    handlers: object,
    *,
    concurrency: int,
    lease_s: float,
    timeout_s: float | None,
    drain_s: float,
    retry: Retry | None,
    worker: str | None,
    stop: StopEvent | None,
    idle_s: float | None,
) -> WorkerOptions:
    """Return the options of a worker.

    Raises:
        InvalidError: One of them is wrong.
    """
    limits.admit_count("concurrency", concurrency, most=_MOST_AT_ONCE)
    check_duration_ms("lease_s", lease_s)
    check_wait("drain_s", drain_s)
    for name, seconds in (("timeout_s", timeout_s), ("idle_s", idle_s)):
        if seconds is not None:
            check_duration_ms(name, seconds)
    if retry is not None:
        require_instance("retry", retry, Retry)
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise InvalidError(f"`stop` is {stop!r}; give an asyncio.Event")
    return WorkerOptions(
        _check_handlers(handlers), concurrency, lease_s, timeout_s, drain_s, retry,
        process_name() if worker is None else check_name("worker", worker), stop, idle_s,
    )  # fmt: skip


def _check_handlers(handlers: Any) -> dict[str | None, Handler]:
    if callable(handlers):
        return {None: handlers}
    if not isinstance(handlers, Mapping) or not handlers:
        raise InvalidError(
            f"`handlers` is {handlers!r}; give a function of a task, or a dict of functions by kind"
        )
    found: dict[str | None, Handler] = {}
    pairs: list[tuple[Any, Any]] = [*handlers.items()]
    for kind, handler in pairs:
        name = kind if kind == "" else tasks.check_kind("a key of `handlers`", kind)
        if not callable(handler):
            raise InvalidError(f"`handlers` has {handler!r} under {name!r}; give a function of a task")
        found[name] = handler
    return found


@dataclass(eq=False)
class _Attempt:
    """A running handler.

    Attributes:
        task: Its task.
        activity: Its call.
        is_thread: Whether the call runs in a thread.
        loss: The state in which the task was found when its claim was lost; None while it is held.
        is_recalled: Whether the worker stops and wants the task back.
    """

    task: WorkedTask
    activity: Activity
    is_thread: bool
    loss: str | None = None
    is_recalled: bool = False

    def lose(self, state: str) -> None:
        """Cancel the handler, because its task is not held any more; from any thread."""
        if self.task.ended_as is not None or state == "done":
            return  # by the handler itself, which may still have something to do
        self.loss = state
        self.task.cancelled = self.task.cancelled or state == "cancelled"
        if not self.is_thread:  # a thread cannot be ended; it may look at `task.cancelled`
            self.activity.cancel()


def run_in_loop(
    home: Home, work: Callable[[OwnedHome, WorkerOptions], Awaitable[RunReport]], options: WorkerOptions
) -> RunReport:
    """Run a worker of a blocking handle in an event loop of its own, in this thread.

    Args:
        home: The blocking handle.
        work: Runs the worker on an asynchronous handle.
        options: The options of the worker.

    Raises:
        InvalidError: An event loop runs in this thread.
    """

    async def run() -> RunReport:
        handle = home.in_mode("async")
        try:
            return await work(handle, options)
        finally:
            await handle.close()

    return run_loop(run)


class Worker:
    """Runs handlers on the tasks that a function claims.

    Args:
        home: The handle that the worker belongs to.
        claim: Claims tasks.
        options: The options.
    """

    def __init__(self, home: Home, claim: Claim, options: WorkerOptions) -> None:
        self._claim, self._options = claim, options
        self._runner, self._clock = home.runner, home.clock
        self._held = HeldTasks(home, options.lease_s)
        self._running: set[_Attempt] = set()
        self._changed = self._runner.signal()
        self._asked = 0
        """The number of signals that asked the worker to stop."""
        self._last_error = ""
        self._observation, self._tenant = home.observation, home.tenant_id
        self._operations: dict[WorkedTask, Operation] = {}
        """The operations of attempts that an observer hears of."""
        self.report = RunReport()

    async def run(self) -> RunReport:
        """Work until the worker is asked to stop, or idle for long enough."""
        self._held.start()
        try:
            with StopSignals(self._ask):
                await self._work()
                await self._drain()
        except BaseException:  # also a cancellation; raised again once the tasks are returned
            await run_shielded(self._runner, self._recall)
            raise
        finally:
            await run_shielded(self._runner, self._held.stop)
        return self.report

    def _ask(self) -> None:
        self._asked += 1
        self._changed.set()

    def _is_stopping(self) -> bool:
        stop = self._options.stop
        return bool(self._asked) or (stop is not None and stop.is_set())

    async def _work(self) -> None:
        options = self._options
        busy_at_s = self._clock.monotonic_s()
        while not self._is_stopping():
            free = options.concurrency - len(self._running)
            if not free:
                busy_at_s = self._clock.monotonic_s()
                await self._changed.wait(_LONGEST_CLAIM_S)
                continue
            found: Sequence[WorkedTask] = ()
            was_busy = bool(self._running)  # a task that ends during the claim may be due again after it
            wait_s = _LONGEST_CLAIM_S if options.idle_s is None else min(_LONGEST_CLAIM_S, options.idle_s)
            try:
                found = await self._claim(
                    options.worker, lease_s=options.lease_s, count=free, wait_s=wait_s, kinds=options.kinds
                )
            except ClosedError:
                raise
            except KeepstateError as error:
                await self._report_error(error)
                busy_at_s = self._clock.monotonic_s()  # whether there are tasks is not known
                continue
            now_s = self._clock.monotonic_s()
            if self._is_stopping():
                for task in found:
                    await self._end(task, task.release, "released")
                return
            for task in found:
                self._start(task)
            if found or was_busy or self._running:
                busy_at_s = now_s
            elif options.idle_s is not None and now_s - busy_at_s >= options.idle_s:
                self.report.ended = "idle"
                return

    async def _report_error(self, error: KeepstateError) -> None:
        """Log an error of a claim once, and pause, because the store may come back."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning("worker %r cannot claim and tries again: %s", self._options.worker, error)
        await self._changed.wait(_LONGEST_CLAIM_S)

    def _start(self, task: WorkedTask) -> None:
        handlers, timeout_s = self._options.handlers, self._options.timeout_s
        handler = handlers[None] if None in handlers else handlers[task.kind]
        is_thread = not is_coroutine_function(handler)
        if self._observation is not None:
            handler = self._observe(self._observation, task, handler, is_plain=is_thread)
        activity = (call_in_thread if is_thread else call_in_loop)(handler, task)
        attempt = _Attempt(task, activity, is_thread)
        self._running.add(attempt)
        ends_at_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        late_error = TimeoutError(f"the handler did not end in {timeout_s} s")
        held = Held(task.executor, task, attempt.lose, ends_at_s, self._options.retry)
        self._held.add(held)  # now, because the handler may block the loop from its first step
        self._runner.start(partial(self._attend, attempt, held, late_error), f"task {task.id!r}")

    def _observe(
        self, observation: Observation, task: WorkedTask, handler: Handler, *, is_plain: bool
    ) -> Handler:
        """Begin the operation of an attempt, and return the handler as a part of it."""
        executor = task.executor
        operation = observation.begin(
            "queue.process", executor.name, self._tenant, executor.author, task=task
        )
        self._operations[task] = operation
        return observation.calls_within(operation, handler, is_plain=is_plain)

    def _end_operation(self, task: WorkedTask, error: BaseException | None) -> None:
        operation = self._operations.pop(task, None)
        if operation is not None and self._observation is not None:
            self._observation.end(operation, error)

    async def _attend(self, attempt: _Attempt, held: Held, late_error: TimeoutError, _: Signal) -> None:
        timeout_s, task = self._options.timeout_s, attempt.task
        try:
            is_late = not await attempt.activity.wait(timeout_s)
            if is_late:
                attempt.activity.cancel()
                if not await attempt.activity.wait(_CANCELLING_S):
                    _log.warning("the handler of task %r goes on after its timeout", task.id)
            if attempt in self._running:
                await self._settle(attempt, late_error if is_late else None)
        except KeepstateError:
            _log.exception("the end of task %r could not be stored", task.id)
        finally:
            self._held.remove(held)
            self._running.discard(attempt)
            outcome = attempt.activity.outcome
            self._end_operation(task, None if outcome is None else outcome.error)
            self._changed.set()

    # ---- ends of attempts

    async def _settle(self, attempt: _Attempt, late_error: TimeoutError | None) -> None:
        """End the claim by what became of the handler."""
        task, outcome = attempt.task, attempt.activity.outcome
        error = late_error
        if attempt.loss is not None:
            self._count_loss(task)
        elif task.ended_as is not None:
            self._count(task, task.ended_as)
        elif late_error is not None or outcome is None:
            await self._fail(task, error or TimeoutError("the handler did not end"))
        elif outcome.is_cancelled and attempt.is_recalled:
            await self._end(task, task.release, "released")
        elif outcome.is_cancelled:
            await self._fail(task, InvalidError("the handler cancelled itself"))
        elif isinstance(outcome.error, Suspended):
            await self._end(task, partial(task.suspend, outcome.error), "waiting")
        elif outcome.error is not None and task.suspension is None:
            await self._fail(task, outcome.error)
        elif task.suspension is not None:
            swallowed = InvalidError(
                f"the handler of task {task.id!r} caught Suspended and went on; let it pass: catch "
                "Exception, not BaseException"
            )
            await self._fail(task, swallowed, is_final=True)
        else:
            await self._complete(task, outcome)

    async def _complete(self, task: WorkedTask, outcome: ActivityOutcome) -> None:
        try:
            await self._end(task, partial(task.complete, outcome.value), "completed")
        except InvalidError as error:
            refused = InvalidError(f"the result of the handler of task {task.id!r} cannot be stored: {error}")
            await self._fail(task, refused, is_final=True)

    async def _fail(self, task: WorkedTask, error: BaseException, *, is_final: bool = False) -> None:
        retry, pause_s = self._options.retry, None
        if retry is not None and not is_final:
            pause_s = retry.pause_s(task.attempt, error, self._clock.spread())
            is_final = pause_s is None
        _log.warning(
            "task %r of %r failed in attempt %d", task.id, task.executor.name, task.attempt, exc_info=error
        )
        await self._end(task, partial(task.fail, error, pause_s, is_final=is_final), "failed")

    async def _end(self, task: WorkedTask, end: Callable[[], Awaitable[None]], what: str) -> None:
        """End a claim, and try again for the time of a lease while the store is away."""
        deadline_s, pause_s = self._clock.monotonic_s() + self._options.lease_s, _FIRST_PAUSE_S
        while True:
            try:
                await end()
            except LeaseLostError:
                self._count_loss(task)
                return
            except StoreUnavailableError as error:
                if self._clock.monotonic_s() >= deadline_s:
                    _log.warning("task %r could not be %s: %s", task.id, what, error)
                    self._count(task, "lost")
                    return
                await self._runner.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._count(task, what)
                return

    def _count(self, task: WorkedTask, what: str) -> None:
        setattr(self.report, what, getattr(self.report, what) + 1)
        if (operation := self._operations.get(task)) is not None:
            operation.ended_as = "dead" if task.is_dead else what

    def _count_loss(self, task: WorkedTask) -> None:
        self._count(task, "cancelled" if task.cancelled else "lost")

    # ---- stopping

    async def _drain(self) -> None:
        """Let handlers end for `drain_s`, or until another signal, and take back the tasks of the rest."""
        asked = self._asked
        deadline_s = self._clock.monotonic_s() + self._options.drain_s
        while self._running and self._asked == asked:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            await self._changed.wait(left_s)
        await self._recall()

    async def _recall(self) -> None:
        """Cancel the handlers that are left, and release their tasks."""
        for attempt in self._running:
            attempt.is_recalled = True
            attempt.activity.cancel()
        deadline_s = self._clock.monotonic_s() + _CANCELLING_S
        while self._running and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            await self._changed.wait(left_s)
        for attempt in [*self._running]:  # handlers that do not let themselves be cancelled
            self._running.discard(attempt)
            await self._end(attempt.task, attempt.task.release, "released")
            self._end_operation(attempt.task, None)
