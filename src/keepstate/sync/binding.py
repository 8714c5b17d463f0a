"""Blocking twins of `keepstate.binding`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from os import PathLike
from types import TracebackType
from typing import Self, TypedDict, TypeVar

from keepstate import binding
from keepstate._finish import finish
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space, Transaction
from keepstate.sync.twin import Twin


class StorageOptions(TypedDict, total=False):
    """The arguments of a constructor that name its storage.

    Attributes:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space or transaction.
    """

    persistence: str | PathLike[str] | Store | Keepstate | None
    space: Space | Transaction | None


Inner = TypeVar("Inner", bound=binding.Resource)


class Resource(Twin[Inner]):
    """A context manager that releases its storage binding on exit; a borrowed binding stays open."""

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Release the store. A store, handle or space that was passed in open stays open."""
        finish(self._inner.close())
