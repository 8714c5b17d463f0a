"""Execution of coroutines that never wait, without an event loop.

All code above the drivers is written once, as `async def`. Over a blocking driver such a coroutine runs from
its first line to its last without suspending, so that one `send(None)` finishes it, also inside a running
event loop.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, and return its result.

    Raises:
        RuntimeError: It waited for an event loop, because a blocking handle has an asynchronous driver.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    except SystemError as error:
        if interrupt_behind(error) is None:
            raise
        # Not in a variable, because the traceback of the interrupt references this frame.
        raise (interrupt_behind(error) or error) from None
    finally:
        work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, but was called through a blocking handle")


def interrupt_behind(error: BaseException) -> BaseException | None:
    """Return the interrupt that a `SystemError` of the interpreter hides, such as `KeyboardInterrupt`.

    Python 3.11.2 may run a signal handler again while the exception of its last run is still set. The first
    call of the second run then ends in `SystemError: ... returned a result with an exception set`. Its cause
    is the exception of the first run. `SystemError` is an `Exception`; an interrupt must not be handled as
    one.
    """
    while isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    return None if isinstance(error, Exception) else error


def _step(work: Any) -> Any:
    """Finish a step of an asynchronous generator, without registering it with a running event loop."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return finish(work)
    finally:
        sys.set_asyncgen_hooks(*hooks)


def finish_each(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items of an asynchronous iterator, and close it when the caller stops early."""
    try:
        while True:
            try:
                item: T = _step(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        if close := getattr(items, "aclose", None):
            _step(close())


@contextmanager
def entered(manager: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Enter an asynchronous context manager whose steps never wait."""
    inner: T = _step(manager.__aenter__())
    try:
        yield inner
    except BaseException as error:
        if not _step(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        _step(manager.__aexit__(None, None, None))
