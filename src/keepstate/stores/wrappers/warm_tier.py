"""A cache that processes share: entries, each as of one mark of its space.

A mark is a revision with its nonce, so an entry of a lost history is never taken for a present one. A cached
value is a claim: it was true at its mark, and the reader asks the cold store for the changes since. A claim
that is cut or belongs to another key is ignored. A cache that fails is not asked for a while. Writes bypass
the cache, because an outdated claim is recognised by its revision.

```
b"ks1", 16 bytes of BLAKE2b of the rest, MessagePack of a `Claim` as an array
```

The claims of a space are in one of 16 spaces of the cache, in the section without a log, and expire after an
hour.
"""

from __future__ import annotations

import logging
import threading
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
from keepstate.values import limits
from keepstate.values.key import OBJECTS

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0

_log = logging.getLogger("keepstate.stores")


class Breaker:
    """Stops calls to a failing service for a while after each failure, longer each time; thread-safe.

    Args:
        name: Names the service in the log, once when it starts to fail and once when it answers again.
        clock: Measures the pauses.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._until_s = 0.0
        self._is_tried = False

    @property
    def is_closed(self) -> bool:
        """Return whether the last call was answered."""
        return not self._pause_s

    def allows(self) -> bool:
        """Return whether to call now; after a pause one caller may, and the others one pause later."""
        if not self._pause_s:
            return True
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._until_s:
                return False
            self._until_s = now_s + self._pause_s
            self._is_tried = True
            return True

    def record_failure(self, error: Exception) -> None:
        """Record a failure; concurrent calls may report the same one."""
        with self._lock:
            first = not self._pause_s
            if not first and not self._is_tried:
                return
            self._is_tried = False
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            self._until_s = self._clock.monotonic_s() + self._pause_s
        if first:
            _log.warning("%s fails, and is not asked until it answers again: %s", self._name, error)

    def record_answer(self) -> None:
        """Record an answer."""
        if not self._pause_s:
            return
        with self._lock:
            was_open, self._pause_s, self._is_tried = bool(self._pause_s), 0.0, False
        if was_open:
            _log.info("%s answers again", self._name)


CLAIM_TTL_MS: Final = 3_600_000
SHARDS: Final = 16

_MAGIC: Final = b"ks1"
_SUM_BYTES: Final = 16
_HEAD_BYTES: Final = len(_MAGIC) + _SUM_BYTES
_LARGEST_BYTES: Final = limits.VALUE_BYTES - 2048
_CLAIMED_BYTES: Final = limits.BATCH_BYTES // 2


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """An entry of a space as of a mark."""

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
        """Return the mark of the claim."""
        return Mark(self.revision, self.nonce)

    @property
    def entry(self) -> Entry:
        """Return the claimed entry."""
        return Entry(self.key, self.value, self.version, self.created, self.expires_at_ms)


_decode = msgspec.msgpack.Decoder(Claim).decode


class Claims(NamedTuple):
    """Entries by key, as of one mark; without a mark there are no entries."""

    mark: Mark | None
    entries: Mapping[bytes, Entry]


NO_CLAIMS: Final = Claims(None, {})


class WarmTier:
    """Claims in a shared cache; it never fails, and is empty while the cache fails.

    Args:
        cache: A store that this tier opens, calls once per request, and closes.
        cold_url: The store of the entries, because several stores may share a cache.
        clock: Measures the pauses after failures.
    """

    def __init__(self, cache: StoreBase, cold_url: str, clock: Clock) -> None:
        self._cache, self._cold, self._clock = cache, cold_url.encode(), clock
        self._breaker = Breaker(f"the warm tier {cache.url}", clock)
        cache.stop_retrying()

    @property
    def cache(self) -> StoreBase:
        """The store of the claims."""
        return self._cache

    @property
    def answers(self) -> bool:
        """Return whether the last call was answered."""
        return self._breaker.is_closed

    def twin(self, runner: Runner) -> StoreBase:
        """Return an unopened store on the same cache for another mode."""
        return self._cache.twin(runner)

    async def open(self) -> None:
        """Open the cache, now or once it is available.

        Raises:
            InvalidError: The cache is not a store, or has unsuitable settings.
        """
        try:
            await self._cache.open()
        except StorageError as error:
            self._breaker.record_failure(error)

    async def close(self) -> None:
        """Close the cache."""
        with suppress(StorageError):
            await self._cache.close()

    async def _is_ready(self) -> bool:
        if not self._breaker.allows():
            return False
        if not self._cache.is_open:  # it was unavailable at the opening
            self._cache = self._cache.twin(runner_of(self._cache.mode))
            self._cache.stop_retrying()
            await self._cache.open()
        return True

    # ---- reading and writing

    async def read(self, space: str, keys: Sequence[bytes]) -> Claims:
        """Return claims of some keys, all as of the mark that most of them have."""
        asked = [key for key in keys if key[0] != OBJECTS]
        if not asked:
            return NO_CLAIMS
        try:
            if not await self._is_ready():
                return NO_CLAIMS
            reading = await self._cache.read(self._shard(space), [self._key(space, key) for key in asked])
        except KeepstateError as error:
            self._breaker.record_failure(error)
            return NO_CLAIMS
        self._breaker.record_answer()
        found = [
            (claim.mark, claim.entry)
            for key, entry in zip(asked, reading.entries, strict=True)
            if entry is not None and (claim := _decode_claim(entry.value, space, key)) is not None
        ]
        if not found:
            return NO_CLAIMS
        ((most, _),) = Counter(mark for mark, _ in found).most_common(1)
        return Claims(most, {entry.key: entry for mark, entry in found if mark == most})

    async def claim(self, space: str, mark: Mark, entries: Iterable[Entry]) -> None:
        """Store claims of entries for other readers, except for entries that are too large."""
        puts: list[Write] = []
        size_bytes = 0
        for entry in entries:
            fits = len(puts) < limits.BATCH_WRITES and size_bytes + len(entry.value) <= _CLAIMED_BYTES
            if entry.key[0] != OBJECTS and len(entry.value) <= _LARGEST_BYTES and fits:
                puts.append(Put(self._key(space, entry.key), _encode_claim(space, mark, entry), CLAIM_TTL_MS))
                size_bytes += len(entry.value)
        try:
            if not puts or not await self._is_ready():
                return
            (outcome,) = await self._cache.apply([Batch(self._shard(space), puts)])
        except KeepstateError as error:
            self._breaker.record_failure(error)
            return
        if isinstance(outcome, KeepstateError):
            self._breaker.record_failure(outcome)
        else:
            self._breaker.record_answer()

    def _shard(self, space: str) -> str:
        return f"tier/{sha256(self._cold + space.encode()).digest()[0] % SHARDS}"

    def _key(self, space: str, key: bytes) -> bytes:
        name = space.encode()
        place = b"%d,%d,%b%b%b" % (len(self._cold), len(name), self._cold, name, key)
        return b"\x00" + sha256(place).digest()


def _encode_claim(space: str, mark: Mark, entry: Entry) -> bytes:
    claim = Claim(space, entry.key, entry.value, entry.version, entry.created, entry.expires_at_ms, *mark)
    body = msgspec.msgpack.encode(claim)
    return _MAGIC + blake2b(body, digest_size=_SUM_BYTES).digest() + body


def _decode_claim(stored: bytes, space: str, key: bytes) -> Claim | None:
    """Return the claim in a value of the cache, if it belongs to this space and key."""
    body = stored[_HEAD_BYTES:]
    if stored[:_HEAD_BYTES] != _MAGIC + blake2b(body, digest_size=_SUM_BYTES).digest():
        return None
    try:
        claim = _decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None
    return claim if (claim.space, claim.key) == (space, key) else None
