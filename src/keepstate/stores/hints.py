"""Who wants to hear of changes to which spaces, in this handle of a store.

A hint says that a space may have changed. It carries nothing: who hears it asks the store. One waiter a
handle, started with the first listener and ended with the last, turns what other processes do into hints.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from keepstate._runner import Runner


class HintListener:
    """Hears hints of its spaces, also while it is not waiting."""

    def __init__(self, board: ChangeNotifier, spaces: frozenset[str], runner: Runner) -> None:
        self._board, self.spaces = board, spaces
        self._signal = runner.signal()

    def hear(self) -> None:
        """Wake who waits, or keep the hint for the next wait."""
        self._signal.set()

    async def wait(self, timeout_s: float) -> None:
        """Return on the next hint, at once if one came since the last call, or after `timeout_s`."""
        await self._signal.wait(timeout_s)

    def close(self) -> None:
        """Stop listening."""
        self._board.leave(self)


class ChangeNotifier:
    """The listeners of one handle, by space."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        # Told in the order in which they came: a simulation repeats what no set's order can spoil.
        self._listeners: dict[str, dict[HintListener, None]] = {}

    def join(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that hears every hint of these spaces from now on."""
        listener = HintListener(self, frozenset(spaces), self._runner)
        with self._lock:
            for space in listener.spaces:
                self._listeners.setdefault(space, {})[listener] = None
        return listener

    def leave(self, listener: HintListener) -> None:
        """Forget a listener; twice is once."""
        with self._lock:
            for space in listener.spaces:
                heard = self._listeners.get(space, {})
                heard.pop(listener, None)
                if not heard:
                    self._listeners.pop(space, None)

    def spaces(self) -> list[str]:
        """Return the spaces that somebody listens to."""
        with self._lock:
            return list(self._listeners)

    def hint(self, space: str) -> None:
        """Tell the listeners of a space, from any thread."""
        if not self._listeners:
            return
        with self._lock:
            listeners = list(self._listeners.get(space, ()))
        for listener in listeners:
            listener.hear()
