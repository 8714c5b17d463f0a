"""Blocks for `async with` that are entered once; to enter one again is told in words, not by an accident."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, ParamSpec, TypeVar

from keepstate.errors import InvalidError

P = ParamSpec("P")
T = TypeVar("T")


def single_use(
    function: Callable[P, AsyncGenerator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Make a function that yields once into one that returns a block."""
    block = asynccontextmanager(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _Block(function.__name__, block(*args, **kwargs))

    return made


def reject_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError`: what is entered by `async with` was entered by `with`."""
    raise InvalidError(f"{entered!r} is entered by `async with`; what keepstate.sync makes, by `with`")


def reject_async_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError`: what is entered by `with` was entered by `async with`."""
    raise InvalidError(f"{entered!r} is for blocking use, by `with`; for `async with` take it from keepstate")


def second_entry_error(call: str) -> InvalidError:
    """Return the error of who enters a block again."""
    return InvalidError(f"what {call}() returned was entered before; call {call}() again for another")


class _Block(AbstractAsyncContextManager[T, bool | None], Generic[T]):
    def __init__(self, call: str, inner: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._call, self._inner, self._was_entered = call, inner, False

    def __repr__(self) -> str:
        return f"what {self._call}() returned"

    if not TYPE_CHECKING:  # who checks types is told without it
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> T:
        if self._was_entered:
            raise second_entry_error(self._call)
        self._was_entered = True
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)
