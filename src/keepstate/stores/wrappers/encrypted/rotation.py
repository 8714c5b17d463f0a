"""Seals again, under the newest key, what stands under older ones; beside readers and writers.

Each value is put back under the exact version that was read, so that no write is lost. What is done stays
done; a second run finds only the rest, and what somebody whose ring is older has written meanwhile.
"""

from __future__ import annotations

from typing import Final

from keepstate.errors import KeepstateError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Check, Entry, Put
from keepstate.stores.wrappers.encrypted.ring import KeyRing
from keepstate.stores.wrappers.encrypted.sealing import Opened, Sealer, Terms
from keepstate.stores.wrappers.wrapper import StoreWrapper

_SECTIONS: Final = (b"\x00", b"\x01", b"\x02")


class Rotation:
    """Seals a store's values again.

    Args:
        store: The store that keeps them sealed.
        keys: The ring whose newest key seals.
    """

    def __init__(self, store: StoreBase | StoreWrapper, keys: KeyRing) -> None:
        self._store, self._newest = store, keys.newest_id

    async def seal_again(self, space: str, sealer: Sealer) -> int:
        """Return how many values of a space were sealed again."""
        count = 0
        for section in _SECTIONS:
            after: bytes | None = None
            while True:
                page = await self._store.scan(space, section, after=after)
                count += await self._seal_page(space, list(page.entries), sealer)
                after = page.next
                if after is None:
                    break
        return count

    async def _seal_page(self, space: str, entries: list[Entry], sealer: Sealer) -> int:
        now_ms = (await self._store.read(space, [])).now_ms
        left: dict[bytes, tuple[Put, Check]] = {}
        size = 0
        for entry in entries:
            opened = sealer.open(space, entry.key, entry.value)
            opened.refuse_altered(space, entry, now_ms)  # sealed again, a change would look as it was meant
            if opened.key_id != self._newest:
                put = self._put(space, entry, opened, sealer, now_ms)
                left[entry.key] = put, Check(entry.key, version=entry.version)
                size += len(put.value)
        while left:
            batch = Batch(space, [put for put, _ in left.values()], [check for _, check in left.values()])
            outcome = (await self._store.apply_checked([batch], [size]))[0]
            if isinstance(outcome, Applied):
                return len(left)
            if isinstance(outcome, KeepstateError):
                raise outcome
            assert outcome.key is not None, "the batch has no condition but its checks"
            del left[outcome.key]  # written meanwhile, and sealed then
        return 0

    def _put(self, space: str, entry: Entry, opened: Opened, sealer: Sealer, now_ms: int) -> Put:
        left_ms = None if entry.expires_at_ms is None else max(1, entry.expires_at_ms - now_ms)
        terms = Terms(left_ms, opened.terms.created)
        version = opened.version_of(entry)
        sealed = sealer.seal(space, entry.key, opened.value, terms=terms, version=version)
        return Put(entry.key, sealed, left_ms)
