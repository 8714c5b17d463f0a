"""Single-use async context managers. Entering one twice raises an error that says so."""

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
    """Turn a function that yields once into one that returns a single-use async context manager."""
    block = asynccontextmanager(function)

    @wraps(function)
    def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _SingleUseBlock(function.__name__, block(*args, **kwargs))

    return make_block


def reject_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError` for an async context manager entered by `with`."""
    raise InvalidError(f"{entered!r} is async: use `async with`, or create it from keepstate.sync for `with`")


def reject_async_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError` for a blocking context manager entered by `async with`."""
    raise InvalidError(f"{entered!r} is blocking: use `with`, or create it from keepstate for `async with`")


def second_entry_error(call: str) -> InvalidError:
    """Return the error for entering a block twice."""
    return InvalidError(f"the result of {call}() was entered twice; call {call}() again for a new one")


class _SingleUseBlock(AbstractAsyncContextManager[T, bool | None], Generic[T]):
    def __init__(self, call: str, inner: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._call, self._inner, self._is_used = call, inner, False

    def __repr__(self) -> str:
        return f"the result of {self._call}()"

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> T:
        if self._is_used:
            raise second_entry_error(self._call)
        self._is_used = True
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)
