"""A store that records its calls, so that everything that the engine does on it can be checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Unpack

import msgspec

from keepstate.errors import (
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    TOKEN_RANDOM_BYTES,
    Applied,
    Batch,
    Changes,
    Conflict,
    Outcome,
    Page,
    Reading,
    ScanOptions,
    make_token,
)
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values.key import successor
from keepstate_testing.proof import recorder as records
from keepstate_testing.proof.operations import (
    Demand,
    LogPage,
    Look,
    Refused,
    Span,
    Took,
    checksum_of_log,
    saw,
    wrote,
)
from keepstate_testing.proof.recorder import Began, Followed, Looked, Record, Recorder

_LAUNCH_BYTES: Final = TOKEN_RANDOM_BYTES - 8
_SURELY_NOT: Final = (StoreUnavailableError, StoreFullError, InvalidError)


class RecordedStore(StoreWrapper):
    """Passes each call to a store, and each batch, read, scan and page of the log to a recorder.

    Each batch gets a token, by which its outcome can be found after its sender has died.

    Args:
        store: The store to record.
        recorder: The recorder of this process.
        launch: A name that no other recorded store on these spaces has; up to 8 bytes.
    """

    def __init__(self, store: StoreBase | StoreWrapper, recorder: Recorder, launch: int) -> None:
        super().__init__(store)
        self._recorder, self._launch = recorder, launch
        self.revisions: dict[str, int] = {}

    def around(self, store: StoreBase | StoreWrapper) -> RecordedStore:
        """Return one that writes to the same recorder."""
        return RecordedStore(store, self._recorder, self._launch)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply the batches."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that were checked."""
        numbers = [self._recorder.number() for _ in batches]
        named = [
            batch if batch.token else msgspec.structs.replace(batch, token=self._token(batch.space, number))
            for batch, number in zip(batches, numbers, strict=True)
        ]
        begun: list[Record] = []
        began_ns = time.monotonic_ns()
        for number, batch in zip(numbers, named, strict=True):
            writes = [wrote(write) for write in batch.writes]
            checks = [Demand(check.key, check.version, check.created) for check in batch.checks]
            begun.append(
                Began(
                    number,
                    batch.space,
                    began_ns,
                    writes,
                    checks,
                    batch.at,
                    batch.token or b"",
                    batch.alive_until_ms,
                )
            )
        self._recorder.write(*begun)
        outcomes = await self._store.apply_checked(named, sizes)
        ended_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        ended: list[Record] = []
        for number, batch, outcome in zip(numbers, named, outcomes, strict=True):
            if isinstance(outcome, Applied):
                self._saw(batch.space, outcome.revision)
                took = Took(outcome.revision, outcome.now_ms)
                ended.append(records.Applied(number, ended_ns, took))
            elif (refused := _refused(outcome, wall_ms)) is not None:
                ended.append(records.Failed(number, ended_ns, refused))
        if ended:
            self._recorder.write(*ended)
        return outcomes

    def _token(self, space: str, number: int) -> bytes:
        name = self._launch.to_bytes(_LAUNCH_BYTES) + number.to_bytes(8)
        return make_token(self.revisions.get(space, 0), name)

    def _saw(self, space: str, revision: int) -> None:
        if revision > self.revisions.get(space, 0):
            self.revisions[space] = revision

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries by key."""
        began_ns = time.monotonic_ns()
        reading = await self._store.read(space, keys, at_ms=at_ms)
        found = {
            key: None if entry is None else saw(entry)
            for key, entry in zip(keys, reading.entries, strict=True)
        }
        span_ns = began_ns, time.monotonic_ns()
        look = Look(space, *span_ns, reading.revision, reading.now_ms, found, at_ms=at_ms)
        self._recorder.write(Looked(look))
        self._saw(space, reading.revision)
        return reading

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read a page of entries."""
        began_ns = time.monotonic_ns()
        page = await self._store.scan(space, prefix, **options)
        span_of = _span_down if options.get("reverse") else _span_up
        span = span_of(prefix, options.get("after"), page.next)
        found = {entry.key: saw(entry) for entry in page.entries}
        span_ns = began_ns, time.monotonic_ns()
        look = Look(space, *span_ns, page.revision, page.now_ms, {**found}, span, options.get("at_ms"))
        self._recorder.write(Looked(look))
        return page

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log."""
        changes = await self._store.changes(space, after, limit=limit)
        page = LogPage(space, after, changes.upto, checksum_of_log(changes.items))
        self._recorder.write(Followed(page))
        return changes

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Reject the call, because a dropped space has no log."""
        raise InvalidError(f"{space!r} is recorded and cannot be dropped; take another space")


def _wall_ms() -> int:
    """Return a time that no clock of this machine shows yet, however it rounds."""
    return time.time_ns() // 1_000_000 + 1


def _refused(outcome: Conflict | StorageError | InvalidError, wall_ms: int) -> Refused | None:
    """Return the error that says that the batch did not apply, None if that is unknown."""
    if isinstance(outcome, Conflict):
        return Refused(outcome.key, outcome.actual, wall_ms)
    if isinstance(outcome, OutcomeUnknownError) or not isinstance(outcome, _SURELY_NOT):
        return None
    return Refused(None, 0, wall_ms, f"{type(outcome).__name__}: {outcome}")


def _span_up(prefix: bytes, after: bytes | None, behind: bytes | None) -> Span:
    low = prefix if after is None else after + b"\0"
    return Span(low, successor(prefix) if behind is None else behind + b"\0")


def _span_down(prefix: bytes, after: bytes | None, behind: bytes | None) -> Span:
    return Span(prefix if behind is None else behind, successor(prefix) if after is None else after)
