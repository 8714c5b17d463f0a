"""Heartbeats and watches of the tasks that a worker holds, in a thread of their own.

The thread has a blocking handle on the store. So it renews leases while a handler blocks the event loop, and
it learns that a task was cancelled or taken over by the store's hints. A store that has no blocking handle is
asked from the event loop instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from keepstate._finish import finish
from keepstate._runner import Lock, Runner, Signal, Work
from keepstate.engine.kernel.executor import Executor, Home, SpaceExecutor
from keepstate.engine.kernel.store_abilities import listen_to
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.endings import Ends, fail_task
from keepstate.engine.queue.retry import Retry
from keepstate.errors import KeepstateError, UnsupportedError
from keepstate.stores.protocol import Listener

_AT_ONCE: Final = 100
_MOST_SPACES: Final = 1_000
_LONGEST_WAIT_S: Final = 1.0
_SETTLING_S: Final = 0.02
"""Seconds after a hint in which more changes may come: a busy space is read 50 times a second at most."""
_LATE_S: Final = 5.0
"""Seconds after a timeout for which the event loop may be busy, before the thread ends the attempt itself."""

_log = logging.getLogger("keepstate.engine")


class HeldTask(Protocol):
    """A task that a worker holds."""

    @property
    def id(self) -> str:
        """The id of the task."""
        ...

    @property
    def token(self) -> int:
        """The token of the claim."""
        ...


@dataclass(eq=False)
class Held:
    """A held task with what its worker wants to know of it.

    Attributes:
        executor: The executor of the task's space, as the worker uses it.
        task: The task.
        on_loss: Called in any thread, once, with the state of the task: `cancelled`, or any other one.
        ends_at_s: The time by the monotonic clock at which the attempt times out; None without a timeout.
        retry: The rules for errors of the worker; None for those of the queue.
        is_lost: Whether the claim is known to be lost.
    """

    executor: Executor
    task: HeldTask
    on_loss: Callable[[str], None]
    ends_at_s: float | None = None
    retry: Retry | None = None
    is_lost: bool = field(default=False)

    def lose(self, state: str) -> None:
        """Tell the worker that it has lost the task."""
        if not self.is_lost:
            self.is_lost = True
            self.on_loss(state)


class HeldTasks:
    """Renews the leases of a worker's tasks until it is stopped.

    Args:
        home: The handle of the worker.
        lease_s: Seconds until each lease expires.
    """

    def __init__(self, home: Home, lease_s: float) -> None:
        self._lease_ms, self._every_s = max(int(lease_s * 1000), 1), lease_s / 3
        self._clock = home.clock
        self._own, self._home = home, _blocking(home)
        self._runner: Runner = self._home.runner
        self._executors: dict[str, SpaceExecutor] = {}
        self._lock = Lock()
        self._held: dict[Held, float] = {}
        """The next time of a heartbeat by the monotonic clock, by task."""
        self._wake = self._runner.signal()
        self._work: Work | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin to renew leases."""
        self._work = self._runner.start(self._repeat, "heartbeats of a worker")

    async def stop(self) -> None:
        """Renew no lease any more."""
        self._is_over = True
        self._wake.set()
        if self._work is not None:
            work, self._work = self._work, None
            if self._home is self._own:
                await work.stop()
            else:  # it waits for the thread
                await self._own.runner.call(lambda: finish(work.stop()))

    def add(self, held: Held) -> None:
        """Renew the lease of a task that was just claimed."""
        with self._lock:
            self._held[held] = self._clock.monotonic_s() + self._every_s
        self._wake.set()

    def remove(self, held: Held) -> None:
        """Leave a task alone."""
        with self._lock:
            self._held.pop(held, None)

    def _snapshot(self) -> dict[Held, float]:
        with self._lock:
            return {held: due_s for held, due_s in self._held.items() if not held.is_lost}

    async def _repeat(self, signal: Signal) -> None:
        listener: tuple[frozenset[str], Listener] | None = None
        try:
            while not self._is_over:
                held = self._snapshot()
                if not held:
                    await self._wake.wait(_LONGEST_WAIT_S)
                    continue
                try:
                    store = await self._home.opened()
                    spaces = frozenset(each.executor.stored_name for each in held)
                    if listener is None or listener[0] != spaces:
                        if listener is not None:
                            listener[1].close()
                        listener = spaces, listen_to(store, sorted(spaces))
                        await self._look(held)  # a change may have come before the listener
                    await self._wait(held, listener[1])
                    await self._look(self._snapshot())
                except KeepstateError as error:
                    _log.warning("heartbeats of a worker failed and are tried again: %s", error)
                    await self._runner.sleep(min(_LONGEST_WAIT_S, self._every_s))
        finally:
            if listener is not None:
                listener[1].close()

    async def _wait(self, held: dict[Held, float], listener: Listener) -> None:
        now_s = self._clock.monotonic_s()
        left_s = min([due_s - now_s for due_s in held.values()] + [self._every_s, _LONGEST_WAIT_S])
        if left_s <= 0:
            return
        await listener.wait(left_s)
        if left_s - (self._clock.monotonic_s() - now_s) > _SETTLING_S:
            await self._runner.sleep(_SETTLING_S)

    async def _look(self, held: dict[Held, float]) -> None:
        """Read the records of held tasks, and renew the leases that are due."""
        now_s = self._clock.monotonic_s()
        by_space: dict[str, list[Held]] = {}
        for each in held:
            by_space.setdefault(each.executor.stored_name, []).append(each)
        for some in by_space.values():
            for begin in range(0, len(some), _AT_ONCE):
                chunk = some[begin : begin + _AT_ONCE]
                due = {each for each in chunk if held[each] <= now_s}
                await self._look_in(self._executor(chunk[0].executor), chunk, due, now_s)

    async def _look_in(self, executor: Executor, held: Sequence[Held], due: set[Held], now_s: float) -> None:
        states: dict[Held, str] = {}
        ends, late_error = Ends(executor), TimeoutError("the handler did not end in time")

        async def work(unit: Unit) -> None:
            states.clear()
            ends.left.clear()
            stored = await unit.read(*(tasks.task_key(each.task.id) for each in held))
            for each, entry in zip(held, stored, strict=True):
                record = None
                if entry is not None:
                    record = tasks.decode_record(entry.value, f"task {each.task.id!r} of {executor.name!r}")
                if record is None or record.token != each.task.token or record.state != "claimed":
                    is_same = record is not None and record.token == each.task.token
                    states[each] = record.state if record is not None and is_same else "taken over"
                elif each.ends_at_s is not None and now_s > each.ends_at_s + _LATE_S:
                    states[each] = "timed out"
                    await fail_task(ends, unit, record, late_error, each.retry, self._clock.spread())
                elif each in due:
                    tasks.move(unit, record, "claimed", due_at_ms=await unit.now_ms() + self._lease_ms)

        await executor.run(work)
        await ends.resume()
        with self._lock:
            for each in due:
                if each in self._held:
                    self._held[each] = now_s + self._every_s
        for each, state in states.items():
            # The worker itself may have ended the claim in the meantime, and then has removed the task.
            if each in self._held:
                each.lose(state)

    def _executor(self, executor: Executor) -> Executor:
        if self._home is self._own:
            return executor
        name = executor.stored_name
        if name not in self._executors:
            if len(self._executors) >= _MOST_SPACES:
                self._executors.clear()
            home = _blocking(executor.home)
            self._executors[name] = SpaceExecutor(home, executor.name, executor.author)
        return self._executors[name]


def _blocking(home: Home) -> Home:
    """Return the blocking handle on the same store; the handle itself if there is none."""
    try:
        return home if home.runner.mode == "blocking" else home.for_blocking()
    except UnsupportedError:
        return home
