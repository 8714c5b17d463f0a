"""The base of wrappers: it forwards every call to another store, and a subclass overrides some."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self, Unpack

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
    ScanOptions,
    Setting,
    Sizes,
)


class StoreWrapper:
    """A store that forwards each call. A wrapper and its store have one lifetime: closing either closes both.

    Args:
        store: The wrapped store, open or not.
    """

    def __init__(self, store: StoreBase | StoreWrapper) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'open' if self.is_open else 'closed'}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"{self!r} cannot be pickled. Pickle its URL and open that in the other process.")

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        raise UnsupportedError(
            f"{self!r} cannot be created again, for another mode or after a failed opening, because "
            f"{type(self).__name__} does not implement `around`. Add that method."
        )

    # ---- opening and closing

    @property
    def is_open(self) -> bool:
        """Return whether the store was opened and is not closed."""
        return self._store.is_open

    async def open(self) -> Self:
        """Open the store, unless it is open already, and return this wrapper."""
        if not self._store.is_open:
            await self._store.open()
        return self

    async def close(self) -> None:
        """Close the store; a second call does nothing."""
        await self._store.close()

    def warn_if_open(self) -> None:
        """Warn, once, that the store was dropped without being closed."""
        self._store.warn_if_open()

    def twin(self, runner: Runner) -> Self:
        """Return the same wrapper around the store's unopened twin for another mode."""
        return self.around(self._store.twin(runner))

    @property
    def url(self) -> str:
        """Return the URL of the store, without a password."""
        return self._store.url

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        return self._store.mode

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of the store."""
        return self._store.capabilities

    @property
    def retries(self) -> bool:
        """Return whether replies can be lost. If so, every batch is retried under a token."""
        return self._store.retries

    # ---- the protocol

    def check_batches(self, batches: Sequence[Batch]) -> list[int]:
        """Validate batches and return their sizes in bytes."""
        return self._store.check_batches(batches)

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that a wrapper around this one has checked."""
        return await self._store.apply_checked(batches, sizes)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all."""
        return await self._store.apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key."""
        return await self._store.read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read a page of entries."""
        return await self._store.scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        """Read the size of each part."""
        return await self._store.sizes(space)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        return await self._store.changes(space, after, limit=limit)

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Wait for a hint."""
        await self._store.wait(spaces, timeout_s)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces."""
        return await self._store.spaces(prefix, after=after, limit=limit)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Empty a space; return whether it was there."""
        return await self._store.drop(space, at=at)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove expired entries."""
        return await self._store.sweep(prefix, limit=limit)

    async def trim(self, space: str, *, keep: int = 1) -> None:
        """Remove the log of a space but the last revisions."""
        await self._store.trim(space, keep=keep)

    async def scrub(self) -> Sequence[str]:
        """Rewrite the files without deleted data. Return in words the places that may still have it."""
        return await self._store.scrub()

    def losses(self, space: str) -> int:
        """Return the number of losses that the store found in the space's history."""
        return self._store.losses(space) if isinstance(self._store, DetectsLosses) else 0

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time."""
        return await self._store.last_leap(space)

    async def changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        """Return the time of each space's last revision, or None if it is not known."""
        return await self._store.changed_ms(spaces)

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that receives every hint of these spaces from now on."""
        return self._store.listen(spaces)

    async def settings(self) -> Sequence[Setting]:
        """Return the settings of the system under the store that decide its durability."""
        return await self._store.settings() if isinstance(self._store, Inspected) else ()

    def object_name(self, space: str, content: bytes) -> bytes | None:
        """Return the name of a content-named object, or None if a digest may be its name."""
        return self._store.object_name(space, content) if isinstance(self._store, StoreWrapper) else None
