"""A store behind memory and a shared cache: a read is answered by the nearest tier that has the entry.

There are three tiers. Cold is any store, and the truth; hot is memory of this process; warm is a store that
processes share as a cache, for the values of a cold server that is slow or busy.

Invariant: an entry of the other tiers is used only as of a revision that the cold store has confirmed. A read
that is not fresh asks the cold store for the missing keys, and the answer has the revision of the space. The
entries of the other tiers are of that revision, or the log shows what has changed since. Otherwise everything
is read from the cold store. So a read is as strictly serializable as the cold store's, and costs one small
call if the space has not changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from types import NoneType
from typing import Annotated, Final, Self, Unpack

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Mode, Runner, runner_of
from keepstate.errors import CompactedError, HistoryLostError, InvalidError
from keepstate.stores import admission
from keepstate.stores.base import StoreBase
from keepstate.stores.combiner import Turn
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Changes,
    Entry,
    Mark,
    Outcome,
    Page,
    Reading,
    ReportsMarks,
    ScanOptions,
    Sizes,
)
from keepstate.stores.urls import TIERED, StoreUrl, backend_class
from keepstate.stores.wrappers.hot_tier import AskedAt, Held, HotTier, KnownRevisions
from keepstate.stores.wrappers.warm_tier import NO_CLAIMS, Claims, WarmTier
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values.key import OBJECTS

HOT_BYTES: Final = 64 << 20

_WARM_OPTIONS: Final = {"timeout_s": "0.25"}
"""Default options of a cache's URL: a longer wait would be slower than a read without the cache."""

_CHANGES: Final = 4096
"""Number of changes after which values are read again instead."""


class TieredOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a `tiered+` URL in addition to the options of its cold store."""

    hot_bytes: Annotated[int, msgspec.Meta(ge=0)] = HOT_BYTES
    """Maximum size of a handle's cache in memory."""
    max_staleness_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds for which a verified entry is read again without asking the cold store."""
    warm: str | None = None
    """The quoted URL of a cache that processes share."""


class TieredStore(StoreWrapper):
    """A store whose reads come from the nearest tier that is right; writes, logs and waits go to `cold`.

    A process reads its own writes, whichever tier answers. A warm tier that is down, slow or wiped costs time
    and nothing else. It needs a cold server. Its claims are not encrypted: to encrypt them, wrap this store
    in an `EncryptedStore`.

    Args:
        cold: The store, or its URL. It has everything that was acknowledged.
        hot_bytes: Maximum size of this handle's cache; its twin in another mode has a cache of the same size.
        warm: A store that processes share as a cache, or its URL, such as a Redis or Valkey server. A store
            that you pass is not used itself: the tier opens its own on the same data, and never retries.
        max_staleness_s: Seconds for which a verified entry may be read again without asking `cold`. At 0 each
            read is verified, and nothing is ever stale.
        mode: The mode of stores that are passed as URLs.
        clock: Measures the age of entries.

    Raises:
        InvalidError: An argument is wrong, or `warm` is passed although the cold store is not a server, or is
            encrypted.
    """

    def __init__(
        self,
        *,
        cold: StoreBase | StoreWrapper | str,
        hot_bytes: int = HOT_BYTES,
        warm: StoreBase | str | None = None,
        max_staleness_s: float = 0.0,
        mode: Mode = "async",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if mode not in ("async", "blocking"):
            raise InvalidError(f"`mode` is {mode!r}. Pass 'async' or 'blocking'.")
        _require_type(cold, (str, StoreBase, StoreWrapper), "cold", "a store or its URL")
        _require_type(
            warm, (str, StoreBase, NoneType), "warm", "a store that is not wrapped, its URL, or None"
        )
        store = _open_url(cold, mode) if isinstance(cold, str) else cold
        super().__init__(store)
        if type(hot_bytes) is not int or hot_bytes < 0:
            raise InvalidError(f"`hot_bytes` is {hot_bytes!r}. Pass a number of bytes, or 0.")
        if type(max_staleness_s) not in (int, float) or not 0 <= max_staleness_s < float("inf"):
            raise InvalidError(f"`max_staleness_s` is {max_staleness_s!r}. Pass a number of seconds, or 0.")
        self._hot_bytes, self._within_s, self._clock = hot_bytes, float(max_staleness_s), clock
        self._turn = Turn(runner_of(store.mode), clock)
        self._known = KnownRevisions()
        self._hot = HotTier(hot_bytes, self._known, clock)
        self._warm: WarmTier | None = None
        self._marked = store if isinstance(store, ReportsMarks) else None
        if isinstance(warm, str):
            self._add_warm(_open_url(warm, store.mode, _WARM_OPTIONS))
        elif warm is not None:
            self._add_warm(warm.twin(runner_of(warm.mode)))

    def _add_warm(self, cache: StoreBase) -> None:
        """Put a cache that only this store uses in front of the cold store."""
        if self._marked is None:
            raise InvalidError(
                f"{self._store!r} cannot have a warm tier: it is not a server, or is wrapped. Leave out "
                "`warm`, or put the wrapper around the TieredStore."
            )
        self._warm = WarmTier(cache, self._store.url, self._clock)

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> Self:
        """Return the store that a URL names; the scheme after `tiered+` is that of the cold store."""
        own = {name: value for name, value in url.options.items() if name in TieredOptions.__struct_fields__}
        options = msgspec.structs.replace(url, options=own).parse_options(TieredOptions)
        others = {name: value for name, value in url.options.items() if name not in own}
        cold = msgspec.structs.replace(url, scheme=url.backend, options=others)
        return cls(
            cold=backend_class(cold.scheme).from_url(cold, runner=runner),
            hot_bytes=options.hot_bytes,
            warm=options.warm,
            max_staleness_s=options.max_staleness_s,
        )

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        return self._again(store, None if self._warm is None else self._warm.cache)

    def twin(self, runner: Runner) -> Self:
        """Return the same wrapper on the store's unopened twin for another mode."""
        return self._again(
            self._store.twin(runner),
            None if self._warm is None else self._warm.twin(runner_of(runner.mode)),
        )

    def _again(self, cold: StoreBase | StoreWrapper, warm: StoreBase | None) -> Self:
        again = type(self)(
            cold=cold,
            hot_bytes=self._hot_bytes,
            max_staleness_s=self._within_s,
            clock=self._clock,
        )
        if warm is not None:
            again._add_warm(warm)
        again._known = self._known  # a write in one mode is read in the other
        again._hot = HotTier(self._hot_bytes, self._known, self._clock)
        return again

    # ---- opening and closing

    async def open(self) -> Self:
        """Open the tiers; an unavailable warm tier is opened later."""
        was_open = self._store.is_open
        await super().open()
        if self._warm is not None and not self._warm.cache.is_open:
            try:
                await self._warm.open()
            except BaseException:
                if not was_open:
                    await self._store.close()
                raise
        return self

    async def close(self) -> None:
        """Close the tiers; a second call does nothing."""
        try:
            await self._store.close()
        finally:
            if self._warm is not None:
                await self._warm.close()

    def warn_if_open(self) -> None:
        """Warn, once, that the store was dropped without being closed."""
        self._store.warn_if_open()
        if self._warm is not None:
            self._warm.cache.warn_if_open()

    # ---- writing

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch to the cold store."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply checked batches to the cold store."""
        asked_at = self._hot.asked_now()
        try:
            outcomes = await self._store.apply_checked(batches, sizes)
        except BaseException:
            for batch in batches:
                self._hot.expire(batch.space)
            raise
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Applied):
                self._hot.apply(batch, outcome, asked_at)
            elif isinstance(outcome, HistoryLostError):
                self._hot.lose(batch.space)
            else:
                self._hot.expire(batch.space)  # the next attempt must read what caused the conflict
        return outcomes

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Empty a space; return whether it was there."""
        try:
            return await self._store.drop(space, at=at)
        finally:
            self._hot.lose(space)

    async def scrub(self) -> Sequence[str]:
        """Rewrite the cold store's files. Return what may still have bytes of deleted data."""
        left = await self._store.scrub()
        return left if self._warm is None else (*left, "the shared cache, until it evicts the entries")

    # ---- reading

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key, from the nearest tier that is right."""
        self._store.check_batches(())  # a closed or foreign handle must not answer from its cache
        admission.check_read(space, keys, at_ms)
        if self._turn.is_over():
            await self._turn.pass_on()
        if self._within_s and keys:
            reading = self._hot.fresh(space, keys, self._within_s, at_ms)
            if reading is not None:
                return _check_size(space, reading)
        with self._detecting_loss(space):
            return _check_size(space, await self._verified(space, keys, at_ms))

    async def _verified(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        asked_at, held, claims = self._hot.asked_now(), self._hot.held(space, keys, at_ms), NO_CLAIMS
        asked = [key for key in keys if key not in held.entries]
        if self._warm is not None and asked:
            claims = await self._warm.read(space, asked)
            asked = [key for key in asked if key not in claims.entries]
        reading = await self._store.read(space, asked, at_ms=at_ms)
        found = dict(zip(asked, reading.entries, strict=True))
        found |= await self._still_held(space, held, reading.revision, asked_at, alone=not claims.entries)
        found |= await self._still_claimed(space, claims, reading.revision)
        if any(key not in found for key in keys):
            asked = list(keys)
            reading = await self._store.read(space, asked, at_ms=at_ms)
            found = dict(zip(asked, reading.entries, strict=True))
        self._known.record(space, reading.revision)
        self._hot.fill(space, reading.revision, reading.now_ms, found.items(), asked_at)
        await self._claim(space, reading.revision, [found[key] for key in asked])
        judged_ms = reading.now_ms if at_ms is None else at_ms
        entries = [_live(found[key], judged_ms) for key in keys]
        return Reading(entries, reading.revision, reading.now_ms)

    async def _still_held(
        self, space: str, held: Held, revision: int, asked_at: AskedAt, *, alone: bool
    ) -> dict[bytes, Entry | None]:
        """Return the cached entries that are valid at a revision that the cold store has reported."""
        if held.revision is None or held.revision > revision:
            return {}  # a later answer arrived first
        if held.revision == revision:
            return held.entries
        if held.is_all and alone:
            return {}  # reading them again is one call, and so is asking for the changes
        changed = await self._changed(space, held.revision, revision)
        if changed is None:
            return {}
        self._hot.catch_up(space, held.revision, revision, changed, asked_at)
        return {
            key: entry
            for key, entry in held.entries.items()
            if key[0] != OBJECTS and key not in changed  # section 00 is not in the log
        }

    async def _still_claimed(self, space: str, claims: Claims, revision: int) -> Mapping[bytes, Entry]:
        """Return the claims that are valid at a revision that the cold store has reported."""
        mark, marked = claims.mark, self._marked
        if mark is None or marked is None or mark.revision > revision:
            return {}
        if marked.mark(space) == mark:
            return claims.entries
        changed = await self._changed(space, mark.revision, revision, mark)
        if changed is None:
            return {}
        return {key: entry for key, entry in claims.entries.items() if key not in changed}

    async def _changed(
        self, space: str, after: int, upto: int, mark: Mark | None = None
    ) -> Set[bytes] | None:
        """Return the keys that changed between two revisions, or None if the log does not show it."""
        try:
            if mark is not None and self._marked is not None:
                changes = await self._marked.changes_under(space, mark, after, limit=_CHANGES)
            else:
                changes = await self._store.changes(space, after, limit=_CHANGES)
        except CompactedError:
            return None
        except HistoryLostError:
            if mark is None:
                raise
            return None  # the claims belong to a lost history
        if changes.upto < upto:
            return None
        return {change.key for change in changes.items if change.revision <= upto}

    async def _claim(self, space: str, revision: int, entries: Iterable[Entry | None]) -> None:
        if self._warm is None or self._marked is None:
            return
        mark, there = self._marked.mark(space), [entry for entry in entries if entry is not None]
        if there and mark is not None and mark.revision == revision:
            await self._warm.claim(space, mark, there)

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read a page of entries from the cold store."""
        with self._detecting_loss(space):
            page = await self._store.scan(space, prefix, **options)
        self._known.record(space, page.revision)
        return page

    async def sizes(self, space: str) -> Sizes:
        """Read the size of each part from the cold store."""
        with self._detecting_loss(space):
            sizes = await self._store.sizes(space)
        self._known.record(space, sizes.revision)
        return sizes

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the cold store's log."""
        with self._detecting_loss(space):
            changes = await self._store.changes(space, after, limit=limit)
        self._known.record(space, changes.upto)
        return changes

    @contextmanager
    def _detecting_loss(self, space: str) -> Generator[None]:
        try:
            yield
        except HistoryLostError:
            self._hot.lose(space)
            raise


def _require_type(given: object, kinds: tuple[type, ...], what: str, wanted: str) -> None:
    if not isinstance(given, kinds):
        raise InvalidError(f"`{what}` is a {type(given).__name__}. Pass {wanted}.")


def _open_url(url: str, mode: Mode, options: dict[str, str] | None = None) -> StoreBase:
    parsed = StoreUrl.parse(url)
    if parsed.scheme.startswith(TIERED):
        raise InvalidError(f"{parsed} has tiers already. Name the store itself.")
    if options:
        parsed = msgspec.structs.replace(parsed, options={**options, **parsed.options})
    return backend_class(parsed.scheme).from_url(parsed, runner=runner_of(mode))


def _check_size(space: str, reading: Reading) -> Reading:
    admission.check_read_size(space, sum(len(entry.value) for entry in reading.entries if entry is not None))
    return reading


def _live(entry: Entry | None, now_ms: int) -> Entry | None:
    if entry is None or (entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms):
        return None
    return entry
