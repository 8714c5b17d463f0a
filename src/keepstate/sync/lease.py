"""Blocking twins of `keepstate.engine.queue.lease`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from keepstate._finish import finish
from keepstate.engine.kernel.positions import Page
from keepstate.engine.queue import lease as engine
from keepstate.engine.queue.lease import LeaseInfo
from keepstate.sync.twin import Twin


class Lease(Twin[engine.Lease]):
    """A lease held by this process until it expires. As a context manager, it is released on exit.

    Attributes:
        name: The name of the lease.
        token: The fencing token. Each later holder gets a larger one.
        ttl_s: Seconds from each renewal until the lease expires.
    """

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._inner.name

    @property
    def token(self) -> int:
        """The fencing token. Each later holder gets a larger one."""
        return self._inner.token

    @property
    def ttl_s(self) -> float:
        """Seconds from each renewal until the lease expires."""
        return self._inner.ttl_s

    def is_held(self) -> bool:
        """Return whether the lease is certainly held, by this machine's clock, without a call to the store.

        After a `HistoryLostError` it returns False, because the store may have lost the lease.
        """
        return self._inner.is_held()

    def check(self) -> None:
        """Check in the store that the lease is still held.

        Raises:
            LeaseLostError: The lease expired or was released.
        """
        finish(self._inner.check())

    def renew(self, ttl_s: float | None = None) -> None:
        """Renew the lease for `ttl_s` seconds from now; by default, for its previous TTL.

        Raises:
            LeaseLostError: The lease expired or was released, and another holder may have it.
        """
        finish(self._inner.renew(ttl_s))

    def release(self) -> bool:
        """Release the lease, and return whether it was still held."""
        return finish(self._inner.release())

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))


class Leases(Twin[engine.Leases]):
    """The leases of a space."""

    def acquire(self, name: str, ttl_s: float, *, wait_s: float = 0) -> Lease:
        """Acquire a lease.

        Args:
            name: The name of the lease; 1 to 512 bytes of UTF-8.
            ttl_s: Seconds until the lease expires, unless it is renewed.
            wait_s: Seconds to wait while another holder has the lease.

        Raises:
            ConflictError: Another holder has the lease.
        """
        return Lease(finish(self._inner.acquire(name, ttl_s, wait_s=wait_s)))

    def resume(self, name: str, token: int, *, ttl_s: float | None = None) -> Lease:
        """Return a lease that this process does not have as an object, by its name and token.

        For a server without state between two calls, and for a process that continues another one's work.

        Args:
            name: The name of the lease.
            token: The fencing token of the holder.
            ttl_s: Renew the lease for this many seconds. By default it keeps its time, and a later `renew`
                uses what is left of it now.

        Raises:
            LeaseLostError: The lease expired or was released, and another holder may have it.
        """
        return Lease(finish(self._inner.resume(name, token, ttl_s=ttl_s)))

    def held(
        self, prefix: str = "", *, after: str | None = None, before: str | None = None, limit: int = 100
    ) -> Page[LeaseInfo]:
        """Return one page of the leases that are held, in the order of their names.

        Args:
            prefix: Only names that start with this text.
            after: The `next` of a page of the same listing: continue after that page.
            before: The `previous` of a page of the same listing: go back to the rows before that page.
            limit: The largest number of leases in the page.

        Raises:
            CompactedError: The log no longer reaches back to the cursor, which cannot be verified.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another space or listing.
        """
        return finish(self._inner.held(prefix, after=after, before=before, limit=limit))

    def holder(self, name: str) -> str | None:
        """Return the author that holds a lease, or None if it is free; `unknown` for an unnamed author."""
        return finish(self._inner.holder(name))
