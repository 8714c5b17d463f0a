"""One at a time: how the calls on one transaction, made by many threads or tasks at once, come in turn.

A call may be made inside another, by a function that the caller gave: those have a queue of their own, so
that a call never waits for the one that it is part of. Contexts carry where a call stands, so tasks started
inside a call belong to it.

A turn is taken inside what gives it back, and a call is over by an assignment, which no interrupt divides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from keepstate._runner import Lock, Promise, Runner

T = TypeVar("T")


class FifoLock:
    """Lets calls in one by one, in the order in which they come."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._line = runner, _Line()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what the work returns, once nobody else is at work."""
        line, call = self._nearest(), _Call(self, _calls.get())
        try:
            await line.enter(call, self._runner)
            _calls.set(call)
            return await work()
        finally:
            call.is_over = True
            _calls.set(call.outer)  # a token could not be given back where garbage is collected
            line.leave(call)

    def _nearest(self) -> _Line:
        """Return the queue of the call that this one is part of, or that of all."""
        call = _calls.get()
        while call is not None:
            if call.turns is self and not call.is_over:
                return call.inside()
            call = call.outer
        return self._line


class _Call:
    """A call that waits or is at work, until it is over."""

    __slots__ = ("_inside", "is_over", "outer", "turns")

    def __init__(self, turns: FifoLock, outer: _Call | None) -> None:
        self.turns, self.outer, self.is_over = turns, outer, False
        self._inside: _Line | None = None

    def inside(self) -> _Line:
        """Return the queue of the calls inside this one."""
        if self._inside is None:
            self._inside = _Line()
        return self._inside


_calls: ContextVar[_Call | None] = ContextVar("keepstate_calls", default=None)


class _Line:
    """Who is at work, and who waits. What is over and was interrupted before it said so holds nobody up."""

    __slots__ = ("_lock", "_present", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._present: _Call | None = None
        self._waiting: deque[tuple[_Call, Promise[None]]] = deque()

    async def enter(self, call: _Call, runner: Runner) -> None:
        with self._lock:
            present = self._present
            if present is None or (present.is_over and not self._waiting):
                self._present = call
                return
            turn: Promise[None] = runner.promise()
            self._waiting.append((call, turn))
        if present.is_over:
            self.leave(present)
        await turn.wait()

    def leave(self, call: _Call) -> None:
        """Let the next one in, unless the call was not at work."""
        with self._lock:
            if self._present is not call:
                return
            self._present, turn = None, None
            while self._waiting and turn is None:
                following, turn = self._waiting.popleft()
                if following.is_over:  # cancelled while it waited
                    turn = None
                else:
                    self._present = following
        if turn is not None:
            turn.give(None)
