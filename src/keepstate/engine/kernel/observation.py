"""Observation: reports the beginning and the end of each operation of a handle to the caller's observer.

An operation is a public call of a handle, a space or a part. A call that it makes on the same object is not
reported again. Other work, such as the renewal of a lease in the background, is reported under the name of
the function that began it. Without an observer none of this runs: only an observed handle gives its spaces
and parts the classes that report.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Final, Protocol, TypeVar

from keepstate._clock import Clock
from keepstate.errors import InvalidError

T = TypeVar("T")

_log = logging.getLogger("keepstate.engine")


class ObservedTask(Protocol):
    """A task that an operation works on.

    Attributes:
        kind: Its kind.
        attempt: The number of the attempt.
        traceparent: The place of its put in a trace, or None.
    """

    kind: str
    attempt: int
    traceparent: str | None

    @property
    def id(self) -> str:
        """Its id."""
        ...


@dataclass(slots=True, eq=False)
class Operation:
    """One operation. It is the same object at its beginning and its end.

    Attributes:
        name: The part and the call, such as `documents.put`, `space.transaction` or `keepstate.sweep`.
        space: The name of the space; None for an operation of the handle.
        tenant: The id of the tenant, or None.
        author: The author of its writes, or None.
        parent: The operation that it is part of, such as a transaction, or None.
        attempts: The number of times that its work was tried: more than 1 after a conflict, or if the
            operation consists of several batches.
        revision: The revision of its last batch; 0 if it wrote nothing, or inside a transaction.
        commit: The id of the commit that it made; None if it made none, or inside a transaction.
        duration_s: The time from its beginning to its end in seconds; 0 before the end.
        error: The exception that ended it, or None.
        task: The task that it works on, for `queue.process`, which is an attempt of a worker; or None.
        ended_as: The end of an attempt: completed, failed, dead, waiting, released, cancelled or lost.
    """

    name: str
    space: str | None
    tenant: str | None
    author: str | None
    parent: Operation | None = None
    attempts: int = 0
    revision: int = 0
    duration_s: float = 0.0
    error: BaseException | None = None
    commit: str | None = None
    task: ObservedTask | None = None
    ended_as: str | None = None
    _of: object = field(default=None, repr=False)
    _began_s: float = field(default=0.0, repr=False)
    _is_over: bool = field(default=False, repr=False)


class Observer(Protocol):
    """Hears of each operation. Its exceptions are logged and not raised.

    Both calls are made in the task or thread of the operation, and must not wait.
    """

    def begin(self, operation: Operation) -> None:
        """Hear that an operation begins."""
        ...

    def end(self, operation: Operation) -> None:
        """Hear that an operation has ended, with its result or its error."""
        ...


def check_observer(observer: object) -> None:
    """Raise `InvalidError` for an object that is not an observer."""
    for call in ("begin", "end"):
        if not callable(getattr(observer, call, None)):
            raise InvalidError(
                f"`observe` is a {type(observer).__name__} without {call}(); give an Observer, which has "
                "begin() and end()"
            )


class EnteringObserver(Observer, Protocol):
    """An observer that also runs with the operation, such as one that sets the present span of a trace."""

    def enter(self, operation: Operation) -> Callable[[], None]:
        """Begin to run code of the operation in the present context, and return what ends that.

        An operation is entered once, a stream for each of its items, and a transaction block never.
        """
        ...


class OperationSource(Protocol):
    """A handle, or the executor of a space or transaction."""

    def begin_operation(self, name: str, of: object) -> tuple[Observation, Operation]:
        """Begin an operation of one of its objects."""
        ...


_current: Final[ContextVar[Operation | None]] = ContextVar("keepstate_operation", default=None)


def current() -> Operation | None:
    """Return the operation that the caller is part of."""
    operation = _current.get()
    # A task that an operation has started may outlive it.
    return None if operation is None or operation._is_over else operation  # pyright: ignore[reportPrivateUsage]


class Observation:
    """The observer of a handle, and the operations that it hears of.

    Args:
        observer: The observer.
        clock: The clock that measures the time.
    """

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer, self._clock = observer, clock
        self._enter: Callable[[Operation], Callable[[], None]] | None = getattr(observer, "enter", None)

    def begin(
        self,
        name: str,
        space: str | None,
        tenant: str | None,
        author: str | None,
        *,
        parent: Operation | None = None,
        of: object = None,
        task: ObservedTask | None = None,
    ) -> Operation:
        """Return a new operation, and tell the observer that it begins."""
        operation = Operation(name, space, tenant, author, parent or current(), task=task, _of=of)
        operation._began_s = self._clock.monotonic_s()  # pyright: ignore[reportPrivateUsage]
        self._tell(self._observer.begin, operation)
        return operation

    def end(self, operation: Operation, error: BaseException | None) -> None:
        """Tell the observer that an operation has ended."""
        operation.error, operation._is_over = error, True  # pyright: ignore[reportPrivateUsage]
        operation.duration_s = self._clock.monotonic_s() - operation._began_s  # pyright: ignore[reportPrivateUsage]
        self._tell(self._observer.end, operation)

    async def run(self, operation: Operation, work: Callable[[], Awaitable[T]]) -> T:
        """Run work as an operation that has begun, and end it."""
        failure = None
        try:
            with self.within(operation):
                return await work()
        except BaseException as error:  # reported, and raised again
            failure = error
            raise
        finally:
            self.end(operation, failure)

    async def iterate(self, operation: Operation, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield items as an operation that has begun, and end it with the iteration."""
        failure = None
        try:
            while True:
                try:
                    with self.within(operation):  # for each step, because the caller continues between them
                        item = await anext(items)
                except StopAsyncIteration:
                    return
                yield item
        except GeneratorExit:  # the caller has ended the iteration
            raise
        except BaseException as error:  # reported, and raised again
            failure = error
            raise
        finally:
            try:
                await items.aclose()
            finally:
                self.end(operation, failure)

    @contextmanager
    def within(self, operation: Operation) -> Generator[None]:
        """Make what runs in the block part of an operation that has begun."""
        token, leave = _current.set(operation), None
        if self._enter is not None:
            try:
                leave = self._enter(operation)
            except Exception:  # noqa: BLE001  a callback's failure must not fail an operation
                self._report(operation)
        try:
            yield
        finally:
            _current.reset(token)
            if leave is not None:
                try:
                    leave()
                except Exception:  # noqa: BLE001  as above
                    self._report(operation)

    def calls_within(
        self, operation: Operation, handler: Callable[[Any], Any], *, is_plain: bool
    ) -> Callable[[Any], Any]:
        """Return a handler, a plain or a coroutine function, whose calls are part of an operation."""

        async def call(task: Any) -> Any:
            with self.within(operation):
                return await handler(task)

        def call_plainly(task: Any) -> Any:
            with self.within(operation):
                return handler(task)

        return call_plainly if is_plain else call

    def _report(self, operation: Operation) -> None:
        _log.exception("The observer %r failed for %s", self._observer, operation.name)

    def _tell(self, tell: Callable[[Operation], None], operation: Operation) -> None:
        try:
            tell(operation)
        except Exception:  # noqa: BLE001  a callback's failure must not fail an operation
            self._report(operation)


def observe(target: T, part: str, unreported: frozenset[str] = frozenset()) -> T:
    """Make a handle, a space or a part report each of its public calls.

    Args:
        target: The object.
        part: The first word of the names of its operations.
        unreported: The names of methods that are not operations.
    """
    kind: Any = type(target)
    target.__class__ = _reporting(kind, part, unreported)
    return target


@lru_cache(maxsize=64)
def _reporting(kind: type, part: str, unreported: frozenset[str]) -> Any:
    """Return a subclass whose public calls report."""
    methods: dict[str, Any] = {}
    for name in dir(kind):
        method = getattr(kind, name)
        if name.startswith("_") or name in unreported:
            continue
        if inspect.iscoroutinefunction(method):
            methods[name] = _reporting_call(method, f"{part}.{name}")
        elif inspect.isasyncgenfunction(method):
            methods[name] = _reporting_iteration(method, f"{part}.{name}")
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, **methods})


def _begin(target: Any, name: str) -> tuple[Observation, Operation] | None:
    """Begin an operation, unless the call is part of an operation of the same object."""
    outer = current()
    if outer is not None and outer._of is target:  # pyright: ignore[reportPrivateUsage]
        return None
    source: OperationSource = getattr(target, "_executor", target)
    return source.begin_operation(name, target)


def _reporting_call(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **options: Any) -> Any:
        if (begun := _begin(self, name)) is None:
            return await method(self, *args, **options)
        observation, operation = begun
        return await observation.run(operation, lambda: method(self, *args, **options))

    return call


def _reporting_iteration(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    async def iterate(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        items = method(self, *args, **options)
        if (begun := _begin(self, name)) is not None:
            items = begun[0].iterate(begun[1], items)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    return iterate
