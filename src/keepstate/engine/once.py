"""Blocks for `async with` that are entered once; to enter one again is told in words, not by an accident."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

from keepstate.errors import InvalidError

P = ParamSpec("P")
T = TypeVar("T")


def entered_once(
    function: Callable[P, AsyncGenerator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Makes a function that yields once into one that returns a block."""
    block = asynccontextmanager(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _Block(function.__name__, block(*args, **kwargs))

    return made


def refuse_second(call: str) -> InvalidError:
    """Returns the error of who enters a block again."""
    return InvalidError(f"what {call}() returned was entered before; call {call}() again for another")


class _Block(AbstractAsyncContextManager[T, bool | None], Generic[T]):
    def __init__(self, call: str, inner: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._call, self._inner, self._was_entered = call, inner, False

    async def __aenter__(self) -> T:
        if self._was_entered:
            raise refuse_second(self._call)
        self._was_entered = True
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)
