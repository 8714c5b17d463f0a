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
from keepstate.stores.protocol import Batch, Outcome
from keepstate.stores.wrappers.wrapper import StoreWrapper

ENCRYPTION_SPACE: Final = "keepstate:encryption"
"""The space that an encrypted store has, and no other."""

RECORD: Final = b"\x01store"
"""The key of what all sealed values are bound to: who finds it knows that the store is encrypted."""


async def refused_if_encrypted(store: StoreBase | StoreWrapper) -> StoreBase | StoreWrapper:
    """Returns an opened store, or what refuses writes to it if it is encrypted."""
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


class KeylessStore(StoreWrapper):
    """Hands on what reads, drops and sweeps, and refuses each batch that writes.

    Args:
        store: What keeps the sealed values, opened.
        refusal: What a batch that writes is told.
    """

    def __init__(self, store: StoreBase | StoreWrapper, refusal: KeepstateError) -> None:
        super().__init__(store)
        self._refusal = refusal

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Returns the same around another store."""
        return type(self)(store, self._refusal)

    @property
    def lacks_keys(self) -> bool:
        """Whether values cannot be told: always."""
        return True

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Asks, and writes nothing.

        Raises:
            InvalidError: A batch writes.
        """
        self._refuse(batches)
        return await self._store.apply(batches)

    async def apply_admitted(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Asks what was admitted, and writes nothing."""
        self._refuse(batches)
        return await self._store.apply_admitted(batches, sizes)

    def _refuse(self, batches: Sequence[Batch]) -> None:
        if any(batch.writes for batch in batches):
            raise copy(self._refusal)  # each caller raises its own
