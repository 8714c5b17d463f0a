"""First-in, first-out locks: for the calls on one transaction, and for updates of one document.

A `FifoLock` admits the concurrent calls on one transaction, by threads or tasks, one at a time. Nested calls,
made by a function of the caller, wait in a queue of their own, so a call never waits for the call that
contains it. A context variable holds the enclosing call, so tasks started inside a call belong to it. A turn
is taken inside the `try` that gives it back, and ends with an assignment, which no interrupt can split.

`serialized` runs updates of one document in turn. Racing updates invalidate each other, so that n of them
cost n² attempts. This is only an optimization: the checks of the batch prevent lost updates. Waiting is
therefore bounded: after 0.25 s at work, an update no longer blocks the next one. An update made inside the
function of another update does not wait at all, because two updates of each other's documents would deadlock.

A function passed to `update` that writes its own document would invalidate its input, be called again, write
again, and never end. A context variable holds the enclosing updates, so that such a write is rejected. Tasks
started by the function belong to its update until the function has returned.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Container
from contextvars import ContextVar, copy_context
from inspect import isawaitable
from typing import Any, TypeVar

from keepstate._runner import Runner, Signal, reentrant_lock
from keepstate.stores.protocol import Store

T = TypeVar("T")

_LONGEST_TURN_S = 0.25
_NEVER_S = 365 * 24 * 3600.0


class _Turn:
    """A call that is waiting, running or over."""

    __slots__ = ("inside", "is_over", "lock", "outer")

    def __init__(self, lock: FifoLock | None = None, outer: _Turn | None = None) -> None:
        self.lock, self.outer, self.is_over = lock, outer, False
        self.inside: _Queue | None = None
        """The queue of the calls nested in this one."""


class _Queue:
    """The running turn and the waiting ones. A turn that ended without leaving blocks no other one."""

    __slots__ = ("_lock", "_waiting", "current")

    def __init__(self) -> None:
        # Reentrant, because a signal handler or finalizer may call at any point of its thread.
        self._lock = reentrant_lock()
        self.current: _Turn | None = None
        self._waiting: deque[tuple[_Turn, Signal]] = deque()

    def join(self, turn: _Turn, runner: Runner) -> Signal | None:
        """Start a turn, and return None. If it must wait, return the signal to wait for."""
        with self._lock:
            if self.current is not None and self.current.is_over:
                self.leave(self.current)
            if self.current is None:
                self.current = turn
                return None
            signal = runner.signal()
            self._waiting.append((turn, signal))
            return signal

    async def wait(self, turn: _Turn, signal: Signal, longest_s: float) -> None:
        """Wait until the turn starts. It overtakes a turn that keeps it, as the next one, for too long."""
        ahead = self.current
        while not await signal.wait(longest_s):
            with self._lock:
                if self.current is ahead and self._waiting and self._waiting[0][0] is turn:
                    self._waiting.popleft()
                    self.current = turn
                if self.current is turn:
                    return
                ahead = self.current

    def leave(self, turn: _Turn) -> None:
        """End a turn, and start the next one if this one was running."""
        with self._lock:
            if self.current is not turn:
                self._waiting = deque(entry for entry in self._waiting if entry[0] is not turn)
                return
            self.current = None
            while self._waiting and self.current is None:
                following, signal = self._waiting.popleft()
                if not following.is_over:  # otherwise it was cancelled while it waited
                    self.current = following
                    signal.set()


# ---- calls on one transaction

_turns: ContextVar[_Turn | None] = ContextVar("keepstate_calls", default=None)


class FifoLock:
    """Runs calls one at a time, in the order of their arrival."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._queue = runner, _Queue()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work once all earlier calls have ended, and return its result."""
        queue, turn = self._find_queue(), _Turn(self, _turns.get())
        try:
            if (signal := queue.join(turn, self._runner)) is not None:
                await queue.wait(turn, signal, _NEVER_S)
            _turns.set(turn)
            return await work()
        finally:
            turn.is_over = True
            _turns.set(turn.outer)  # not by a token, which the garbage collector's context could not reset
            queue.leave(turn)

    def _find_queue(self) -> _Queue:
        """Return the queue of the enclosing call, or the lock's own queue."""
        turn = _turns.get()
        while turn is not None:
            if turn.lock is self and not turn.is_over:
                turn.inside = turn.inside or _Queue()
                return turn.inside
            turn = turn.outer
        return self._queue


# ---- updates of one document


class _Update:
    """One run of a caller's function on one document."""

    __slots__ = ("is_over", "outer", "key", "space", "store")

    def __init__(self, store: Store, space: str, key: bytes, outer: _Update | None) -> None:
        self.store, self.space, self.key, self.outer = store, space, key, outer
        self.is_over = False


_present: ContextVar[_Update | None] = ContextVar("keepstate_updates", default=None)


async def apply_update(
    store: Store, space: str, key: bytes, change: Callable[[Any], Awaitable[Any] | Any], value: object
) -> Any:
    """Apply the caller's function to the value of a document, and return the new value."""
    update = _Update(store, space, key, _present.get())
    # The interpreter itself leaves a separate context, even if Ctrl-C interrupts the function.
    context = copy_context()
    context.run(_present.set, update)
    try:
        answer = context.run(change, value)
        if not isawaitable(answer):
            return answer
        _present.set(update)
        return await answer
    finally:
        update.is_over = True
        if _present.get() is update:
            _present.set(update.outer)  # not by a token: a cancelled task may be collected in another context


def find_update_in_progress(store: Store, space: str, keys: Container[bytes]) -> bytes | None:
    """Return the key among these for which the caller is inside an update, or None."""
    update = _present.get()
    while update is not None:
        if not update.is_over and update.key in keys and update.space == space and update.store is store:
            return update.key
        update = update.outer
    return None


def _is_inside() -> bool:
    update = _present.get()
    while update is not None and update.is_over:
        update = update.outer
    return update is not None


_lock = reentrant_lock()
_queues: dict[tuple[int, str, bytes], _Queue] = {}
"""The queue of each document that is being updated."""


def _reset_after_fork() -> None:
    """Clear the queues in a forked child, because the parent's updates do not run there."""
    global _lock
    _queues.clear()
    _lock = reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


async def serialized(
    store: Store, space: str, key: bytes, runner: Runner, work: Callable[[], Awaitable[T]]
) -> T:
    """Run work after earlier calls for the same key, and return its result."""
    if _is_inside():
        return await work()
    document, turn = (id(store), space, key), _Turn()  # a waiting call keeps its store alive
    try:
        with _lock:
            if (queue := _queues.get(document)) is None:
                queue = _queues[document] = _Queue()
            signal = queue.join(turn, runner)
        if signal is not None:
            await queue.wait(turn, signal, _LONGEST_TURN_S)
        return await work()
    finally:
        turn.is_over = True
        with _lock:
            if (queue := _queues.get(document)) is not None:
                queue.leave(turn)
                if queue.current is None:
                    del _queues[document]
