"""One store, used with and without `await`, in any event loop.

What is embedded, in memory, a file or SQLite, belongs to no loop: in asynchronous use its blocking handle
works in a thread beside. A server is reached by a handle of each loop that asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from os import PathLike
from typing import Any, Final, TypeGuard, TypeVar, cast

from keepstate._finish import finish, finish_each
from keepstate._runner import Lock, runner_of
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, CorruptError, InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import HasMode, Store
from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")

_EMBEDDED: Final = ("memory", "file", "sqlite")
_THREADS: Final = 32

Work = Callable[[Keepstate], Coroutine[Any, Any, T]]


class Homes:
    """Handles on one store, of either colour.

    Args:
        place: A URL, the path of an SQLite file, an open store, or a handle on one. What is passed in open is
            not closed here.
        tenant: The tenant whose spaces they are, if any.
        author: Who writes, in what is recorded.
        encryption: The keys that values are encrypted under.
    """

    def __init__(
        self,
        place: str | PathLike[str] | Store | Keepstate,
        *,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
    ) -> None:
        handle: Any = getattr(place, "_inner", place)
        if isinstance(handle, Keepstate):
            if tenant is not None or author is not None or encryption is not None:
                raise InvalidError(f"{handle!r} says already where state is kept, and how; give it alone")
            self._base, self._is_own = handle, False
        else:
            mode = handle.mode if isinstance(handle, HasMode) else "blocking"
            source = source_of(cast("str | PathLike[str] | Store", place), mode, encryption)
            self._base, self._is_own = Keepstate(source, tenant=tenant, author=author), True
        self._by_loop: dict[asyncio.AbstractEventLoop, Keepstate] = {}
        self._loop_of_base: asyncio.AbstractEventLoop | None = None
        self._blocking: Keepstate | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._runner = runner_of("blocking")
        self._is_closed = False
        self._lock = Lock()

    def __repr__(self) -> str:
        return repr(self._base)

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        return self._base.url

    @property
    def tenant_id(self) -> str | None:
        """The tenant whose spaces the handles name."""
        return self._base.tenant_id

    # ---- handles

    def blocking(self) -> Keepstate:
        """Return the handle for use without `await`."""
        with self._lock:
            if self._blocking is None:
                is_it = self._base.runner.mode == "blocking"
                self._blocking = self._base if is_it else self._base.in_mode("blocking")
            return self._blocking

    def here(self) -> Keepstate:
        """Return the handle of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._by_loop.get(loop)
            if found is None:
                self._by_loop = {at: handle for at, handle in self._by_loop.items() if not at.is_closed()}
                found = self._by_loop[loop] = self._of(loop)
            return found

    def _of(self, loop: asyncio.AbstractEventLoop) -> Keepstate:
        if self._base.runner.mode == "async" and self._loop_of_base in (None, loop):
            self._loop_of_base = loop
            return self._base
        return self._base.in_mode("async")

    def _owned(self, handle: Keepstate | None) -> TypeGuard[Keepstate]:
        """Whether it is a handle that was opened here, and not passed in."""
        return handle is not None and (self._is_own or handle is not self._base)

    @cached_property
    def is_embedded(self) -> bool:
        """Whether it works in this process alone, and belongs to no event loop."""
        return self._base.runner.mode == "blocking" and self._scheme in _EMBEDDED

    @cached_property
    def _scheme(self) -> str:
        return self.url.partition(":")[0]

    # ---- working

    def finish(self, work: Work[T]) -> T:
        """Return the result of work, without `await`."""
        try:
            return finish(work(self.blocking()))
        except CorruptError as error:
            self._explain(error)
            raise

    def finish_each(self, work: Callable[[Keepstate], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the results of work, without `await`."""
        try:
            yield from finish_each(work(self.blocking()))
        except CorruptError as error:
            self._explain(error)
            raise

    def _explain(self, error: CorruptError) -> None:
        """Raise `InvalidError` if the file is no damaged store, but one of LangGraph's own."""
        if self._scheme == "sqlite" and isinstance(error.place, str):
            from keepstate.adapters.langgraph.official import refuse_official

            refuse_official(error.place, error)

    async def wait(self, work: Work[T]) -> T:
        """Return the result of work."""
        if not self.is_embedded:
            return await work(self.here())
        if self._scheme == "memory":
            return finish(work(self.blocking()))
        return await self._beside(lambda: self.finish(work))

    async def wait_each(self, work: Callable[[Keepstate], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Yield the results of work."""
        if not self.is_embedded:
            async for one in work(self.here()):
                yield one
            return
        results = self.finish_each(work)
        while some := await self._beside(lambda: [*islice(results, 1)]):
            yield some[0]

    def _beside(self, call: Callable[[], T]) -> Awaitable[T]:
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"what stood on {self!r} is closed; make it anew")
            if self._threads is None:
                self._runner.bind()
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="keepstate")
            self._runner.check(self)  # a fork leaves the threads behind: nobody would do the work
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    # ---- closing

    def close(self) -> None:
        """Close what was opened for use without `await`; twice is once."""
        with self._lock:
            self._is_closed = True
        if self._threads is not None and self._runner.is_home():
            self._threads.shutdown(wait=True)
        blocking = self._blocking or (self._base if self._base.runner.mode == "blocking" else None)
        if self._owned(blocking):
            finish(blocking.close())

    async def leave(self) -> None:
        """Close what was opened for this event loop alone; who works elsewhere goes on."""
        with self._lock:
            found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if self._owned(found):
            await found.close()

    async def aclose(self) -> None:
        """Close what was opened for this event loop, and for use without `await`; twice is once."""
        await self.leave()
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.close)
        else:
            self.close()
