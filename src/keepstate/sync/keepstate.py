"""Blocking twins of `keepstate.engine.space.keepstate`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self, overload

from keepstate._finish import finish, finish_each
from keepstate.engine.kernel.positions import Page
from keepstate.engine.space import keepstate as engine
from keepstate.engine.space.keepstate import SpaceInfo, TenantInfo
from keepstate.names import OWN, TenantScope
from keepstate.stores.protocol import Store
from keepstate.sync.space import Space
from keepstate.sync.twin import Twin


class Keepstate(Twin[engine.Keepstate]):
    """Spaces in one store. Made by `keepstate.sync.open`.

    A context manager that closes the store at its end. Threads may share it.

    Attributes:
        tenant_id: The tenant whose spaces the handle names, or None.
        author: The author of writes by the handle, or None.
    """

    @property
    def tenant_id(self) -> str | None:
        """The tenant whose spaces the handle names, or None."""
        return self._inner.tenant_id

    @property
    def author(self) -> str | None:
        """The author of writes by the handle, or None."""
        return self._inner.author

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Release the store. A second call does nothing. A store that was passed in open stays open."""
        finish(self._inner.close())

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self._inner.url

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            InvalidError: The store is not open yet.
        """
        return self._inner.store

    def space(self, name: str, *, author: str | None = None, record: bool = False) -> Space:
        """Return a space. Makes no call to the store.

        Args:
            name: Any text of 1 to 200 bytes of UTF-8. A tenant's id uses part of these: its own bytes, 5
                more, and one more for each of the characters 0 to 2.
            author: The author of writes there. Default: the author of this handle.
            record: Record every change of its documents. From the next change on, each batch that changes
                documents contains a commit of `main`. The space remembers this, every handle in every process
                follows it, and it cannot be turned off. See `Space.at` and `Space.by`.
        """
        return Space(self._inner.space(name, author=author, record=record))

    def tenant(self, id: str) -> Keepstate:
        """Return the handle of a tenant on the same store. Makes no call to the store.

        The tenant's handle reaches the tenant's spaces only. It is closed with this handle; closing it alone
        does nothing.

        Args:
            id: The tenant's id, any text that is not empty.

        Raises:
            InvalidError: This handle belongs to a tenant already, or the id is empty or too long.
        """
        return Keepstate(self._inner.tenant(id))

    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.OWN] = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[str]: ...
    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.ALL],
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[str | None, str]]: ...
    def spaces(
        self,
        under: str = "",
        *,
        tenant: TenantScope = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Yield the names of spaces that are not empty, in the order of their UTF-8 bytes.

        Args:
            under: Only the space of this name and those that continue it after a `/`: `user/1` also finds
                `user/1/notes`, and not `user/10`. With a `/` at its end, only those that continue it.
            tenant: `OWN` yields the spaces of the handle's tenant; without one, those of no tenant. `ALL`
                yields pairs of a tenant and a name, first those of no tenant, and then tenant by tenant.
            after: Only names above this one, which need not exist. For `ALL`, `next` of a page of
                `list_spaces`.
            limit: The largest number of names; by default all.

        Raises:
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        spaces: Any = self._inner.spaces
        return finish_each(spaces(under, tenant=tenant, after=after, limit=limit))

    def list_spaces(
        self, under: str = "", *, tenant: TenantScope = OWN, after: str | None = None, limit: int = 100
    ) -> Page[SpaceInfo]:
        """Return one page of the spaces that are not empty, each with the time of its last change.

        Args:
            under, tenant, after: As for `spaces`. `after=page.next` continues behind a page.
            limit: The largest number of spaces in the page.

        Raises:
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        return finish(self._inner.list_spaces(under, tenant=tenant, after=after, limit=limit))

    def tenants(self, *, after: str | None = None, limit: int = 100) -> Page[TenantInfo]:
        """Return one page of the tenants that have data, in the order of their ids' UTF-8 bytes.

        Costs one call of the store for 256 spaces of small tenants, and at most one for each tenant.

        Args:
            after: Only ids above this one, which need not exist. `after=page.next` continues behind a page.
            limit: The largest number of tenants in the page.

        Raises:
            NotAllowedError: The handle belongs to a tenant.
        """
        return finish(self._inner.tenants(after=after, limit=limit))

    def drop(self, space: str) -> bool:
        """Delete a space with its log. Return whether there was something to delete."""
        return finish(self._inner.drop(space))

    def sweep(self) -> int:
        """Remove expired entries and unreferenced parts of large values, and return the number removed.

        A tenant's handle sweeps the tenant's spaces, any other handle the spaces of all tenants. An encrypted
        store that was opened without keys loses expired entries only.
        """
        return finish(self._inner.sweep())

    def rotate(self) -> int:
        """Encrypt values of older keys again under the newest key, and return the number of values.

        Other processes may read and write during the rotation. It can be interrupted at any time: the next
        call continues. Versions stay the same, and watches report no change. A tenant's handle rotates the
        tenant's spaces only; remove an older key after a handle without a tenant has rotated the whole store.

        Raises:
            UnsupportedError: The store is not encrypted.
        """
        return finish(self._inner.rotate())
