"""The interface of a connection in this folder: a function that executes one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, cast

import apsw

Binding: TypeAlias = bytes | int | None


class Rows(Protocol):
    """The result of a statement, valid until the next statement on the same connection."""

    @property
    def get(self) -> Any:
        """The only row, or its only column, or None; the statement has then ended."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Execute(Protocol):
    """A function that executes a statement with its bindings."""

    def __call__(self, statement: str, bindings: Sequence[Binding] = (), /) -> Rows:
        """Execute the statement and return its result."""
        ...


def execute_on(connection: apsw.Connection) -> Execute:
    """Return the function that executes on this connection."""
    return cast("Execute", connection.cursor().execute)  # pyright: ignore[reportUnknownMemberType]
