"""Calls that outlive a cancelled caller, and calls that several callers share.

A write that records the effect of a tool finishes even if its caller is cancelled. Concurrent calls of one
process for the same key share one execution and its result.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from keepstate._runner import Lock, Promise, Runner
from keepstate.errors import KeepstateError

K = TypeVar("K")
T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""Seconds that a cancelled caller waits for the write; after that, the write continues in the background."""
_log = logging.getLogger("keepstate.managers")


async def run_shielded(runner: Runner, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run short work to its end, even if the caller is cancelled, and return its result.

    A cancelled caller waits for the work first.
    """
    promise: Promise[T] = runner.promise()
    over = runner.signal()

    async def whole() -> None:
        try:
            promise.give(await work())
        except BaseException as error:  # noqa: BLE001 - raised by `promise.wait`
            promise.fail(error)
        finally:
            over.set()

    runner.detach(whole)
    try:
        return await promise.wait()
    except BaseException:  # also a cancellation; raised again
        await over.wait(_PATIENCE_S)
        raise


async def record_failure(runner: Runner, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Record a failure. If that fails, log it, because the caller needs the first failure."""
    try:
        await run_shielded(runner, work)
    except KeepstateError as error:
        _log.warning("Could not record how %s ended: %s", what, error)


class SingleFlight(Generic[K, T]):
    """The calls in progress, by key."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._lock = runner, Lock()
        self._waiting: dict[K, list[Promise[T | None]]] = {}

    async def join(self, key: K, lead: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `lead`, called here or by the caller that came first.

        An exception is raised for all callers. If the first caller is cancelled, another one calls `lead`.
        """
        while (promise := self._join_waiting(key)) is not None:
            answer = await promise.wait()
            if answer is not None:
                return answer
        try:
            result = await lead()
        except Exception as error:
            self._settle(key, None, error)
            raise
        except BaseException:  # also a cancellation; raised again
            self._settle(key, None, None)
            raise
        self._settle(key, result, None)
        return result

    def _join_waiting(self, key: K) -> Promise[T | None] | None:
        """Return a promise to wait for, or None for the first caller."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = []
                return None
            promise: Promise[T | None] = self._runner.promise()
            waiting.append(promise)
            return promise

    def _settle(self, key: K, answer: T | None, error: Exception | None) -> None:
        with self._lock:
            waiting = self._waiting.pop(key)
        for promise in waiting:
            if error is not None:
                promise.fail(error)
            else:
                promise.give(answer)
