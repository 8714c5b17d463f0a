"""What may be used with and without `await`: a block that opens and closes, and a call that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar


class Closes(Protocol):
    """What is closed in either colour."""

    def close(self) -> None:
        """Closes it, without `await`."""
        ...

    async def aclose(self) -> None:
        """Closes it."""
        ...


T = TypeVar("T", bound=Closes)


class Opened(Generic[T]):
    """A block for `with` and `async with`: gives what it makes, and closes it at its end."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []

    def __enter__(self) -> T:
        self._made.append(self._make())
        return self._made[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.pop().close()

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._made.pop().aclose()


class Done:
    """The result of a call that had nothing to do, which may be awaited."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self
