"""One at a time: how the calls on one transaction, made by many threads or tasks at once, come in turn.

A call may be made inside another, by a function that the caller gave: those have a queue of their own, so
that a call never waits for the one that it is part of. Contexts carry where a call stands, so tasks started
inside a call belong to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from keepstate._runner import Lock, Promise, Runner

T = TypeVar("T")


class Turns:
    """Lets calls in one by one, in the order in which they come."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._line = runner, _Line()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns what the work returns, once nobody else is at work."""
        line = self._nearest()
        await line.enter(self._runner)
        call = _Call(self, _calls.get())
        _calls.set(call)
        try:
            return await work()
        finally:
            call.is_over = True
            _calls.set(call.outer)  # a token could not be given back where garbage is collected
            line.leave()

    def _nearest(self) -> _Line:
        """Returns the queue of the call that this one is part of, or that of all."""
        call = _calls.get()
        while call is not None:
            if call.turns is self and not call.is_over:
                return call.inside()
            call = call.outer
        return self._line


class _Call:
    """A call that is at work."""

    __slots__ = ("_inside", "is_over", "outer", "turns")

    def __init__(self, turns: Turns, outer: _Call | None) -> None:
        self.turns, self.outer, self.is_over = turns, outer, False
        self._inside: _Line | None = None

    def inside(self) -> _Line:
        """Returns the queue of the calls inside this one."""
        if self._inside is None:
            self._inside = _Line()
        return self._inside


_calls: ContextVar[_Call | None] = ContextVar("keepstate_calls", default=None)


class _Line:
    """Who is at work, and who waits."""

    __slots__ = ("_is_busy", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock, self._is_busy = Lock(), False
        self._waiting: deque[Promise[None]] = deque()

    async def enter(self, runner: Runner) -> None:
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                return
            turn: Promise[None] = runner.promise()
            self._waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            with self._lock:
                is_late = turn not in self._waiting
                if not is_late:
                    self._waiting.remove(turn)
            if is_late:  # cancelled when its turn had come: the next one takes it
                self.leave()
            raise

    def leave(self) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            self._is_busy = following is not None
        if following is not None:
            following.give(None)
