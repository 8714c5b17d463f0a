"""An encrypted store that was opened without its keys: it may be looked at, and nothing is written into it.

Whoever holds the keys could not read what is written without them, and it would stand where sealed values
stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final, Self

from keepstate.errors import CorruptError, InvalidError, KeepstateError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ENCRYPTION_SPACE, Batch, Changes, Outcome, Page, Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import limits

RECORD: Final = b"\x01store"
"""The key of what all sealed values are bound to: who finds it knows that the store is encrypted."""


async def refused_if_encrypted(store: StoreBase | StoreWrapper) -> StoreBase | StoreWrapper:
    """Return an opened store, or what refuses writes to it if it is encrypted."""
    try:
        found = (await store.read(ENCRYPTION_SPACE, [RECORD])).entries[0]
    except CorruptError as error:  # it may still be looked at, and repaired
        return KeylessStore(store, error)
    if found is None:
        return store
    return KeylessStore(
        store,
        InvalidError(f"{store.url} is encrypted; open it with encryption=KeyRing(…)"),
    )


def refuse_record(space: str) -> None:
    """Raise `InvalidError` for the space of the record: without it no value of the store opens again."""
    if space == ENCRYPTION_SPACE:
        raise InvalidError(f"space {ENCRYPTION_SPACE!r} is the encryption's own; give another name")


async def spaces_but_record(
    store: StoreBase | StoreWrapper, prefix: str, after: str | None, limit: int
) -> list[str]:
    """Return a page of the names of spaces, without the one of the record."""
    limits.admit_count("limit", limit)
    names = await store.spaces(prefix, after=after, limit=min(limit + 1, limits.COUNT))
    return [name for name in names if name != ENCRYPTION_SPACE][:limit]


class KeylessStore(StoreWrapper):
    """Hands on what reads, drops and sweeps, and refuses each batch that writes, and the space of the record.

    Args:
        store: What keeps the sealed values, opened.
        refusal: What a batch that writes is told.
    """

    def __init__(self, store: StoreBase | StoreWrapper, refusal: KeepstateError) -> None:
        super().__init__(store)
        self._refusal = refusal

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same around another store."""
        return type(self)(store, self._refusal)

    @property
    def lacks_keys(self) -> bool:
        """Return whether values cannot be told: always."""
        return True

    @property
    def beneath(self) -> StoreBase | StoreWrapper:
        """The store of the sealed values, for a copy of all of them."""
        return self._store

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read sealed entries by key."""
        refuse_record(space)
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
        """Read a page of sealed entries."""
        refuse_record(space)
        return await self._store.scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        refuse_record(space)
        return await self._store.changes(space, after, limit=limit)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces."""
        return await spaces_but_record(self._store, prefix, after, limit)

    async def drop(self, space: str) -> None:
        """Empty a space."""
        refuse_record(space)
        await self._store.drop(space)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Ask, and write nothing.

        Raises:
            InvalidError: A batch writes.
        """
        self._refuse(batches)
        return await self._store.apply(batches)

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Ask what was admitted, and write nothing."""
        self._refuse(batches)
        return await self._store.apply_checked(batches, sizes)

    def _refuse(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            refuse_record(batch.space)
        if any(batch.writes for batch in batches):
            raise copy(self._refusal)  # each caller raises its own
