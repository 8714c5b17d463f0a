"""Blocking twins of `keepstate.engine.queue.lease`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from keepstate._finish import finish
from keepstate.engine.queue import lease as engine
from keepstate.sync.twin import Twin


class Lease(Twin[engine.Lease]):
    """Something held by this process until its time is up.

    As a context manager it releases itself at the end.

    Attributes:
        name: What is held.
        token: Fences this holder from later ones: each has a higher one.
        ttl_s: How long it is held from each renewal on, in seconds.
    """

    @property
    def name(self) -> str:
        """What is held."""
        return self._inner.name

    @property
    def token(self) -> int:
        """Fences this holder from later ones: each has a higher one."""
        return self._inner.token

    @property
    def ttl_s(self) -> float:
        """How long it is held from each renewal on, in seconds."""
        return self._inner.ttl_s

    def is_held(self) -> bool:
        """Whether it is certainly still held, by this machine's clock; asks nobody, and waits for nothing.

        Once a call has raised `HistoryLostError` it is not: the store may have forgotten it.
        """
        return self._inner.is_held()

    def check(self) -> None:
        """Ask the store whether it is still held.

        Raises:
            LeaseLostError: It ran out, or was released.
        """
        finish(self._inner.check())

    def renew(self, ttl_s: float | None = None) -> None:
        """Hold it for `ttl_s` from now on, or as long as it was acquired for.

        Raises:
            LeaseLostError: It ran out, or was released, and somebody else may hold it.
        """
        finish(self._inner.renew(ttl_s))

    def release(self) -> bool:
        """Let go of it, and return whether it was still held."""
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
        """Return the lease, held from now on.

        Args:
            name: What to hold; 1 to 512 bytes of UTF-8.
            ttl_s: For how long, in seconds, unless it is renewed.
            wait_s: How long to wait for its present holder, in seconds.

        Raises:
            ConflictError: Somebody else holds it.
        """
        return Lease(finish(self._inner.acquire(name, ttl_s, wait_s=wait_s)))

    def holder(self, name: str) -> str | None:
        """Return who holds it, None if nobody does; unnamed authors are `unknown`."""
        return finish(self._inner.holder(name))
