"""An encrypted store that was opened without its keys: it can be inspected, but not written to.

Readers with the keys could not decrypt values written without them, and those would replace sealed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final, Self, Unpack

from keepstate.errors import CorruptError, InvalidError, KeepstateError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    ENCRYPTION_SPACE,
    Batch,
    Changes,
    Outcome,
    Page,
    Reading,
    ScanOptions,
    Sizes,
)
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import limits

RECORD: Final = b"\x01store"
"""The key of the record that all sealed values are bound to; its presence shows that a store is encrypted."""


async def reject_writes_if_encrypted(store: StoreBase | StoreWrapper) -> StoreBase | StoreWrapper:
    """Return an open store, or a wrapper that rejects writes if the store is encrypted."""
    try:
        found = (await store.read(ENCRYPTION_SPACE, [RECORD])).entries[0]
    except CorruptError as error:  # it can still be inspected and repaired
        return KeylessStore(store, error)
    if found is None:
        return store
    return KeylessStore(
        store,
        InvalidError(f"{store.url} is encrypted. Open it with encryption=KeyRing(…)."),
    )


def reject_record_space(space: str) -> None:
    """Raise `InvalidError` for the space of the record, without which no value can be decrypted."""
    if space == ENCRYPTION_SPACE:
        raise InvalidError(
            f"Space name {ENCRYPTION_SPACE!r}, which encryption reserves, cannot be used. Use another name."
        )


class StoreWithRecord(StoreWrapper):
    """A wrapper around sealed values, which neither lists nor drops the space of the record."""

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Return the names of spaces, without the space of the record."""
        limits.admit_count("limit", limit)
        names = await self._store.spaces(prefix, after=after, limit=min(limit + 1, limits.COUNT))
        return [name for name in names if name != ENCRYPTION_SPACE][:limit]

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Remove a space; return whether it was there."""
        reject_record_space(space)
        return await self._store.drop(space, at=at)


class KeylessStore(StoreWithRecord):
    """A wrapper that forwards reads, drops and sweeps, and rejects writes and the space of the record.

    Args:
        store: The open store of the sealed values.
        refusal: The error for a batch that writes.
    """

    def __init__(self, store: StoreBase | StoreWrapper, refusal: KeepstateError) -> None:
        super().__init__(store)
        self._refusal = refusal

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        return type(self)(store, self._refusal)

    @property
    def lacks_keys(self) -> bool:
        """Return True, because values cannot be decrypted."""
        return True

    @property
    def beneath(self) -> StoreBase | StoreWrapper:
        """The store of the sealed values, for a copy of all of them."""
        return self._store

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read sealed entries by key."""
        reject_record_space(space)
        return await self._store.read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read a page of sealed entries."""
        reject_record_space(space)
        return await self._store.scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        """Read the size of each part; the bytes are counted as sealed."""
        reject_record_space(space)
        return await self._store.sizes(space)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        reject_record_space(space)
        return await self._store.changes(space, after, limit=limit)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply batches without writes.

        Raises:
            InvalidError: A batch writes.
        """
        self._reject_writes(batches)
        return await self._store.apply(batches)

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply checked batches without writes."""
        self._reject_writes(batches)
        return await self._store.apply_checked(batches, sizes)

    def _reject_writes(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            reject_record_space(batch.space)
        if any(batch.writes for batch in batches):
            raise copy(self._refusal)  # each caller raises its own
