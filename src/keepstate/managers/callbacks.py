"""Callbacks of callers, and followers that deliver the changes of a subject's documents to them.

Each subscription has its own watch in the background, so that a slow callback does not delay others.
Invariant: only its owner ends a follower, or a store that is closed or damaged. While the store is
unavailable, the follower retries. If changes were lost or cannot be decoded, it continues after them and
reports the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

from keepstate._runner import Lock, Promise, Runner, Signal, Work, cancelled_error, is_cancelled
from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.space.space import Space
from keepstate.errors import (
    ClosedError,
    CompactedError,
    CorruptError,
    HistoryLostError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.managers.binding import Namespace

StateCallback = Callable[[str, Any, Any], Awaitable[Any] | Any]
"""Receives the key, the old value and the new value; None for an absent value."""
LatestCallback = Callable[[Any], Awaitable[Any] | Any]
"""Receives the latest value."""

_WAIT_S: Final = 5.0
_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 10.0
_UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""Errors of values that newer code wrote, or whose class is not registered."""
_log = logging.getLogger("keepstate.managers")
_is_inside: Final[ContextVar[bool]] = ContextVar("keepstate_in_callback", default=False)


async def invoke_callback(callback: Callable[..., Any], *given: Any, of: str) -> None:
    """Call a caller's function, and log its exception, so that it does not affect other callbacks.

    Args:
        callback: The function.
        given: Its arguments.
        of: Owner of the callback, for the log.
    """
    try:
        await call_function(callback, *given)
    except cancelled_error():  # raised by the callback's own wait, unless this task was cancelled
        if is_cancelled():
            raise
        _log.exception("The callback of a %s was cancelled", of)
    except Exception:  # noqa: BLE001 - the caller's own function, whose failure is logged
        _log.exception("The callback of a %s failed", of)


class Follower:
    """Delivers every change of documents to a callback: exact values, in order, from every writer.

    Args:
        runner: Runs the follower in the background.
        namespace: Namespace of the subject.
        pattern: Pattern of the documents to watch.
        callback: A `StateCallback`.
        what: Description for the log.
    """

    def __init__(
        self, runner: Runner, namespace: Namespace, pattern: str, callback: Callable[..., Any], what: str
    ) -> None:
        if not isinstance(namespace.space, Space):
            raise InvalidError(
                "subscribing takes effect at once, so it cannot be in a transaction. Do it outside."
            )
        self._runner, self._space, self._prefix = runner, namespace.space, namespace.prefix
        self._pattern, self._callback = escape_pattern(namespace.prefix) + pattern, callback
        self._what = f"subscription to {what}"
        self._is_ending = False
        self._after = 0
        self._delay_s = _DELAY_S
        self._missed: CompactedError | HistoryLostError | None = None
        self._failure: KeepstateError | None = None
        self._watch: Watch | None = None
        self._work: Work | None = None
        self._lock = Lock()
        self._goals: list[tuple[int, Promise[None]]] = []

    # ---- start and end

    async def find_start(self) -> None:
        """Read the revision to start from, and deliver nothing yet."""
        self._after = await self._space.revision()

    def start(self) -> None:
        """Start to deliver changes in the background."""
        self._work = self._runner.start(self._run, self._what)

    def stop(self) -> None:
        """Start no further delivery."""
        self._is_ending = True
        self._wake()

    async def end(self) -> None:
        """Start no further delivery, and wait for the delivery in progress."""
        self.stop()
        if self._work is not None:
            await self._work.stop()
        self._resolve_waits(None)

    async def drain(self) -> None:
        """Wait until all changes until now are delivered. Raise the error of a gap since the last call."""
        goal = await self._space.revision()
        promise: Promise[None] = self._runner.promise()
        with self._lock:
            if self._after >= goal or self._is_ending:
                promise.give(None)
            else:
                self._goals.append((goal, promise))
        self._wake()
        await promise.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _wake(self) -> None:
        if self._watch is not None:
            self._watch.wake()

    # ---- delivery

    async def _deliver(self, changes: Sequence[DocumentChange], _signal: Signal) -> None:
        """Deliver changes, oldest first. The sequence may be empty."""
        token = _is_inside.set(True)
        try:
            for change in changes:
                await self._call(change.key[len(self._prefix) :], change.old, change.new)
        finally:
            _is_inside.reset(token)

    async def _call(self, *given: Any) -> None:
        if not self._is_ending:
            await invoke_callback(self._callback, *given, of=self._what)

    async def _resume_after(self, missed: CompactedError | HistoryLostError) -> None:
        """Find the revision to continue from after lost changes. Called again after an outage."""
        if isinstance(missed, CompactedError):
            self._advance_to(max(missed.floor or 0, self._after + 1))
        else:
            self._advance_to(await self._space.revision())

    def _advance_to(self, revision: int) -> None:
        """Record that all changes up to a revision are delivered."""
        with self._lock:
            self._after = revision
        self._resolve_waits(revision)

    def _resolve_waits(self, revision: int | None) -> None:
        """Resolve the waits for a revision up to this one; None for all."""
        with self._lock:
            ready = [promise for goal, promise in self._goals if revision is None or goal <= revision]
            self._goals = [(goal, promise) for goal, promise in self._goals if promise not in ready]
        for promise in ready:
            promise.give(None)

    # ---- the loop

    async def _run(self, signal: Signal) -> None:
        try:
            while not self._is_ending:
                await self._run_once(signal)
        finally:  # nothing waits for the follower any more, whatever ended it
            self._is_ending = True
            self._resolve_waits(None)

    async def _run_once(self, signal: Signal) -> None:
        try:
            if self._missed is not None:
                await self._resume_after(self._missed)
                self._missed = None
            await self._deliver_all(signal)
        except (CompactedError, HistoryLostError) as error:
            _log.warning("A %s missed changes: %s", self._what, error)
            self._missed = self._failure = error
            if isinstance(error, HistoryLostError):  # earlier revisions are never reached again
                self._advance_to(0)
                self._resolve_waits(None)
        except StoreUnavailableError as error:
            await self._wait(error, signal)
        except KeepstateError as error:
            if not isinstance(error, ClosedError):
                _log.warning("A %s has ended: %s", self._what, error)
                self._failure = error
            self._is_ending = True

    async def _wait(self, error: StoreUnavailableError, signal: Signal) -> None:
        _log.warning("A %s retries in %g s: %s", self._what, self._delay_s, error)
        await signal.wait(self._delay_s)
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)

    async def _deliver_all(self, signal: Signal) -> None:
        async with self._space.documents.watch(self._pattern, after=self._after) as watch:
            self._watch = watch
            try:
                while not self._is_ending:
                    await self._deliver_next(watch, signal)
            finally:
                self._watch = None

    async def _deliver_next(self, watch: Watch, signal: Signal) -> None:
        passed, changes = watch.passed, list[DocumentChange]()
        try:
            changes = await watch.take(_WAIT_S)
        except StoreUnavailableError as error:  # keep this watch: a new one would not notice a loss
            await self._wait(error, signal)
            return
        except _UNREADABLE as error:
            if watch.passed == passed:  # not a single change: the store itself is damaged
                raise
            self._skip_unreadable(error)
        self._delay_s = _DELAY_S
        await self._deliver(changes, signal)
        self._advance_to(watch.revision)

    def _skip_unreadable(self, error: KeepstateError) -> None:
        """Report a change that cannot be decoded, and skip it."""
        _log.warning("A %s skips a change that it cannot decode: %s", self._what, error)
        self._failure = error


class LatestFollower(Follower):
    """Delivers the latest values of a subject's documents: a slow callback skips replaced values.

    Invariant: the callback receives the value of the last change. Deletions are not delivered.

    Args:
        runner: Runs the follower in the background.
        namespace: Namespace of the subject.
        callback: A `LatestCallback`.
        interval_s: Minimum seconds between two deliveries.
    """

    def __init__(
        self, runner: Runner, namespace: Namespace, callback: LatestCallback, interval_s: float
    ) -> None:
        super().__init__(runner, namespace, "*", callback, repr(namespace.id))
        self._interval_s = interval_s

    async def _deliver(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        await self._deliver_each({change.key: change.new for change in changes}.values())
        if changes and self._interval_s:
            await signal.wait(self._interval_s)

    async def _resume_after(self, missed: CompactedError | HistoryLostError) -> None:
        after = await self._space.revision()
        found: list[Any] = []
        async for name in self._space.documents.keys(self._pattern):
            try:
                found.append(await self._space.documents.get(name))
            except _UNREADABLE as error:
                self._skip_unreadable(error)
        await self._deliver_each(found)
        self._advance_to(after)

    async def _deliver_each(self, newest: Iterable[Any]) -> None:
        for value in newest:
            if value is not None:
                await self._call(value)


@dataclass(frozen=True, eq=False, slots=True)
class Subscription:
    """The followers of one callback.

    Attributes:
        subject: The subject or pattern that it was subscribed to.
        callback: The callback.
        followers: Its followers, one per space.
    """

    subject: str
    callback: Callable[..., Any]
    followers: Sequence[Follower]


class Subscriptions:
    """The subscriptions of one manager. A registered one starts with the next call of `begin`."""

    def __init__(self, runner: Runner) -> None:
        self._registered: list[tuple[str, Callable[..., Any]]] = []
        self._active: list[Subscription] = []
        self._ending: WeakSet[Follower] = WeakSet()  # each is held by its own work until it is over
        self._turns = FifoLock(runner)

    @property
    def is_waiting(self) -> bool:
        """True if registered subscriptions have not started yet."""
        return bool(self._registered)

    def register(self, subject: str, callback: Callable[..., Any]) -> None:
        """Register a callback."""
        self._registered.append((subject, callback))

    async def begin(self, follow: Callable[..., Sequence[Follower]]) -> None:
        """Start the registered subscriptions. `follow` returns the followers of a subject and callback."""
        await self._turns.run(lambda: self._begin(follow))

    async def _begin(self, follow: Callable[..., Sequence[Follower]]) -> None:
        while self._registered:
            wanted = self._registered[0]
            subscription = Subscription(*wanted, follow(*wanted))
            for follower in subscription.followers:
                await follower.find_start()
            if wanted in self._registered:  # otherwise it was removed in the meantime
                self._registered.remove(wanted)
                self.start(subscription)

    def start(self, subscription: Subscription) -> None:
        """Start the followers of a subscription."""
        self._active.append(subscription)
        for follower in subscription.followers:
            follower.start()

    def remove(self, subject: str, callback: Callable[..., Any]) -> Sequence[Follower] | None:
        """Start no further call of a callback.

        Returns:
            Its followers, which may still be in a call; None if it was not subscribed.
        """
        wanted = (subject, callback)
        waiting = [each for each in self._registered if each != wanted]
        ended = [each for each in self._active if (each.subject, each.callback) == wanted]
        was_subscribed = bool(ended) or len(waiting) < len(self._registered)
        self._registered = waiting
        self._active = [each for each in self._active if each not in ended]
        stopped = [follower for each in ended for follower in each.followers]
        for follower in stopped:
            follower.stop()
        self._ending.update(stopped)
        return stopped if was_subscribed else None

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
        for subscription in list(self._active):
            for follower in subscription.followers:
                await follower.drain()

    async def close(self) -> None:
        """End all subscriptions, after the callbacks in progress."""
        ending = [*self._ending, *(follower for each in self._active for follower in each.followers)]
        self._registered, self._active = [], []
        for follower in ending:
            follower.stop()
        for follower in ending:
            await follower.end()
