"""Registry of the change listeners of one store handle, by space.

A hint says that a space may have changed. It carries no data: the listener asks the store. One waiter per
handle turns changes by other processes into hints. It starts with the first listener and ends with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from keepstate._runner import Runner


class HintListener:
    """Receives hints of its spaces, even while it is not waiting."""

    def __init__(self, board: ChangeNotifier, spaces: frozenset[str], runner: Runner) -> None:
        self._board, self.spaces = board, spaces
        self._signal = runner.signal()

    def notify(self) -> None:
        """Wake the waiting caller, or remember the hint for the next wait."""
        self._signal.set()

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
            listener.notify()
