"""Callers of one process that ask for the same: one does it, the others get what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from keepstate._runner import Lock, Promise, Runner

K = TypeVar("K")
T = TypeVar("T")


class Flights(Generic[K, T]):
    """What is being done just now, by what was asked for."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._lock = runner, Lock()
        self._waiting: dict[K, list[Promise[T | None]]] = {}

    async def join(self, asked: K, lead: Callable[[], Awaitable[T]]) -> T:
        """Return what `lead` returned, for this caller or for the one who is at it already.

        What it raises is raised for all. Where who is at it is cancelled, another one goes on.
        """
        while (promise := self._promise(asked)) is not None:
            answer = await promise.wait()
            if answer is not None:
                return answer
        try:
            led = await lead()
        except Exception as error:
            self._settle(asked, None, error)
            raise
        except BaseException:
            self._settle(asked, None, None)
            raise
        self._settle(asked, led, None)
        return led

    def _promise(self, asked: K) -> Promise[T | None] | None:
        """Return what to wait for, or None for who is the first."""
        with self._lock:
            waiting = self._waiting.get(asked)
            if waiting is None:
                self._waiting[asked] = []
                return None
            promise: Promise[T | None] = self._runner.promise()
            waiting.append(promise)
            return promise

    def _settle(self, asked: K, answer: T | None, error: Exception | None) -> None:
        with self._lock:
            waiting = self._waiting.pop(asked)
        for promise in waiting:
            if error is not None:
                promise.fail(error)
            else:
                promise.give(answer)
