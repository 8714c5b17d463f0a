"""What every blocking twin is: an asynchronous object whose calls are driven to their end, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from keepstate.engine.scope import refuse_coroutine_function

Inner = TypeVar("Inner")
T = TypeVar("T")
W = TypeVar("W", bound="Twin[Any]")


class Twin(Generic[Inner]):
    """The blocking face of an object in the blocking colour; it has no state of its own."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._inner,)


def inner_of(twin: Twin[Inner]) -> Inner:
    """Returns the asynchronous object in a twin."""
    return twin._inner  # pyright: ignore[reportPrivateUsage]


def receiving(twin: Callable[[Inner], W], function: Callable[[W], T]) -> Callable[[Inner], T]:
    """Returns the caller's function as one that is given the asynchronous object.

    Raises:
        InvalidError: It is no function, or a coroutine function.
    """
    refuse_coroutine_function(function)
    return lambda inner: function(twin(inner))
