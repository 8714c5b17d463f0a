"""Callbacks that are told of every change: exact values, in order, whoever made it, in whatever process.

Each subscription has a watch of its own, so that a slow callback holds up nobody else. It begins with the
first awaited call of its manager after `subscribe`, before that call's own work.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from keepstate._runner import Cancelled, Lock, Promise, Runner, Signal, Work, is_cancelled
from keepstate.engine.glob import compiled, escaped
from keepstate.engine.scope import called
from keepstate.engine.space import Space
from keepstate.engine.turns import Turns
from keepstate.engine.watch import DocumentChange, Watch
from keepstate.errors import (
    ClosedError,
    CompactedError,
    HistoryLostError,
    InvalidError,
    KeepstateError,
    StoreUnavailableError,
)
from keepstate.managers.place import Folder

StateCallback = Callable[[str, Any, Any], Awaitable[Any] | Any]
"""Gets the key, the value before and the value after; None where there is none."""

_WAIT_S: Final = 5.0
_AWAY_S: Final = 0.5
_log = logging.getLogger("keepstate.managers")
_is_inside: ContextVar[bool] = ContextVar("keepstate_in_callback", default=False)


class Subscriptions:
    """Who wants to be told of what, in the spaces of one manager."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._registered: list[tuple[str, StateCallback]] = []
        self._following: list[tuple[str, StateCallback, list[_Follower]]] = []
        self._ending: list[_Follower] = []
        self._turns = Turns(runner)

    @property
    def is_waiting(self) -> bool:
        """Whether something was registered that does not follow changes yet."""
        return bool(self._registered)

    def add(self, pattern: str, callback: StateCallback) -> None:
        """Registers a callback."""
        compiled(pattern)
        self._registered.append((pattern, callback))

    def remove(self, pattern: str, callback: StateCallback) -> bool:
        """Lets no further call of the callback start, and returns whether it was registered."""
        wanted = (pattern, callback)
        kept = [each for each in self._registered if each != wanted]
        ended = [each for each in self._following if each[:2] == wanted]
        found = bool(ended) or len(kept) < len(self._registered)
        self._registered = kept
        self._following = [each for each in self._following if each not in ended]
        for _, _, followers in ended:
            for follower in followers:
                follower.end()
                self._ending.append(follower)
        return found

    async def begin(self, folders: Sequence[Folder]) -> None:
        """Lets what was registered follow changes from now on."""
        await self._turns.run(lambda: self._begin(folders))

    async def _begin(self, folders: Sequence[Folder]) -> None:
        while self._registered:
            wanted = self._registered[0]
            followers = [_Follower(self._runner, folder, *wanted) for folder in folders]
            for follower in followers:
                await follower.find_start()
            if wanted not in self._registered:
                continue  # it was removed meanwhile
            self._registered.remove(wanted)
            self._following.append((*wanted, followers))
            for follower in followers:
                follower.start()

    async def drain(self) -> None:
        """Returns when callbacks have been given all that has changed until now.

        Raises:
            CompactedError: One was so far behind that changes were lost for it; it goes on after them.
            InvalidError: It is called by a callback, which would wait for itself.
        """
        if _is_inside.get():
            raise InvalidError("a callback that drains would wait for itself; drain outside")
        for _, _, followers in list(self._following):
            for follower in followers:
                await follower.drain()

    async def close(self) -> None:
        """Ends all of it, after the callbacks that are at work."""
        following, self._following, self._registered = self._following, [], []
        ending, self._ending = self._ending, []
        ending += [follower for _, _, followers in following for follower in followers]
        for follower in ending:
            follower.end()
        for follower in ending:
            await follower.ended()


class _Follower:
    """Tells one callback of what changes in one space."""

    def __init__(self, runner: Runner, folder: Folder, pattern: str, callback: StateCallback) -> None:
        if not isinstance(folder.space, Space):
            raise InvalidError("subscribing acts at once and cannot be part of a transaction; do it outside")
        self._runner, self._space, self._prefix = runner, folder.space, folder.prefix
        self._pattern, self._callback = escaped(folder.prefix) + pattern, callback
        self._is_ending = False
        self._done = 0
        self._watch: Watch | None = None
        self._work: Work | None = None
        self._failure: KeepstateError | None = None
        self._lock = Lock()
        self._goals: list[tuple[int, Promise[None]]] = []

    async def find_start(self) -> None:
        self._done = await self._space.revision()

    def start(self) -> None:
        self._work = self._runner.start(self._follow, f"subscription to {self._pattern!r}")

    def end(self) -> None:
        self._is_ending = True
        if self._watch is not None:
            self._watch.wake()

    async def ended(self) -> None:
        if self._work is not None:
            await self._work.stop()
        self._reached(None)

    async def drain(self) -> None:
        goal = await self._space.revision()
        promise: Promise[None] = self._runner.promise()
        with self._lock:
            if self._done >= goal or self._is_ending:
                promise.give(None)
            else:
                self._goals.append((goal, promise))
        if self._watch is not None:
            self._watch.wake()
        await promise.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _follow(self, signal: Signal) -> None:
        try:
            await self._go_on(signal)
        finally:  # whatever ended it, nobody waits for it any more
            self._is_ending = True
            self._reached(None)

    async def _go_on(self, signal: Signal) -> None:
        while not self._is_ending:
            try:
                await self._tell_all()
            except CompactedError as error:
                _log.warning("a subscription to %r missed changes: %s", self._pattern, error)
                self._failure = error
                self._reached(max(error.floor or 0, self._done + 1))
            except HistoryLostError as error:
                _log.warning("a subscription to %r begins again: %s", self._pattern, error)
                self._failure = error
                self._done = 0
                self._reached(await self._space.revision())
            except StoreUnavailableError as error:
                _log.warning("a subscription to %r waits: %s", self._pattern, error)
                await signal.wait(_AWAY_S)
            except KeepstateError as error:
                if not isinstance(error, ClosedError):
                    _log.warning("a subscription to %r has ended: %s", self._pattern, error)
                    self._failure = error
                self._is_ending = True

    async def _tell_all(self) -> None:
        async with self._space.documents.watch(self._pattern, after=self._done) as watch:
            self._watch = watch
            try:
                while not self._is_ending:
                    for change in await watch.take(_WAIT_S):
                        await self._tell(change)
                        self._done = change.revision - 1
                    self._reached(watch.revision)
            finally:
                self._watch = None

    async def _tell(self, change: DocumentChange) -> None:
        if self._is_ending:
            return
        token = _is_inside.set(True)
        try:
            await called(self._callback, change.key[len(self._prefix) :], change.old, change.new)
        except Cancelled:  # what the callback waited for was, unless this work itself is
            if is_cancelled():
                raise
            _log.exception("the callback of a subscription to %r was cancelled", self._pattern)
        except Exception:  # noqa: BLE001 - the caller's own function, whose failure is logged
            _log.exception("the callback of a subscription to %r failed", self._pattern)
        finally:
            _is_inside.reset(token)

    def _reached(self, revision: int | None) -> None:
        """Notes how far all was told, and tells who waits for that; None lets all go."""
        with self._lock:
            self._done = self._done if revision is None else revision
            ready = [promise for goal, promise in self._goals if revision is None or goal <= revision]
            self._goals = [(goal, promise) for goal, promise in self._goals if promise not in ready]
        for promise in ready:
            promise.give(None)
