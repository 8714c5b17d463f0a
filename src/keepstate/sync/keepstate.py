"""Blocking twins of `keepstate.engine.space.keepstate`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from keepstate._finish import finish, finish_each
from keepstate.engine.space import keepstate as engine
from keepstate.stores.protocol import Store
from keepstate.sync.space import Space
from keepstate.sync.twin import Twin


class Keepstate(Twin[engine.Keepstate]):
    """Spaces in one store. Made by `keepstate.sync.open`.

    A context manager that closes the store at its end. Threads may share it.

    Attributes:
        tenant_id: The tenant whose spaces it names, or None.
        author: Who writes, or None.
    """

    @property
    def tenant_id(self) -> str | None:
        """The tenant whose spaces it names, or None."""
        return self._inner.tenant_id

    @property
    def author(self) -> str | None:
        """Who writes, or None."""
        return self._inner.author

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Let go of the store; twice is once. A store that was passed in open stays open."""
        finish(self._inner.close())

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        return self._inner.url

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            InvalidError: Nothing has opened it yet.
        """
        return self._inner.store

    def space(self, name: str, *, author: str | None = None, record: bool = False) -> Space:
        """Return a space; asks the store nothing.

        Args:
            name: Any text of 1 to 200 bytes of UTF-8. A tenant's id takes room of these: its own bytes and 5
                more, and one more for each of the characters 0 to 2.
            author: Who writes there; without it, who writes here.
            record: Keeps every moment of its documents: from the next change on, each batch that changes some
                has a commit of `main` in it. The space remembers that; every handle in every process obeys,
                and it does not end. See `Space.at` and `Space.by`.
        """
        return Space(self._inner.space(name, author=author, record=record))

    def tenant(self, id: str) -> Keepstate:
        """Return the handle of a tenant on the same store; asks the store nothing.

        It names the tenant's spaces and reaches no others. It is closed with this handle, and its own end
        closes nothing.

        Args:
            id: Any text but the empty one.

        Raises:
            InvalidError: This handle is a tenant's itself, or the id is empty or too long.
        """
        return Keepstate(self._inner.tenant(id))

    def spaces(self, under: str = "") -> Iterator[str]:
        """Yield the names of spaces that hold something, in the order of their UTF-8 bytes.

        Those of this handle's tenant; without a tenant, those that have none.

        Args:
            under: Only the space of this name and those that continue it after a `/`: with `user/1` also
                `user/1/notes`, and not `user/10`. With a `/` at its end only those that continue it.
        """
        return finish_each(self._inner.spaces(under))

    def drop(self, space: str) -> None:
        """Remove all that is in a space, its log too; an absent one stays absent."""
        finish(self._inner.drop(space))

    def sweep(self) -> int:
        """Remove what has expired and parts of large values that nothing names; returns how many.

        A tenant's handle sweeps the tenant's spaces, any other one those of all tenants. Of an encrypted
        store that was opened without keys, only what has expired.
        """
        return finish(self._inner.sweep())

    def rotate(self) -> int:
        """Encrypt again, under the newest key, what stands under older ones; returns how many values.

        Others may read and write meanwhile. It can be ended at any time: the next call goes on. Versions stay
        as they are, and no change is told of. A tenant's handle takes the tenant's spaces alone; an older key
        may go only after a handle without a tenant has done the whole store.

        Raises:
            UnsupportedError: The store is not encrypted.
        """
        return finish(self._inner.rotate())
