"""Single flight: concurrent calls of one process for the same key share one execution and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from keepstate._runner import Lock, Promise, Runner

K = TypeVar("K")
T = TypeVar("T")


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
