"""Waits and works beside the caller, as tasks or as threads.

Code above the drivers is one `async def` source. Where it has to wait or to run something beside the caller
it asks its runner: `TaskRunner` in the asynchronous colour, `ThreadRunner` in the blocking one, whose
coroutines never suspend. A runner also knows where its handle belongs: the process, and in the asynchronous
colour the event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from time import sleep
from typing import Any, Generic, Literal, Protocol, TypeVar

from keepstate._finish import finish
from keepstate.errors import ClosedError, InvalidError

T = TypeVar("T")
Mode = Literal["async", "blocking"]
Lock = threading.Lock
"""For state that threads share. Never held across an await."""
Cancelled = asyncio.CancelledError
"""What a task is ended by; callers' functions raise it too, where what they waited for was."""

_STOP_TIMEOUT_S = 5.0
_generation = 0


def _count_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def reentrant_lock() -> AbstractContextManager[bool]:
    """Return a lock between threads, for where there is no handle yet; never held across an `await`."""
    return threading.RLock()


def present_process() -> tuple[int, int]:
    """Return what tells this process from those it was forked from: the number of forks, and its id."""
    return _generation, os.getpid()


def present_loop(mode: Mode) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that the caller runs in, None in the blocking colour.

    Raises:
        InvalidError: No event loop of asyncio runs here.
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
    """An answer that one party waits for and another gives, from any thread; the first one counts."""

    def give(self, answer: T) -> None:
        """Give the answer."""
        ...

    def fail(self, error: BaseException) -> None:
        """Raise the error in who waits."""
        ...

    async def wait(self) -> T:
        """Return the answer."""
        ...


class Signal(Protocol):
    """A flag that is raised from any thread and lowered by who waited for it."""

    def set(self) -> None:
        """Raise the flag."""
        ...

    async def wait(self, timeout_s: float) -> bool:
        """Return whether the flag was raised, and lowers it."""
        ...


class Work(Protocol):
    """What runs beside the caller."""

    async def stop(self) -> None:
        """Ask the work to end and wait until it has."""
        ...


class Runner(Protocol):
    """How one handle waits and works."""

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        ...

    def bind(self) -> None:
        """Make the present process and event loop the only ones in which the handle works."""
        ...

    def check(self, handle: object) -> None:
        """Raise `ClosedError` in another process or event loop than the handle's."""
        ...

    def is_home(self) -> bool:
        """Whether this is the process that the handle belongs to."""
        ...

    def place(self) -> object:
        """Return the event loop that runs now, None in the blocking colour: what handles there can share."""
        ...

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a function that blocks: in a thread beside the event loop, or here."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def gather(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
        """Return what works beside one another return or raise, in their order, once all have ended.

        Where the caller is cancelled they are too, and have ended by then.
        """
        ...

    def promise(self) -> Promise[Any]:
        """Return a new promise, to be waited for in this colour."""
        ...

    def signal(self) -> Signal:
        """Return a new signal, to be waited for in this colour."""
        ...

    def detach(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run short work that ends by itself, whatever becomes of the caller."""
        ...

    def start(self, body: Callable[[Signal], Coroutine[Any, Any, None]], name: str) -> Work:
        """Start work beside the caller; its signal tells it to end."""
        ...

    def close(self) -> None:
        """Let go of the threads it made."""
        ...


class ThreadRunner:
    """Blocks the calling thread; works beside it in daemon threads."""

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
    """Waits in an event loop; blocking calls and work run beside it."""

    mode: Literal["async"] = "async"

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
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
            self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="keepstate")
        return await self._home().run_in_executor(self._threads, function, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

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


def is_cancelled() -> bool:
    """Return whether the present task was asked to end; a thread never is."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def process_name() -> str:
    """Return what tells people which process this is."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def runner_of(mode: Mode) -> Runner:
    """Return a new runner."""
    if mode == "async":
        return TaskRunner()
    if mode == "blocking":
        return ThreadRunner()
    raise InvalidError(f"{mode!r} is no colour; a handle is `async` or `blocking`")


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
            self._future.exception()  # who was cancelled does not fetch it; asyncio would complain
        else:
            self._future.set_result(answer)

    async def wait(self) -> T:
        return await self._future


def _in_loop(loop: asyncio.AbstractEventLoop, thread: int, call: Callable[..., None], *args: Any) -> None:
    if threading.get_ident() == thread:
        call(*args)
        return
    with suppress(RuntimeError):  # the loop has ended, and who waited in it too
        loop.call_soon_threadsafe(call, *args)


class _ThreadSignal:
    """A lock that is open while the flag is up: an interrupted `threading.Event` may stay locked inside."""

    __slots__ = ("_gate", "_stays")

    def __init__(self, *, stays: bool = False) -> None:
        self._gate, self._stays = threading.Lock(), stays
        self._gate.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is up already
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
