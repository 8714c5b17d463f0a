"""First-in, first-out lock for the concurrent calls on one transaction, by threads or tasks.

Nested calls, made by a function of the caller, wait in a queue of their own. A call therefore never waits for
the call that contains it. A context variable holds the enclosing call, so tasks started inside a call belong
to it. A call is acquired inside the `try` that releases it. It ends with an assignment, which no interrupt
can split.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Container
from contextvars import ContextVar, copy_context
from inspect import isawaitable
from typing import Any, TypeVar

from keepstate._runner import Lock, Promise, Runner, Signal, reentrant_lock
from keepstate.stores.protocol import Store

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


_LONGEST_TURN_S = 0.25


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


# ---- serialization

_DocumentKey = tuple[int, str, bytes]


class _Waiter:
    """One update in a queue. It has a signal if it must wait."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal: Signal | None = None


# Reentrant, because a signal handler or finalizer may update at any point of its thread.
_lock = reentrant_lock()
_queues: dict[_DocumentKey, deque[_Waiter]] = {}
"""For each document that is being updated: the running update, then the waiting ones."""


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
    document, waiter = (
        (id(store), space, key),
        _Waiter(),
    )  # a waiting call keeps its store alive, so the id is unique
    try:
        ahead = _join(document, waiter, runner)
        while (
            ahead is not None and waiter.signal is not None and not await waiter.signal.wait(_LONGEST_TURN_S)
        ):
            ahead = _overtake(document, waiter, ahead)
        return await work()
    finally:
        _leave(document, waiter)


def _join(document: _DocumentKey, waiter: _Waiter, runner: Runner) -> _Waiter | None:
    """Join the queue. Return the running update, or None if this update may run."""
    with _lock:
        queue = _queues.get(document)
        if queue is None:
            _queues[document] = deque((waiter,))
            return None
        waiter.signal = runner.signal()
        queue.append(waiter)
        return queue[0]


def _overtake(document: _DocumentKey, waiter: _Waiter, ahead: _Waiter) -> _Waiter | None:
    """Overtake the running update if this one is next, and return None; otherwise return the running one."""
    with _lock:
        queue = _queues[document]
        if queue[0] is ahead and queue[1] is waiter:
            queue.popleft()
        return None if queue[0] is waiter else queue[0]


def _leave(document: _DocumentKey, waiter: _Waiter) -> None:
    with _lock:
        queue = _queues.get(document)
        if queue is None or waiter not in queue:
            return  # overtaken
        was_at_work = queue[0] is waiter
        queue.remove(waiter)
        if not queue:
            del _queues[document]
        elif was_at_work and (signal := queue[0].signal) is not None:
            signal.set()
