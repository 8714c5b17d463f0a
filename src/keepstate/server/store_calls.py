"""The calls of clients on the store of a server, each under the client's names and the mark it has seen.

A client's mark is compared with the store's history unless this process vouches for it: it gave the mark
itself and has found no loss since. The number of losses is read before and after each call, so that a loss
which another call notices in between counts too.

Errors tell nothing about the place of the store: its address, its paths and its driver's words stay here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import (
    ClockError,
    ClosedError,
    CompactedError,
    CorruptError,
    HistoryLostError,
    InvalidError,
    KeepstateError,
    NotAllowedError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.names import ALL, TENANTS, TenantScope, beginning, stored_name
from keepstate.stores.base import StoreBase
from keepstate.stores.combiner import FLUSH_BATCHES
from keepstate.stores.http import wire
from keepstate.stores.http.wire import Answer, BatchOutcome, Outcomes, Problem, Seen
from keepstate.stores.marks import HighWaterMarks
from keepstate.stores.protocol import (
    ENCRYPTION_SPACE,
    NONCE_BYTES,
    Applied,
    Batch,
    Changes,
    Conflict,
    DetectsLosses,
    Inspected,
    Leap,
    Mark,
    Outcome,
    Page,
    Put,
    Reading,
    ReportsMarks,
    Setting,
    Sizes,
)
from keepstate.stores.wrappers.keyless import KeylessStore, StoreWithRecord
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import limits

T = TypeVar("T")

_SEALED_BYTES: Final = 128
"""Bytes by which a value that the client has encrypted may exceed the limit."""

_ROUNDS: Final = 4
_SWEPT: Final = 1000
_FIRST_NAMES: Final = 49
"""Number of last code points that follow a first one in 200 bytes."""

_log = logging.getLogger("keepstate.server")


class StoreScope(msgspec.Struct, frozen=True, kw_only=True):
    """The stored names that a caller may reach.

    Args:
        tenant: The id of the caller's tenant; None for the spaces without a tenant; `ALL` for every space.
        under: A prefix of names within the tenant.
    """

    tenant: str | TenantScope | None
    under: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of all names that the caller may reach."""
        if isinstance(self.tenant, TenantScope):
            return self.under
        return stored_name(self.tenant, self.under) if self.under else beginning(self.tenant)

    @property
    def is_whole(self) -> bool:
        """True if the caller may reach every space."""
        return self.tenant is ALL and not self.under

    def reaches(self, space: str) -> bool:
        """Return whether the caller may reach a space."""
        if self.tenant is None and space.startswith(TENANTS):
            return False
        # One record makes the whole store an encrypted one, for every tenant.
        if space == ENCRYPTION_SPACE and not self.is_whole:
            return False
        return space.startswith(self.prefix)

    def narrowed(self, prefix: str) -> str | None:
        """Return the prefix of the reachable names that begin with `prefix`; None if there are none."""
        own = self.prefix
        if prefix.startswith(own):
            return prefix
        return own if own.startswith(prefix) else None


class MarkLostError(HistoryLostError):
    """The history of a space does not have the mark that the client has seen."""


class StoreCalls:
    """The calls on one store.

    Args:
        store: The opened store. One without its keys of encryption is used as it is stored.
        withheld: Prefixes of stored names that no caller reaches.
    """

    def __init__(self, store: StoreBase | StoreWrapper, withheld: tuple[str, ...]) -> None:
        self.store = store.beneath if isinstance(store, KeylessStore) else store
        self._withheld = withheld
        self._epoch = SYSTEM_CLOCK.random_bytes(NONCE_BYTES)
        self._marks = HighWaterMarks()
        """The marks of a store that does not report them."""

    # ---- names

    def require_names(self, scope: StoreScope, call: wire.Call) -> None:
        """Raise `NotAllowedError` unless the caller may reach every space of the call."""
        if isinstance(call, wire.ReadCall) and call.space == ENCRYPTION_SPACE:
            return  # every client asks whether the store is encrypted
        for name in _names_in(call):
            if not self._is_reachable(scope, name):
                raise NotAllowedError(
                    "The key does not reach a space of this call. Use the tenant's own key."
                )

    def _is_reachable(self, scope: StoreScope, name: str) -> bool:
        return scope.reaches(name) and not name.startswith(self._withheld)

    # ---- marks

    def _losses(self, space: str) -> int:
        return self.store.losses(space) if isinstance(self.store, DetectsLosses) else 0

    def _vouch(self, losses: int) -> bytes:
        return self._epoch + losses.to_bytes(4)

    def _mark_of(self, space: str) -> Mark | None:
        return self.store.mark(space) if isinstance(self.store, ReportsMarks) else self._marks.of(space)

    async def _require_mark(self, space: str, seen: Seen | None, losses: int) -> None:
        """Require that the history of a space has the mark that the client has seen.

        The comparison also raises the store's own mark to the client's. From then on the store itself notices
        if the client's mark is lost.

        Raises:
            MarkLostError: It does not.
            HistoryLostError: The store has noticed a loss in its own history just now. Compare again.
        """
        if seen is None or seen.vouch == self._vouch(losses) or self._mark_of(space) == seen[:2]:
            return
        try:
            found = await self.store.changes(space, seen.revision, limit=1)
        except CompactedError:
            return  # below the log's floor nothing can be compared, and a cut log is not a loss
        except HistoryLostError as error:
            if self._losses(space) != losses:
                raise
            raise _mark_lost(space, seen) from error
        if found.nonces.get(seen.revision) != seen.nonce:
            raise _mark_lost(space, seen)

    async def _seen(self, space: str, revision: int, nonce: bytes | None, losses: int) -> Seen | None:
        """Return the mark of a space for a client that has now seen `revision`; 0 if it saw none."""
        mark = self._mark_of(space)
        if revision and (mark is None or mark.revision < revision):
            if nonce is None:
                with suppress(CompactedError, HistoryLostError):
                    nonce = (await self.store.changes(space, revision, limit=1)).nonces[revision]
            if nonce is not None:
                mark = Mark(revision, nonce)
                self._marks.record(space, *mark)
        return None if mark is None else Seen(*mark, self._vouch(losses))

    async def _under(
        self,
        call: wire.SpaceCall,
        work: Callable[[], Awaitable[T]],
        mark_in: Callable[[T], tuple[int, bytes | None]] = lambda value: (0, None),
        *,
        repeats: bool = True,
    ) -> Answer[T]:
        """Do work on a space under the client's mark, again if the store noticed a loss in the middle.

        Args:
            call: The call.
            work: What the store does.
            mark_in: Returns the revision of a result, and its nonce if the result has it.
            repeats: Whether the work may be done again after it has succeeded.
        """
        space = call.space
        for _ in range(_ROUNDS):
            losses = self._losses(space)
            try:
                await self._require_mark(space, call.seen, losses)
                value = await work()
            except HistoryLostError:
                if self._losses(space) == losses:
                    raise
                continue
            seen = await self._seen(space, *mark_in(value), losses)
            if self._losses(space) == losses:
                return Answer(value, seen)
            if not repeats:
                return Answer(value)
        raise StoreUnavailableError(f"Space {space!r} keeps losing history.")

    # ---- calls on one space

    async def read(self, _: StoreScope, call: wire.ReadCall) -> Answer[Reading]:
        """Read entries by key."""
        if call.space == ENCRYPTION_SPACE and isinstance(self.store, StoreWithRecord):
            return Answer(Reading([None] * len(call.keys), 0, 0))  # the server itself seals and opens values
        return await self._under(
            call,
            lambda: self.store.read(call.space, call.keys, at_ms=call.at_ms),
            lambda reading: (reading.revision, None),
        )

    async def scan(self, _: StoreScope, call: wire.ScanCall) -> Answer[Page]:
        """Read a page of entries."""
        return await self._under(
            call,
            lambda: self.store.scan(
                call.space,
                call.prefix,
                after=call.after,
                limit=call.limit,
                reverse=call.reverse,
                at_ms=call.at_ms,
            ),
            lambda page: (page.revision, page.nonce),
        )

    async def sizes(self, _: StoreScope, call: wire.SizesCall) -> Answer[Sizes]:
        """Read the sizes of the parts."""
        return await self._under(
            call, lambda: self.store.sizes(call.space), lambda sizes: (sizes.revision, None)
        )

    async def changes(self, _: StoreScope, call: wire.ChangesCall) -> Answer[Changes]:
        """Read the log."""
        return await self._under(
            call,
            lambda: self.store.changes(call.space, call.after, limit=call.limit),
            lambda changes: (changes.upto, changes.nonces.get(changes.upto)),
        )

    async def leap(self, _: StoreScope, call: wire.LeapCall) -> Answer[Leap | None]:
        """Read the last leap of the space's time."""
        return await self._under(call, lambda: self.store.last_leap(call.space))

    async def drop(self, _: StoreScope, call: wire.DropCall) -> Answer[bool]:
        """Empty the space."""
        return await self._under(call, lambda: self.store.drop(call.space, at=call.at), repeats=False)

    async def trim(self, _: StoreScope, call: wire.TrimCall) -> Answer[None]:
        """Remove the log but its last revisions."""
        return await self._under(call, lambda: self.store.trim(call.space, keep=call.keep), repeats=False)

    # ---- applying

    async def apply(self, _: StoreScope, call: wire.ApplyCall) -> Outcomes:
        """Apply batches under the marks seen of their spaces."""
        batches, spaces = call.batches, dict.fromkeys(batch.space for batch in call.batches)
        if len(batches) > FLUSH_BATCHES:
            raise InvalidError(f"A call has {len(batches)} batches. At most {FLUSH_BATCHES} fit. Split it.")
        if not call.seen.keys() <= spaces.keys():
            raise InvalidError("A call names the mark of a space that none of its batches is on.")
        sizes = self._sizes_of(batches)
        losses, lost = dict[str, int](), dict[str, KeepstateError]()
        for space in spaces:
            try:
                losses[space] = await self._compared(space, call.seen.get(space))
            except (MarkLostError, StorageError) as error:
                lost[space] = error
        sent = [
            (
                _with_losses(batch, losses[batch.space] if isinstance(self.store, DetectsLosses) else None),
                size,
            )
            for batch, size in zip(batches, sizes, strict=True)
            if batch.space not in lost
        ]
        applied = await self.store.apply_checked([one for one, _ in sent], [size for _, size in sent])
        answers = iter(applied)
        outcomes = [lost[batch.space] if batch.space in lost else next(answers) for batch in batches]
        return Outcomes(
            outcomes=[self._told(outcome) for outcome in outcomes],
            seen=await self._seen_in(batches, outcomes, losses),
        )

    async def _compared(self, space: str, seen: Seen | None) -> int:
        """Return the number of losses at which the space has the mark.

        The store rejects a batch of that number if it notices a loss in between.
        """
        for _ in range(_ROUNDS):
            losses = self._losses(space)
            try:
                await self._require_mark(space, seen, losses)
            except HistoryLostError:
                if self._losses(space) == losses:
                    raise
            else:
                return losses
        raise StoreUnavailableError(f"Space {space!r} keeps losing history.", space=space)

    async def _seen_in(
        self,
        batches: Sequence[Batch],
        outcomes: Sequence[Outcome | KeepstateError],
        losses: Mapping[str, int],
    ) -> dict[str, Seen]:
        """Return the marks of the spaces in which a batch applied."""
        last = dict[str, int]()
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Applied):
                last[batch.space] = max(outcome.revision, last.get(batch.space, 0))
        found = dict[str, Seen]()
        for space, revision in last.items():
            seen = await self._seen(space, revision, None, losses[space])
            if seen is not None and self._losses(space) == losses[space]:
                found[space] = seen
        return found

    def _sizes_of(self, batches: Sequence[Batch]) -> list[int]:
        """Return the sizes of well-formed batches.

        A client that encrypts has checked its batches before it made each value a little longer. So what is
        too long is checked once more without that.
        """
        try:
            return self.store.check_batches(batches)
        except InvalidError:
            if not any(_may_be_sealed(batch) for batch in batches):
                raise
            return self.store.check_batches([_shortened(batch) for batch in batches])

    def _told(self, outcome: Outcome | KeepstateError) -> BatchOutcome:
        if isinstance(outcome, Applied):
            return BatchOutcome(applied=outcome)
        if isinstance(outcome, Conflict):
            return BatchOutcome(conflict=outcome)
        problem = self.problem_of(outcome)
        if isinstance(outcome, HistoryLostError):  # nothing but a lost mark refuses a batch so
            problem = msgspec.structs.replace(problem, is_lost=True)
        return BatchOutcome(problem=problem)

    # ---- calls on several spaces

    async def changed(self, _: StoreScope, call: wire.ChangedCall) -> Answer[list[int | None]]:
        """Read the times of the spaces' last changes."""
        if len(call.spaces) > wire.NAMES:
            raise InvalidError(f"A call names {len(call.spaces)} spaces. At most {wire.NAMES} fit. Split it.")
        return Answer(await self.store.changed_ms(call.spaces))

    async def spaces(self, scope: StoreScope, call: wire.SpacesCall) -> Answer[list[str]]:
        """List the spaces that the caller may reach; a page shorter than asked for is the last one."""
        limits.admit_count("limit", call.limit)
        prefix, after, names = scope.narrowed(call.prefix), call.after, list[str]()
        limit = min(call.limit, wire.NAMES)
        while prefix is not None and len(names) < limit:
            page = await self.store.spaces(prefix, after=after, limit=limit - len(names))
            names += [name for name in page if self._is_reachable(scope, name)]
            if not page or (scope.tenant is None and page[-1].startswith(TENANTS)):
                break
            after = page[-1]
        return Answer(names)

    async def sweep(self, scope: StoreScope, call: wire.SweepCall) -> Answer[int]:
        """Remove expired entries of the spaces that the caller may reach."""
        limits.admit_count("limit", call.limit)
        prefix, limit = scope.narrowed(call.prefix), min(call.limit, _SWEPT)
        if prefix is None:
            return Answer(0)
        if prefix or scope.tenant is not None:
            return Answer(await self.store.sweep(prefix, limit=limit))
        return Answer(await self._sweep_outside_tenants(limit))

    async def _sweep_outside_tenants(self, limit: int) -> int:
        """Sweep the spaces without a tenant, which have no common prefix, by their first characters."""
        removed, after = 0, None
        while removed < limit and (names := await self.store.spaces(after=after, limit=1)):
            (name,) = names
            if name.startswith(TENANTS):
                break
            removed += await self.store.sweep(name[0], limit=limit - removed)
            after = max(name, name[0] + TENANTS * _FIRST_NAMES)
        return removed

    # ---- calls on the whole store

    async def open(self, _: StoreScope, call: wire.OpenCall) -> wire.Opened:
        """Agree on a version, and tell the store's capabilities."""
        common = set(call.versions) & set(wire.spoken())
        if not common:
            raise unspoken_error(call.versions)
        return wire.Opened(version=max(common), capabilities=self.store.capabilities)

    async def scrub(self, scope: StoreScope, _: wire.ScrubCall) -> Answer[list[str]]:
        """Rewrite the files, for a caller who may reach every space."""
        if not scope.is_whole:
            return Answer(["the files of the server's store, until its administrator scrubs them"])
        return Answer(list(await self.store.scrub()))

    async def settings(self, scope: StoreScope, _: wire.SettingsCall) -> Answer[list[Setting]]:
        """List the settings of the system under the store, for a caller who may reach every space."""
        if not (scope.is_whole and isinstance(self.store, Inspected)):
            return Answer([])
        return Answer(list(await self.store.settings()))

    async def clock(self, _: StoreScope, __: wire.ClockCall) -> Answer[int]:
        """Read the clock of this process."""
        return Answer(SYSTEM_CLOCK.now_ms())

    # ---- errors

    def problem_of(self, error: KeepstateError) -> Problem:
        """Return what a client may know of an error, and log the rest."""
        kind, status, plain = _judged(error)
        if plain is not None:
            _log.warning("Answered a client with %d: %s", status, error)
        facts = {
            name: fact
            for name, fact in error.facts.items()
            if name in wire.facts_of(kind) - _UNTOLD and isinstance(fact, int | str | bytes | None)
        }
        if kind is OutcomeUnknownError and error.__cause__ is not None:
            facts.pop("token", None)  # the store gave up, which is not a verdict: the client tries again
        detail = plain if plain is not None else str(error).replace(self.store.url, "the store")
        return problem(kind, status, detail, facts, is_lost=isinstance(error, MarkLostError))


class _Judgement(NamedTuple):
    kind: type[KeepstateError]
    status: int
    plain: str | None
    """The message for clients, if the error's own may name the place of the store."""


_UNTOLD: Final = frozenset({"url", "place"})
_JUDGEMENTS: Final[Mapping[type[KeepstateError], _Judgement]] = {
    ClosedError: _Judgement(StoreUnavailableError, 503, "The server has closed its store."),
    OutcomeUnknownError: _Judgement(
        OutcomeUnknownError, 504, "The store did not answer the server, so it may or may not have written."
    ),
    StoreUnavailableError: _Judgement(
        StoreUnavailableError, 503, "The server cannot reach its store now. Nothing was written."
    ),
    StoreFullError: _Judgement(StoreFullError, 507, "The server's store has no room. Nothing was written."),
    ClockError: _Judgement(
        ClockError,
        500,
        "Two clocks of the server differ by more than an hour. Nothing was written. Set them.",
    ),
    CorruptError: _Judgement(CorruptError, 500, "Stored data is damaged. The server's log names the place."),
    HistoryLostError: _Judgement(HistoryLostError, 410, None),
    CompactedError: _Judgement(CompactedError, 410, None),
    StorageError: _Judgement(StorageError, 500, "The server's store failed. The server's log says why."),
    InvalidError: _Judgement(InvalidError, 422, None),
    NotAllowedError: _Judgement(NotAllowedError, 403, None),
    UnsupportedError: _Judgement(UnsupportedError, 501, None),
    KeepstateError: _Judgement(StorageError, 500, "The server failed. Its log says why."),
}


def _judged(error: KeepstateError) -> _Judgement:
    found = next(_JUDGEMENTS[base] for base in type(error).__mro__ if base in _JUDGEMENTS)
    if isinstance(error, InvalidError) and error.__cause__ is not None:
        # The driver refused the server's own login, which no client can correct.
        return _JUDGEMENTS[StoreUnavailableError]
    if isinstance(error, OutcomeUnknownError) and error.__cause__ is None and error.token is not None:
        return found._replace(plain=None)  # the store's own verdict on a retry
    return found


def problem(
    kind: type[KeepstateError],
    status: int,
    detail: str,
    facts: Mapping[str, Any] | None = None,
    *,
    is_lost: bool = False,
) -> Problem:
    """Return a problem of a class of errors."""
    return Problem(
        kind=f"urn:keepstate:error:{kind.code}",
        title=kind.__name__,
        status=status,
        detail=detail,
        code=kind.code,
        retryable=kind.retryable,
        facts=facts or {},
        is_lost=is_lost,
    )


def unspoken_error(versions: Sequence[object]) -> UnsupportedError:
    """Return the error for a client that speaks none of this release's versions."""
    asked, spoken = (", ".join(map(str, each)) or "none" for each in (versions[:8], wire.spoken()))
    return UnsupportedError(
        f"The client speaks version {asked} of the store's messages, and the server {spoken}. Upgrade the "
        "older of the two, and open the store again."
    )


def _mark_lost(space: str, seen: Seen) -> MarkLostError:
    return MarkLostError(
        f"Space {space!r} does not have revision {seen.revision} as the client saw it.",
        space=space,
        revision=seen.revision,
    )


def _names_in(call: wire.Call) -> Sequence[str]:
    if isinstance(call, wire.SpaceCall):
        return (call.space,)
    if isinstance(call, wire.ApplyCall):
        return [batch.space for batch in call.batches]
    return call.spaces if isinstance(call, wire.ChangedCall | wire.HintsCall) else ()


def _with_losses(batch: Batch, losses: int | None) -> Batch:
    return batch if batch.losses == losses else msgspec.structs.replace(batch, losses=losses)


def _may_be_sealed(batch: Batch) -> bool:
    """Return whether a batch is too long, and would not be if its values were not encrypted."""
    values = [len(write.value) for write in batch.writes if type(write) is Put]
    most, least = limits.VALUE_BYTES + _SEALED_BYTES, limits.BATCH_BYTES - len(values) * _SEALED_BYTES
    return bool(values) and max(values) <= most and (max(values) > limits.VALUE_BYTES or sum(values) > least)


def _shortened(batch: Batch) -> Batch:
    writes = [
        msgspec.structs.replace(write, value=write.value[:-_SEALED_BYTES]) if type(write) is Put else write
        for write in batch.writes
    ]
    return msgspec.structs.replace(batch, writes=writes)
