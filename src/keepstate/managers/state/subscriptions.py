"""Callbacks that are told of every change: exact values, in order, whoever made it, in whatever process.

Each subscription has a watch of its own, so that a slow callback holds up nobody else. It begins with the
first awaited call of its manager after `subscribe`, before that call's own work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from keepstate._runner import Lock, Promise, Runner, Signal
from keepstate.engine.documents.watch import DocumentChange
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.engine.kernel.glob import compile_pattern
from keepstate.errors import HistoryLostError, InvalidError, KeepstateError
from keepstate.managers.binding import Folder
from keepstate.managers.callbacks import tell
from keepstate.managers.watch_loop import Following

StateCallback = Callable[[str, Any, Any], Awaitable[Any] | Any]
"""Gets the key, the value before and the value after; None where there is none."""

_is_inside: Final[ContextVar[bool]] = ContextVar("keepstate_in_callback", default=False)


class Subscriptions:
    """Who wants to be told of what, in the spaces of one manager."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._registered: list[tuple[str, StateCallback]] = []
        self._following: list[tuple[str, StateCallback, list[_Follower]]] = []
        self._ending: set[_Follower] = set()
        self._turns = FifoLock(runner)

    @property
    def is_waiting(self) -> bool:
        """Whether something was registered that does not follow changes yet."""
        return bool(self._registered)

    def add(self, pattern: str, callback: StateCallback) -> None:
        """Register a callback."""
        compile_pattern(pattern)
        self._registered.append((pattern, callback))

    def remove(self, pattern: str, callback: StateCallback) -> bool:
        """Let no further call of the callback start, and return whether it was registered."""
        wanted = (pattern, callback)
        kept = [each for each in self._registered if each != wanted]
        ended = [each for each in self._following if each[:2] == wanted]
        found = bool(ended) or len(kept) < len(self._registered)
        self._registered = kept
        self._following = [each for each in self._following if each not in ended]
        for _, _, followers in ended:
            for follower in followers:
                follower.stop()
                self._ending.add(follower)
                if follower.is_over:  # before it stood there
                    self._ending.discard(follower)
        return found

    async def begin(self, folders: Sequence[Folder]) -> None:
        """Let what was registered follow changes from now on."""
        await self._turns.run(lambda: self._begin(folders))

    async def _begin(self, folders: Sequence[Folder]) -> None:
        while self._registered:
            wanted = self._registered[0]
            followers = [_Follower(self._runner, folder, *wanted, self._forget) for folder in folders]
            for follower in followers:
                await follower.find_start()
            if wanted not in self._registered:
                continue  # it was removed meanwhile
            self._registered.remove(wanted)
            self._following.append((*wanted, followers))
            for follower in followers:
                follower.start()

    def _forget(self, follower: _Follower) -> None:
        self._ending.discard(follower)

    async def drain(self) -> None:
        """Return when callbacks have been given all that has changed until now.

        Raises:
            CompactedError: One was so far behind that changes were lost for it; it goes on after them.
            HistoryLostError: The store forgot what it had acknowledged; it goes on from what is there.
            InvalidError: It is called by a callback, which would wait for itself. Or one could not be told of
                a value, whose class is not registered; it goes on after that.
            UnsupportedError: The same, of a value that newer code wrote.
        """
        if _is_inside.get():
            raise InvalidError("a callback that drains would wait for itself; drain outside")
        for _, _, followers in list(self._following):
            for follower in followers:
                await follower.drain()

    async def close(self) -> None:
        """End all of it, after the callbacks that are at work."""
        following, self._following, self._registered = self._following, [], []
        ending, self._ending = [*self._ending], set[_Follower]()
        ending += [follower for _, _, followers in following for follower in followers]
        for follower in ending:
            follower.stop()
        for follower in ending:
            await follower.end()


class _Follower(Following):
    """Tells one callback of each change in one space."""

    def __init__(
        self,
        runner: Runner,
        folder: Folder,
        pattern: str,
        callback: StateCallback,
        forget: Callable[[_Follower], None],
    ) -> None:
        super().__init__(runner, folder, pattern, f"subscription to {pattern!r}")
        self._prefix, self._callback, self._forget = folder.prefix, callback, forget
        self._failure: KeepstateError | None = None
        self._lock = Lock()
        self._goals: list[tuple[int, Promise[None]]] = []

    async def drain(self) -> None:
        goal = await self._space.revision()
        promise: Promise[None] = self._runner.promise()
        with self._lock:
            if self._after >= goal or self._is_ending:
                promise.give(None)
            else:
                self._goals.append((goal, promise))
        if self._watch is not None:
            self._watch.wake()
        await promise.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _tell(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        for change in changes:
            if self._is_ending:
                return
            key, token = change.key[len(self._prefix) :], _is_inside.set(True)
            try:
                await tell(self._callback, key, change.old, change.new, of=self._what)
            finally:
                _is_inside.reset(token)

    def _failed(self, error: KeepstateError) -> None:
        self._failure = error
        if isinstance(error, HistoryLostError):  # revisions of before it are never reached again
            with self._lock:
                self._after = 0
            self._ended()

    def _reached(self, revision: int) -> None:
        with self._lock:
            self._after = revision
        self._let_go(revision)

    def _ended(self) -> None:
        self._let_go(None)

    def _over(self) -> None:
        self._forget(self)

    def _let_go(self, revision: int | None) -> None:
        """Tell who waits for a revision up to this one that all was told; None for everybody."""
        with self._lock:
            ready = [promise for goal, promise in self._goals if revision is None or goal <= revision]
            self._goals = [(goal, promise) for goal, promise in self._goals if promise not in ready]
        for promise in ready:
            promise.give(None)
