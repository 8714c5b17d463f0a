"""What every blocking twin is: an asynchronous object whose calls are driven to their end, one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from keepstate.engine.kernel.arguments import reject_async_with, second_entry_error
from keepstate.engine.kernel.executor import reject_coroutine_function

Inner = TypeVar("Inner")
P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Twin[Any]")


_kinds: dict[str, Any] = {}
"""The classes of twins by their names, for those that a module cannot import without a circle."""


class Twin(Generic[Inner]):
    """The blocking face of an object in the blocking colour; it has no state of its own."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        _kinds[cls.__name__] = cls

    def __repr__(self) -> str:
        return repr(self._inner)

    if not TYPE_CHECKING:  # who checks types is told without it
        __aenter__ = __aexit__ = reject_async_with


def around(kind: type[W], inner: Any) -> W:
    """Return the twin of an object that is there already, also where users make twins by arguments."""
    twin = kind.__new__(kind)
    twin._inner = inner  # pyright: ignore[reportPrivateUsage]
    return twin


def around_generic(kind: Any, inner: Any) -> Any:
    """Return such a twin of a generic class; who asks for it says what it is generic in."""
    return around(kind, inner)


def transaction_twin(inner: Any) -> Twin[Any]:
    """Return the twin of a transaction."""
    twin: Twin[Any] = _kinds["Transaction"](inner)
    return twin


def inner_of(twin: Twin[Inner]) -> Inner:
    """Return the asynchronous object in a twin; what is none is handed on, to be refused."""
    given: Any = twin
    inner: Inner = getattr(given, "_inner", given)
    return inner


def inner_options(options: Any) -> dict[str, Any]:
    """Return a constructor's options for the asynchronous object, in the blocking mode.

    Raises:
        TypeError: The options name a mode.
    """
    if "_mode" in options:
        raise TypeError("unexpected keyword argument '_mode'")
    twin: Any = Twin  # its type argument does not matter here
    given = {name: value._inner if isinstance(value, twin) else value for name, value in options.items()}
    return {**given, "_mode": "blocking"}


def receiving(
    twin: Callable[[Inner], W], function: Callable[Concatenate[W, P], T]
) -> Callable[Concatenate[Inner, P], T]:
    """Return the caller's function as one that is given the asynchronous object first.

    Raises:
        InvalidError: It is no function, or a coroutine function.
    """
    reject_coroutine_function(function)

    def received(inner: Inner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(twin(inner), *args, **kwargs)

    update_wrapper(received, function)
    return received


def single_use(
    function: Callable[P, Generator[T]],
) -> Callable[P, AbstractContextManager[T, bool | None]]:
    """Make a function that yields once into one that returns a block for `with`, to be entered once."""
    block = contextmanager(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T, bool | None]:
        return _Block(function.__name__, block(*args, **kwargs))

    return made


class _Block(AbstractContextManager[T, bool | None], Generic[T]):
    def __init__(self, call: str, inner: AbstractContextManager[T, bool | None]) -> None:
        self._call, self._inner, self._was_entered = call, inner, False

    def __repr__(self) -> str:
        return f"what {self._call}() returned"

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = reject_async_with

    def __enter__(self) -> T:
        if self._was_entered:
            raise second_entry_error(self._call)
        self._was_entered = True
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)
