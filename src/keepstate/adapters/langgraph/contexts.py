"""What may be used with and without `await`: blocks that open and close, and a call that does nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.protocol import Store


class Done:
    """The result of a call that had nothing to do, which may be awaited."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class OnStore(ABC):
    """What stands on a store in either colour, and is closed at the end of a block."""

    @classmethod
    def from_conn_string(
        cls, conn_string: str | PathLike[str] | Store | Keepstate, **options: Any
    ) -> Opened[Self]:
        """Return a block, for `with` and `async with`, that makes one and close it.

        Args:
            conn_string: A store URL, or what else the class takes for one.
            options: As for the class.
        """
        return Opened(lambda: cast("Any", cls)(conn_string, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def setup(self) -> Done:
        """Do nothing, where LangGraph's own make their tables; may be awaited."""
        return Done()

    @abstractmethod
    def close(self) -> None:
        """Let go of the store as far as it is used without `await`; twice is once."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the store, in this event loop and without one; twice is once."""


T = TypeVar("T", bound=OnStore)


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
