"""First-in, first-out lock for the concurrent calls on one transaction, by threads or tasks.

Nested calls, made by a function of the caller, wait in a queue of their own. A call therefore never waits for
the call that contains it. A context variable holds the enclosing call, so tasks started inside a call belong
to it. A call is acquired inside the `try` that releases it. It ends with an assignment, which no interrupt
can split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from keepstate._runner import Lock, Promise, Runner

T = TypeVar("T")


class FifoLock:
    """Runs calls one at a time, in the order of their arrival."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._queue = runner, _Queue()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work once all earlier calls have ended, and return its result."""
        queue, call = self._find_queue(), _Call(self, _calls.get())
        try:
            await queue.enter(call, self._runner)
            _calls.set(call)
            return await work()
        finally:
            call.is_over = True
            _calls.set(call.outer)  # not by a token, which the garbage collector's context could not reset
            queue.leave(call)

    def _find_queue(self) -> _Queue:
        """Return the queue of the enclosing call, or the lock's own queue."""
        call = _calls.get()
        while call is not None:
            if call.lock is self and not call.is_over:
                return call.inside()
            call = call.outer
        return self._queue


class _Call:
    """A call that is waiting, running or over."""

    __slots__ = ("_inside", "is_over", "outer", "lock")

    def __init__(self, lock: FifoLock, outer: _Call | None) -> None:
        self.lock, self.outer, self.is_over = lock, outer, False
        self._inside: _Queue | None = None

    def inside(self) -> _Queue:
        """Return the queue of the calls nested in this one."""
        if self._inside is None:
            self._inside = _Queue()
        return self._inside


_calls: ContextVar[_Call | None] = ContextVar("keepstate_calls", default=None)


class _Queue:
    """The running call and the waiting ones. A call that ended without leaving blocks no other call."""

    __slots__ = ("_lock", "_current", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._current: _Call | None = None
        self._waiting: deque[tuple[_Call, Promise[None]]] = deque()

    async def enter(self, call: _Call, runner: Runner) -> None:
        with self._lock:
            current = self._current
            if current is None or (current.is_over and not self._waiting):
                self._current = call
                return
            turn: Promise[None] = runner.promise()
            self._waiting.append((call, turn))
        if current.is_over:
            self.leave(current)
        await turn.wait()

    def leave(self, call: _Call) -> None:
        """Start the next call, if this call was the running one."""
        with self._lock:
            if self._current is not call:
                return
            self._current, turn = None, None
            while self._waiting and turn is None:
                following, turn = self._waiting.popleft()
                if following.is_over:  # cancelled while it waited
                    turn = None
                else:
                    self._current = following
        if turn is not None:
            turn.give(None)
