"""Hints that a space may have changed, and the handles of one process that share a store's state.

A hint carries no data: the listener asks the store. One waiter per handle turns changes by other processes
into hints. It starts with the first listener and ends with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar
from weakref import ref

from keepstate._runner import Runner

S = TypeVar("S")


class HintListener:
    """Receives hints of its spaces, even while it is not waiting."""

    def __init__(self, board: ChangeNotifier, spaces: frozenset[str], runner: Runner) -> None:
        self._board, self.spaces = board, spaces
        self._signal = runner.signal()
        self._changed: dict[str, None] = {}

    def notify(self, space: str) -> None:
        """Wake the waiting caller, or remember the hint for the next wait; callable from any thread."""
        self._changed[space] = None
        self._signal.set()

    def wake(self) -> None:
        """Let `wait` return without a hint; callable from any thread."""
        self._signal.set()

    def take_changed(self) -> list[str]:
        """Return the spaces that had hints since the last call, each once."""
        changed: list[str] = []
        while self._changed:  # taken one by one, because other threads add to the same dict
            changed.append(self._changed.popitem()[0])
        return changed

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next hint, for at most `timeout_s`; a hint since the last call returns at once."""
        await self._signal.wait(timeout_s)

    def close(self) -> None:
        """Stop listening."""
        self._board.leave(self)


class ChangeNotifier:
    """The listeners of one handle, by space."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        # A dict, because a simulation must repeat the order of notifications, and a set has none.
        self._listeners: dict[str, dict[HintListener, None]] = {}

    def join(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that receives every hint of these spaces from now on."""
        listener = HintListener(self, frozenset(spaces), self._runner)
        with self._lock:
            for space in listener.spaces:
                self._listeners.setdefault(space, {})[listener] = None
        return listener

    def leave(self, listener: HintListener) -> None:
        """Remove a listener; a second call does nothing."""
        with self._lock:
            for space in listener.spaces:
                heard = self._listeners.get(space, {})
                heard.pop(listener, None)
                if not heard:
                    self._listeners.pop(space, None)

    def spaces(self) -> list[str]:
        """Return the spaces that have listeners."""
        with self._lock:
            return list(self._listeners)

    def hint(self, space: str) -> None:
        """Notify the listeners of a space; callable from any thread."""
        if not self._listeners:
            return
        with self._lock:
            listeners = list(self._listeners.get(space, ()))
        for listener in listeners:
            listener.notify(space)


class NotifiedHandle(Protocol):
    """A handle that is notified of changes."""

    def notify(self, space: str) -> None:
        """Accept a hint that a space has changed."""
        ...


class Handles:
    """The open handles on one state, each notified of every change for as long as it lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: tuple[ref[NotifiedHandle], ...] = ()

    def join(self, handle: NotifiedHandle) -> None:
        """Notify a handle of every change from now on."""
        with self._lock:
            self._handles = (*(other for other in self._handles if other() is not None), ref(handle))

    def leave(self, handle: NotifiedHandle) -> None:
        """Stop notifying a handle."""
        with self._lock:
            self._handles = tuple(other for other in self._handles if other() not in (None, handle))

    def notify(self, space: str) -> None:
        """Notify every handle that a space has changed."""
        for reference in self._handles:
            if (handle := reference()) is not None:
                handle.notify(space)

    def living(self) -> list[NotifiedHandle]:
        """Return the handles that still exist."""
        return [handle for reference in self._handles if (handle := reference()) is not None]


class SharedUse(Generic[S]):
    """A handle's use of shared state, released once, even if the handle stopped waiting for it.

    Args:
        release: Releases the state.
    """

    shared: S

    def __init__(self, release: Callable[[S], None]) -> None:
        self._release = release
        # Re-entrant, because the garbage collector may release a leaked handle in the middle of a call.
        self._lock = threading.RLock()
        self._is_acquired = self._is_released = False

    def acquire(self, acquire: Callable[[], S]) -> S:
        """Acquire the state, in any thread; release it at once if `release` was called before."""
        shared = acquire()
        with self._lock:
            self.shared, self._is_acquired = shared, True
            if self._is_released:
                self._release(shared)
        return shared

    def release(self) -> None:
        """Release the state; a second call does nothing."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            if self._is_acquired:
                self._release(self.shared)
