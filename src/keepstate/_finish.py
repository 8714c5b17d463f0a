"""Runs a coroutine that never waits, without an event loop.

All code above the drivers is written once, as `async def`. Over a blocking driver such a coroutine runs from
its first line to its last without suspending, so that one `send(None)` finishes it, also inside a running
event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Returns what the coroutine returns.

    Raises:
        RuntimeError: It waited for an event loop; an asynchronous driver stands under a blocking handle.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    finally:
        work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, but was called through a blocking handle")


def finish_each(items: AsyncIterator[T]) -> Iterator[T]:
    """Yields what the asynchronous iterator yields, and closes it when the caller stops early."""
    try:
        while True:
            try:
                yield finish(cast("Coroutine[Any, Any, T]", items.__anext__()))
            except StopAsyncIteration:
                return
    finally:
        if close := getattr(items, "aclose", None):
            finish(close())


@contextmanager
def entered(manager: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Enters an asynchronous context manager whose steps never wait."""
    inner = finish(cast("Coroutine[Any, Any, T]", manager.__aenter__()))
    try:
        yield inner
    except BaseException as error:
        leaving = manager.__aexit__(type(error), error, error.__traceback__)
        if not finish(cast("Coroutine[Any, Any, bool | None]", leaving)):
            raise
    else:
        finish(cast("Coroutine[Any, Any, bool | None]", manager.__aexit__(None, None, None)))
