"""What processes tell one another through a shared cache: entries, each as of one mark of its space.

A mark is a revision with its nonce, so that nothing is taken for the present that a history told which is
gone. What stands in the cache is a claim: it was true at its mark, and `store` asks the cold store what has
changed since. A claim that is cut, of another place, or no claim at all, is none; a cache that fails is left
alone for a while. Writes go past it, for a claim that has been overtaken is recognised by its revision.

```
b"ks1", 16 bytes of BLAKE2b of what follows, MessagePack of a `Claim` as an array
```

The claims of a space stand in one of 16 spaces of the cache, in the section that its log leaves out, and
expire after an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from typing import Final, NamedTuple

import msgspec

from keepstate._clock import Clock
from keepstate._runner import Runner, runner_of
from keepstate.errors import KeepstateError, StorageError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Entry, Mark, Put, Write
from keepstate.stores.wrappers.tiered.breaker import Breaker
from keepstate.values import limits
from keepstate.values.key import OBJECTS

KEPT_MS: Final = 3_600_000
SHARDS: Final = 16

_MAGIC: Final = b"ks1"
_SUM_BYTES: Final = 16
_HEAD_BYTES: Final = len(_MAGIC) + _SUM_BYTES
_LARGEST_BYTES: Final = limits.VALUE_BYTES - 2048
_CLAIMED_BYTES: Final = limits.BATCH_BYTES // 2


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """What a space held under a key at a mark."""

    space: str
    key: bytes
    value: bytes
    version: int
    created: int
    expires_at_ms: int | None
    revision: int
    nonce: bytes

    @property
    def mark(self) -> Mark:
        """Return when it was so."""
        return Mark(self.revision, self.nonce)

    @property
    def entry(self) -> Entry:
        """The entry that is claimed."""
        return Entry(self.key, self.value, self.version, self.created, self.expires_at_ms)


_decode = msgspec.msgpack.Decoder(Claim).decode


class Claims(NamedTuple):
    """Entries by key, as of one mark; without a mark there are none."""

    mark: Mark | None
    entries: Mapping[bytes, Entry]


NO_CLAIMS: Final = Claims(None, {})


class WarmTier:
    """Claims in a shared cache; it never fails, and tells nothing while the cache does.

    Args:
        cache: A store that this tier opens, asks once a call, and closes.
        cold_url: Whose entries are claimed: several stores may share a cache.
        clock: Tells when to ask again what has failed.
    """

    def __init__(self, cache: StoreBase, cold_url: str, clock: Clock) -> None:
        self._cache, self._cold, self._clock = cache, cold_url.encode(), clock
        self._breaker = Breaker(f"the warm tier {cache.url}", clock)
        cache.stop_retrying()

    @property
    def cache(self) -> StoreBase:
        """The store."""
        return self._cache

    @property
    def answers(self) -> bool:
        """Return whether it has answered when it was last asked."""
        return self._breaker.is_closed

    def twin(self, runner: Runner) -> StoreBase:
        """Return a store on the same cache for another colour, not yet opened."""
        return self._cache.twin(runner)

    async def open(self) -> None:
        """Open the cache, now or when it is there.

        Raises:
            InvalidError: It is no store, or not set as one must be.
        """
        try:
            await self._cache.open()
        except StorageError as error:
            self._breaker.failed(error)

    async def close(self) -> None:
        """Close the cache."""
        with suppress(StorageError):
            await self._cache.close()

    async def _is_ready(self) -> bool:
        if not self._breaker.allows():
            return False
        if not self._cache.is_open:  # it was not there when it was to be opened
            self._cache = self._cache.twin(runner_of(self._cache.mode))
            self._cache.stop_retrying()
            await self._cache.open()
        return True

    # ---- asking and telling

    async def told(self, space: str, keys: Sequence[bytes]) -> Claims:
        """Return what is claimed of some keys, all as of one mark: the one that most claims are of."""
        asked = [key for key in keys if key[0] != OBJECTS]
        if not asked:
            return NO_CLAIMS
        try:
            if not await self._is_ready():
                return NO_CLAIMS
            reading = await self._cache.read(self._shard(space), [self._key(space, key) for key in asked])
        except KeepstateError as error:
            self._breaker.failed(error)
            return NO_CLAIMS
        self._breaker.worked()
        found = [
            (claim.mark, claim.entry)
            for key, entry in zip(asked, reading.entries, strict=True)
            if entry is not None and (claim := _claim(entry.value, space, key)) is not None
        ]
        if not found:
            return NO_CLAIMS
        ((most, _),) = Counter(mark for mark, _ in found).most_common(1)
        return Claims(most, {entry.key: entry for mark, entry in found if mark == most})

    async def claim(self, space: str, mark: Mark, entries: Iterable[Entry]) -> None:
        """Tell entries to who asks next, as far as they are worth it."""
        puts: list[Write] = []
        size_bytes = 0
        for entry in entries:
            fits = len(puts) < limits.BATCH_WRITES and size_bytes + len(entry.value) <= _CLAIMED_BYTES
            if entry.key[0] != OBJECTS and len(entry.value) <= _LARGEST_BYTES and fits:
                puts.append(Put(self._key(space, entry.key), _encoded(space, mark, entry), KEPT_MS))
                size_bytes += len(entry.value)
        try:
            if not puts or not await self._is_ready():
                return
            (outcome,) = await self._cache.apply([Batch(self._shard(space), puts)])
        except KeepstateError as error:
            self._breaker.failed(error)
            return
        if isinstance(outcome, KeepstateError):
            self._breaker.failed(outcome)
        else:
            self._breaker.worked()

    def _shard(self, space: str) -> str:
        return f"tier/{sha256(self._cold + space.encode()).digest()[0] % SHARDS}"

    def _key(self, space: str, key: bytes) -> bytes:
        name = space.encode()
        place = b"%d,%d,%b%b%b" % (len(self._cold), len(name), self._cold, name, key)
        return b"\x00" + sha256(place).digest()


def _encoded(space: str, mark: Mark, entry: Entry) -> bytes:
    claim = Claim(space, entry.key, entry.value, entry.version, entry.created, entry.expires_at_ms, *mark)
    body = msgspec.msgpack.encode(claim)
    return _MAGIC + blake2b(body, digest_size=_SUM_BYTES).digest() + body


def _claim(stored: bytes, space: str, key: bytes) -> Claim | None:
    """Return the claim in a value of the cache, if it is one of this place."""
    body = stored[_HEAD_BYTES:]
    if stored[:_HEAD_BYTES] != _MAGIC + blake2b(body, digest_size=_SUM_BYTES).digest():
        return None
    try:
        claim = _decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None
    return claim if (claim.space, claim.key) == (space, key) else None
