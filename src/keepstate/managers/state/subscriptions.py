"""Callbacks for every change: exact values, in order, from every writer and process.

Each subscription has its own watch, so that a slow callback does not delay others. It begins with the first
awaited call of its manager after `subscribe`, before the work of that call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from keepstate._runner import Lock, Promise, Runner, Signal
from keepstate.engine.documents.watch import DocumentChange
from keepstate.engine.kernel.glob import compile_pattern
from keepstate.engine.kernel.locks import FifoLock
from keepstate.errors import HistoryLostError, InvalidError, KeepstateError
from keepstate.managers.binding import Namespace
from keepstate.managers.callbacks import invoke_callback
from keepstate.managers.watch_loop import WatchLoop

StateCallback = Callable[[str, Any, Any], Awaitable[Any] | Any]
"""Receives the key, the old value and the new value; None for an absent value."""

_is_inside: Final[ContextVar[bool]] = ContextVar("keepstate_in_callback", default=False)


class Subscriptions:
    """The subscriptions of one manager."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._registered: list[tuple[str, StateCallback]] = []
        self._following: list[tuple[str, StateCallback, list[_SubscriptionLoop]]] = []
        self._ending: set[_SubscriptionLoop] = set()
        self._turns = FifoLock(runner)

    @property
    def is_waiting(self) -> bool:
        """True if registered subscriptions have not started yet."""
        return bool(self._registered)

    def add(self, pattern: str, callback: StateCallback) -> None:
        """Register a callback."""
        compile_pattern(pattern)
        self._registered.append((pattern, callback))

    def remove(self, pattern: str, callback: StateCallback) -> bool:
        """Start no further call of a callback, and return whether it was registered."""
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
                if follower.is_over:  # it may have ended before it was added
                    self._ending.discard(follower)
        return found

    async def begin(self, namespaces: Sequence[Namespace]) -> None:
        """Start the registered subscriptions."""
        await self._turns.run(lambda: self._begin(namespaces))

    async def _begin(self, namespaces: Sequence[Namespace]) -> None:
        while self._registered:
            wanted = self._registered[0]
            followers = [
                _SubscriptionLoop(self._runner, namespace, *wanted, self._on_follower_stopped)
                for namespace in namespaces
            ]
            for follower in followers:
                await follower.find_start()
            if wanted not in self._registered:
                continue  # removed in the meantime
            self._registered.remove(wanted)
            self._following.append((*wanted, followers))
            for follower in followers:
                follower.start()

    def _on_follower_stopped(self, follower: _SubscriptionLoop) -> None:
        self._ending.discard(follower)

    async def drain(self) -> None:
        """Wait until callbacks have received all changes until now.

        Raises:
            CompactedError: A callback was so slow that it missed changes; it continues after them.
            HistoryLostError: The store lost acknowledged writes; callbacks continue from its current state.
            InvalidError: A callback called `drain`, and would wait for itself. Or a value was not delivered,
                because its class is not registered; callbacks continue after it.
            UnsupportedError: A value was not delivered, because newer code wrote it; callbacks continue after
                it.
        """
        if _is_inside.get():
            raise InvalidError(
                "a callback cannot drain, because it would wait for itself. Call drain() outside."
            )
        for _, _, followers in list(self._following):
            for follower in followers:
                await follower.drain()

    async def close(self) -> None:
        """End all subscriptions, after the callbacks in progress."""
        following, self._following, self._registered = self._following, [], []
        ending, self._ending = [*self._ending], set[_SubscriptionLoop]()
        ending += [follower for _, _, followers in following for follower in followers]
        for follower in ending:
            follower.stop()
        for follower in ending:
            await follower.end()


class _SubscriptionLoop(WatchLoop):
    """Delivers each change in one space to one callback."""

    def __init__(
        self,
        runner: Runner,
        namespace: Namespace,
        pattern: str,
        callback: StateCallback,
        forget: Callable[[_SubscriptionLoop], None],
    ) -> None:
        super().__init__(runner, namespace, pattern, f"subscription to {pattern!r}")
        self._prefix, self._callback, self._on_follower_stopped = namespace.prefix, callback, forget
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

    async def _deliver(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        for change in changes:
            if self._is_ending:
                return
            key, token = change.key[len(self._prefix) :], _is_inside.set(True)
            try:
                await invoke_callback(self._callback, key, change.old, change.new, of=self._what)
            finally:
                _is_inside.reset(token)

    def _on_error(self, error: KeepstateError) -> None:
        self._failure = error
        if isinstance(error, HistoryLostError):  # earlier revisions are never reached again
            with self._lock:
                self._after = 0
            self._on_end()

    def _advance_to(self, revision: int) -> None:
        with self._lock:
            self._after = revision
        self._resolve_waits(revision)

    def _on_end(self) -> None:
        self._resolve_waits(None)

    def _on_stopped(self) -> None:
        self._on_follower_stopped(self)

    def _resolve_waits(self, revision: int | None) -> None:
        """Resolve the waits for a revision up to this one; None for all."""
        with self._lock:
            ready = [promise for goal, promise in self._goals if revision is None or goal <= revision]
            self._goals = [(goal, promise) for goal, promise in self._goals if promise not in ready]
        for promise in ready:
            promise.give(None)
