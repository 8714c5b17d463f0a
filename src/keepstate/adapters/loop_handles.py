"""Handles on one store for blocking calls and for any event loop, and the methods that come in both forms.

An embedded store (memory, file, SQLite) belongs to no event loop: asynchronous calls use its blocking handle
in a worker thread. A server has one handle for each event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, wraps
from inspect import signature
from itertools import islice
from os import PathLike
from types import CoroutineType, TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeGuard, TypeVar, cast

from keepstate._finish import finish, finish_each
from keepstate._runner import Lock, runner_of
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, CorruptError, InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import HasMode, Store
from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="OnHandles")

_EMBEDDED: Final = ("memory", "file", "sqlite")
_THREADS: Final = 32

Work = Callable[[Keepstate], Coroutine[Any, Any, T]]
WorkOfMany = Callable[[Keepstate], AsyncIterator[T]]


class LoopHandles:
    """Handles on one store, blocking and asynchronous.

    Args:
        location: A URL, the path of an SQLite file, an open store, or a handle on one. A store or handle that
            was passed in is not closed here.
        tenant: The tenant of the spaces, if any.
        author: The author in recorded changes.
        encryption: The keys that encrypt values.
        explain: Called with the path of an SQLite file that is not a keepstate store, and the error. It may
            raise an error that names the file's true kind.
    """

    def __init__(
        self,
        location: str | PathLike[str] | Store | Keepstate,
        *,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        explain: Callable[[str, CorruptError], None] | None = None,
    ) -> None:
        handle: Any = getattr(location, "_inner", location)
        if isinstance(handle, Keepstate):
            if tenant is not None or author is not None or encryption is not None:
                raise InvalidError(f"{handle!r} already has a tenant, an author and keys; give it alone")
            self._base, self._is_own = handle, False
        else:
            mode = handle.mode if isinstance(handle, HasMode) else "blocking"
            source = source_of(cast("str | PathLike[str] | Store", location), mode, encryption)
            self._base, self._is_own = Keepstate(source, tenant=tenant, author=author), True
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Keepstate, AsyncGenerator[None]]] = {}
        self._loop_of_base: asyncio.AbstractEventLoop | None = None
        self._blocking: Keepstate | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._runner = runner_of("blocking")
        self._explain = explain
        self._is_closed = False
        self._lock = Lock()
        self.leaves_loop = False
        """True if work with a store in memory runs in a thread too, because it may wait."""

    def __repr__(self) -> str:
        return repr(self._base)

    @property
    def url(self) -> str:
        """The store's URL, without a password."""
        return self._base.url

    @property
    def tenant_id(self) -> str | None:
        """The tenant of the handles' spaces."""
        return self._base.tenant_id

    # ---- handles

    def blocking(self) -> Keepstate:
        """Return the handle for blocking calls."""
        with self._lock:
            if self._blocking is None:
                is_blocking = self._base.runner.mode == "blocking"
                self._blocking = self._base if is_blocking else self._base.in_mode("blocking")
            return self._blocking

    def here(self) -> Keepstate:
        """Return the handle of the running event loop, which closes it when it ends."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if (found := self._by_loop.get(loop)) is not None:
                return found[0]
            self._by_loop = {at: each for at, each in self._by_loop.items() if not at.is_closed()}
            handle = self._of(loop)
            self._by_loop[loop] = handle, _begin_closing(handle, owned=self._owns(handle))
            return handle

    def _of(self, loop: asyncio.AbstractEventLoop) -> Keepstate:
        if self._base.runner.mode == "async" and self._loop_of_base in (None, loop):
            self._loop_of_base = loop
            return self._base
        return self._base.in_mode("async")

    def _owns(self, handle: Keepstate | None) -> TypeGuard[Keepstate]:
        """Return whether a handle was opened here, and not passed in."""
        return handle is not None and (self._is_own or handle is not self._base)

    @cached_property
    def is_embedded(self) -> bool:
        """True if the store works in this process alone, and belongs to no event loop."""
        return self._base.runner.mode == "blocking" and self._scheme in _EMBEDDED

    @cached_property
    def _scheme(self) -> str:
        return self.url.partition(":")[0]

    # ---- work

    def finish(self, work: Work[T]) -> T:
        """Return the result of work, in a blocking call."""
        try:
            return finish(work(self.blocking()))
        except CorruptError as error:
            self._explain_file(error)
            raise

    def finish_each(self, work: WorkOfMany[T]) -> Iterator[T]:
        """Yield the results of work, in a blocking call."""
        try:
            yield from finish_each(work(self.blocking()))
        except CorruptError as error:
            self._explain_file(error)
            raise

    def _explain_file(self, error: CorruptError) -> None:
        """Raise a better error if the file is a database of another library, and not a damaged store."""
        if self._explain is not None and self._scheme == "sqlite" and isinstance(error.place, str):
            self._explain(error.place, error)

    async def wait(self, work: Work[T]) -> T:
        """Return the result of work."""
        if not self.is_embedded:
            return await work(self.here())
        if self._scheme == "memory" and not self.leaves_loop:
            return finish(work(self.blocking()))
        return await self._in_thread(lambda: self.finish(work))

    async def wait_each(self, work: WorkOfMany[T]) -> AsyncIterator[T]:
        """Yield the results of work."""
        if not self.is_embedded:
            async for one in work(self.here()):
                yield one
            return
        results = self.finish_each(work)
        while some := await self._in_thread(lambda: [*islice(results, 1)]):
            yield some[0]

    def _in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self!r} was closed; create a new one")
            if self._threads is None:
                self._runner.bind()
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="keepstate")
            self._runner.check(self)  # a forked process has no worker threads
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    # ---- closing

    def close(self) -> None:
        """Close the blocking handle. Closing twice is allowed."""
        with self._lock:
            self._is_closed = True
        if self._threads is not None and self._runner.is_home():
            self._threads.shutdown(wait=True)
        blocking = self._blocking or (self._base if self._base.runner.mode == "blocking" else None)
        if self._owns(blocking):
            finish(blocking.close())

    async def leave(self) -> None:
        """Close the handle of this event loop; other loops and blocking calls continue."""
        with self._lock:
            found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[1].aclose()

    async def aclose(self) -> None:
        """Close the handle of this event loop and the blocking one. Closing twice is allowed."""
        await self.leave()
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.close)
        else:
            self.close()


# ---- classes on a store


def _begin_closing(handle: Keepstate, *, owned: bool) -> AsyncGenerator[None]:
    """Return a generator that closes an owned handle at its own end, which is at the latest that of the loop.

    `asyncio.run` and other runners end all asynchronous generators of a loop before they close it. So a
    program that calls `asyncio.run` again and again leaves no connections behind.
    """

    async def close_at_end() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if owned:
                await handle.close()

    closing = close_at_end()
    with suppress(StopIteration):
        closing.__anext__().__await__().__next__()  # to its `yield`, where nothing is awaited
    return closing


class OnHandles(ABC):
    """A class on a store, for blocking calls and any event loop, closed at the end of a block."""

    _handles: LoopHandles

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the store for blocking calls; a store that was passed in stays open. Twice is allowed."""
        self._handles.close()

    async def aclose(self) -> None:
        """Close the store for this event loop and for blocking calls. Closing twice is allowed."""
        await self._handles.aclose()


M = TypeVar("M", bound=OnHandles)


class Opened(Generic[M]):
    """A block for `with` and `async with` that creates an object and closes it at its end."""

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._made: list[M] = []

    def __enter__(self) -> M:
        self._made.append(self._make())
        return self._made[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.pop().close()

    async def __aenter__(self) -> M:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._made.pop().aclose()


def both(
    prepare: Callable[Concatenate[S, P], Work[T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]]:
    """Return the blocking and the asynchronous form of a method.

    Args:
        prepare: `_name`, which checks its arguments and returns the work. The forms are `name` and `aname`.
    """

    @wraps(prepare)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._handles.finish(prepare(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    @wraps(prepare)
    async def acall(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._handles.wait(prepare(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    result = _result(prepare)
    _describe(prepare, (call, result), (acall, result))
    return call, cast("Any", acall)


def both_each(
    prepare: Callable[Concatenate[S, P], WorkOfMany[T]],
) -> tuple[Callable[Concatenate[S, P], Iterator[T]], Callable[Concatenate[S, P], AsyncIterator[T]]]:
    """Return the blocking and the asynchronous form of a method that yields; as `both`."""

    @wraps(prepare)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._handles.finish_each(prepare(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    @wraps(prepare)
    async def acall(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        async for one in self._handles.wait_each(prepare(self, *args, **kwargs)):  # pyright: ignore[reportPrivateUsage]
            yield one

    result = _result(prepare)
    _describe(prepare, (call, f"Iterator[{result}]"), (acall, f"AsyncIterator[{result}]"))
    return call, acall


def _result(prepare: Any) -> str:
    """Return the `T` of the `Work[T]` or `WorkOfMany[T]` that a method returns."""
    result: str = prepare.__annotations__["return"]
    return result.partition("[")[2].removesuffix("]")


def _describe(prepare: Any, *forms: tuple[Any, str]) -> None:
    """Give the forms of a method their own names and results, instead of those of `prepare`."""
    name, owner = prepare.__name__.removeprefix("_"), prepare.__qualname__.rpartition(".")[0]
    for own, (form, result) in zip((name, f"a{name}"), forms, strict=True):
        del form.__wrapped__
        form.__name__, form.__qualname__ = own, f"{owner}.{own}"
        form.__signature__ = signature(prepare).replace(return_annotation=result)
        form.__annotations__ = {**prepare.__annotations__, "return": result}
