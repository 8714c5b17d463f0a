"""Runners: waiting and concurrent work, by tasks or by threads.

Code above the drivers is one `async def` source. To wait or to run work concurrently, it calls its runner:
`TaskRunner` in async mode, `ThreadRunner` in blocking mode, whose coroutines never suspend. A runner also
knows the process of its handle and, in async mode, the event loop.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from time import sleep
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from keepstate._deferral import defer_imports
from keepstate._finish import finish
from keepstate.errors import ClosedError, InvalidError

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures as _futures
    import inspect
    import socket
else:
    defer_imports(
        globals(), asyncio="asyncio", _futures="concurrent.futures", inspect="inspect", socket="socket"
    )

T = TypeVar("T")
Mode = Literal["async", "blocking"]
Lock = threading.Lock
"""A lock for state shared by threads. Never held across an await."""

_STOP_TIMEOUT_S = 5.0
_generation = 0


def _count_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def reentrant_lock() -> AbstractContextManager[bool]:
    """Return a lock between threads for code without a handle; never held across an `await`."""
    return threading.RLock()


def fork_generation() -> int:
    """Return the number of forks that led to this process."""
    return _generation


def present_process() -> tuple[int, int]:
    """Return the identity of this process: the number of forks that led to it, and its id."""
    return _generation, os.getpid()


def present_loop(mode: Mode) -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None in blocking mode.

    Raises:
        InvalidError: No asyncio event loop is running.
    """
    return _running_loop() if mode == "async" else None


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InvalidError(
            "no event loop of asyncio runs here, and asynchronous handles work in one; in blocking code use "
            "keepstate.sync.open, under trio the same in trio.to_thread.run_sync"
        ) from error


class Promise(Protocol[T]):
    """A result that any thread can set once. Later results are ignored."""

    def give(self, answer: T) -> None:
        """Give the answer."""
        ...

    def fail(self, error: BaseException) -> None:
        """Make `wait` raise the error."""
        ...

    async def wait(self) -> T:
        """Return the answer."""
        ...


class Signal(Protocol):
    """A flag that any thread can set, and that waiting for it clears."""

    def set(self) -> None:
        """Raise the flag."""
        ...

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the flag, clear it, and return whether it was set."""
        ...


class Work(Protocol):
    """Background work."""

    async def stop(self) -> None:
        """Ask the work to end and wait until it has."""
        ...


class Runner(Protocol):
    """Waiting and concurrent work of one handle."""

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        ...

    def bind(self) -> None:
        """Bind the handle to the current process and event loop."""
        ...

    def check(self, handle: object) -> None:
        """Raise `ClosedError` in another process or event loop than the handle's."""
        ...

    def is_home(self) -> bool:
        """Return whether this is the process that the handle belongs to."""
        ...

    def place(self) -> object:
        """Return the running event loop; None in blocking mode. Handles in the same one can share objects."""
        ...

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a function that blocks: in a thread in async mode, otherwise directly."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def run_function(
        self, function: Callable[..., Any], args: Sequence[Any], timeout_s: float | None
    ) -> Any:
        """Return the result of a caller's function, awaited if necessary.

        In async mode, a plain function runs in a thread. After `timeout_s`, a coroutine is cancelled, and a
        thread is left alone.

        Raises:
            TimeoutError: It took longer than `timeout_s`.
        """
        ...

    async def gather(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
        """Run works concurrently, and return their results or errors in order, once all have ended.

        If the caller is cancelled, the works are cancelled too, and have ended before this call does.
        """
        ...

    def promise(self) -> Promise[Any]:
        """Return a new promise for this mode."""
        ...

    def signal(self) -> Signal:
        """Return a new signal for this mode."""
        ...

    def detach(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run short work that continues even if the caller is cancelled."""
        ...

    def start(self, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str) -> Work:
        """Start background work. Its signal asks it to end."""
        ...

    def close(self) -> None:
        """Release the threads of the runner."""
        ...


class ThreadRunner:
    """Blocks the calling thread, and runs concurrent work in daemon threads."""

    mode: Literal["blocking"] = "blocking"

    def __init__(self) -> None:
        self.bind()

    def bind(self) -> None:
        self._generation, self._pid = _generation, os.getpid()

    def check(self, handle: object) -> None:
        if self._generation != _generation:
            raise ClosedError(f"{handle!r} was opened in process {self._pid}; open it in this process")

    def is_home(self) -> bool:
        return self._generation == _generation

    def place(self) -> object:
        return None

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        return function(*args)

    async def sleep(self, seconds: float) -> None:
        sleep(seconds)

    async def run_function(
        self, function: Callable[..., Any], args: Sequence[Any], timeout_s: float | None
    ) -> Any:
        if timeout_s is None:
            return function(*args)
        promise = _ThreadPromise[Any]()

        def work() -> None:
            try:
                promise.give(function(*args))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, whose function it is
                promise.fail(error)

        threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
        if not promise.is_settled(timeout_s):
            raise _late_error(function, timeout_s)
        return await promise.wait()

    async def gather(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
        answers: list[T | BaseException] = [ClosedError("it was interrupted")] * len(works)

        def work_on(index: int) -> None:
            try:
                answers[index] = finish(works[index]())
            except BaseException as error:  # noqa: BLE001 - handed to the caller, whose work it is
                answers[index] = error

        threads = [
            threading.Thread(target=copy_context().run, args=(work_on, index), daemon=True)
            for index in range(1, len(works))
        ]
        for thread in threads:
            thread.start()
        if works:
            work_on(0)
        for thread in threads:
            thread.join()
        return answers

    def promise(self) -> Promise[Any]:
        return _ThreadPromise()

    def signal(self) -> Signal:
        return _ThreadSignal()

    def detach(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        finish(work())

    def start(self, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str) -> Work:
        return _ThreadWork(body, name)

    def close(self) -> None:
        return


class TaskRunner:
    """Waits in an event loop, and runs blocking calls in threads."""

    mode: Literal["async"] = "async"

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: _futures.ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._generation, self._pid = _generation, os.getpid()

    def bind(self) -> None:
        self._loop = _running_loop()
        self._generation, self._pid = _generation, os.getpid()

    def check(self, handle: object) -> None:
        if self._generation != _generation:
            raise ClosedError(f"{handle!r} was opened in process {self._pid}; open it in this process")
        if self._loop is not _running_loop():
            raise ClosedError(f"{handle!r} was opened in another event loop; open it in this one")

    def is_home(self) -> bool:
        return self._generation == _generation

    def place(self) -> object:
        return _running_loop()

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        if self._threads is None:
            self._threads = _futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="keepstate")
        return await self._home().run_in_executor(self._threads, function, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_function(
        self, function: Callable[..., Any], args: Sequence[Any], timeout_s: float | None
    ) -> Any:
        async def work() -> Any:
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            answer, error = await self._call_in_daemon(function, args)
            if error is not None:
                raise error
            return await answer if inspect.isawaitable(answer) else answer

        if timeout_s is None:
            return await work()
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await work()
        except TimeoutError:
            if deadline.expired():
                raise _late_error(function, timeout_s) from None
            raise

    async def _call_in_daemon(
        self, function: Callable[..., Any], args: Sequence[Any]
    ) -> tuple[Any, BaseException | None]:
        """Return the result or the error of a function.

        Its thread is a daemon of its own. A function that never ends takes no thread from others, and does
        not keep the process from ending, as it would in the loop's executor.
        """
        promise: Promise[tuple[Any, BaseException | None]] = self.promise()

        def work() -> None:
            try:
                answer = function(*args)
            except BaseException as error:  # noqa: BLE001 - handed to the caller, whose function it is
                promise.give((None, error))
            else:
                promise.give((answer, None))

        thread = threading.Thread(
            target=copy_context().run, args=(work,), name="keepstate function", daemon=True
        )
        thread.start()
        return await promise.wait()

    async def gather(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
        tasks = [self._home().create_task(work()) for work in works]
        try:
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if unfinished := [task for task in tasks if not task.done()]:
                await asyncio.wait(unfinished)

    def promise(self) -> Promise[Any]:
        return _TaskPromise(self._home())

    def signal(self) -> Signal:
        return _TaskSignal(self._home())

    def detach(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._home().create_task(work())
        self._tasks.add(task)  # the loop itself keeps tasks by weak reference only
        task.add_done_callback(self._tasks.discard)

    def start(self, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str) -> Work:
        return _TaskWork(self._home(), body, name)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _home(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self.bind()
        assert self._loop is not None
        return self._loop


def cancelled_error() -> type[BaseException] | tuple[()]:
    """Return the exception of a cancelled task, for `except`; without asyncio in the process, nothing.

    A caller's function raises it if its awaited task was cancelled.
    """
    return asyncio.CancelledError if "asyncio" in sys.modules else ()


def _late_error(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    name = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{name} took longer than {timeout_s:g} s")


def is_cancelled() -> bool:
    """Return whether the present task was asked to end; a thread never is."""
    if "asyncio" not in sys.modules:
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def process_name() -> str:
    """Return a readable name of this process."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def runner_of(mode: Mode) -> Runner:
    """Return a new runner."""
    if mode == "async":
        return TaskRunner()
    if mode == "blocking":
        return ThreadRunner()
    raise InvalidError(f"{mode!r} is not a mode; a handle is `async` or `blocking`")


class _ThreadPromise(Generic[T]):
    __slots__ = ("_answer", "_error", "_gate", "_settled")

    def __init__(self) -> None:
        self._gate, self._settled = threading.Lock(), threading.Lock()
        self._gate.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None

    def give(self, answer: T) -> None:
        self._settle(answer, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    def _settle(self, answer: Any, error: BaseException | None) -> None:
        if not self._settled.acquire(blocking=False):
            return  # only the first answer counts
        self._answer, self._error = answer, error
        self._gate.release()

    def is_settled(self, timeout_s: float) -> bool:
        """Return whether an answer or an error comes in time."""
        if not self._gate.acquire(timeout=timeout_s):
            return False
        self._gate.release()
        return True

    async def wait(self) -> T:
        with self._gate:
            if self._error is not None:
                raise self._error
            answer: T = self._answer
            return answer


class _TaskPromise(Generic[T]):
    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread = loop, threading.get_ident()
        self._future: asyncio.Future[T] = loop.create_future()

    def give(self, answer: T) -> None:
        _in_loop(self._loop, self._thread, self._settle, answer, None)

    def fail(self, error: BaseException) -> None:
        _in_loop(self._loop, self._thread, self._settle, None, error)

    def _settle(self, answer: Any, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
            self._future.exception()  # marks it as retrieved, or asyncio would log it
        else:
            self._future.set_result(answer)

    async def wait(self) -> T:
        return await self._future


def _in_loop(loop: asyncio.AbstractEventLoop, thread: int, call: Callable[..., None], *args: Any) -> None:
    if threading.get_ident() == thread:
        call(*args)
        return
    with suppress(RuntimeError):  # the loop has ended, and its waiters with it
        loop.call_soon_threadsafe(call, *args)


class _ThreadSignal:
    """A lock that is open while the flag is set. An interrupted `threading.Event` may stay locked inside."""

    __slots__ = ("_gate", "_stays")

    def __init__(self, *, stays: bool = False) -> None:
        self._gate, self._stays = threading.Lock(), stays
        self._gate.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # the flag is set already
            self._gate.release()

    async def wait(self, timeout_s: float) -> bool:
        raised = self._gate.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        if raised and self._stays:
            self.set()
        return raised


class _TaskSignal:
    __slots__ = ("_event", "_loop", "_stays", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, stays: bool = False) -> None:
        self._loop, self._thread = loop, threading.get_ident()
        self._event, self._stays = asyncio.Event(), stays

    def set(self) -> None:
        _in_loop(self._loop, self._thread, self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        raised = self._event.is_set()
        if not self._stays:
            self._event.clear()
        return raised


class _ThreadWork:
    def __init__(self, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str) -> None:
        self._signal = _ThreadSignal(stays=True)
        self._thread = threading.Thread(
            target=lambda: finish(body(self._signal)), name=f"keepstate {name}", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        self._signal.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)


class _TaskWork:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str
    ) -> None:
        self._signal = _TaskSignal(loop, stays=True)
        self._task = loop.create_task(body(self._signal), name=f"keepstate {name}")

    async def stop(self) -> None:
        self._signal.set()
        if self._task is asyncio.current_task():
            return
        done, _ = await asyncio.wait([self._task], timeout=_STOP_TIMEOUT_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
