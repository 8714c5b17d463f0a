"""A store around another: every call handed on, so that a wrapper writes only what it does otherwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

from keepstate._runner import Mode, Runner
from keepstate.errors import UnsupportedError
from keepstate.stores.base import StoreBase
from keepstate.stores.hints import HintListener
from keepstate.stores.protocol import (
    Batch,
    Capabilities,
    Changes,
    DetectsLosses,
    Inspected,
    Leap,
    Outcome,
    Page,
    Reading,
    Setting,
)


class StoreWrapper:
    """Hands each call on. A wrapper has the lifetime of its store: either's `close` closes both.

    Args:
        store: What it stands around, opened or not.
    """

    def __init__(self, store: StoreBase | StoreWrapper) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'open' if self.is_open else 'closed'}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"{self!r} cannot be pickled; pickle its URL and open it where it is used")

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        raise UnsupportedError(
            f"{self!r} cannot be made again, for another colour or after it failed to open: "
            f"{type(self).__name__} has no `around`"
        )

    # ---- opening and closing

    @property
    def is_open(self) -> bool:
        """Return whether it was opened and not closed."""
        return self._store.is_open

    async def open(self) -> Self:
        """Open the store, unless it is open already, and return this wrapper."""
        if not self._store.is_open:
            await self._store.open()
        return self

    async def close(self) -> None:
        """Close the store; twice is once."""
        await self._store.close()

    def warn_if_open(self) -> None:
        """Warn, once, that who held it has dropped it and not closed it."""
        self._store.warn_if_open()

    def twin(self, runner: Runner) -> Self:
        """Return the same wrapper around the store's twin for another colour, not yet opened."""
        return self.around(self._store.twin(runner))

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        return self._store.url

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        return self._store.mode

    @property
    def capabilities(self) -> Capabilities:
        """Return what the store offers."""
        return self._store.capabilities

    @property
    def retries(self) -> bool:
        """Return whether replies can be lost: then every batch is tried again under a token."""
        return self._store.retries

    # ---- the protocol

    def check_batches(self, batches: Sequence[Batch]) -> list[int]:
        """Return the batches' sizes, all of them well-formed."""
        return self._store.check_batches(batches)

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply what a wrapper around this one has admitted."""
        return await self._store.apply_checked(batches, sizes)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all."""
        return await self._store.apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key."""
        return await self._store.read(space, keys, at_ms=at_ms)

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Read a page of entries."""
        return await self._store.scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        return await self._store.changes(space, after, limit=limit)

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Wait for a hint."""
        await self._store.wait(spaces, timeout_s)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces."""
        return await self._store.spaces(prefix, after=after, limit=limit)

    async def drop(self, space: str) -> None:
        """Empty a space."""
        await self._store.drop(space)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove expired entries."""
        return await self._store.sweep(prefix, limit=limit)

    def losses(self, space: str) -> int:
        """Return how often the store found that the space had lost history."""
        return self._store.losses(space) if isinstance(self._store, DetectsLosses) else 0

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time."""
        return await self._store.last_leap(space)

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that hears every hint of these spaces from now on."""
        return self._store.listen(spaces)

    async def settings(self) -> Sequence[Setting]:
        """Return what decides beneath the store what it keeps."""
        return await self._store.settings() if isinstance(self._store, Inspected) else ()

    def object_name(self, space: str, content: bytes) -> bytes | None:
        """Return the name of what is named by its content, None where a digest will do."""
        return self._store.object_name(space, content) if isinstance(self._store, StoreWrapper) else None
