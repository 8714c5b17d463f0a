"""A store with memory and a shared cache in front of it: reads come from the nearest place that is right.

Where the three are: cold is any store, and the truth; hot is memory of this process; warm is a store that
processes share as a cache, for the values of a cold server that is slow or busy.

A read that is not fresh asks the cold store for what is missing elsewhere; its answer tells the revision of
the space. What the other tiers hold is of that revision, or the log tells what has changed since: then they
are right as of the answer. Else all is read from the cold store. So a read is as strictly serializable as the
cold store's, and costs one small call where the space has not changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from types import NoneType
from typing import Annotated, Final, Self

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
)
from keepstate.stores.urls import TIERED, StoreUrl, backend_class
from keepstate.stores.wrappers.tiered.hot import Held, HotTier, Moment, Told
from keepstate.stores.wrappers.tiered.warm import NO_CLAIMS, Claims, WarmTier
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values.key import OBJECTS

HOT_BYTES: Final = 64 << 20

_WARM_OPTIONS: Final = {"timeout_s": "0.25"}
"""What the URL of a cache says if it says nothing else: to wait longer would be slower than to do without."""

_CHANGES: Final = 4096
"""After more changes than these, values are read again."""


class TieredOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a `tiered+` URL says beside the options of its cold store."""

    hot_bytes: Annotated[int, msgspec.Meta(ge=0)] = HOT_BYTES
    """How much a handle may remember."""
    max_staleness_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """For how long what was verified is read again without asking the cold store."""
    warm: str | None = None
    """The URL of a cache that processes share, quoted."""


class TieredStore(StoreWrapper):
    """A store whose reads come from the nearest tier that is right; writes, logs and waits go to `cold`.

    What a process has written it reads, whichever tier answers. A warm tier that is down, slow or wiped costs
    time and nothing else. It needs a cold server; its claims are in clear, so what is to be encrypted goes
    into an `EncryptedStore` around this one.

    Args:
        cold: The store, or its URL. All that is acknowledged is there.
        hot_bytes: How much this handle may remember, in bytes; its twin in another colour as much again.
        warm: A store that processes share as a cache, or its URL; a Redis or Valkey server is apt. A store is
            left as it is: the tier opens one of its own on the same data, whose calls it never repeats.
        max_staleness_s: For how long what was verified may be read again without asking `cold`, in seconds.
            At 0 each read is verified: nothing is ever stale.
        mode: Of stores that are given by their URLs.
        clock: Tells how long ago something was verified.

    Raises:
        InvalidError: An argument is wrong, or `warm` is given beside a cold store that is no server, or one
            that is encrypted.
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
            raise InvalidError(f"`mode` is {mode!r}; it is 'async' or 'blocking'")
        _refuse_unless(cold, (str, StoreBase, StoreWrapper), "cold", "a store or its URL")
        _refuse_unless(
            warm, (str, StoreBase, NoneType), "warm", "a store that is not wrapped, its URL, or None"
        )
        store = _made(cold, mode) if isinstance(cold, str) else cold
        super().__init__(store)
        if type(hot_bytes) is not int or hot_bytes < 0:
            raise InvalidError(f"`hot_bytes` is {hot_bytes!r}; it is a number of bytes, or 0")
        if type(max_staleness_s) not in (int, float) or not 0 <= max_staleness_s < float("inf"):
            raise InvalidError(f"`max_staleness_s` is {max_staleness_s!r}; it is a number of seconds, or 0")
        self._hot_bytes, self._within_s, self._clock = hot_bytes, float(max_staleness_s), clock
        self._turn = Turn(runner_of(store.mode), clock)
        self._told = Told()
        self._hot = HotTier(hot_bytes, self._told, clock)
        self._warm: WarmTier | None = None
        self._marked = store if isinstance(store, ReportsMarks) else None
        if isinstance(warm, str):
            self._warm_by(_made(warm, store.mode, _WARM_OPTIONS))
        elif warm is not None:
            self._warm_by(warm.twin(runner_of(warm.mode)))

    def _warm_by(self, cache: StoreBase) -> None:
        """Put a cache, which is nobody else's, in front of the cold store."""
        if self._marked is None:
            raise InvalidError(
                f"{self._store!r} can have no warm tier: it is no server, which needs none, or is wrapped; "
                "leave `warm` out, or put the wrapper around the TieredStore"
            )
        self._warm = WarmTier(cache, self._store.url, self._clock)

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> Self:
        """Return the store that a URL names: its scheme behind `tiered+` is that of the cold one."""
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
        """Return the same around another store."""
        return self._again(store, None if self._warm is None else self._warm.cache)

    def twin(self, runner: Runner) -> Self:
        """Return the same on the store's twin for another colour, not yet opened."""
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
            again._warm_by(warm)
        again._told = self._told  # what is written in one colour is read in the other
        again._hot = HotTier(self._hot_bytes, self._told, self._clock)
        return again

    # ---- opening and closing

    async def open(self) -> Self:
        """Open the tiers; a warm one that is not there is opened when it is."""
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
        """Close the tiers; twice is once."""
        try:
            await self._store.close()
        finally:
            if self._warm is not None:
                await self._warm.close()

    def warn_if_open(self) -> None:
        """Warn, once, that who held it has dropped it and not closed it."""
        self._store.warn_if_open()
        if self._warm is not None:
            self._warm.cache.warn_if_open()

    # ---- writing

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch to the cold store."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply what was admitted to the cold store."""
        moment = self._hot.moment()
        try:
            outcomes = await self._store.apply_checked(batches, sizes)
        except BaseException:
            for batch in batches:
                self._hot.expire(batch.space)
            raise
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Applied):
                self._hot.took(batch, outcome, moment)
            elif isinstance(outcome, HistoryLostError):
                self._hot.lose(batch.space)
            else:
                self._hot.expire(batch.space)  # who tries again must read what refused it
        return outcomes

    async def drop(self, space: str) -> None:
        """Empty a space."""
        try:
            await self._store.drop(space)
        finally:
            self._hot.lose(space)

    # ---- reading

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key, from the nearest tier that is right."""
        self._store.check_batches(())  # a closed handle, or one of another process, remembers nothing
        admission.check_read(space, keys, at_ms)
        if self._turn.is_over():
            await self._turn.pass_on()
        if self._within_s and keys:
            reading = self._hot.fresh(space, keys, self._within_s, at_ms)
            if reading is not None:
                return _admitted(space, reading)
        with self._noticing(space):
            return _admitted(space, await self._verified(space, keys, at_ms))

    async def _verified(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        moment, held, claims = self._hot.moment(), self._hot.held(space, keys, at_ms), NO_CLAIMS
        asked = [key for key in keys if key not in held.entries]
        if self._warm is not None and asked:
            claims = await self._warm.told(space, asked)
            asked = [key for key in asked if key not in claims.entries]
        reading = await self._store.read(space, asked, at_ms=at_ms)
        found = dict(zip(asked, reading.entries, strict=True))
        found |= await self._still_held(space, held, reading.revision, moment, alone=not claims.entries)
        found |= await self._still_claimed(space, claims, reading.revision)
        if any(key not in found for key in keys):
            asked = list(keys)
            reading = await self._store.read(space, asked, at_ms=at_ms)
            found = dict(zip(asked, reading.entries, strict=True))
        self._told.record(space, reading.revision)
        self._hot.fill(space, reading.revision, reading.now_ms, found.items(), moment)
        await self._claim(space, reading.revision, [found[key] for key in asked])
        judged_ms = reading.now_ms if at_ms is None else at_ms
        entries = [_alive(found[key], judged_ms) for key in keys]
        return Reading(entries, reading.revision, reading.now_ms)

    async def _still_held(
        self, space: str, held: Held, revision: int, moment: Moment, *, alone: bool
    ) -> dict[bytes, Entry | None]:
        """Return what is remembered, as far as it is so at a revision that the cold store has told."""
        if held.revision is None or held.revision > revision:
            return {}  # another answer has overtaken this one
        if held.revision == revision:
            return held.entries
        if held.is_all and alone:
            return {}  # to read it again is one call, and to ask what has changed is one too
        changed = await self._changed(space, held.revision, revision)
        if changed is None:
            return {}
        self._hot.catch_up(space, held.revision, revision, changed, moment)
        return {
            key: entry
            for key, entry in held.entries.items()
            if key[0] != OBJECTS and key not in changed  # section 00 stands in no log
        }

    async def _still_claimed(self, space: str, claims: Claims, revision: int) -> Mapping[bytes, Entry]:
        """Return what is claimed, as far as it is so at a revision that the cold store has told."""
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
        """Return the keys that have changed between two revisions, or None where the log cannot tell."""
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
            return None  # what is claimed is of a history that is gone
        if changes.upto < upto:
            return None
        return {change.key for change in changes.items if change.revision <= upto}

    async def _claim(self, space: str, revision: int, entries: Iterable[Entry | None]) -> None:
        if self._warm is None or self._marked is None:
            return
        mark, there = self._marked.mark(space), [entry for entry in entries if entry is not None]
        if there and mark is not None and mark.revision == revision:
            await self._warm.claim(space, mark, there)

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
        """Read a page of entries from the cold store."""
        with self._noticing(space):
            page = await self._store.scan(
                space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms
            )
        self._told.record(space, page.revision)
        return page

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the cold store's log."""
        with self._noticing(space):
            changes = await self._store.changes(space, after, limit=limit)
        self._told.record(space, changes.upto)
        return changes

    @contextmanager
    def _noticing(self, space: str) -> Generator[None]:
        try:
            yield
        except HistoryLostError:
            self._hot.lose(space)
            raise


def _refuse_unless(given: object, kinds: tuple[type, ...], what: str, wanted: str) -> None:
    if not isinstance(given, kinds):
        raise InvalidError(f"`{what}` is a {type(given).__name__}; give {wanted}")


def _made(url: str, mode: Mode, options: dict[str, str] | None = None) -> StoreBase:
    parsed = StoreUrl.parse(url)
    if parsed.scheme.startswith(TIERED):
        raise InvalidError(f"{parsed} has tiers already; name the store itself")
    if options:
        parsed = msgspec.structs.replace(parsed, options={**options, **parsed.options})
    return backend_class(parsed.scheme).from_url(parsed, runner=runner_of(mode))


def _admitted(space: str, reading: Reading) -> Reading:
    admission.check_read_size(space, sum(len(entry.value) for entry in reading.entries if entry is not None))
    return reading


def _alive(entry: Entry | None, now_ms: int) -> Entry | None:
    if entry is None or (entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms):
        return None
    return entry
