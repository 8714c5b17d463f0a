"""Calls of handlers that can be cancelled from any thread, and the signals that ask a process to end.

For event loops: a coroutine function runs in the loop, a plain function in a thread of its own. A thread
cannot be ended. So a cancelled call of a plain function is left alone, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from keepstate._runner import present_loop
from keepstate.errors import InvalidError

T = TypeVar("T")

_ASKING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ActivityOutcome:
    """The end of a call.

    Attributes:
        value: What it returned.
        error: What it raised, also a `BaseException`.
        is_cancelled: Whether it was cancelled.
    """

    value: Any = None
    error: BaseException | None = None
    is_cancelled: bool = False


class Activity:
    """One call of a handler.

    Attributes:
        outcome: How it ended; None while it runs.
    """

    def __init__(self, call: Callable[[], Coroutine[Any, Any, ActivityOutcome]]) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: ActivityOutcome | None = None
        self._task = self._loop.create_task(self._finish(call))

    async def _finish(self, call: Callable[[], Coroutine[Any, Any, ActivityOutcome]]) -> None:
        try:
            self.outcome = await call()
        except asyncio.CancelledError:
            self.outcome = ActivityOutcome(is_cancelled=True)

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end, and return whether it came in time."""
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        return bool(done)

    def cancel(self) -> None:
        """Cancel the call, from any thread. A call that has ended stays as it ended."""
        with suppress(RuntimeError):  # the loop has ended, and the call with it
            self._loop.call_soon_threadsafe(self._task.cancel)


def run_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an event loop in this thread until some work has ended, and return its result.

    Raises:
        InvalidError: An event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    raise InvalidError("an event loop runs in this thread; open the store with keepstate.open, and await it")


def call_in_loop(function: Callable[[Any], Any], argument: object) -> Activity:
    """Call a coroutine function in the loop."""

    async def call() -> ActivityOutcome:
        try:
            return ActivityOutcome(await function(argument))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's own; also SystemExit, which would end the loop
            return ActivityOutcome(error=error)

    return Activity(call)


def call_in_thread(function: Callable[[Any], Any], argument: object) -> Activity:
    """Call a plain function in a thread of its own, with methods of the argument that block."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[ActivityOutcome] = loop.create_future()
    context, given = copy_context(), Blocking(argument)

    def settle(outcome: ActivityOutcome) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def work() -> None:
        try:
            outcome = ActivityOutcome(context.run(function, given))
        except BaseException as error:  # noqa: BLE001 - a handler's own
            outcome = ActivityOutcome(error=error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    async def call() -> ActivityOutcome:
        outcome = await ended
        if not asyncio.iscoroutine(outcome.value):
            return outcome
        try:
            return ActivityOutcome(await outcome.value)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's own
            return ActivityOutcome(error=error)

    threading.Thread(target=work, name="keepstate handler", daemon=True).start()
    return Activity(call)


class Blocking:
    """An object for a thread: its coroutine functions run in the loop, and block the thread."""

    def __init__(self, inner: object) -> None:
        self._inner, self._loop = inner, present_loop("async")

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(found(*args, **options), self._loop).result()

        return call


class StopSignals:
    """A block in which SIGTERM and SIGINT call a function, in place of ending the process.

    A signal that the application handles itself is left to it, and so are all outside the main thread.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        loop = asyncio.get_running_loop()
        for each in _ASKING:
            former = signal.getsignal(each)
            if _is_default(former):
                with suppress(NotImplementedError):  # on Windows
                    loop.add_signal_handler(each, self._on_signal)
                    self._former[each] = former
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for each, former in self._former.items():
            loop.remove_signal_handler(each)
            signal.signal(each, former)


def _is_default(handler: Any) -> bool:
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"
